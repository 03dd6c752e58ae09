"""Analysis of time in a graph: the time axis of every value, by a rule for each operator."""
