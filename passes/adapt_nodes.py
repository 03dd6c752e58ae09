"""Replacement of nodes that a runtime refuses by equivalent ones.

Before::

    (float[2, 1] x) => (float[2] y) <int64[1] axes = {1}> {
        y = Squeeze (x, axes)
    }

After ``AdaptNodesPass(lambda node: node.op_type == "Squeeze")``::

    (float[2, 1] x) => (float[2] y) <int64[1] shape = {2}> {
        y = Reshape (x, shape)
    }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.knowledge import Knowledge
from rnnlower.graph.names import NameSource, names_in
from rnnlower.graph.splicing import replace_outputs
from rnnlower.graph.walk import walk
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import Condition, has_node

__all__ = ["ADAPTED", "AdaptNodesPass"]

_PAD_MODES = ("reflect", "edge", "wrap")
"""The names used by the standard and by NumPy."""


def _adapted_nodes_are_gone(model: ir.Model, adapting: AdaptNodesPass) -> bool:
    gone = [(op_type, name) for op_type, names in adapting.adapted.items() for name in names]
    return not any(has_node(model, op_type, name) for op_type, name in gone)


class AdaptNodesPass(Pass):
    """Expresses nodes by others of the same meaning where sizes are known and the others are taken.

    Flatten, Squeeze, Unsqueeze and a Reshape with ``allowzero`` become a plain Reshape, a Split becomes
    Slices; a Pad that repeats elements, or a Slice that goes backwards, becomes Gathers, and so does a
    ReverseSequence of whole sequences; a Gather by a constant of several axes becomes one by a vector, and a
    Reshape; a Tanh becomes a scaled Sigmoid of twice
    its input. A ScatterND into a constant box becomes Slices and Concats around the box.

    Args:
        refused: Whether a node must be replaced, and may not be emitted.

    Attributes:
        adapted: The names of the replaced nodes, by operator.
    """

    ENSURES: ClassVar[Sequence[Condition]] = (_adapted_nodes_are_gone,)

    def __init__(self, refused: Callable[[ir.Node], bool]) -> None:
        super().__init__()
        self._refused = refused
        self.adapted: dict[str, list[str]] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = [n for n, _ in walk(model.graph) if not n.domain and n.op_type in _FORMS and self._refused(n)]
        if nodes:
            writer = _Writer(model)
            for node in nodes:
                self._adapt(node, writer)
        return ir.passes.PassResult(model, modified=bool(self.adapted))

    def _adapt(self, node: ir.Node, writer: _Writer) -> None:
        made = _FORMS[node.op_type](writer, node)
        # The parts of a Split are written side by side; other forms transform one value step by step.
        results = made if node.op_type == "Split" else made[-1:]
        graph = node.graph
        if not made or graph is None or any(self._refused(each) for each in made):
            return
        self.adapted.setdefault(node.op_type, []).append(node.name or str(node.outputs[0].name))
        graph.insert_before(node, made)
        for each, old in zip(results, node.outputs, strict=True):
            writer.knowledge.inherit(each.outputs[0], old)
        replace_outputs(node, [each.outputs[0] for each in results])


class _Writer:
    """A builder of nodes with fresh names and constants."""

    def __init__(self, model: ir.Model) -> None:
        self.knowledge = Knowledge(model)
        self._names = NameSource(names_in(model))
        self._pool = InitializerPool(model, self._names)

    def node(self, like: ir.Node, op_type: str, value: ir.Value, numbers: np.ndarray, **more: int) -> ir.Node:
        """Make a node that reads a value and a vector of constants."""
        base = like.name or str(like.outputs[0].name)
        name = self._names.fresh(f"{base}/{op_type}")
        constant = self._pool.of(ir.Tensor(numbers), f"{name}/constant")
        return self._named(ir.node(op_type, [value, constant], more, name=name), value)

    def unary(self, like: ir.Node, op_type: str, value: ir.Value) -> ir.Node:
        """Make a node that reads a value."""
        name = self._names.fresh(f"{like.name or like.outputs[0].name}/{op_type}")
        return self._named(ir.node(op_type, [value], name=name), value)

    def slice(self, like: ir.Node, value: ir.Value, axis: int, start: int, end: int) -> ir.Node:
        """Make a Slice of one axis: bounds are inputs from opset 10 on, attributes before."""
        name = self._names.fresh(f"{like.name or like.outputs[0].name}/Slice")
        if self.knowledge.opset < 10:
            bounds = {"axes": [axis], "starts": [start], "ends": [end]}
            return self._named(ir.node("Slice", [value], bounds, name=name), value)
        inputs = [value, *(self._pool.integers((number,)) for number in (start, end, axis))]
        return self._named(ir.node("Slice", inputs, name=name), value)

    def concat(self, like: ir.Node, parts: Sequence[ir.Value], axis: int) -> ir.Node:
        """Return the parts one after the other along an axis."""
        name = self._names.fresh(f"{like.name or like.outputs[0].name}/Concat")
        return self._named(ir.node("Concat", parts, {"axis": axis}, name=name), parts[0])

    def _named(self, made: ir.Node, value: ir.Value) -> ir.Node:
        made.outputs[0].name = self._names.fresh(str(made.name))
        made.outputs[0].type = value.type
        return made


def _as_sigmoid(writer: _Writer, node: ir.Node) -> list[ir.Node]:
    value = node.inputs[0]
    type_ = writer.knowledge.type(value)
    if value is None or not isinstance(type_, ir.TensorType):
        return []
    two, one = np.array(2, type_.dtype.numpy()), np.array(1, type_.dtype.numpy())
    doubled = writer.node(node, "Mul", value, two)
    sigmoid = writer.unary(node, "Sigmoid", doubled.outputs[0])
    stretched = writer.node(node, "Mul", sigmoid.outputs[0], two)
    return [doubled, sigmoid, stretched, writer.node(node, "Sub", stretched.outputs[0], one)]


def _around_box(writer: _Writer, node: ir.Node) -> list[ir.Node]:
    value, _, updates = node.inputs
    known, indices = writer.knowledge.shape(value), writer.knowledge.constant(node.inputs[1])
    if value is None or updates is None or known is None or None in known or indices is None:
        return []
    shape = [size for size in known if size is not None]
    box = _box(indices, shape)
    if box is None or node.attributes.get_string("reduction", "none") != "none":
        return []
    sizes = [end - start for start, end in box]
    made = [writer.node(node, "Reshape", updates, np.array([*sizes, *shape[len(box) :]], np.int64))]
    # From outside inwards: what lies before and behind the box on each axis that it does not fill.
    around = []
    for axis, (start, end) in enumerate(box):
        before, behind = [(0, start)] if start else [], [(end, shape[axis])] if end != shape[axis] else []
        if before or behind:
            parts = [writer.slice(node, value, axis, *each) for each in (*before, (start, end), *behind)]
            made += parts
            outs = [part.outputs[0] for part in parts]
            value = outs[len(before)]
            around.append((axis, outs[: len(before)], outs[len(before) + 1 :]))
    inner = made[0].outputs[0]
    for axis, first, last in reversed(around):
        made.append(writer.concat(node, [*first, inner, *last], axis))
        inner = made[-1].outputs[0]
    return made


def _box(indices: np.ndarray, shape: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return first and end of a box on each axis, if the indices are exactly the box, in order."""
    depth = indices.shape[-1]
    places = indices.reshape(-1, depth)
    if not places.size or depth > len(shape):
        return None
    places = np.where(places < 0, places + np.array(shape[:depth]), places)
    first, end = places.min(axis=0), places.max(axis=0) + 1
    whole = np.indices(tuple(end - first)).reshape(depth, -1).T + first
    if places.shape != whole.shape or not np.array_equal(places, whole):
        return None
    return [(int(start), int(stop)) for start, stop in zip(first, end, strict=True)]


def _as_reshape(writer: _Writer, node: ir.Node) -> list[ir.Node]:
    shape, value = writer.knowledge.shape(node.outputs[0]), node.inputs[0]
    if value is None or shape is None or None in shape or 0 in shape:
        return []
    return [writer.node(node, "Reshape", value, np.array(shape, np.int64))]


def _as_slices(writer: _Writer, node: ir.Node) -> list[ir.Node]:
    value, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    shapes = [writer.knowledge.shape(out) for out in node.outputs]
    sizes = [shape[axis] for shape in shapes if shape is not None]
    if value is None or None in sizes or len(sizes) < len(shapes):
        return []
    ends = np.cumsum(np.array(sizes, np.int64))
    return [
        writer.slice(node, value, axis, int(end - size), int(end))
        for end, size in zip(ends, sizes, strict=True)
    ]


def _as_gathers(writer: _Writer, node: ir.Node) -> list[ir.Node]:
    value = node.inputs[0]
    shape = writer.knowledge.shape(value)
    mode = node.attributes.get_string("mode", "constant")
    amounts = writer.knowledge.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    with_axes = len(node.inputs) > 3 and node.inputs[3] is not None
    if (
        value is None
        or shape is None
        or mode not in _PAD_MODES
        or amounts is None
        or with_axes
        or np.any(amounts < 0)
    ):
        return []
    made = []
    before, after = np.split(amounts, 2)
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        size = shape[axis]
        if not first and not last:
            continue
        if not size:
            return []
        indices = np.pad(np.arange(size), (int(first), int(last)), mode=mode)  # type: ignore[call-overload]
        made.append(writer.node(node, "Gather", value, indices.astype(np.int64), axis=axis))
        value = made[-1].outputs[0]
    return made


def _backwards(writer: _Writer, node: ir.Node) -> list[ir.Node]:
    value, shape = node.inputs[0], writer.knowledge.shape(node.inputs[0])
    bounds = [writer.knowledge.constant(each) for each in node.inputs[1:]]
    known = [each.tolist() for each in bounds if each is not None]
    if value is None or shape is None or len(known) < 4:
        return []
    made = []
    for start, end, axis, step in zip(*known, strict=True):
        size = shape[axis]
        if not size:
            return []
        made.append(writer.node(node, "Gather", value, np.arange(size)[start:end:step], axis=axis))
        value = made[-1].outputs[0]
    return made


def _reversed_whole(writer: _Writer, node: ir.Node) -> list[ir.Node]:
    """Only if the lengths are the whole sequence, as Keras writes a layer that goes backwards."""
    value, lengths = node.inputs[0], writer.knowledge.constant(node.inputs[1])
    axis = node.attributes.get_int("time_axis", 0)
    shape = writer.knowledge.shape(value)
    size = None if shape is None else shape[axis]
    if value is None or lengths is None or size is None or np.any(lengths != size):
        return []
    return [writer.node(node, "Gather", value, np.arange(size)[::-1].copy(), axis=axis)]


def _by_vector(writer: _Writer, node: ir.Node) -> list[ir.Node]:
    shape, value = writer.knowledge.shape(node.outputs[0]), node.inputs[0]
    indices = writer.knowledge.constant(node.inputs[1])
    if value is None or shape is None or None in shape or 0 in shape or indices is None or indices.ndim < 2:
        return []
    axis = node.attributes.get_int("axis", 0)
    gathered = writer.node(node, "Gather", value, indices.reshape(-1), axis=axis)
    return [gathered, writer.node(node, "Reshape", gathered.outputs[0], np.array(shape, np.int64))]


_FORMS: Mapping[str, Callable[[_Writer, ir.Node], list[ir.Node]]] = {
    "Flatten": _as_reshape,
    "Gather": _by_vector,
    "Pad": _as_gathers,
    "Reshape": _as_reshape,
    "ReverseSequence": _reversed_whole,
    "ScatterND": _around_box,
    "Slice": _backwards,
    "Split": _as_slices,
    "Squeeze": _as_reshape,
    "Tanh": _as_sigmoid,
    "Unsqueeze": _as_reshape,
}

ADAPTED = frozenset(_FORMS)
"""The operators that have another form."""
