"""Rewrites LSTM, GRU and RNN nodes of ONNX models into primitive operators.

    import rnnlower

    model = rnnlower.unroll("model.onnx", dims={"T": 16})
    assert rnnlower.verify("model.onnx", model)

What users call:

    unroll, scan, loop   every recurrent node becomes a straight line, one Scan or one Loop
    lower                what a runtime lacks or gets wrong becomes what it has
    check                what of a model a runtime does not run
    stream               one chunk of time a call, with the states as inputs and outputs
    convert              the model at another opset
    verify               do two models compute the same?
    inspect              the recurrent nodes
    probe                what a runtime gets right, as a target
    bench                times of the model as it is and lowered

`unroll.with_report(...)` gives a pair of the model and a `Report` of what was done; so do `scan`, `loop`,
`lower`, `stream` and `convert`. Models are paths, ModelProtos or ir.Models, and stay as they are. Errors
derive from `RnnLowerError`. `rnnlower.passes` holds the passes.
"""

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
    from rnnlower.passes.lowering_options import Report
    from rnnlower.probing import probe
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
    "Report",
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
    "probe",
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
    "rnnlower.passes.lowering_options": ("Report",),
    "rnnlower.probing": ("probe",),
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
    return [*__all__, "passes"]
