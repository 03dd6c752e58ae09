"""Which strategy onnxruntime runs fastest: a cost model fitted to measurements.

Pure functions of plain data.
"""

from __future__ import annotations

import dataclasses

__all__ = ["Choice", "NodeFacts", "choose"]

_LONGEST_UNROLLED = 128
_SMALL_HIDDEN_SIZE = 96


@dataclasses.dataclass(frozen=True)
class NodeFacts:
    """What the choice depends on.

    Attributes:
        op_type: ``LSTM``, ``GRU`` or ``RNN``.
        hidden_size: Number of units.
        input_size: Features of X, or ``None`` where unknown.
        seq_length: Static number of time steps, or ``None``.
        batch_size: Static batch size, or ``None``.
        num_directions: 1 or 2.
        linear_before_reset: GRU's second form.
        masked: Whether the node has sequence_lens.
    """

    op_type: str
    hidden_size: int
    input_size: int | None = None
    seq_length: int | None = None
    batch_size: int | None = None
    num_directions: int = 1
    linear_before_reset: bool = False
    masked: bool = False


@dataclasses.dataclass(frozen=True)
class Choice:
    """A strategy, its unroll factor, and why in words."""

    strategy: str
    unroll_factor: int
    reason: str


def choose(facts: NodeFacts) -> Choice:
    """The strategy that onnxruntime runs fastest."""
    if facts.seq_length is None:
        return Choice("scan", 1, "its sequence length is dynamic")
    if facts.seq_length <= _LONGEST_UNROLLED and facts.hidden_size <= _SMALL_HIDDEN_SIZE:
        return Choice(
            "unroll", 1, f"{facts.seq_length} steps of hidden_size {facts.hidden_size} cost more as a Scan"
        )
    return Choice("scan", 1, f"steps of hidden_size {facts.hidden_size} hide the cost of a Scan")
