"""Symbolic sizes: what nodes compute from them, and the shapes that follow from them."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import DATA_MOVEMENT, Array, Dim, Dims, evaluate, max_output_bytes
from rnnlower.graph.slicing import AxisSlice, axis_slices

MAX_SIZES = 64
"""Most elements of a tensor whose elements are followed as sizes."""
SIZE_TYPES = (ir.DataType.INT32, ir.DataType.INT64)
FLOAT_SIZE_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

_LARGE = 1 << 24
"""A length at which the sign of an expression is that of long sequences."""


def dim_name(dim: Dim) -> str | None:
    """Return the name of a dimension; ``None`` for "?", which exporters write for unknown sizes."""
    return dim.value if isinstance(dim, ir.SymbolicDim) and dim.value != "?" else None


def _divide(size: Any, other: Any) -> Any:
    """Divide as Div does, which rounds toward zero; a symbol stands for a size of at least 0."""
    below = [_at(each, _LARGE) < 0 for each in (size, other)]
    if below[0] and _at(size, 0) > 0:
        return None  # It changes its sign.
    return -(-size // other) if below[0] != below[1] else size // other


def _at(size: Any, length: int) -> Any:
    """Return a size where all its symbols are the length."""
    if isinstance(size, ir.SymbolicDim):
        return size.evaluate(dict.fromkeys(size.free_symbols(), length))
    return size


def _is_equal(size: Any, other: Any) -> int | None:
    """Compare two sizes; PyTorch compares those of an Expand with -1."""
    if size == other:
        return 1
    symbols = [str(each.value) for each in (size, other) if isinstance(each, ir.SymbolicDim)]
    is_below = any(isinstance(each, int) and each < 0 for each in (size, other))
    # A difference may be negative.
    return 0 if not symbols or (is_below and "-" not in "".join(symbols)) else None


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Div": _divide,
    "Equal": _is_equal,
    "Mod": operator.mod,
    "Mul": operator.mul,
    "Neg": operator.neg,
    "Sub": operator.sub,
}


def _choose(condition: Any, first: Any, second: Any) -> Any:
    return None if condition is None else first if condition else second


def _in_int32(size: Any) -> Any:
    """Return a size, or ``None`` for a number that is another one in int32, such as an end that means all."""
    return None if isinstance(size, int) and not -(1 << 31) <= size < 1 << 31 else size


UNKNOWN = "unknown_size_"
"""Beginning of the names of symbols that stand for unknown sizes."""

_NAMED = "named_size_"
"""Beginning of symbols that stand for a name such as "batch size" in expressions; it follows in hex."""
_STANDS_FOR_NAME = re.compile(f"{_NAMED}(?:[0-9a-f]{{2}})+")


def is_known(size: Dim) -> bool:
    """Return whether a size is a number, or an expression of the model's own symbols."""
    return isinstance(size, int) or (size is not None and UNKNOWN not in str(size.value))


def compute_sizes(
    node: ir.Node, inputs: Sequence[Array | None], dims: Dims | None, dtype: ir.DataType | None, opset: int
) -> Array | None:
    """Compute the output of a node from sizes: numbers, symbols, and ``None`` for an unknown size.

    Args:
        inputs: The sizes in each of its inputs.
        dims: The shape of its first input.
        dtype: The type of its output. TorchScript counts the steps of a range that has a step in floats.
        opset: The version of the default domain.
    """
    if node.domain:
        return None
    if node.op_type == "Shape" and dims is not None:
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(dims))
        return _object_vector(dims[start:end])
    if any(sizes is None for sizes, value in zip(inputs, node.inputs, strict=True) if value is not None):
        return None
    operation = _ARITHMETIC.get(node.op_type)
    if node.op_type == "Mod" and node.attributes.get_int("fmod", 0) != 0:
        return None
    if node.op_type == "Div" and dtype not in SIZE_TYPES:
        is_exact = inputs[1] is not None and all(size in (1, -1) for size in inputs[1].flat)
        operation = operator.mul if is_exact else None
    if operation is not None:
        with_unknown = np.frompyfunc(functools.partial(combine_sizes, operation), len(inputs), 1)
        return np.asarray(with_unknown(*inputs), object)
    if node.op_type == "Where":
        return np.asarray(np.frompyfunc(_choose, 3, 1)(*inputs), object)
    if node.op_type == "Cast" and dtype == ir.DataType.INT32:
        return np.asarray(np.frompyfunc(_in_int32, 1, 1)(inputs[0]), object)
    if node.op_type == "Ceil" or (node.op_type == "Cast" and dtype in (*SIZE_TYPES, *FLOAT_SIZE_TYPES)):
        return inputs[0]
    return _move_sizes(node, inputs, opset) if node.op_type in {*DATA_MOVEMENT, "Expand"} else None


def _move_sizes(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> Array | None:
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
    moved = evaluate(node, given, opset) if max_output_bytes(node, given) <= 8 * MAX_SIZES else None
    return None if moved is None else np.asarray(_object_vector(table)[moved[0]], object)


def infer_symbolic_shape(
    node: ir.Node, inputs: Sequence[Array | None], shapes: Sequence[Dims | None]
) -> Dims | None:
    """Return the shape of a node's output if it follows from the sizes that its inputs hold or have.

    All outputs of a Split have it.
    """
    if not node.domain and node.op_type in _SHAPE_RULES:
        given = [dims for dims, value in zip(shapes, node.inputs, strict=True) if value is not None]
        found = None if None in given else _SHAPE_RULES[node.op_type](node, inputs, given)
        return found if any(isinstance(size, ir.SymbolicDim) for size in found or ()) else None
    dims = shapes[0] if shapes else None
    if node.op_type == "Slice" and not node.domain:
        cuts = axis_slices(node, dict(zip(node.inputs, inputs, strict=True)).get)
        return None if dims is None or cuts is None else _slice_shape(cuts, dims)
    if node.op_type == "Range" and not node.domain and all(each is not None and each.size for each in inputs):
        start, limit, step = (each.reshape(-1)[0] for each in inputs if each is not None)
        if isinstance(limit, int) or not isinstance(step, int) or step < 1:
            return None
        count = combine_sizes(lambda first, end: (end + step - 1 - first) // step, start, limit)
        return (max(count, 0) if isinstance(count, int) else count,)
    place = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1}.get("" if node.domain else node.op_type)
    sizes = None if place is None or place >= len(inputs) else inputs[place]
    if sizes is None or sizes.ndim != 1:
        return None
    wanted = sizes.tolist()
    if node.op_type == "Reshape":
        return reshaped(wanted, dims, zero_copies=not node.attributes.get_int("allowzero", 0))
    if node.op_type == "Expand":
        if dims is None:
            return None
        rank = max(len(dims), len(wanted))
        pairs = zip(*([1] * (rank - len(each)) + list(each) for each in (dims, wanted)), strict=True)
        return tuple(_broadcast_size(*pair) for pair in pairs)
    return tuple(wanted)


def _slice_shape(cuts: Sequence[AxisSlice], dims: Dims) -> Dims | None:
    """Return the shape of a Slice; onnx leaves symbols at opset 10, whatever is cut off."""
    if not all(-len(dims) <= cut.axis < len(dims) for cut in cuts):
        return None  # The node is invalid, which is not for an analysis to tell.
    found: list[Any] = list(dims)
    for start, end, axis, step in cuts:
        size, found[axis] = dims[axis], None
        if step == 1 and not isinstance(size, int):
            cut = combine_sizes(operator.sub, _clamp_position(end, size), _clamp_position(start, size))
            found[axis] = (
                max(cut, 0) if isinstance(cut, int) else cut if _offset_from_symbol(cut) is not None else None
            )
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(step, int) or not step:
            continue
        if isinstance(size, int):
            found[axis] = len(range(*slice(start, end, step).indices(size)))
        elif (start, step) == (-1, -1) and end <= np.iinfo(np.int32).min:
            found[axis] = size
    return tuple(found)


def _clamp_position(place: Any, size: Any) -> Any:
    """Return `place` within an axis of a symbolic size; ``None`` if that depends on the size."""
    offset = _offset_from_symbol(size)
    if isinstance(place, int):
        if place >= np.iinfo(np.int32).max:
            return size
        is_inside = offset is not None and abs(place) <= offset
        return None if not is_inside else place if place >= 0 else combine_sizes(operator.add, size, place)
    if place == size or _offset_from_symbol(place) is None:
        return place if place == size else None
    beyond, before = combine_sizes(operator.sub, place, size), combine_sizes(operator.sub, size, place)
    is_beyond, is_before = (isinstance(each, int) and each >= 0 for each in (beyond, before))
    return size if is_beyond else place if is_before else None


def _offset_from_symbol(size: Any) -> int | None:
    """Return how much a size is more than a symbol, which is at least 0; ``None`` for another expression."""
    if not isinstance(size, ir.SymbolicDim):
        return None
    try:
        symbols = size.free_symbols()
    except ValueError:  # A name that is no expression, such as "batch size", is a symbol.
        return 0
    rest = combine_sizes(operator.sub, size, ir.SymbolicDim(*symbols)) if len(symbols) == 1 else None
    return rest if isinstance(rest, int) and rest >= 0 else None


def _concat_shape(node: ir.Node, _: Sequence[Array | None], shapes: Sequence[Any]) -> Dims | None:
    axis, rank = node.attributes.get_int("axis", 1), len(shapes[0])
    if len({len(dims) for dims in shapes}) > 1 or not -rank <= axis < rank:
        return None
    sizes = [*zip(*shapes, strict=True)]
    found = [next((size for size in each if isinstance(size, int)), each[0]) for each in sizes]
    found[axis] = functools.reduce(functools.partial(combine_sizes, operator.add), sizes[axis])
    return tuple(found)


def _window_shape(node: ir.Node, _: Sequence[Array | None], shapes: Sequence[Any]) -> Dims | None:
    """Return the shape of what a window makes that moves over a signal: a convolution or a pool."""
    if any(len(shape) < 2 for shape in shapes[: 1 + node.op_type.startswith("Conv")]):
        return None  # Not valid.
    (batch, channels, *signal), *weights = shapes
    kernel: Sequence[Any] = node.attributes.get_ints("kernel_shape", ())
    if node.op_type.startswith("Conv"):
        channels, _, *kernel = weights[0]
    auto_pad, axes = node.attributes.get_string("auto_pad", "NOTSET"), len(kernel)
    strides, dilations = (node.attributes.get_ints(name) or (1,) * axes for name in ("strides", "dilations"))
    pads = node.attributes.get_ints("pads") or (0,) * 2 * axes
    if auto_pad == "VALID":
        pads = (0,) * 2 * axes
    is_valid = {*map(len, (signal, strides, dilations)), len(pads) / 2} == {axes}
    if not is_valid or node.attributes.get_int("ceil_mode", 0) != 0:
        return None
    if auto_pad.startswith("SAME"):
        if {*dilations} != {1} and node.op_type != "Conv":
            return None  # onnxruntime pads a pool as if its window had no dilations.
        # As many windows begin as if they were one element wide.
        kernel, pads = (1,) * axes, (0,) * 2 * axes
    places = zip(signal, kernel, pads[:axes], pads[axes:], strides, dilations, strict=True)
    return (batch, channels, *(combine_sizes(_count_windows, *each) for each in places))


def _count_windows(size: Any, width: Any, begin: int, end: int, stride: int, dilation: int) -> Any:
    """Return how many windows begin, one after each stride, that fit."""
    return (size + begin + end - (width - 1) * dilation - 1) // stride + 1


def _transposed_window_shape(node: ir.Node, _: Sequence[Array | None], shapes: Sequence[Any]) -> Dims | None:
    (batch, _channels, *signal), (_channels, channels, *kernel) = shapes[:2]
    axes = len(kernel)
    is_given = node.attributes.get_ints("output_shape") is not None
    if is_given or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    pads = node.attributes.get_ints("pads") or (0,) * 2 * axes
    more = node.attributes.get_ints("output_padding") or (0,) * axes
    strides, dilations = (node.attributes.get_ints(name) or (1,) * axes for name in ("strides", "dilations"))
    if {*map(len, (signal, more, strides, dilations)), len(pads) / 2} != {axes}:
        return None  # Not valid.
    places = zip(signal, kernel, pads[:axes], pads[axes:], more, strides, dilations, strict=True)
    found = (combine_sizes(_spread_size, *each) for each in places)
    groups = node.attributes.get_int("group", 1)
    return (batch, combine_sizes(operator.mul, channels, groups), *found)


def _spread_size(size: Any, width: Any, begin: int, end: int, more: int, stride: int, dilation: int) -> Any:
    """Return the size of windows that begin one after each stride, without what is cut off at both ends."""
    return (size - 1) * stride + (width - 1) * dilation + 1 + more - begin - end


def _col2im_shape(_: ir.Node, inputs: Sequence[Array | None], shapes: Sequence[Any]) -> Dims | None:
    image, block = inputs[1:3]
    if image is None or block is None or len(shapes[0]) != 3:
        return None
    channels = combine_sizes(operator.floordiv, shapes[0][1], _product(block.tolist()))
    return (shapes[0][0], channels, *image.tolist())


def _pad_shape(node: ir.Node, inputs: Sequence[Array | None], shapes: Sequence[Any]) -> Dims | None:
    dims, axes = shapes[0], len(shapes[0])
    pads = inputs[1] if len(inputs) > 1 else None
    if pads is None or pads.shape != (2 * axes,) or len(inputs) > 3:
        return None
    places = zip(dims, pads[:axes], pads[axes:], strict=True)
    return tuple(combine_sizes(lambda size, begin, end: size + begin + end, *each) for each in places)


def _split_shape(node: ir.Node, inputs: Sequence[Array | None], shapes: Sequence[Any]) -> Dims | None:
    dims, axis, parts = shapes[0], node.attributes.get_int("axis", 0), len(node.outputs)
    if "split" in node.attributes or not -len(dims) <= axis < len(dims):
        return None
    found, part = list(dims), combine_sizes(operator.floordiv, dims[axis], parts)
    found[axis] = part
    is_other = len(shapes) > 1 and (inputs[1] is None or any(size != part for size in inputs[1]))
    # Otherwise the last part is smaller, or the node fails at run time.
    is_equal = combine_sizes(operator.mul, part, parts) == dims[axis]
    return tuple(found) if is_equal and not is_other else None


def _tile_shape(_: ir.Node, inputs: Sequence[Array | None], shapes: Sequence[Any]) -> Dims | None:
    dims, repeats = shapes[0], inputs[1]
    if repeats is None or repeats.shape != (len(dims),):
        return None
    return tuple(combine_sizes(operator.mul, *pair) for pair in zip(dims, repeats, strict=True))


_SHAPE_RULES: Mapping[str, Callable[[ir.Node, Sequence[Array | None], Sequence[Any]], Dims | None]] = {
    "Col2Im": _col2im_shape,
    "Concat": _concat_shape,
    **dict.fromkeys(("Conv", "MaxPool", "AveragePool", "LpPool"), _window_shape),
    "ConvTranspose": _transposed_window_shape,
    "Pad": _pad_shape,
    "Split": _split_shape,
    "Tile": _tile_shape,
}
"""Operators whose output has sums, products or parts of sizes; onnx infers those of numbers only."""


def reshaped(wanted: Sequence[Any], dims: Sequence[Any] | None, *, zero_copies: bool) -> Dims:
    """Return the shape that a Reshape to the wanted sizes makes of one, as far as it is known."""
    copied = [axis for axis, size in enumerate(wanted) if size == 0 and zero_copies]
    given = list(dims or ()) + [None] * len(wanted)
    found = [given[axis] if axis in copied else size for axis, size in enumerate(wanted)]
    if -1 in wanted:
        whole, rest = (
            [size for axis, size in enumerate(sizes) if axis not in copied and size != -1]
            for sizes in (dims or (None,), wanted)
        )
        elements, size = _product(whole), _product(rest)
        fits = combine_sizes(operator.mod, elements, size) if isinstance(elements, int) else 0
        # A number that does not divide fails at run time.
        found[wanted.index(-1)] = None if fits else combine_sizes(operator.floordiv, elements, size)
    return tuple(found)


def _broadcast_size(size: Any, other: Any) -> Any:
    if size == 1 or size == other:
        return other
    if other == 1:
        return size
    return next((each for each in (size, other) if isinstance(each, int)), None)


def _product(sizes: Sequence[Any]) -> Any:
    return functools.reduce(functools.partial(combine_sizes, operator.mul), sizes, 1)


def combine_sizes(operation: Callable[..., Any], *sizes: Any) -> Any:
    """Apply an operation to sizes; what cannot be expressed is unknown."""
    if any(size is None for size in sizes) or (sizes[-1] == 0 and operation in (operator.floordiv, _divide)):
        return None
    try:
        result = operation(*map(_as_expression, sizes))
    except (ArithmeticError, TypeError, ValueError):
        return None
    text = (result.value or "") if isinstance(result, ir.SymbolicDim) else ""
    if _STANDS_FOR_NAME.fullmatch(text):
        return ir.SymbolicDim(bytes.fromhex(text.removeprefix(_NAMED)).decode())
    return int(text) if text.removeprefix("-").isdigit() else result


def _as_expression(size: Any) -> Any:
    """Return the size, or a symbol that stands for it if its name is no expression."""
    if not isinstance(size, ir.SymbolicDim) or not size.value:
        return size
    return size if _is_expression(size.value) else ir.SymbolicDim(_NAMED + size.value.encode().hex())


@functools.lru_cache(maxsize=1024)
def _is_expression(text: str) -> bool:
    try:
        return bool(ir.SymbolicDim(text).free_symbols())
    except ValueError:
        return False


def _object_vector(sizes: Sequence[Any]) -> Array:
    """Return sizes as a vector; NumPy alone would look into symbols."""
    array = np.empty(len(sizes), object)
    array[:] = sizes
    return array
