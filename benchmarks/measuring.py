"""Common parts of the benchmarks: models of one recurrent node, sessions, times, exponents."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import rnnlower

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZES = ((50, 1, 64, 64), (100, 1, 128, 128), (100, 1, 256, 256), (100, 16, 256, 256), (100, 1, 512, 512))
"""Time steps, batch, input_size, hidden_size."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A recurrent operator with the attributes that matter to its speed."""

    op_type: str
    attributes: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    masked: bool = False
    peepholes: bool = False


VARIANTS = {
    "lstm": Variant("LSTM"),
    "bilstm": Variant("LSTM", {"direction": "bidirectional"}),
    "gru_linear": Variant("GRU", {"linear_before_reset": 1}),
    "gru": Variant("GRU", {"linear_before_reset": 0}),
    "rnn": Variant("RNN"),
    "bigru": Variant("GRU", {"direction": "bidirectional", "linear_before_reset": 1}),
    "lstm_lens": Variant("LSTM", masked=True),
    "lstm_clip": Variant("LSTM", {"clip": 3.0}),
    "lstm_peepholes": Variant("LSTM", peepholes=True),
}


def recurrent(
    variant: Variant,
    size: Sequence[int],
    *,
    dynamic: Collection[str] = (),
    opset: int = 17,
    outputs: Sequence[str] = ("Y", "Y_h", "Y_c"),
) -> onnx.ModelProto:
    """Return a model of one recurrent node of these sizes, with random constant weights.

    ``dynamic`` names the sizes of X that stay symbols: ``T`` for the time steps, ``N`` for the batch.
    """
    time_steps, batch, input_size, hidden_size = size
    rng = np.random.default_rng(0)
    directions = 2 if variant.attributes.get("direction") == "bidirectional" else 1
    rows = GATES[variant.op_type] * hidden_size
    shapes = {
        "W": (directions, rows, input_size),
        "R": (directions, rows, hidden_size),
        "B": (directions, 2 * rows),
    }
    if variant.peepholes:
        shapes["P"] = (directions, 3 * hidden_size)
    constants = [
        numpy_helper.from_array(
            (rng.standard_normal(shape) / math.sqrt(hidden_size)).astype(np.float32), name
        )
        for name, shape in shapes.items()
    ]
    names = ["X", "W", "R", "B", "lens" if variant.masked else "", "", "", "P" if variant.peepholes else ""]
    while not names[-1]:
        names.pop()
    outputs = outputs if variant.op_type == "LSTM" else outputs[:2]
    node = helper.make_node(
        variant.op_type, names, list(outputs), name="cell", hidden_size=hidden_size, **variant.attributes
    )
    dims = ["T" if "T" in dynamic else time_steps, "N" if "N" in dynamic else batch, input_size]
    inputs = [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, dims)]
    if variant.masked:
        inputs.append(helper.make_tensor_value_info("lens", onnx.TensorProto.INT32, dims[1:2]))
    # As models have them: OpenCV's own LSTM runs three times as fast where the shape of an output is open.
    state = [directions, dims[1], hidden_size]
    results = [
        helper.make_tensor_value_info(
            name, onnx.TensorProto.FLOAT, [dims[0], *state] if name == "Y" else state
        )
        for name in outputs
    ]
    graph = helper.make_graph([node], "graph", inputs, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def feeds_of(variant: Variant, size: Sequence[int]) -> dict[str, np.ndarray]:
    """Return random inputs."""
    time_steps, batch, input_size, _ = size
    rng = np.random.default_rng(1)
    feeds = {"X": rng.standard_normal((time_steps, batch, input_size)).astype(np.float32)}
    if variant.masked:
        feeds["lens"] = np.full(batch, time_steps, np.int32)
    return feeds


def lowered(model: onnx.ModelProto, form: str) -> onnx.ModelProto:
    """Return the model in a form: ``native``, or a strategy and an unroll factor (``scan:4``)."""
    if form == "native":
        return model
    strategy, _, factor = form.partition(":")
    options = {"unroll_factor": int(factor)} if factor else {}
    result = getattr(rnnlower, strategy)(model, **options)
    assert isinstance(result, onnx.ModelProto)
    return result


def session(model: onnx.ModelProto | bytes, threads: int = 1) -> ort.InferenceSession:
    """Return a session as a user makes it, on `threads` threads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def latency(
    model: onnx.ModelProto | bytes,
    feeds: Mapping[str, np.ndarray],
    budget: float = 0.3,
    clock: Callable[[], float] = time.thread_time,
    threads: int = 1,
) -> list[float]:
    """Return seconds of each of 10 to 50 runs, in a session that is alone and warm.

    On one thread the thread's own processor time is the latency without what other processes take away.
    """
    own = session(model, threads)
    for _ in range(3):
        own.run(None, feeds)
    times: list[float] = []
    while len(times) < 10 or (len(times) < 50 and sum(times) < budget):
        start = clock()
        own.run(None, feeds)
        times.append(clock() - start)
    return times


def ratios(
    models: Mapping[str, onnx.ModelProto],
    feeds: Mapping[str, np.ndarray],
    rounds: int,
    clock: Callable[[], float] = time.thread_time,
    threads: int = 1,
) -> dict[str, Any]:
    """Run times in those of the model ``native``; the models take turns, with a session each in every round.

    Two ratios: of the tenth percentiles of all runs, which is what the graph costs when nothing is in its
    way (``ratios``), and of their medians (``medians``).
    """
    contents = {name: model.SerializeToString() for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contents}
    for _ in range(rounds):
        for name, content in contents.items():
            seconds[name] += latency(content, feeds, budget=0.1, clock=clock, threads=threads)

    def over_native(quantile: float) -> dict[str, float]:
        native = np.quantile(seconds["native"], quantile)
        return {
            name: round(float(np.quantile(own, quantile) / native), 3)
            for name, own in seconds.items()
            if name != "native"
        }

    return {
        "native_ms": round(1e3 * float(np.quantile(seconds["native"], 0.1)), 4),
        "ratios": over_native(0.1),
        "medians": over_native(0.5),
    }


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent of growth: the slope of a line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def best_of(
    function: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of the fastest of several calls."""
    times = []
    for _ in range(repeats):
        start = clock()
        function()
        times.append(clock() - start)
    return min(times)
