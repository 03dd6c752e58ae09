"""Operators whose axes, sizes or pads moved from attributes to inputs, and others that only move data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import FLOATS
from rnnlower.opset.adapters import Adapter, Row, nonnegative_axes, nonnegative_axis, only, positive_axis
from rnnlower.opset.step import VersionStep

COMPUTED_SIZES = (
    "before opset 14 a size of 0 in a Reshape is the input's: computed sizes are assumed to be positive"
)
NO_NEGATIVE_AXES = "the older spec has no negative axes"


def to_input(name: str) -> Adapter:
    """Return an adapter that makes the list attribute `name` the second input."""

    def adapter(step: VersionStep) -> None:
        attribute = step.node.attributes.get(name)
        if attribute is None:
            return
        step.drop(name)
        if attribute.is_ref():
            # Inside a function the list may be a parameter: a Constant can carry the reference.
            reference = ir.RefAttr("value_ints", str(attribute.ref_attr_name), ir.AttributeType.INTS)
            step.set_input(1, step.emit_reference(reference))
        else:
            step.set_input(1, step.const(list(attribute.value)))

    adapter.__doc__ = f"`{name}` becomes an input"
    return adapter


def to_attribute(name: str, required: bool = False) -> Adapter:
    """Return an adapter that makes a constant second input the list attribute `name`."""

    def adapter(step: VersionStep) -> None:
        value = step.input(1)
        if value is None and not required:
            return
        reason = f"its input {name!r} is not constant, the older version needs an attribute"
        step.set(name, step.known_ints(value, reason))
        step.set_inputs(step.required_input(0))

    adapter.__doc__ = f"`{name}`, if it is constant, becomes an attribute"
    return adapter


def reshape_up(step: VersionStep) -> None:
    """The attribute `shape` became an input."""
    step.set_inputs(step.required_input(0), step.const(list(step.take("shape") or ())))


def reshape_14_down(step: VersionStep) -> None:
    """allowzero=1 equals 0 if each size is positive, or the input's; computed ones are assumed to be."""
    if not step.take("allowzero") or _keeps_zeros(step):
        return
    values = step.ints(step.input(1))
    if values is None:
        step.note(COMPUTED_SIZES)
    elif 0 in values:
        step.refuse("allowzero=1 with a shape that contains a zero")


def _keeps_zeros(step: VersionStep) -> bool:
    before, after = step.shape(step.input(0)), step.shape(step.output(0))
    return after is not None and all(
        (isinstance(size, int) and size > 0)
        or (before is not None and axis < len(before) and before[axis] == size != ir.SymbolicDim(None))
        for axis, size in enumerate(after)
    )


def unsqueeze_axes_down(step: VersionStep) -> None:
    """Axes count from the front, in the shape of the result."""
    axes = step.attr("axes")
    if any(axis < 0 for axis in axes):
        rank = step.known_rank(step.required_input()) + len(axes)
        step.set("axes", [positive_axis(step, axis, rank) for axis in axes])


def split_1_up(step: VersionStep) -> None:
    """The sizes could be an input once."""
    sizes = step.input(1)
    if sizes is not None:
        step.set(
            "split", step.known_ints(sizes, "its input 'split' is not constant, Split-2 needs an attribute")
        )
        step.set_inputs(step.required_input(0))


def split_18_up(step: VersionStep) -> None:
    """Split-18 needs `num_outputs` if no sizes are given."""
    if step.input(1) is None:
        step.set("num_outputs", len(step.node.outputs))


def split_18_down(step: VersionStep) -> None:
    """Split-18 lets the last part be smaller; before, all parts are equal."""
    count = step.take("num_outputs")
    if count is None or step.input(1) is not None:
        return
    axis, shape = step.attr("axis"), step.shape(step.required_input())
    size = shape[axis] if shape is not None else None
    if isinstance(size, int):
        part = -(-size // count)
        if part * (count - 1) > size:
            step.refuse(
                f"num_outputs is {count}, and axis {axis} has {size} elements: parts of {part} leave "
                "less than none for the last",
                "give the sizes of the parts as an input",
            )
        if size % count:
            step.set_inputs(
                step.required_input(), step.const([part] * (count - 1) + [size - part * (count - 1)])
            )
        return
    if step.target < 13:
        step.refuse(f"the size of axis {axis} is not known, so the parts may not be equal")
    step.set_inputs(step.required_input(), _part_sizes(step, axis, count))


def _part_sizes(step: VersionStep, axis: int, count: int) -> ir.Value:
    size = step.op("Gather", step.op("Shape", step.required_input()), step.const([axis]), axis=0)
    part = step.op("Div", step.op("Add", size, step.const([count - 1])), step.const([count]))
    last = step.op("Sub", size, step.op("Mul", part, step.const([count - 1])))
    return step.op("Concat", *[part] * (count - 1), last, axis=0)


def slice_up(step: VersionStep) -> None:
    """Starts, ends and axes became inputs."""
    starts, ends, axes = (step.take(name) for name in ("starts", "ends", "axes"))
    bounds = step.const(list(starts)), step.const(list(ends))
    step.set_inputs(step.required_input(), *bounds, None if axes is None else step.const(list(axes)))


def slice_axes_down(step: VersionStep) -> None:
    """Slice-10 has no negative axes."""
    axes = step.ints(step.input(3))
    if axes is None:
        if step.input(3) is not None and step.target >= 10:
            step.refuse("its axes are not constant and may be negative")
        return
    if any(axis < 0 for axis in axes):
        # The spec wants starts, ends and axes of one type.
        dtype = step.known_dtype(step.required_input(3))
        step.set_input(3, step.const([positive_axis(step, axis) for axis in axes], dtype))


def slice_down(step: VersionStep) -> None:
    """Constant starts, ends and axes become attributes; there are no steps."""
    found: dict[str, list[int]] = {}
    for position, name in enumerate(("starts", "ends", "axes", "steps"), start=1):
        value = step.input(position)
        if value is not None:
            found[name] = step.known_ints(value, f"its {name} are not constant, Slice-1 needs an attribute")
    if any(each != 1 for each in found.pop("steps", [])):
        step.refuse("Slice-1 has no steps")
    for name, values in found.items():
        step.set(name, values)
    step.set_inputs(step.required_input())


def concat_up(step: VersionStep) -> None:
    """The description of Concat-1 states that the default axis is 1."""
    if step.attr("axis") is None:
        step.set("axis", 1)


def tile_up(step: VersionStep) -> None:
    """Tile-1 repeats along one axis, Tile-6 needs a number for each."""
    x, tiles, axis = step.required_input(0), step.required_input(1), step.required_input(2)
    tiles = step.cast(step.reshape(tiles, [1]), ir.DataType.INT64)
    known = step.ints(axis)
    rank = step.rank(x)
    if rank is not None:
        place = step.cast(step.reshape(axis, [1]), ir.DataType.INT64)
        hit = step.op("Equal", step.const(range(rank)), place, broadcast=1)
        extra = step.op("Sub", tiles, step.const([1]))
        chosen = step.op("Mul", step.cast(hit, ir.DataType.INT64), extra, broadcast=1)
        step.set_inputs(x, step.op("Add", chosen, step.const([1]), broadcast=1))
        return
    if known is None or known[0] < 0:
        step.refuse("neither the rank of its input nor its axis is known", "declare the shape in value_info")
    shape = step.op("Shape", x)
    zeros = step.op("Mul", shape, step.const([0]), broadcast=1)
    ones = step.op("Add", zeros, step.const([1]), broadcast=1)
    head = step.slice(ones, 0, known[0])
    tail = step.slice(ones, known[0] + 1, 2**31 - 1)
    step.set_inputs(x, step.op("Concat", head, tiles, tail, axis=0))


def tile_down(step: VersionStep) -> None:
    """Tile-1 repeats along one axis: one node per axis."""
    repeats = step.known_ints(step.required_input(1), "its repeats are not constant")
    x = step.required_input()
    dtype = step.known_dtype(x)
    for axis, count in enumerate(repeats):
        if count != 1:
            x = step.op("Tile", x, step.const(count, dtype), step.const(axis, dtype))
    step.replace(x)


def pad_2_up(step: VersionStep) -> None:
    """`paddings` was renamed `pads`."""
    step.set("pads", step.take("paddings"))


def pad_2_down(step: VersionStep) -> None:
    """`pads` was called `paddings`."""
    step.set("paddings", step.take("pads"))


def pad_11_up(step: VersionStep) -> None:
    """Pads and value became inputs; the value has the input's type."""
    pads, value = step.take("pads"), step.take("value")
    x, sizes = step.required_input(), step.const(list(pads))
    step.set_inputs(x, sizes, step.const(value, step.known_dtype(x)) if value else None)


def pad_11_down(step: VersionStep) -> None:
    """Constant pads and value become attributes; the value is a float32."""
    pads = step.known_ints(step.required_input(1), "its pads are not constant, Pad-2 needs an attribute")
    value = step.input(2)
    if value is not None:
        number = float(step.known_number(value, "its value is not constant, Pad-2 needs an attribute"))
        if float(np.float32(number)) != number and not np.isnan(number):
            step.refuse(f"its value {number!r} is not a float32, which Pad-2 needs")
        step.set("value", number)
    step.set("pads", pads)
    step.set_inputs(step.required_input())


def pad_18_down(step: VersionStep) -> None:
    """Pads of some axes become pads of all."""
    if step.input(3) is None:
        return
    rank = step.known_rank(step.required_input())
    axes = [axis % rank for axis in step.known_ints(step.input(3), "its axes are not constant")]
    step.set_inputs(step.required_input(), _all_pads(step, axes, rank), step.input(2))


def _all_pads(step: VersionStep, axes: Sequence[int], rank: int) -> ir.Value:
    pads, count = step.ints(step.required_input(1)), len(axes)
    positions = [*axes, *(axis + rank for axis in axes)]
    if pads is not None:
        full = [0] * (2 * rank)
        for position, pad in zip(positions, pads, strict=True):
            full[position] = pad
        return step.const(full)
    # pads[i] goes to positions[i]: gather from the pads with a zero appended.
    source = step.op("Concat", step.required_input(1), step.const([0]), axis=0)
    order = [positions.index(place) if place in positions else 2 * count for place in range(2 * rank)]
    return step.op("Gather", source, step.const(order), axis=0)


def shape_down(step: VersionStep) -> None:
    """A part of the shape is a Slice of the whole."""
    start, end = step.take("start") or 0, step.take("end")
    if start or end is not None:
        last = 2**31 - 1 if end is None else end
        step.wrap_output(0, lambda shape: step.slice(shape, start, last))


def top_k_10_up(step: VersionStep) -> None:
    """k became an input."""
    step.set_inputs(step.required_input(), step.const([step.take("k")]))


def top_k_10_down(step: VersionStep) -> None:
    """A constant k becomes an attribute."""
    reason = "its k is not constant, TopK-1 needs an attribute"
    step.set("k", step.known_number(step.required_input(1), reason))
    step.set_inputs(step.required_input())


def top_k_11_down(step: VersionStep) -> None:
    """The smallest values are the largest of the negated ones; results are always sorted."""
    largest = step.attr("largest")
    step.drop("largest", "sorted")
    axis = step.attr("axis")
    # The older version's default is the last axis, written as -1; it has no other negative axis.
    if axis != -1:
        step.set("axis", positive_axis(step, axis))
    if not largest:
        if step.dtype(step.required_input()) not in FLOATS:
            step.refuse("TopK-10 only selects the largest values, and these cannot be negated")
        step.set_input(0, step.op("Neg", step.required_input()))
        step.wrap_output(0, lambda values: step.op("Neg", values))


def constant_of_shape_down(step: VersionStep) -> None:
    """ConstantOfShape becomes an Expand of the value to the shape."""
    value = step.attr("value")
    tensor = ir.tensor([0.0], ir.DataType.FLOAT) if value is None else value
    scalar = step.const(tensor.numpy().reshape(()), tensor.dtype)
    step.replace(step.op("Expand", scalar, step.required_input()))


ROWS = (
    Row("Reshape", 1, 5, "the shape became an input", reshape_up, to_attribute("shape", required=True)),
    Row("Reshape", 13, 14, "allowzero is new", down=reshape_14_down),
    Row("Squeeze", 1, 11, NO_NEGATIVE_AXES, down=nonnegative_axes),
    Row("Squeeze", 11, 13, "the axes became an input", to_input("axes"), to_attribute("axes")),
    Row("Unsqueeze", 1, 11, NO_NEGATIVE_AXES, down=unsqueeze_axes_down),
    Row(
        "Unsqueeze", 11, 13, "the axes became an input", to_input("axes"), to_attribute("axes", required=True)
    ),
    Row("Split", 1, 2, "the sizes could be an input", up=split_1_up),
    Row("Split", 2, 11, NO_NEGATIVE_AXES, down=nonnegative_axis),
    Row("Split", 11, 13, "the sizes became an input", to_input("split"), to_attribute("split")),
    Row("Split", 13, 18, "equal parts need num_outputs", split_18_up, split_18_down),
    Row("Slice", 1, 10, "starts, ends and axes became inputs, steps are new", slice_up, slice_down),
    Row("Slice", 10, 11, NO_NEGATIVE_AXES, down=slice_axes_down),
    Row("Concat", 1, 4, "the axis had a default", up=concat_up),
    Row("Concat", 4, 11, NO_NEGATIVE_AXES, down=nonnegative_axis),
    Row("Flatten", 9, 11, NO_NEGATIVE_AXES, down=nonnegative_axis),
    Row("Tile", 1, 6, "one axis and its count became a count for each axis", tile_up, tile_down),
    Row("Pad", 1, 2, "paddings was renamed", pad_2_up, pad_2_down),
    Row("Pad", 2, 11, "pads and value became inputs", pad_11_up, pad_11_down),
    Row("Pad", 13, 18, "axes are new", down=pad_18_down),
    only("Pad", 18, 19, "the mode wrap is new", "mode", ("constant", "reflect", "edge"), "a new mode"),
    Row("Shape", 13, 15, "start and end are new", down=shape_down),
    Row("TopK", 1, 10, "k became an input", top_k_10_up, top_k_10_down),
    Row("TopK", 10, 11, "largest and sorted are new", down=top_k_11_down),
    Row("ConstantOfShape", 0, 9, "new in 9; Expand does the same", down=constant_of_shape_down),
)
