"""BatchNormalization, Dropout and GroupNormalization: training and inference, and the shape of scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.opset.adapters import expand
from rnnlower.opset.step import Row, Step

# Set on a training node at a version that cannot express training. Never written to a file.
TRAINS = "rnnlower.opset.trains"
CONSUMED = [0, 0, 0, 1, 1]
OPEN_MASK = "its mask is read, which Dropout-10 does not define in inference"


def batch_norm_7_up(step: Step) -> None:
    """is_test=0, the default, trains; from 7 on a node with all five outputs trains."""
    trains = not step.attr("is_test")
    step.drop("is_test")
    if trains:
        step.name_outputs(5)
    elif any(step.used(position) for position in range(1, 5)):
        step.refuse("is_test=1 with outputs that only training has")
    else:
        step.drop_outputs(1)


def batch_norm_7_down(step: Step) -> None:
    """is_test follows from the number of outputs."""
    step.set("is_test", int(step.output(1) is None))


def batch_norm_9_up(step: Step) -> None:
    """spatial=0, statistics for each activation: every activation becomes a channel."""
    spatial = step.attr("spatial")
    step.drop("spatial")
    if spatial:
        return
    x = step.x()
    shape = step.op("Shape", x)
    parameter_shape = step.op("Shape", step.x(1))
    step.set_input(0, step.op("Flatten", x, axis=1))
    for position in range(1, 5):
        step.set_input(position, step.reshape(step.x(position), [-1]))
    step.wrap_output(0, lambda y: step.reshape(y, shape))
    for position in range(1, 5):
        step.wrap_output(position, lambda value: step.reshape(value, parameter_shape))


def batch_norm_14_up(step: Step) -> None:
    """training_mode replaces the number of outputs; saved statistics are computed next to the node."""
    trains = step.output(1) is not None
    step.set("training_mode", int(trains))
    if step.used(3) or step.used(4):
        x = step.x()
        axes = [axis for axis in range(step.known_rank(x)) if axis != 1]
        mean = step.op("ReduceMean", x, axes=axes, keepdims=1)
        away = step.op("Sub", x, mean)
        var = step.op("ReduceMean", step.op("Mul", away, away), axes=axes, keepdims=0)
        step.replace_output(3, step.with_axes("Squeeze", mean, axes))
        step.replace_output(4, var)
    step.drop_outputs(3 if trains else 1)


def batch_norm_14_down(step: Step) -> None:
    """`training_mode` 0 is dropped; the spec before 14 does not define a training node's variance."""
    if step.attr("training_mode"):
        step.refuse("training_mode=1: the older spec does not define the variance of a training node")
    step.drop("training_mode")
    step.drop_outputs(1)


def batch_norm_1_down(step: Step) -> None:
    """BatchNormalization-1 requires the attribute consumed_inputs, which never had an effect."""
    step.set("consumed_inputs", CONSUMED)


def dropout_7_up(step: Step) -> None:
    """is_test=0, the default, drops at random; Dropout-7 and Dropout-10 leave the mode to the runtime."""
    trains = not step.attr("is_test")
    step.drop("is_test")
    if not trains:
        return
    if step.target < 12:
        step.refuse(
            "is_test=0 (the default) drops at random, which no version from 7 to 11 can express",
            "set is_test=1 if the model is meant for inference, ask for opset 12 or higher",
        )
    step.node.meta[TRAINS] = True


def dropout_7_down(step: Step) -> None:
    """Dropout-7 in a model that runs is inference."""
    step.set("is_test", 1)


def dropout_10_up(step: Step) -> None:
    """The mask had the data's type and became boolean."""
    if step.used(1):
        dtype = step.known_dtype(step.x())
        step.wrap_output(1, lambda mask: step.cast(mask, dtype), raw_dtype=ir.DataType.BOOL)


def dropout_10_down(step: Step) -> None:
    """The mask has the data's type."""
    if step.used(1):
        dtype = step.known_dtype(step.x())
        step.wrap_output(1, lambda mask: step.cast(mask, ir.DataType.BOOL), raw_dtype=dtype)


def dropout_12_up(step: Step) -> None:
    """ratio became an input, training is off by default, and the mask was undefined in inference."""
    trains = step.node.meta.pop(TRAINS, False)
    if step.used(1) and not trains:
        step.refuse(OPEN_MASK)
    ratio = step.attr("ratio")
    step.drop("ratio")
    inputs = [step.x(), step.const(ratio, ir.DataType.FLOAT)]
    if trains:
        inputs.append(step.const(True, ir.DataType.BOOL))
    step.set_inputs(*inputs)


def dropout_12_down(step: Step) -> None:
    """A constant ratio becomes an attribute; before 12 there is no training, and the mask is undefined."""
    training = step.input(2)
    if training is not None and (step.array(training) is None or bool(step.array(training))):
        step.refuse("it may drop at random (training_mode), which Dropout-10 cannot express")
    if step.used(1):
        step.refuse(OPEN_MASK)
    step.drop("seed")
    step.drop_outputs(1)
    ratio = step.array(step.input(1))
    step.set_inputs(step.x())
    if ratio is not None:
        step.set("ratio", float(np.float32(ratio.reshape(-1)[0])))


def group_norm_21_up(step: Step) -> None:
    """scale and bias per group became per channel; the precision is an attribute."""
    x, groups = step.x(), step.attr("num_groups")
    step.set("stash_type", int(step.known_dtype(x)))
    channels = step.op("Shape", x, start=1, end=2)
    each = step.op("Div", channels, step.const([groups]))
    shape = step.op("Concat", step.const([groups]), each, axis=0)
    for position in (1, 2):
        column = step.with_axes("Unsqueeze", step.x(position), [1])
        step.set_input(position, step.reshape(step.op("Expand", column, shape), [-1]))


def spell_out_axes(step: Step) -> None:
    """onnx's own definition of version 13 cannot be inferred if the axes are left to their default."""
    step.set("axes", step.attr("axes"))


ROWS = (
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
        expand,
    ),
)
