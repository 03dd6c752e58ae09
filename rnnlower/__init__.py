"""A tool that rewrites the LSTM, GRU and RNN nodes of ONNX models into primitive operators.

    import rnnlower

    model = rnnlower.unroll("model.onnx", dims={"T": 16})
    assert rnnlower.verify("model.onnx", model)

The functions:

    unroll, scan, loop   turn every recurrent node into straight-line ops, one Scan or one Loop
    lower                rewrite what a runtime lacks or computes wrong into operators that it has
    check                list the nodes of a model that a runtime cannot run
    lift                 turn Loops, Scans and straight lines into recurrent nodes
    stream               process one chunk of time per call, with the states as inputs and outputs
    pad                  make a static model that is right for every length up to a maximum
    calibrate            write calibration data and ranges, with the states of step models carried
    quantize             compute the recurrence in integers, with one scale for each role
    convert              move a model to another opset
    verify               compare the numbers that two models compute
    inspect              list the recurrent nodes
    engines              list what can run models on this machine
    probe                find out what a runtime computes correctly, and write it as a target
    bench                time a model as it is and lowered

`unroll.with_report(...)` returns a pair: the model and a `Report` of what was done. So do `scan`, `loop`,
`lower`, `stream` and `convert`. Models are paths, ModelProtos or ir.Models, and are never changed. Errors
derive from `RnnLowerError`. `rnnlower.passes` holds the passes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnnlower.api import calibrate as calibrate
    from rnnlower.api import check as check
    from rnnlower.api import convert as convert
    from rnnlower.api import inspect as inspect
    from rnnlower.api import lift as lift
    from rnnlower.api import loop as loop
    from rnnlower.api import lower as lower
    from rnnlower.api import pad as pad
    from rnnlower.api import quantize as quantize
    from rnnlower.api import scan as scan
    from rnnlower.api import stream as stream
    from rnnlower.api import unroll as unroll
    from rnnlower.benchmarking.bench_result import BenchResult as BenchResult
    from rnnlower.benchmarking.bench_result import BenchVariant as BenchVariant
    from rnnlower.benchmarking.benchmark import bench as bench
    from rnnlower.engines.catalog import engines as engines
    from rnnlower.errors import InvalidModelError as InvalidModelError
    from rnnlower.errors import OpsetError as OpsetError
    from rnnlower.errors import OptionError as OptionError
    from rnnlower.errors import RnnLowerError as RnnLowerError
    from rnnlower.errors import UnsupportedModelError as UnsupportedModelError
    from rnnlower.errors import UnverifiableError as UnverifiableError
    from rnnlower.errors import VerificationError as VerificationError
    from rnnlower.inspection import RecurrentNode as RecurrentNode
    from rnnlower.passes.reports import Report as Report
    from rnnlower.probing import probe as probe
    from rnnlower.targets.misfits import Misfit as Misfit
    from rnnlower.verification import OutputComparison as OutputComparison
    from rnnlower.verification import VerificationResult as VerificationResult
    from rnnlower.verification import verify as verify

_HOMES = {
    "rnnlower.api": "calibrate check convert inspect lift loop lower pad quantize scan stream unroll",
    "rnnlower.benchmarking.benchmark": "bench",
    "rnnlower.benchmarking.bench_result": "BenchResult BenchVariant",
    "rnnlower.errors": (
        "InvalidModelError OpsetError OptionError RnnLowerError UnsupportedModelError UnverifiableError "
        "VerificationError"
    ),
    "rnnlower.inspection": "RecurrentNode",
    "rnnlower.passes.reports": "Report",
    "rnnlower.engines.catalog": "engines",
    "rnnlower.probing": "probe",
    "rnnlower.targets.misfits": "Misfit",
    "rnnlower.verification": "OutputComparison VerificationResult verify",
}
"""The public names of each module."""

__all__ = sorted(" ".join(_HOMES.values()).split())


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the command line starts without onnx and onnxruntime."""
    if name in ("engines", "passes"):
        return importlib.import_module(f"rnnlower.{name}")
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "passes"]
