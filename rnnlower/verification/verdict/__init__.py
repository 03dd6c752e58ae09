"""The verdict: comparison, tolerance for rounding, and the place where a difference begins."""
