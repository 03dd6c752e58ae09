"""tract, the inference engine in Rust, through its Python package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {"title": "tract", "packages": ("tract",), "tried": "0.23.9"}


def load(model: Model) -> Run:
    import tract

    runnable = tract.onnx().load(model.path).into_model().into_runnable()
    inputs, outputs = list(model.inputs), list(model.outputs)

    def run(feeds: Arrays) -> Arrays:
        results = runnable.run([feeds[name] for name in inputs])
        return {name: result.to_numpy() for name, result in zip(outputs, results, strict=True)}

    return run
