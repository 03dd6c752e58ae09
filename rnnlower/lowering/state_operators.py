"""The lowering of one LinearAttention or CausalConvWithState node, around the chunks or the convolution."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnnlower.lowering.causal_conv import emit_causal_conv
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.linear_attention import emit_linear_attention
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.recurrent.state_operators import AttentionNode, ConvolutionNode, StateNode

ARITHMETIC = ir.DataType.FLOAT
"""The type in which both operators compute, whatever the types of their inputs."""


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


CHUNK = {"linear": 64, "gated": 64, "delta": 16, "gated_delta": 16}
CHUNK_PER_KEY = 16
"""Steps of a chunk with which onnxruntime is fastest: `benchmarks/linear_attention.py` measures them."""


def chunk_form(node: AttentionNode, strategy: str, factor: int = 1, *, priced: bool = False) -> ChunkForm:
    """Return how a node is repeated.

    Args:
        node: The node.
        strategy: A key of `STRATEGIES`.
        factor: The requested number of steps of an iteration of a Scan or Loop.
        priced: Whether the number may be another one, the fastest.
    """
    fastest = CHUNK_PER_KEY if node.decay_per_key else CHUNK[node.update_rule]
    if node.steps is not None:
        fastest = min(fastest, 1 << max(node.steps - 1, 0).bit_length())
    if strategy != "unroll":
        return ChunkForm(fastest if priced and factor == 1 else factor, strategy)
    return ChunkForm(fastest, None if "delta" not in node.update_rule else strategy)


def needs_steps(node: StateNode, strategy: str) -> bool:
    """Return whether a strategy needs a known number of steps."""
    return isinstance(node, AttentionNode) and chunk_form(node, strategy).strategy == "unroll"


def lower_state_operator(e: Emitter, node: StateNode, form: ChunkForm | None) -> list[ir.Value]:
    """Emit the node; return the output and the state in their types.

    Args:
        e: The emitter, whose type is `ARITHMETIC`.
        node: The node, all of whose sizes are known.
        form: How it is repeated, if it is a LinearAttention.
    """
    inputs = {
        name: value if value.dtype == e.dtype else e.cast(value, e.dtype)
        for name, value in node.inputs.items()
    }
    if isinstance(node, AttentionNode):
        assert form is not None
        run = None if form.strategy is None else STRATEGIES[form.strategy].run
        results = emit_linear_attention(e, node, inputs, form.steps, run)
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
