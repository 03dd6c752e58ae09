"""LiteRT (TensorFlow Lite) in float32, through onnx2tf."""

from __future__ import annotations

import glob
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {
    "title": "LiteRT through onnx2tf",
    "packages": ("ai-edge-litert", "onnx2tf", "tensorflow"),
    "tried": "2.1.0",
    "install": "pip install onnx2tf ai-edge-litert tensorflow tf_keras",
    "slow": True,
}


def load(model: Model) -> Run:
    import os

    import numpy as np
    import onnx2tf

    # Without it, onnx2tf would download this file to test its result.
    sample = np.random.default_rng(0).random((20, 128, 128, 3), np.float32)
    np.save(f"{model.folder}/calibration_image_sample_data_20x128x128x3_float32.npy", sample)
    os.chdir(model.folder)
    # It overwrites its input, which is a copy. In this process: the import takes longer than its work.
    onnx2tf.convert(
        input_onnx_file_path=model.path,
        output_folder_path=model.folder,
        keep_shape_absolutely_input_names=list(model.inputs),
        output_signaturedefs=True,
        not_use_onnxsim=True,
        non_verbose=True,
    )
    made = glob.glob(f"{model.folder}/*float32.tflite")
    if not made:
        raise RuntimeError("onnx2tf wrote no float32 model")
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(made[0])
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    inputs = _matched(list(model.inputs), list(runner.get_input_details()))
    outputs = _matched(list(model.outputs), list(runner.get_output_details()))

    def run(feeds: Arrays) -> Arrays:
        results: Any = runner(**{theirs: feeds[name] for name, theirs in inputs.items()})
        return {name: np.asarray(results[theirs]) for name, theirs in outputs.items()}

    return run


def _matched(names: list[str], theirs: list[str]) -> dict[str, str]:
    """Map the graph's names to onnx2tf's, which may replace letters; else the order counts."""
    plain = {re.sub(r"\W", "_", name).strip("_"): name for name in theirs}
    found = [plain.get(re.sub(r"\W", "_", name).strip("_")) for name in names]
    return {name: each or theirs[index] for index, (name, each) in enumerate(zip(names, found, strict=True))}
