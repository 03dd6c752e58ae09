"""CausalConvWithState-27 in primitive operators: the state, then the input; their end is the new state."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError
from rnnlower.lowering.emitter import Dim, Emitter
from rnnlower.recurrent.state_operators import ConvolutionNode

_END = int(np.iinfo(np.int64).max)


def emit_causal_conv(
    e: Emitter, node: ConvolutionNode, inputs: dict[str, ir.Value]
) -> tuple[ir.Value, ir.Value]:
    """Emit the node; return the output and the state, laid out as the node has them.

    Args:
        e: The emitter, whose type is that of the arithmetic.
        node: The node, all of whose sizes are known.
        inputs: Its inputs in the type of the arithmetic.
    """
    signal, past = inputs["input"], inputs.get("past_state")
    if node.channels_last:
        signal = e.transpose(signal, [0, 2, 1])
        past = None if past is None else e.transpose(past, [0, 2, 1])
    span = (node.width - 1) * node.dilation
    if past is None and span:
        batch: Dim = e.dim(signal, 0) if node.batch is None else node.batch
        past = e.zeros([batch, node.channels, span])
    whole = signal if past is None or not span else e.concat([past, signal], 2)
    output = _convolution(e, node, whole, inputs)
    if node.activation:
        output = e.op("Mul", output, e.op("Sigmoid", output))
    # Of a kernel of one tap, the state is empty.
    state = e.slice(whole, [-span if span else _END], [_END], [2])
    if node.channels_last:
        output, state = e.transpose(output, [0, 2, 1]), e.transpose(state, [0, 2, 1])
    return output, state


def _convolution(e: Emitter, node: ConvolutionNode, whole: ir.Value, inputs: dict[str, ir.Value]) -> ir.Value:
    """Emit the convolution of ``[batch, channels, span + steps]``: a Conv, or else a product for each tap."""
    has_steps = bool(node.steps)
    try:
        # A Conv needs a step. Where there may be none, one more follows, and its output is cut off.
        bias = [inputs["bias"]] if "bias" in inputs else []
        output = e.op(
            "Conv",
            whole,
            inputs["weight"],
            *bias,
            dilations=[node.dilation],
            group=node.channels,
            kernel_shape=[node.width],
            pads=[0, 0 if has_steps else 1],
        )
        return output if has_steps else e.slice(output, [0], [-1], [2])
    except MissingOperatorError:
        return _by_taps(e, node, whole, inputs)


def _by_taps(e: Emitter, node: ConvolutionNode, whole: ir.Value, inputs: dict[str, ir.Value]) -> ir.Value:
    weight = e.reshape(inputs["weight"], [node.channels, node.width])
    total = e.reshape(inputs["bias"], [node.channels, 1]) if "bias" in inputs else None
    for tap in range(node.width):
        after = (node.width - 1 - tap) * node.dilation
        part = e.slice(whole, [tap * node.dilation], [-after if after else _END], [2])
        product = e.op("Mul", part, e.slice(weight, [tap], [tap + 1], [1]))
        total = product if total is None else e.op("Add", total, product)
    assert total is not None
    return total
