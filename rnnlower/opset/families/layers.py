"""Layers: pooling, convolution, normalization and Dropout, training and inference; LSTM, GRU and RNN.

The recurrent ones are of all versions (1, 3 for GRU only, 7, 14, 22), upward and downward.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.opset.adapters import Row, both, expand_to_body, only, refuse_unless
from rnnlower.opset.step import VersionStep

NO_CEIL = refuse_unless("ceil_mode", (0,), "the older version rounds output sizes down")


def no_dilations(step: VersionStep) -> None:
    """only with `dilations` all 1: the older version has no dilation."""
    values = step.take("dilations") or ()
    if any(each != 1 for each in values):
        step.refuse(f"dilations={list(values)}: the older version has no dilation")


def whole_p(step: VersionStep) -> None:
    """p became an integer."""
    p = float(step.attr("p"))
    if not p.is_integer():
        step.refuse(f"p={p} is not a whole number")
    step.set("p", int(p))


def float_p(step: VersionStep) -> None:
    """p was a float."""
    step.set("p", float(step.attr("p")))


def column_major_unused(step: VersionStep) -> None:
    """storage_order only matters for the indices."""
    if step.used(1):
        step.refuse("its indices are read, which MaxPool-1 does not have")
    step.drop("storage_order")
    step.drop_outputs(1)


def windows_in_the_pad(step: VersionStep) -> None:
    """Since 22 a window that ceil_mode adds is left out if it starts in the pad; the older spec keeps it.

    Upwards nothing is done: runtimes never had such a window, and 22 documents that.
    """
    if not step.attr("ceil_mode") or step.attr("auto_pad") not in ("NOTSET", "VALID"):
        return
    kernel = list(step.attr("kernel_shape"))
    strides = step.attr("strides") or [1] * len(kernel)
    dilations = step.attr("dilations") or [1] * len(kernel)
    pads = step.attr("pads") or [0] * (2 * len(kernel))
    shape = step.shape(step.required_input())
    sizes = [None] * len(kernel) if shape is None else list(shape[2:])
    for axis, (width, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        reach = (width - 1) * dilation + 1
        begin, end = pads[axis], pads[axis + len(kernel)]
        if end + stride <= reach:
            continue
        size = sizes[axis]
        if not isinstance(size, int):
            step.refuse(
                f"ceil_mode=1, and whether a window starts in the pad of axis {axis + 2} is not known"
            )
        windows = -(-(size + begin + end - reach) // stride) + 1
        if (windows - 1) * stride >= size + begin:
            step.refuse(f"ceil_mode=1 with a window that starts in the pad of axis {axis + 2}")


# Set on a training node at a version that cannot express training. Never written to a file.
TRAINS = "rnnlower.opset.trains"
CONSUMED = [0, 0, 0, 1, 1]
OPEN_MASK = "its mask is read, which Dropout-10 does not define in inference"


def batch_norm_7_up(step: VersionStep) -> None:
    """is_test=0, the default, trains; from 7 on a node with all five outputs trains."""
    trains = not step.take("is_test")
    if trains:
        step.name_outputs(5)
    elif any(step.used(position) for position in range(1, 5)):
        step.refuse("is_test=1 with outputs that only training has")
    else:
        step.drop_outputs(1)


def batch_norm_7_down(step: VersionStep) -> None:
    """is_test follows from the number of outputs."""
    step.set("is_test", int(step.output(1) is None))


def batch_norm_9_up(step: VersionStep) -> None:
    """spatial=0, statistics for each activation: every activation becomes a channel."""
    if step.take("spatial"):
        return
    x = step.required_input()
    shape = step.op("Shape", x)
    parameter_shape = step.op("Shape", step.required_input(1))
    step.set_input(0, step.op("Flatten", x, axis=1))
    for position in range(1, 5):
        step.set_input(position, step.reshape(step.required_input(position), [-1]))
    step.wrap_output(0, lambda y: step.reshape(y, shape))
    for position in range(1, 5):
        step.wrap_output(position, lambda value: step.reshape(value, parameter_shape))


def batch_norm_14_up(step: VersionStep) -> None:
    """training_mode replaces the number of outputs; the saved statistics must be unused."""
    trains = step.output(1) is not None
    step.set("training_mode", int(trains))
    if not step.used(3) and not step.used(4):
        step.drop_outputs(3 if trains else 1)


def batch_norm_14_down(step: VersionStep) -> None:
    """`training_mode` 0 is dropped; the spec before 14 does not define a training node's variance."""
    if step.take("training_mode"):
        step.refuse("training_mode=1: the older spec does not define the variance of a training node")
    step.drop_outputs(1)


def batch_norm_1_down(step: VersionStep) -> None:
    """BatchNormalization-1 requires the attribute consumed_inputs, which never had an effect."""
    step.set("consumed_inputs", CONSUMED)


def dropout_7_up(step: VersionStep) -> None:
    """is_test=0, the default, drops at random; Dropout-7 and Dropout-10 leave the mode to the runtime."""
    if step.take("is_test"):
        return
    if step.target < 12:
        step.refuse(
            "is_test=0 (the default) drops at random, which no version from 7 to 11 can express",
            "set is_test=1 if the model is meant for inference, ask for opset 12 or higher",
        )
    step.node.meta[TRAINS] = True


def dropout_7_down(step: VersionStep) -> None:
    """Dropout-7 in a model that runs is inference."""
    step.set("is_test", 1)


def dropout_10_up(step: VersionStep) -> None:
    """The mask had the data's type and became boolean."""
    if step.used(1):
        dtype = step.known_dtype(step.required_input())
        step.wrap_output(1, lambda mask: step.cast(mask, dtype), raw_dtype=ir.DataType.BOOL)


def dropout_10_down(step: VersionStep) -> None:
    """The mask has the data's type."""
    if not step.used(1):
        step.drop_outputs(1)
        return
    dtype = step.known_dtype(step.required_input())
    step.wrap_output(1, lambda mask: step.cast(mask, ir.DataType.BOOL), raw_dtype=dtype)


def dropout_12_up(step: VersionStep) -> None:
    """ratio became an input, training is off by default, and the mask was undefined in inference."""
    trains = step.node.meta.pop(TRAINS, False)
    if step.used(1) and not trains:
        step.refuse(OPEN_MASK)
    ratio = step.const(step.take("ratio"), ir.DataType.FLOAT)
    step.set_inputs(step.required_input(), ratio, step.const(True, ir.DataType.BOOL) if trains else None)


def dropout_12_down(step: VersionStep) -> None:
    """A constant ratio becomes an attribute; before 12 there is no training, and the mask is undefined."""
    training = step.input(2)
    if training is not None and (step.array(training) is None or bool(step.array(training))):
        step.refuse("it may drop at random (training_mode), which Dropout-10 cannot express")
    if step.used(1):
        step.refuse(OPEN_MASK)
    step.drop("seed")
    step.drop_outputs(1)
    ratio = step.array(step.input(1))
    step.set_inputs(step.required_input())
    if ratio is not None:
        step.set("ratio", float(np.float32(ratio.reshape(-1)[0])))


def group_norm_21_up(step: VersionStep) -> None:
    """scale and bias per group became per channel; the precision is an attribute."""
    x, groups = step.required_input(), step.attr("num_groups")
    step.set("stash_type", int(step.known_dtype(x)))
    channels = step.op("Shape", x, start=1, end=2)
    each = step.op("Div", channels, step.const([groups]))
    shape = step.op("Concat", step.const([groups]), each, axis=0)
    for position in (1, 2):
        column = step.with_axes("Unsqueeze", step.required_input(position), [1])
        step.set_input(position, step.reshape(step.op("Expand", column, shape), [-1]))


def spell_out_axes(step: VersionStep) -> None:
    """onnx's own definition of version 13 cannot be inferred if the axes are left to their default."""
    step.set("axes", step.attr("axes"))


# layout=1 puts the batch first; a Transpose with these permutations converts to layout=0 and back.
SWAP = (1, 0, 2)
Y_TO_BATCH_FIRST = (2, 0, 1, 3)


def drop_output_sequence(step: VersionStep) -> None:
    """`output_sequence` only stated whether Y is required; an unused output Y is removed."""
    wanted = step.attr("output_sequence") or step.used(0)
    step.drop("output_sequence")
    sizes = step.static_shape(step.input(2))
    if step.attr("hidden_size") is None and sizes:
        # The spec leaves it out, onnxruntime does not.
        step.set("hidden_size", sizes[-1])
    y = step.output(0)
    if y is not None and not wanted:
        y.name = ""
    correct_direction(step)


def set_output_sequence(step: VersionStep) -> None:
    """`output_sequence` states whether Y is computed: it is if anything reads it."""
    used = step.used(0)
    step.set("output_sequence", int(used))
    y = step.output(0)
    if y is not None and not used:
        y.name = ""


def correct_direction(step: VersionStep) -> None:
    """GRU-1 misspells its default direction as "foward"; it means forward, the default from GRU-3 on."""
    if step.attr("direction") == "foward":
        step.set("direction", "forward")


def gru_1_down(step: VersionStep) -> None:
    """GRU-1 only has linear_before_reset=0, requires Y_h and has a misspelt default direction."""
    if step.take("linear_before_reset"):
        step.refuse("GRU-1 has no linear_before_reset")
    step.set("direction", step.attr("direction"))
    step.name_outputs(2)
    y = step.node.outputs[0]
    if y.name and not step.used(0) and not step.attr("output_sequence"):
        y.name = ""


def batch_second(step: VersionStep) -> None:
    """layout=1 is layout=0 between Transposes."""
    if not step.take("layout"):
        return
    # X and the states; only LSTM has the last one.
    for position in (0, 5, 6):
        value = step.input(position)
        if value is not None:
            step.set_input(position, step.op("Transpose", value, perm=SWAP))
    step.wrap_output(0, lambda y: step.op("Transpose", y, perm=Y_TO_BATCH_FIRST))
    for position in (1, 2):
        step.wrap_output(position, lambda state: step.op("Transpose", state, perm=SWAP))


ROWS = (
    Row("ConvTranspose", 1, 11, "the spec had the sides of an odd automatic pad swapped, runtimes never did"),
    Row("AveragePool", 19, 22, "windows that start in the pad are left out", down=windows_in_the_pad),
    Row("MaxPool", 12, 22, "windows that start in the pad are left out", down=windows_in_the_pad),
    Row("LpPool GlobalLpPool", 1, 2, "p became an integer", whole_p, float_p),
    Row("LpPool", 11, 18, "ceil_mode and dilations are new", down=both(NO_CEIL, no_dilations)),
    Row("MaxPool", 1, 8, "storage_order and the indices are new", down=column_major_unused),
    Row("MaxPool", 8, 10, "ceil_mode and dilations are new", down=both(NO_CEIL, no_dilations)),
    only(
        "AveragePool",
        1,
        7,
        "count_include_pad is new",
        "count_include_pad",
        (0,),
        "the older version leaves pads out of the average",
    ),
    Row("AveragePool", 7, 10, "ceil_mode is new", down=NO_CEIL),
    Row("AveragePool", 11, 19, "dilations are new", down=no_dilations),
    Row("MeanVarianceNormalization", 9, 13, "onnx's checker needs the axes written out", up=spell_out_axes),
    Row(
        "BatchNormalization",
        1,
        6,
        "consumed_inputs, which never had an effect, was required",
        down=batch_norm_1_down,
    ),
    Row(
        "BatchNormalization",
        6,
        7,
        "is_test was removed: the number of outputs replaces it",
        batch_norm_7_up,
        batch_norm_7_down,
    ),
    Row("BatchNormalization", 7, 9, "spatial was removed", up=batch_norm_9_up),
    Row(
        "BatchNormalization",
        9,
        14,
        "training_mode is new, saved_mean and saved_var were removed",
        batch_norm_14_up,
        batch_norm_14_down,
    ),
    Row("Dropout", 6, 7, "is_test was removed", dropout_7_up, dropout_7_down),
    Row("Dropout", 7, 10, "the mask became boolean", dropout_10_up, dropout_10_down),
    Row("Dropout", 10, 12, "ratio became an input, training_mode is new", dropout_12_up, dropout_12_down),
    Row(
        "GroupNormalization",
        18,
        21,
        "scale and bias belong to channels, not to groups; stash_type is new",
        group_norm_21_up,
        expand_to_body,
    ),
    Row(
        "GRU",
        1,
        3,
        "linear_before_reset is new, Y_h was required, the default direction was misspelt",
        up=correct_direction,
        down=gru_1_down,
    ),
    Row("GRU", 3, 7, "output_sequence was removed", up=drop_output_sequence, down=set_output_sequence),
    Row("LSTM RNN", 1, 7, "output_sequence was removed", up=drop_output_sequence, down=set_output_sequence),
    Row("LSTM GRU RNN", 7, 14, "layout is new", down=batch_second),
)
