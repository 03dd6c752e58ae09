"""The rewriting of a model of whole sequences to one of a chunk per call."""
