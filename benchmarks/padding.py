"""Measure what padding to a maximum costs at full length, relative to the source's time on onnxruntime.

python benchmarks/padding.py --json benchmarks/results/padding.json

One thread; the runs of source and result take turns, and the ratio is that of the medians. The source has the
length fixed, as the result has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import rnnlower

STEPS = 256
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
LSTM = 'y, h, c = LSTM <hidden_size = 128, direction = "bidirectional"> (i, W, R, B)'
JOIN = "t = Transpose <perm = [0, 2, 1, 3]> (y) n = Constant <value_ints = [0, 0, -1]> () r = Reshape (t, n)"
CONV = (
    "j = Transpose <perm = [1, 2, 0]> (x) k = Conv <pads = [1, 1]> (j, C, b) l = Relu (k) "
    "m = MaxPool <kernel_shape = [3], pads = [1, 1]> (l) o = Conv <pads = [2, 2], dilations = [2]> (m, C, b) "
    "i = Transpose <perm = [2, 0, 1]> (o)"
)
ATTENTION = (
    "a = Transpose <perm = [1, 0, 2]> (r) k2 = MatMul (a, P) k3 = Transpose <perm = [0, 2, 1]> (k2) "
    "s = MatMul (k2, k3) p = Softmax <axis = 2> (s) z = MatMul (p, k2)"
)
MODELS = {
    "tagger": ("float[T, 1, 64] z", f"i = Identity (x) {LSTM} {JOIN} z = MatMul (r, P)"),
    "convolutions, LSTM": ("float[T, 1, 64] z", f"{CONV} {LSTM} {JOIN} z = MatMul (r, P)"),
    "convolutions": ("float[T, 1, 64] i", CONV),
    "LSTM, mean": (
        "float[1, 256] z",
        f"i = Identity (x) {LSTM} {JOIN} z = ReduceMean <axes = [0], keepdims = 0> (r)",
    ),
    "LSTM, attention": ("float[1, T, 64] z", f"i = Identity (x) {LSTM} {JOIN} {ATTENTION}"),
    "final states": ("float[2, 1, 128] h", f"i = Identity (x) {LSTM}"),
}
SHAPES = {"W": (2, 512, 64), "R": (2, 512, 128), "B": (2, 1024), "C": (64, 64, 3), "b": (64,), "P": (256, 64)}


def made(name: str) -> onnx.ModelProto:
    """Return a model of an open length."""
    output, nodes = MODELS[name]
    model = onnx.parser.parse_model(f"{HEAD} main (float[T, 1, 64] x) => ({output}) {{ {nodes} }}")
    rng = np.random.default_rng(0)
    for weight, shape in SHAPES.items():
        if any(weight in node.input for node in model.graph.node):
            array = rng.normal(0, 0.1, shape).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, weight))
    return model


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def measure(name: str, repeats: int) -> dict[str, float]:
    """Return the medians in milliseconds of source and result, and their ratio."""
    source = made(name)
    padded = rnnlower.pad(source, max={"T": STEPS})
    for value in source.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = STEPS
    x = np.random.default_rng(1).normal(size=(STEPS, 1, 64)).astype(np.float32)
    runs = [(session(source), {"x": x}), (session(padded), {"x": x, "length": np.array([STEPS])})]
    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for kept, (run, feeds) in zip(times, runs, strict=True):
            begin = time.thread_time()
            run.run(None, feeds)
            kept.append(1000 * (time.thread_time() - begin))
    own, other = map(statistics.median, times)
    return {"source_ms": own, "padded_ms": other, "ratio": other / own}


def main() -> None:
    """Measure all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=101)
    arguments = parser.parse_args()
    results = {name: measure(name, arguments.repeats) for name in MODELS}
    for name, result in results.items():
        print(
            f"{name:20} {result['source_ms']:7.2f} ms {result['padded_ms']:7.2f} ms  x {result['ratio']:.2f}"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
