"""Rewrites LSTM, GRU and RNN nodes of ONNX models into primitive operators."""

from __future__ import annotations

from rnnlower.api import loop, scan, unroll
from rnnlower.errors import (
    InvalidModelError,
    OpsetError,
    OptionError,
    RnnLowerError,
    UnsupportedModelError,
    UnverifiableError,
    VerificationError,
)

__all__ = [
    "InvalidModelError",
    "OpsetError",
    "OptionError",
    "RnnLowerError",
    "UnsupportedModelError",
    "UnverifiableError",
    "VerificationError",
    "loop",
    "scan",
    "unroll",
]
