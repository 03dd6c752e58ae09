"""The reason for which a recurrence stays as it is."""

from __future__ import annotations


class NotLiftableError(Exception):
    """A recurrence that is no LSTM, GRU or RNN; the message says why, for a note."""
