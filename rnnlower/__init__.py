"""Rewrites LSTM, GRU and RNN nodes of ONNX models into primitive operators."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnnlower.api import check, convert, inspect, loop, lower, scan, stream, unroll
    from rnnlower.benchmarking import BenchResult, BenchVariant, bench
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
    from rnnlower.targets.fit import Misfit
    from rnnlower.verification import OutputComparison, VerificationResult, verify

__all__ = [
    "BenchResult",
    "BenchVariant",
    "InvalidModelError",
    "Misfit",
    "OpsetError",
    "OptionError",
    "OutputComparison",
    "RecurrentNode",
    "RnnLowerError",
    "UnsupportedModelError",
    "UnverifiableError",
    "VerificationError",
    "VerificationResult",
    "bench",
    "check",
    "convert",
    "inspect",
    "loop",
    "lower",
    "scan",
    "stream",
    "unroll",
    "verify",
]

_HOMES = {
    "rnnlower.api": ("check", "convert", "inspect", "loop", "lower", "scan", "stream", "unroll"),
    "rnnlower.benchmarking": ("BenchResult", "BenchVariant", "bench"),
    "rnnlower.errors": tuple(name for name in __all__ if name.endswith("Error")),
    "rnnlower.inspection": ("RecurrentNode",),
    "rnnlower.targets.fit": ("Misfit",),
    "rnnlower.verification": ("OutputComparison", "VerificationResult", "verify"),
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is: the command line starts without onnx and onnxruntime."""
    if name in ("engines", "passes"):
        return importlib.import_module(f"rnnlower.{name}")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
