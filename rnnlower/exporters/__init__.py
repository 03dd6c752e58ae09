"""Exporters of other frameworks that write lowered models. Each module needs its framework installed."""
