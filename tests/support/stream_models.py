"""Random stacks of layers over time, each with the expected answer: does it couple time steps?

The layers are drawn from the table in `stream_layers.py`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.helper import tensor_dtype_to_np_dtype

from support.sessions import session
from support.stream_layers import FEATURES, LAYERS, Builder


@dataclasses.dataclass
class Stack:
    """A model over time.

    Attributes:
        model: The model; its first input is over time.
        time: The axis of time of the first input.
        couples: The layers that look ahead or at all steps.
        stride: Frames of the input for one in the end.
        multiple: The steps of which a chunk must be a multiple.
        least: Frames that the first chunk must have.
        layers: The names of all layers.
    """

    model: onnx.ModelProto
    time: int
    couples: list[str]
    stride: int
    layers: list[str]
    multiple: int = 1
    least: int = 1

    def fits(self, chunk: int) -> bool:
        """Return whether a chunk has all the frames that a layer takes at a time."""
        return chunk % self.multiple == 0 and chunk >= self.least

    @property
    def gives_last(self) -> bool:
        """True if the output is the last step alone."""
        return self.layers[-1] == "last step"


def random_stack(seed: int) -> Stack:
    """Return a stack of one to five layers, of which at least one is a recurrence."""
    rng = np.random.default_rng(seed)
    b = Builder(rng)
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
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return Stack(
        model,
        0 if is_time_first else 1,
        b.couples,
        b.stride,
        [str(name) for name in names],
        b.multiple,
        b.least,
    )


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


def looks_ahead(stack: Stack, seed: int, steps: int = 80, frames: int = 4) -> bool:
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
    whole = session(stack.model)
    first, second = (whole.run(None, {"x": each})[0][:, :-frames] for each in (x, other))
    return not np.array_equal(first, second)


def differences(stack: Stack, streamed: onnx.ModelProto, seed: int, calls: int = 8) -> list[str]:
    """Check the stream as a caller uses it, following the metadata: two streams, whose chunks alternate."""
    properties = {entry.key: entry.value for entry in streamed.metadata_props}
    stream, states = (json.loads(properties[f"rnnlower.{key}"]) for key in ("stream", "state"))
    rng = np.random.default_rng(seed)
    shape = [d.dim_value or 2 for d in stack.model.graph.input[0].type.tensor_type.shape.dim]
    whole, chunks = session(stack.model), session(streamed)
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
            np.asarray(
                stream["start"][value.name], tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            ),
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
