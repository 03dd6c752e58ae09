"""tract, the inference engine in Rust, through its Python package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {
    "title": "tract",
    "packages": ("tract",),
    "tried": "0.23.9",
    # Rational functions: against float64, Sigmoid is up to 4.77e-7 off and Tanh 5.96e-7, at the ends; there,
    # a closed gate is not 0.
    "activation_error": 6e-7,
}


def load(model: Model) -> Run:
    import tract

    runnable = tract.onnx().load(model.path).into_model().into_runnable()
    inputs, outputs = list(model.inputs), list(model.outputs)

    def run(feeds: Arrays) -> Arrays:
        results = runnable.run([feeds[name] for name in inputs])
        return {name: result.to_numpy() for name, result in zip(outputs, results, strict=True)}

    return run
