"""LSTM, GRU and RNN, all versions (1, 3 for GRU only, 7, 14, 22), in both directions."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.opset.step import Row, Step

# layout=1 puts the batch first; a Transpose with these permutations converts to layout=0 and back.
SWAP = (1, 0, 2)
Y_TO_BATCH_FIRST = (2, 0, 1, 3)

# The positions of the states among the inputs, and of the final states among the outputs.
STATE_INPUTS = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
STATE_OUTPUTS = {"LSTM": (1, 2), "GRU": (1,), "RNN": (1,)}


def drop_output_sequence(step: Step) -> None:
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


def set_output_sequence(step: Step) -> None:
    """`output_sequence` states whether Y is computed: it is if anything reads it."""
    used = step.used(0)
    step.set("output_sequence", int(used))
    y = step.output(0)
    if y is not None and not used:
        y.name = ""


def correct_direction(step: Step) -> None:
    """GRU-1 misspells its default direction as "foward"; it means forward, the default from GRU-3 on."""
    if step.attr("direction") == "foward":
        step.set("direction", "forward")


def gru_1_down(step: Step) -> None:
    """GRU-1 only has linear_before_reset=0, requires Y_h and has a misspelt default direction."""
    if step.attr("linear_before_reset"):
        step.refuse("GRU-1 has no linear_before_reset")
    step.drop("linear_before_reset")
    step.set("direction", step.attr("direction"))
    step.name_outputs(2)
    y = step.node.outputs[0]
    if y.name and not step.used(0) and not step.attr("output_sequence"):
        y.name = ""


def batch_second(step: Step) -> None:
    """layout=1 is layout=0 between Transposes."""
    if not step.attr("layout"):
        step.drop("layout")
        return
    step.drop("layout")
    op_type = step.node.op_type
    for position in (0, *STATE_INPUTS[op_type]):
        value = step.input(position)
        if value is not None:
            step.set_input(position, step.op("Transpose", value, perm=SWAP))
    step.wrap_output(0, lambda y: _transposed(step, y, Y_TO_BATCH_FIRST))
    for position in STATE_OUTPUTS[op_type]:
        step.wrap_output(position, lambda state: _transposed(step, state, SWAP))


def _transposed(step: Step, value: ir.Value, perm: tuple[int, ...]) -> ir.Value:
    return step.op("Transpose", value, perm=perm)


ROWS = (
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
