"""Random stacks of layers over time, each with the expected answer: does it couple time steps?

The layers are drawn from a table. A row emits nodes, and says whether its layer looks at steps that are not
there yet, or at all of them; nothing here asks the analysis under test.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

__all__ = ["LAYERS", "LOOKS_AHEAD", "Stack", "differences", "looks_ahead", "random_stack", "with_every_step"]

FEATURES = 6


@dataclasses.dataclass
class Stack:
    """A model over time.

    Attributes:
        model: The model; its first input is over time.
        time: The axis of time of the first input.
        couples: The layers that look ahead or at all steps.
        stride: Frames of the input for one in the end.
        layers: The names of all layers.
    """

    model: onnx.ModelProto
    time: int
    couples: list[str]
    stride: int
    layers: list[str]

    @property
    def gives_last(self) -> bool:
        """True if the output is the last step alone."""
        return self.layers[-1] == "last step"


class _Builder:
    """Emit layers; the value at hand is ``[batch, time, features]``."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.couples: list[str] = []
        self.layers: list[str] = []
        self.stride = 1
        self.is_short = False
        self.static: tuple[int | None, int | None] = (None, None)
        self.counter = 0

    def name(self, what: str) -> str:
        self.counter += 1
        return f"{what}_{self.counter}"

    def constant(self, array: Any, what: str = "c") -> str:
        name = self.name(what)
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) * 0.5).astype(np.float32), "w")

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64), "i")

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=self.name(op_type), **attributes))
        return names[0] if outputs == 1 else names


Layer = Callable[[_Builder, str], str]
LAYERS: dict[str, tuple[Layer, bool]] = {}
"""Each layer, and whether it couples steps in a way that no state can carry."""


def _layer(couples: bool = False) -> Callable[[Layer], Layer]:
    def enter(function: Layer) -> Layer:
        LAYERS[function.__name__.strip("_")] = (function, couples)
        return function

    return enter


def _recurrent(b: _Builder, x: str, direction: str) -> str:
    kind = ["LSTM", "GRU", "RNN"][b.rng.integers(3)]
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    dirs = 2 if direction == "bidirectional" else 1
    units = FEATURES // dirs
    first = b.op("Transpose", x, perm=[1, 0, 2])
    inputs = [first, b.weights(dirs, gates * units, FEATURES), b.weights(dirs, gates * units, units)]
    inputs.append(b.weights(dirs, 2 * gates * units) if b.rng.random() < 0.7 else "")
    start = b.rng.integers(4)
    if start:
        inputs += ["", *[_initial(b, first, dirs, units, int(start))] * (1 if kind != "LSTM" else 2)]
    extra = {"linear_before_reset": int(b.rng.integers(2))} if kind == "GRU" else {}
    y = b.op(kind, *inputs, hidden_size=units, direction=direction, **extra)
    if dirs == 1 and b.rng.random() < 0.5:
        return b.op("Transpose", b.op("Squeeze", y, b.ints(1)), perm=[1, 0, 2])
    swapped = b.op("Transpose", y, perm=[2, 0, 1, 3])
    return b.op("Reshape", swapped, b.ints(0, 0, -1))


def _initial(b: _Builder, x: str, dirs: int, units: int, kind: int) -> str:
    batch = b.static[0]
    if kind == 1 and batch is not None:
        return b.constant(np.zeros((dirs, batch, units), np.float32), "zeros")
    rows = b.op("Gather", b.op("Shape", x), b.ints(1), axis=0)
    shape = b.op("Concat", b.ints(dirs), rows, b.ints(units), axis=0)
    if kind == 2:
        return b.op("Expand", b.constant(np.full((1, 1, 1), 0.25, np.float32)), shape)
    return b.op("ConstantOfShape", shape)


@_layer()
def _forward(b: _Builder, x: str) -> str:
    return _recurrent(b, x, "forward")


@_layer(couples=True)
def _reverse(b: _Builder, x: str) -> str:
    return _recurrent(b, x, "reverse")


@_layer(couples=True)
def _bidirectional(b: _Builder, x: str) -> str:
    return _recurrent(b, x, "bidirectional")


@_layer()
def _over_features(b: _Builder, x: str) -> str:
    """Return a bidirectional recurrence over the features, with time folded into the batch."""
    rows = b.op("Reshape", x, b.ints(-1, FEATURES, 1))
    steps = b.op("Transpose", rows, perm=[1, 0, 2])
    y = b.op("GRU", steps, b.weights(2, 3, 1), b.weights(2, 3, 1), hidden_size=1, direction="bidirectional")
    total = b.op("ReduceSum", y, b.ints(1), keepdims=0)
    back = b.op("Transpose", total, perm=[1, 0, 2])
    shape = b.op("Shape", x)
    return b.op("Reshape", back, shape)


@_layer()
def _linear(b: _Builder, x: str) -> str:
    return b.op("Add", b.op("MatMul", x, b.weights(FEATURES, FEATURES)), b.weights(FEATURES))


@_layer()
def _gemm(b: _Builder, x: str) -> str:
    """Return a Gemm over rows, with batch and time folded together."""
    rows = b.op("Reshape", x, b.ints(-1, FEATURES))
    y = b.op("Gemm", rows, b.weights(FEATURES, FEATURES), b.weights(FEATURES), transB=1)
    return b.op("Reshape", y, b.op("Shape", x))


@_layer()
def _residual(b: _Builder, x: str) -> str:
    return b.op("Add", x, b.op("Tanh", _causal(b, x)))


@_layer()
def _gated(b: _Builder, x: str) -> str:
    first, second = b.op("Split", _linear(b, x), b.ints(3, 3), outputs=2, axis=-1)
    return b.op("Concat", b.op("Mul", first, b.op("Sigmoid", second)), second, axis=2)


@_layer()
def _norm(b: _Builder, x: str) -> str:
    scale, shift = b.weights(FEATURES), b.weights(FEATURES)
    return b.op("LayerNormalization", x, scale, shift, axis=-1)


@_layer()
def _softmax(b: _Builder, x: str) -> str:
    return b.op("Softmax", x, axis=-1)


@_layer()
def _batch_norm(b: _Builder, x: str) -> str:
    y = b.op("Transpose", x, perm=[0, 2, 1])
    positive = b.constant(np.full(FEATURES, 1.5, np.float32))
    y = b.op("BatchNormalization", y, b.weights(FEATURES), b.weights(FEATURES), b.weights(FEATURES), positive)
    return b.op("Transpose", y, perm=[0, 2, 1])


@_layer()
def _cumulative(b: _Builder, x: str) -> str:
    small = b.op("Mul", x, b.constant(np.float32(0.01)))
    return b.op("CumSum", small, b.ints(1), exclusive=int(b.rng.integers(2)))


@_layer()
def _shifted(b: _Builder, x: str) -> str:
    """Return each step sees the one before it: a first frame, and all but the last."""
    first = b.constant(np.full((1, 1, FEATURES), 0.5 * b.rng.integers(2), np.float32))
    if b.static[0] is None:
        rows = b.op("Gather", b.op("Shape", x), b.ints(0), axis=0)
        first = b.op("Expand", first, b.op("Concat", rows, b.ints(1, 1), axis=0))
    elif b.static[0] > 1:
        first = b.constant(np.full((b.static[0], 1, FEATURES), 0.25, np.float32))
    before = b.op("Slice", x, b.ints(0), b.ints(-1), b.ints(1))
    return b.op("Add", x, b.op("Concat", first, before, axis=1))


def _conv(b: _Builder, x: str, pads: tuple[int, int], dilation: int, kernel: int, stride: int = 1) -> str:
    channels = b.op("Transpose", x, perm=[0, 2, 1])
    group = FEATURES if b.rng.random() < 0.3 else 1
    y = b.op(
        "Conv",
        channels,
        b.weights(FEATURES, FEATURES // group, kernel),
        b.weights(FEATURES),
        pads=list(pads),
        dilations=[dilation],
        strides=[stride],
        group=group,
        kernel_shape=[kernel],
    )
    return b.op("Transpose", y, perm=[0, 2, 1])


def _causal(b: _Builder, x: str) -> str:
    kernel, dilation = int(b.rng.integers(1, 5)), int(b.rng.integers(1, 4))
    front = dilation * (kernel - 1)
    form = b.rng.integers(3)
    if form == 0:
        return _conv(b, x, (front, 0), dilation, kernel)
    if form == 1:
        return _conv(b, b.op("Pad", x, b.ints(0, front, 0, 0, 0, 0)), (0, 0), dilation, kernel)
    y = _conv(b, x, (front, front), dilation, kernel)
    return b.op("Slice", y, b.ints(0), b.ints(-front), b.ints(1)) if front else y


_layer()(_causal)


@_layer()
def _pooled(b: _Builder, x: str) -> str:
    channels = b.op("Transpose", x, perm=[0, 2, 1])
    pool = "MaxPool" if b.rng.random() < 0.5 else "AveragePool"
    extra = {"count_include_pad": 1} if pool == "AveragePool" else {}
    y = b.op(pool, channels, kernel_shape=[3], pads=[2, 0], strides=[1], **extra)
    return b.op("Transpose", y, perm=[0, 2, 1])


@_layer()
def _strided(b: _Builder, x: str) -> str:
    b.stride *= 2
    return _conv(b, x, (2, 0), 1, 3, 2)


@_layer(couples=True)
def _centred(b: _Builder, x: str) -> str:
    return _conv(b, x, (1, 1), 1, 3)


@_layer(couples=True)
def _reduced(b: _Builder, x: str) -> str:
    return b.op("Sub", x, b.op("ReduceMean", x, axes=[1], keepdims=1))


@_layer(couples=True)
def _attention(b: _Builder, x: str) -> str:
    scores = b.op("Softmax", b.op("MatMul", x, b.op("Transpose", x, perm=[0, 2, 1])), axis=-1)
    return b.op("MatMul", scores, x)


@_layer(couples=True)
def _over_time_softmax(b: _Builder, x: str) -> str:
    return b.op("Softmax", x, axis=1)


@_layer(couples=True)
def _flipped(b: _Builder, x: str) -> str:
    return b.op("Slice", x, b.ints(-1), b.ints(-(2**62)), b.ints(1), b.ints(-1))


@_layer(couples=True)
def _instance_norm(b: _Builder, x: str) -> str:
    y = b.op("Transpose", x, perm=[0, 2, 1])
    y = b.op("InstanceNormalization", y, b.weights(FEATURES), b.weights(FEATURES))
    return b.op("Transpose", y, perm=[0, 2, 1])


@_layer(couples=True)
def _next_step(b: _Builder, x: str) -> str:
    later = b.op("Slice", x, b.ints(1), b.ints(2**62), b.ints(1))
    return b.op("Pad", later, b.ints(0, 0, 0, 0, 1, 0))


LOOKS_AHEAD = {"centred", "next_step"}
"""Layers that couple a step with the next ones alone, so that a delay would do."""


def random_stack(seed: int) -> Stack:
    """Return a stack of one to five layers, of which at least one is a recurrence."""
    rng = np.random.default_rng(seed)
    b = _Builder(rng)
    batch = [None, 1, 3][rng.integers(3)]
    length = [None, None, 40][rng.integers(3)]
    b.static = batch, length
    carried = [name for name, (_, couples) in LAYERS.items() if not couples]
    coupling = [name for name, (_, couples) in LAYERS.items() if couples]
    names = ["forward", *rng.choice(carried, rng.integers(0, 5))]
    if rng.random() < 0.4:
        names.append(rng.choice(coupling))
    rng.shuffle(names)
    is_time_first = rng.random() < 0.4
    x = b.op("Transpose", "x", perm=[1, 0, 2]) if is_time_first else "x"
    for name in names:
        layer, couples = LAYERS[name]
        x = layer(b, x)
        if couples:
            b.couples.append(name)
    end = rng.integers(4)
    if end == 0:
        names.append("last step")
        x = b.op("Gather", x, b.constant(np.int64(-1)), axis=1)
    dims: list[Any] = ["batch" if batch is None else batch, "time" if length is None else length, FEATURES]
    if is_time_first:
        dims[0], dims[1] = dims[1], dims[0]
    b.nodes.append(helper.make_node("Identity", [x], ["y"]))
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (2 if end == 0 else 3))
    graph = helper.make_graph(
        b.nodes,
        "stack",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [out],
        b.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Stack(model, 0 if is_time_first else 1, b.couples, b.stride, [str(name) for name in names])


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def with_every_step(stack: Stack) -> Stack:
    """Return the stack with all steps as its output."""
    if not stack.gives_last:
        return stack
    model = onnx.ModelProto()
    model.CopyFrom(stack.model)
    nodes = model.graph.node
    nodes[-1].input[0] = nodes[-2].input[0]
    del nodes[-2]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3))
    return dataclasses.replace(stack, model=model, layers=stack.layers[:-1])


def looks_ahead(stack: Stack, seed: int, steps: int = 64, frames: int = 4) -> bool:
    """Return whether the input of the last output frames changes earlier output frames.

    Several: a sum without its last step, say, never sees that one.
    """
    rng = np.random.default_rng(seed)
    dims = stack.model.graph.input[0].type.tensor_type.shape.dim
    shape = [dim.dim_value or (steps if axis == stack.time else 2) for axis, dim in enumerate(dims)]
    x = rng.standard_normal(shape).astype(np.float32)
    other = x.copy()
    # The output is batch first, the input need not be.
    last = np.moveaxis(other, stack.time, 0)[-frames * stack.stride :]
    # Not by one number: a norm would take it away.
    last += 3 * rng.standard_normal(last.shape).astype(np.float32)
    session = _session(stack.model)
    first, second = (session.run(None, {"x": each})[0][:, :-frames] for each in (x, other))
    return not np.array_equal(first, second)


def differences(stack: Stack, streamed: onnx.ModelProto, seed: int, calls: int = 8) -> list[str]:
    """Check the stream as a caller uses it, following the metadata: two streams, whose chunks alternate."""
    properties = {entry.key: entry.value for entry in streamed.metadata_props}
    stream, states = (json.loads(properties[f"rnnlower.{key}"]) for key in ("stream", "state"))
    rng = np.random.default_rng(seed)
    shape = [d.dim_value or 2 for d in stack.model.graph.input[0].type.tensor_type.shape.dim]
    whole, chunks = _session(stack.model), _session(streamed)
    if stream["delay"]:
        calls += -(-stream["delay"] // stream["chunk"])
    if not stack.model.graph.input[0].type.tensor_type.shape.dim[stack.time].dim_value:
        shape[stack.time] = calls * stream["chunk"]
    inputs = [rng.standard_normal(shape).astype(np.float32) * scale for scale in (1.0, 30.0)]
    expected = [whole.run(None, {"x": x})[0] for x in inputs]
    names = [output.name for output in streamed.graph.output]
    sizes = {d.dim_param: shape[i] for i, d in enumerate(streamed.graph.input[0].type.tensor_type.shape.dim)}
    begin = {
        value.name: np.broadcast_to(
            np.asarray(stream["start"][value.name], np.float32),
            [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim],
        )
        for value in streamed.graph.input[1:]
    }
    carried = [dict(begin) for _ in inputs]
    found: list[list[np.ndarray]] = [[] for _ in inputs]
    for first in range(0, shape[stack.time] - stream["chunk"] + 1, stream["chunk"]):
        for number, x in enumerate(inputs):
            piece = x.take(range(first, first + stream["chunk"]), stack.time)
            outputs = dict(zip(names, chunks.run(None, {"x": piece, **carried[number]}), strict=True))
            carried[number] = {name: outputs[out] for out, name in states.items()}
            found[number].append(outputs["y"])
    problems = []
    for number, (y, pieces) in enumerate(zip(expected, found, strict=True)):
        joined = pieces[-1]
        if "y" in stream["outputs"]:
            axis = stream["outputs"]["y"]
            late = stream["delay"] * pieces[0].shape[axis] // stream["chunk"]
            joined = np.concatenate(pieces, axis)
            joined = joined.take(range(late, joined.shape[axis]), axis)
            if late or shape[stack.time] % stream["chunk"]:
                # The stream has not come to the end of the sequence.
                y = y.take(range(joined.shape[axis]), axis)
        elif shape[stack.time] % stream["chunk"]:
            continue
        if joined.shape != y.shape:
            problems.append(f"stream {number}: {joined.shape} instead of {y.shape}")
        elif not np.allclose(joined, y, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(y).max()))):
            problems.append(f"stream {number}: differs by {np.abs(joined - y).max():.3g}")
    return problems
