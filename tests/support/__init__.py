"""Shared test code: the oracle, the judge, random models, planted faults."""
