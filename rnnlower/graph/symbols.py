"""Symbolic sizes: what nodes compute from them, and the shapes that follow from them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import DATA_MOVEMENT, Array, Dims, evaluate

MOST_SIZES = 64
"""Most elements of a tensor whose elements are followed as sizes."""
SIZE_TYPES = (ir.DataType.INT32, ir.DataType.INT64)
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Div": operator.floordiv,
    "Mul": operator.mul,
    "Sub": operator.sub,
}


UNKNOWN = "unknown_size_"
"""Beginning of the names of symbols that stand for unknown sizes."""


def is_known(size: int | ir.SymbolicDim | None) -> bool:
    """Return whether a size is a number, or an expression of the model's own symbols."""
    return isinstance(size, int) or (size is not None and UNKNOWN not in str(size.value))


def compute_sizes(
    node: ir.Node, inputs: Sequence[Array | None], dims: Dims | None, opset: int
) -> Array | None:
    """Compute the output of a node from sizes: numbers, symbols, and ``None`` for an unknown size.

    Args:
        node: The node.
        inputs: The sizes in each of its inputs.
        dims: The shape of its first input.
        opset: The version of the default domain.
    """
    if node.domain:
        return None
    if node.op_type == "Shape" and dims is not None:
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(dims))
        return _array(dims[start:end])
    if any(sizes is None for sizes, value in zip(inputs, node.inputs, strict=True) if value is not None):
        return None
    if node.op_type in _ARITHMETIC:
        with_unknown = np.frompyfunc(lambda a, b: _apply(_ARITHMETIC[node.op_type], a, b), 2, 1)
        return np.asarray(with_unknown(*inputs), object)
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) in SIZE_TYPES:
        return inputs[0]
    return _move(node, inputs, opset) if node.op_type in DATA_MOVEMENT else None


def _move(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> Array | None:
    """Move sizes as the node moves elements: it is evaluated on their places in a table."""
    table: list[Any] = []
    given: list[Array | None] = []
    for index, sizes in enumerate(inputs):
        if sizes is not None and (index == 0 or node.op_type == "Concat"):
            given.append(np.arange(len(table), len(table) + sizes.size).reshape(sizes.shape))
            table += sizes.reshape(-1).tolist()
        elif sizes is not None and not all(isinstance(size, int) for size in sizes.flat):
            return None
        else:
            given.append(None if sizes is None else sizes.astype(np.int64))
    moved = evaluate(node, given, opset)
    return None if moved is None else np.asarray(_array(table)[moved[0]], object)


def shape_of_sizes(node: ir.Node, inputs: Sequence[Array | None], dims: Dims | None) -> Dims | None:
    """Return the shape of a node's output that sizes in its inputs determine."""
    if node.op_type == "Slice" and not node.domain and len(inputs) > 2:
        return _sliced(inputs[1:], dims)
    if node.op_type == "Range" and not node.domain and all(each is not None for each in inputs):
        start, limit, step = (each.reshape(-1)[0] for each in inputs if each is not None)
        return (limit,) if (start, step) == (0, 1) and not isinstance(limit, int) else None
    place = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1}.get("" if node.domain else node.op_type)
    sizes = None if place is None or place >= len(inputs) else inputs[place]
    if sizes is None or sizes.ndim != 1:
        return None
    wanted = sizes.tolist()
    if node.op_type == "Reshape":
        return _reshaped(wanted, dims, zero_copies=not node.attributes.get_int("allowzero", 0))
    if node.op_type == "Expand":
        if dims is None:
            return None
        rank = max(len(dims), len(wanted))
        pairs = zip(*([1] * (rank - len(each)) + list(each) for each in (dims, wanted)), strict=True)
        return tuple(_broadcast(*pair) for pair in pairs)
    return tuple(wanted)


def _sliced(given: Sequence[Array | None], dims: Dims | None) -> Dims | None:
    """Return the shape of a Slice; onnx leaves symbols at opset 10, whatever is cut off."""
    numbers = [None if each is None else each.reshape(-1).tolist() for each in given]
    starts, ends, axes, steps = numbers + [None] * (4 - len(numbers))
    axes = axes if len(given) > 2 else None if starts is None else [*range(len(starts))]
    if dims is None or axes is None or not all(isinstance(axis, int) for axis in axes):
        return None
    lengths = {len(each) for each in (starts, ends, axes, steps) if each is not None}
    if len(lengths) > 1 or not all(-len(dims) <= axis < len(dims) for axis in axes):
        return None  # The node is invalid, which is not for an analysis to tell.
    found: list[Any] = list(dims)
    for number, axis in enumerate(axes):
        size, found[axis] = dims[axis], None
        start, end, step = (
            each[number] if each else None for each in (starts, ends, steps or [1] * len(axes))
        )
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(step, int) or not step:
            continue
        is_whole = (start, step) == (0, 1) and end >= np.iinfo(np.int32).max
        is_turned = (start, step) == (-1, -1) and end <= np.iinfo(np.int32).min
        if isinstance(size, int):
            found[axis] = len(range(*slice(start, end, step).indices(size)))
        elif is_whole or is_turned:
            found[axis] = size
    return tuple(found)


def _reshaped(wanted: list[Any], dims: Dims | None, *, zero_copies: bool) -> Dims:
    copied = [axis for axis, size in enumerate(wanted) if size == 0 and zero_copies]
    given = list(dims or ()) + [None] * len(wanted)
    found = [given[axis] if axis in copied else size for axis, size in enumerate(wanted)]
    if -1 in wanted:
        whole, rest = (
            [size for axis, size in enumerate(sizes) if axis not in copied and size != -1]
            for sizes in (dims or (None,), wanted)
        )
        found[wanted.index(-1)] = _apply(operator.floordiv, _product(whole), _product(rest))
    return tuple(found)


def _broadcast(size: Any, other: Any) -> Any:
    if size == 1 or size == other:
        return other
    if other == 1:
        return size
    return next((each for each in (size, other) if isinstance(each, int)), None)


def _product(sizes: Sequence[Any]) -> Any:
    return functools.reduce(functools.partial(_apply, operator.mul), sizes, 1)


def _apply(operation: Callable[[Any, Any], Any], size: Any, other: Any) -> Any:
    """Apply an operation to two sizes; what cannot be expressed is unknown."""
    if size is None or other is None or (operation is operator.floordiv and other == 0):
        return None
    try:
        result = operation(size, other)
        text = result.value if isinstance(result, ir.SymbolicDim) else ""
        return int(text) if text and text.isdigit() else result
    except (ArithmeticError, TypeError, ValueError):
        return None


def _array(sizes: Sequence[Any]) -> Array:
    """Return sizes as a vector; NumPy alone would look into symbols."""
    array = np.empty(len(sizes), object)
    array[:] = sizes
    return array
