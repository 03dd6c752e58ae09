"""tract, the inference engine in Rust, through its Python package."""

from __future__ import annotations

from rnnlower.engines.child import Model, Run

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
    return model.in_order(lambda arrays: [result.to_numpy() for result in runnable.run(arrays)])
