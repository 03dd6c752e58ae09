"""Rewrites LSTM, GRU and RNN nodes of ONNX models into primitive operators."""

from __future__ import annotations

from rnnlower.api import convert, inspect, loop, scan, unroll
from rnnlower.errors import (
    InvalidModelError,
    OpsetError,
    OptionError,
    RnnLowerError,
    UnsupportedModelError,
    UnverifiableError,
    VerificationError,
)
from rnnlower.inspection import RecurrentNode
from rnnlower.verification import OutputComparison, VerificationResult, verify

__all__ = [
    "InvalidModelError",
    "OpsetError",
    "OptionError",
    "OutputComparison",
    "RecurrentNode",
    "RnnLowerError",
    "UnsupportedModelError",
    "UnverifiableError",
    "VerificationError",
    "VerificationResult",
    "convert",
    "inspect",
    "loop",
    "scan",
    "unroll",
    "verify",
]
