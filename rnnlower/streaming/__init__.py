"""Rewriting of a model of whole sequences into one that takes a chunk per call."""
