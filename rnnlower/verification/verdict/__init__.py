"""What counts as equal: comparison, tolerance for rounding, and where a difference begins."""
