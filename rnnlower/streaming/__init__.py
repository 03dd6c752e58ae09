"""Analysis of the time axis in a graph: where it goes, and what to carry from chunk to chunk."""
