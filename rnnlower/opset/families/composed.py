"""Operators that came later, composed of older ones, and operators whose later attributes became inputs."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.einsum import write_einsum
from rnnlower.graph.symbols import dim_name
from rnnlower.opset.adapters import Row, expand_to_body, only, positive_axis, refuse_unless
from rnnlower.opset.step import VersionStep

WITH_BODY = {
    11: "DynamicQuantizeLinear Range",
    12: "Celu GreaterOrEqual LessOrEqual NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    14: "HardSwish",
    17: "BlackmanWindow HammingWindow HannWindow",
    18: "CenterCropPad GroupNormalization Mish",
    20: "AffineGrid Gelu",
    23: "Attention RMSNormalization RotaryEmbedding",
    24: "Swish",
    27: "CausalConvWithState LinearAttention",
    28: "SwiGLU",
}
NEW_MODES = {"bilinear": "linear", "bicubic": "cubic"}
OLD_MODES = {new: old for old, new in NEW_MODES.items()}


def grid_sample_up(step: VersionStep) -> None:
    """The modes were renamed when other ranks were added."""
    mode = step.attr("mode")
    step.set("mode", NEW_MODES.get(mode, mode))


def grid_sample_down(step: VersionStep) -> None:
    """GridSample-16 takes images only, and calls the modes bilinear and bicubic."""
    if step.known_rank(step.required_input()) != 4:
        step.refuse("GridSample-16 takes tensors of rank 4 only")
    mode = step.attr("mode")
    step.set("mode", OLD_MODES.get(mode, mode))


def roi_align_up(step: VersionStep) -> None:
    """RoiAlign-10 did not shift by half a pixel; the new default does."""
    step.set("coordinate_transformation_mode", "output_half_pixel")


def roi_align_down(step: VersionStep) -> None:
    """RoiAlign-10 corresponds to output_half_pixel."""
    refuse_unless("coordinate_transformation_mode", ("output_half_pixel",), "RoiAlign-10 does not shift")(
        step
    )
    step.drop("coordinate_transformation_mode")


def dft_up(step: VersionStep) -> None:
    """The axis became an input, and its default changed."""
    step.set_inputs(step.required_input(), step.input(1), step.const(step.take("axis")))


def dft_down(step: VersionStep) -> None:
    """A constant axis becomes an attribute."""
    reason = "its axis is not constant, DFT-17 needs an attribute"
    axis = -2 if step.input(2) is None else step.known_number(step.required_input(2), reason)
    step.set("axis", positive_axis(step, axis))
    step.set_inputs(step.required_input(), step.input(1))


def layer_normalization_down(step: VersionStep) -> None:
    """onnx's definition cannot broadcast Scale and B: they get the sizes of the normalized axes first."""
    axis, rank = step.attr("axis"), step.rank(step.required_input())
    axes = -axis if axis < 0 else None if rank is None else rank - axis
    for position in (1, 2):
        value = step.input(position)
        sizes = None if value is None else step.shape(value)
        if sizes is not None and axes is not None and len(sizes) > axes:
            step.refuse(f"its input {position} has more axes than are normalized")
        # Sizes above 1 are not broadcast.
        whole = sizes is not None and len(sizes) == axes and all(isinstance(n, int) and n > 1 for n in sizes)
        if value is not None and not whole:
            step.set_input(
                position, step.op("Expand", value, step.op("Shape", step.required_input(), start=axis))
            )
    expand_to_body(step)


def attention_24_down(step: VersionStep) -> None:
    """Valid keys and short masks are new; onnx's definition expresses them in older operators."""
    if step.input(6) is not None or _mask_may_be_short(step):
        expand_to_body(step)


def _mask_may_be_short(step: VersionStep) -> bool:
    mask, past = step.input(3), step.input(4)
    if mask is None:
        return False
    given = [mask, step.required_input(1), *([] if past is None else [past])]
    shapes = [shape for value in given if (shape := step.shape(value)) is not None]
    if len(shapes) < len(given):
        return True
    # Keys are (batch, sequence, hidden) or (batch, heads, sequence, size): the sequence is last but one.
    length, sizes = shapes[0][-1], [shape[-2] for shape in shapes[1:]]
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) == len(sizes):
        return length != sum(numbers)
    return len(sizes) > 1 or dim_name(length) is None or length != sizes[0]


def attention_25_down(step: VersionStep) -> None:
    """Windows are new; onnx's definition expresses them in older operators."""
    if step.attr("left_window_size") != -1 or step.attr("right_window_size") != -1:
        expand_to_body(step)


def get_element_down(step: VersionStep) -> None:
    """OptionalGetElement of a value that is not optional is the value itself."""
    if not _optional(step, step.required_input()):
        step.replace(step.op("Identity", step.required_input()))


def has_element_down(step: VersionStep) -> None:
    """OptionalHasElement of a value that is not optional is true."""
    value = step.input(0)
    if value is None or not _optional(step, value):
        step.replace(step.const(value is not None, ir.DataType.BOOL))


def _optional(step: VersionStep, value: ir.Value) -> bool:
    types = step.conversion.types.types(value)
    if not types:
        step.refuse(f"the type of {value.name!r} is not known", "declare it in value_info")
    return any(each.startswith("optional") for each in types)


def einsum_down(step: VersionStep) -> None:
    """Two operands with one common index that is summed become a MatMul; anything else Mul and ReduceSum."""
    step.opset = 11
    equation = str(step.attr("equation"))
    operands = [value for value in step.node.inputs if value is not None]
    result = write_einsum(step, equation, operands, [step.rank(each) for each in operands])
    if result is None:
        step.refuse(
            f"equation {equation!r}: an ellipsis of unknown rank, or an index twice in one operand, "
            "is not supported"
        )
    step.replace(result)


def expand_down(step: VersionStep) -> None:
    """Tile repeats the dimensions of size 1, after the tensor got as many dimensions as the result."""
    x, shape = step.required_input(0), step.required_input(1)
    step.opset = 7
    rank, sizes = step.known_rank(x), step.static_shape(shape)
    if sizes is None:
        step.refuse(f"the number of elements of {shape.name!r} is not known", "declare it in value_info")
    missing = sizes[0] - rank
    if missing > 0:
        x = step.with_axes("Unsqueeze", x, range(missing))
    elif missing < 0:
        shape = step.op("Concat", step.const([1] * -missing), shape, axis=0)
    if rank == missing == 0:
        step.replace(step.op("Identity", x))
        return
    single = step.cast(step.op("Equal", step.op("Shape", x), step.const([1])), ir.DataType.INT64)
    extra = step.op("Mul", single, step.op("Sub", shape, step.const([1])))
    step.replace(step.op("Tile", x, step.op("Add", extra, step.const([1]))))


def trilu_down(step: VersionStep) -> None:
    """The elements on the other side of the diagonal become zero."""
    x, k = step.required_input(0), step.input(1)
    dtype = step.known_dtype(x)
    step.opset = 13
    shape = step.op("Shape", x)
    numbers = []
    for place in (-2, -1):
        size = step.op("Gather", shape, step.const(place), axis=0)
        numbers.append(step.op("Range", step.const(0), size, step.const(1)))
    offset = step.op("Sub", numbers[1], step.with_axes("Unsqueeze", numbers[0], [1]))
    diagonal = step.const(0) if k is None else step.reshape(k, [])
    outside = step.op("Less" if step.attr("upper") else "Greater", offset, diagonal)
    if dtype == ir.DataType.BOOL:
        # onnxruntime's Where takes no bools.
        step.replace(step.op("And", step.op("Not", outside), x))
    else:
        step.replace(step.op("Where", outside, step.const(0, dtype), x))


def depth_to_space_down(step: VersionStep) -> None:
    """The older version is DCR; CRD is a Transpose of six dimensions."""
    if step.attr("mode") == "DCR":
        return
    x, block = step.required_input(), step.attr("blocksize")
    shape = step.op("Shape", x)
    batch, channels, height, width = (step.slice(shape, axis, axis + 1) for axis in range(4))
    size = step.const([block])
    depth = step.op("Div", channels, step.const([block * block]))
    six = step.reshape(x, step.op("Concat", batch, depth, size, size, height, width, axis=0))
    turned = step.op("Transpose", six, perm=[0, 1, 4, 2, 5, 3])
    sides = (step.op("Mul", height, size), step.op("Mul", width, size))
    step.replace(step.reshape(turned, step.op("Concat", batch, depth, *sides, axis=0)))


ROWS = (
    Row("Einsum", 0, 12, "new in 12; MatMul, or Mul and ReduceSum, do the same", down=einsum_down),
    *(
        Row(names, 0, since, f"new in {since}; its definition does the same", down=expand_to_body)
        for since, names in WITH_BODY.items()
    ),
    Row(
        "LayerNormalization",
        0,
        17,
        "new in 17; its definition does the same once Scale and B have all sizes",
        down=layer_normalization_down,
    ),
    Row(
        "GridSample", 16, 20, "the modes were renamed, other ranks are new", grid_sample_up, grid_sample_down
    ),
    Row(
        "RoiAlign", 10, 16, "coordinates are shifted by half a pixel by default", roi_align_up, roi_align_down
    ),
    Row("DFT", 17, 20, "the axis became an input with another default", dft_up, dft_down),
    only("SpaceToDepth", 13, 28, "modes are new", "mode", ("DCR",), "the older version is DCR"),
    Row("Attention", 23, 24, "nonpad_kv_seqlen is new", down=attention_24_down),
    Row("Attention", 24, 25, "windows are new", down=attention_25_down),
    Row("OptionalGetElement", 15, 18, "accepts values that are not optional, too", down=get_element_down),
    Row("OptionalHasElement", 15, 18, "accepts values that are not optional, too", down=has_element_down),
    Row("Expand", 0, 8, "new in 8; Tile does the same if the ranks are known", down=expand_down),
    Row("Trilu", 0, 14, "new in 14; a comparison of positions does the same", down=trilu_down),
    Row("DepthToSpace", 1, 11, "the mode CRD is new", down=depth_to_space_down),
)
