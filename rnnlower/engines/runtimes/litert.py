"""LiteRT (TensorFlow Lite) in float32, through onnx2tf."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from typing import Any

from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {
    "title": "LiteRT through onnx2tf",
    "packages": ("onnx2tf", "ai-edge-litert"),
    "tried": "2.6.9",
    "install": "pip install 'onnx2tf>=2.4' ai-edge-litert  # Python 3.12 or newer",
    "slow": True,
}
_OLDEST = (2, 4)
_made = ""


def load(model: Model) -> Run:
    import numpy as np

    tflite = f"{model.folder}/model.tflite"
    shutil.move(_converted(model), tflite)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(tflite)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    # Letters of the names may be replaced, but the order is the graph's.
    inputs = _paired(model.inputs, interpreter.get_input_details())
    outputs = _paired(model.outputs, interpreter.get_output_details())

    def run(feeds: Arrays) -> Arrays:
        results: Any = runner(**{theirs: feeds[name] for name, theirs in inputs})
        return {name: np.asarray(results[theirs]) for name, theirs in outputs}

    return run


def _converted(model: Model) -> str:
    """Return the path of the model that onnx2tf makes."""
    global _made
    os.environ["TQDM_DISABLE"] = "1"
    import onnx2tf

    if tuple(map(int, onnx2tf.__version__.split(".")[:2])) < _OLDEST:
        # On the way through TensorFlow, a Transpose is guessed from its sizes: wrong where two are equal.
        raise RuntimeError(f"onnx2tf {onnx2tf.__version__} is too old: it must be 2.4 or newer")
    # In one folder for all: it executes a copy of its schema from every new one.
    _made = _made or tempfile.mkdtemp()
    tflite = f"{_made}/model_float32.tflite"
    with contextlib.suppress(FileNotFoundError):
        os.remove(tflite)
    try:
        onnx2tf.convert(
            input_onnx_file_path=model.path,
            output_folder_path=_made,
            keep_shape_absolutely_input_names=list(model.inputs),
            output_signaturedefs=True,
            not_use_onnxsim=True,
            tflite_backend="flatbuffer_direct",
            non_verbose=True,
        )
    except Exception as error:
        if error.__cause__ is None:
            raise
        raise RuntimeError(f"{error} {error.__cause__}") from error
    return tflite


def _paired(names: Iterable[str], details: Iterable[Any]) -> list[tuple[str, str]]:
    return list(zip(names, (each["name"] for each in details), strict=True))
