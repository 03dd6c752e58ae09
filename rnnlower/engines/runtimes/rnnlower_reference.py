"""The NumPy evaluation that verification uses where onnxruntime has no kernel."""

from __future__ import annotations

from rnnlower.engines.child import Model, Run

ABOUT = {
    "title": "the NumPy reference",
    "packages": ("rnnlower",),
    "install": "it comes with rnnlower",
    "tried": "0.1.0",
}


def load(model: Model) -> Run:
    import onnx

    from rnnlower.engines.reference import Evaluator

    return Evaluator(onnx.load(model.path)).run
