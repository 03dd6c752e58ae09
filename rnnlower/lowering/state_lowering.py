"""The lowering of one LinearAttention or CausalConvWithState node.

The chunks of a LinearAttention are in `linear_attention.py`. CausalConvWithState-27 joins the state and the
input, whose end is the new state.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError
from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.lowering.linear_attention import Chunks
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.recurrent.state_operators import AttentionNode, ConvolutionNode, StateNode

COMPUTE_TYPE = ir.DataType.FLOAT
"""The type in which both operators compute, whatever the types of their inputs."""

_END = int(np.iinfo(np.int64).max)


@dataclasses.dataclass(frozen=True)
class ChunkForm:
    """The repetition of a LinearAttention.

    Attributes:
        steps: Time steps of a chunk.
        strategy: What takes the state from chunk to chunk; ``None``: one triangular product.
    """

    steps: int
    strategy: str | None

    def __str__(self) -> str:
        return f"chunks of {self.steps}" if self.steps > 1 else "steps"


CHUNK_SIZES = {"linear": 64, "gated": 64, "delta": 16, "gated_delta": 16}
CHUNK_SIZE_PER_KEY = 16
"""Steps of a chunk with which onnxruntime is fastest: `benchmarks/linear_attention.py` measures them."""


def choose_chunk_form(
    node: AttentionNode, strategy: str, factor: int = 1, *, priced: bool = False
) -> ChunkForm:
    """Return how a node is repeated.

    Args:
        strategy: A key of `STRATEGIES`.
        factor: The requested number of steps of an iteration of a Scan or Loop.
        priced: Whether the number may be another one, the fastest.
    """
    fastest = CHUNK_SIZE_PER_KEY if node.decay_per_key else CHUNK_SIZES[node.update_rule]
    if node.steps is not None:
        fastest = min(fastest, 1 << max(node.steps - 1, 0).bit_length())
    if strategy != "unroll":
        return ChunkForm(fastest if priced and factor == 1 else factor, strategy)
    return ChunkForm(fastest, None if "delta" not in node.update_rule else strategy)


def needs_steps(node: StateNode, strategy: str) -> bool:
    """Return whether a strategy needs a known number of steps."""
    return isinstance(node, AttentionNode) and choose_chunk_form(node, strategy).strategy == "unroll"


def lower_state_operator(e: Emitter, node: StateNode, form: ChunkForm | None) -> list[ir.Value]:
    """Emit the node; return the output and the state in their types.

    Args:
        e: The emitter, whose type is `COMPUTE_TYPE`.
        node: The node, all of whose sizes are known.
        form: How it is repeated, if it is a LinearAttention.
    """
    inputs = {}
    for name, value in node.inputs.items():
        # The type of a computed value may not be declared.
        dtype = value.dtype or (node.state_dtype if name == "past_state" else node.dtype)
        inputs[name] = value if dtype == e.dtype else e.cast(value, e.dtype)
    if isinstance(node, AttentionNode):
        assert form is not None
        run = None if form.strategy is None else STRATEGIES[form.strategy].run
        results = Chunks(e, node, inputs, form.steps).emit(run)
    else:
        assert isinstance(node, ConvolutionNode)
        results = emit_causal_conv(e, node, inputs)
    outputs: list[ir.Value] = []
    types = (node.dtype, node.state_dtype)
    for value, dtype, dims in zip(results, types, node.output_dims, strict=True):
        assert dtype is not None
        result = value if dtype == e.dtype else e.cast(value, dtype)
        if result in (*node.inputs.values(), *outputs):
            result = e.op("Identity", result)
        result.type = ir.TensorType(dtype)
        result.shape = ir.Shape([dim if isinstance(dim, int) else None for dim in dims])
        outputs.append(result)
    return outputs


def emit_causal_conv(
    e: Emitter, node: ConvolutionNode, inputs: dict[str, ir.Value]
) -> tuple[ir.Value, ir.Value]:
    """Emit the node of inputs in the compute type; return output and state, laid out as the node's."""
    signal, past = inputs["input"], inputs.get("past_state")
    if node.channels_last:
        signal = e.transpose(signal, [0, 2, 1])
        past = None if past is None else e.transpose(past, [0, 2, 1])
    span = (node.width - 1) * node.dilation
    if past is None and span:
        batch: RuntimeDim = e.dim(signal, 0) if node.batch is None else node.batch
        past = e.zeros([batch, node.channels, span])
    whole = signal if past is None or not span else e.concat([past, signal], 2)
    output = _emit_convolution(e, node, whole, inputs)
    if node.activation:
        output = e.op("Mul", output, e.op("Sigmoid", output))
    # Of a kernel of one tap, the state is empty.
    state = e.slice(whole, [-span if span else _END], [_END], [2])
    if node.channels_last:
        output, state = e.transpose(output, [0, 2, 1]), e.transpose(state, [0, 2, 1])
    return output, state


def _emit_convolution(
    e: Emitter, node: ConvolutionNode, whole: ir.Value, inputs: dict[str, ir.Value]
) -> ir.Value:
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
        return _emit_taps(e, node, whole, inputs)


def _emit_taps(e: Emitter, node: ConvolutionNode, whole: ir.Value, inputs: dict[str, ir.Value]) -> ir.Value:
    weight = e.reshape(inputs["weight"], [node.channels, node.width])
    total = e.reshape(inputs["bias"], [node.channels, 1]) if "bias" in inputs else None
    for tap in range(node.width):
        after = (node.width - 1 - tap) * node.dilation
        part = e.slice(whole, [tap * node.dilation], [-after if after else _END], [2])
        product = e.op("Mul", part, e.slice(weight, [tap], [tap + 1], [1]))
        total = product if total is None else e.op("Add", total, product)
    assert total is not None
    return total
