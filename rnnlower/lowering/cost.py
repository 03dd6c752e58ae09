"""Which strategy onnxruntime runs fastest: a cost model fitted to measurements.

Pure functions of plain data. ``benchmarks/fit_cost.py`` measures a grid of sizes and fits `MICROSECONDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rnnlower.lowering.forms import LARGE_BATCH, LARGEST_PAIR, LEAST_JOINED

__all__ = ["MICROSECONDS", "Choice", "NodeFacts", "choose", "features", "predict"]

LONGEST_UNROLLED = 128
"""Steps, of all directions, beyond which a straight line costs more to load than it could save."""

MICROSECONDS: Mapping[str, Sequence[float]] = {
    "unroll": (18.7, 0.609, 0.00124, 5.45e-05, 4.49e-05),
    "scan": (27.6, 0.533, 0.000892, 5.46e-05, 4.15e-05),
}
"""What each of the `features` costs, on one thread."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_KERNELS = {"LSTM": 8, "GRU": 7, "RNN": 1}
_KERNELS_UNFUSED = {"LSTM": 11, "GRU": 11, "RNN": 4}
_MORE_WHERE_JOINED = {"LSTM": 2, "GRU": 2, "RNN": 1}
_USUAL_BATCH = 1


@dataclasses.dataclass(frozen=True)
class NodeFacts:
    """What the choice depends on.

    Attributes:
        op_type: ``LSTM``, ``GRU`` or ``RNN``.
        hidden_size: Number of units.
        seq_length: Static number of time steps, or ``None``.
        batch_size: Static batch size, or ``None``.
        num_directions: 1 or 2.
        linear_before_reset: GRU's second form.
        masked: Whether the node has sequence_lens.
    """

    op_type: str
    hidden_size: int
    seq_length: int | None = None
    batch_size: int | None = None
    num_directions: int = 1
    linear_before_reset: bool = False
    masked: bool = False


@dataclasses.dataclass(frozen=True)
class Choice:
    """A strategy, and why in words."""

    strategy: str
    reason: str


def features(facts: NodeFacts, strategy: str) -> list[float]:
    """What time is spent on, counted over all steps.

    The node itself, which counts once; ops; elements of gates; weights that a product reads; and weights
    times the rows that they multiply.
    """
    steps = facts.seq_length or 0
    batch = facts.batch_size or _USUAL_BATCH
    units = facts.num_directions * _GATES[facts.op_type] * facts.hidden_size
    # In a straight line the first step has no state to multiply.
    weights = float((steps - (strategy == "unroll")) * units * facts.hidden_size)
    ops = steps * _ops_of_a_step(facts, strategy)
    return [1.0, *map(float, (ops, steps * units * batch, weights, weights * batch))]


def _ops_of_a_step(facts: NodeFacts, strategy: str) -> int:
    """Of all directions. Those of a batch of one share their ops in a Scan, up to a size."""
    op_type, batch = facts.op_type, facts.batch_size or _USUAL_BATCH
    masks = 0 if not facts.masked else 2 if op_type == "LSTM" else 1
    if strategy == "unroll":
        return facts.num_directions * (_KERNELS[op_type] + 2 * facts.linear_before_reset + masks)
    if _is_pair(facts):
        return _KERNELS_UNFUSED[op_type] + facts.linear_before_reset + masks
    ops = _KERNELS[op_type] + 2 * facts.linear_before_reset + masks
    # An RNN has no last op to leave to the outside, so that its H is copied.
    ops += op_type == "RNN"
    if batch >= LARGE_BATCH and batch * facts.hidden_size >= LEAST_JOINED[op_type]:
        ops += _MORE_WHERE_JOINED[op_type]
    return facts.num_directions * ops


def _is_pair(facts: NodeFacts) -> bool:
    """Whether both directions share a step."""
    return facts.num_directions == 2 and facts.batch_size == 1 and facts.hidden_size <= LARGEST_PAIR


def predict(facts: NodeFacts, strategy: str) -> float:
    """Microseconds of a run."""
    costs = MICROSECONDS[strategy]
    return sum(cost * size for cost, size in zip(costs, features(facts, strategy), strict=True))


def choose(facts: NodeFacts) -> Choice:
    """The strategy that onnxruntime runs fastest.

    Several steps in an iteration never pay: an iteration of a Scan costs no more than one op does.
    """
    if facts.seq_length is None:
        return Choice("scan", "its sequence length is dynamic")
    steps = facts.seq_length * facts.num_directions
    if steps > LONGEST_UNROLLED:
        return Choice("scan", f"{steps} steps in a straight line would take long to load")
    unrolled, scanned = (predict(facts, strategy) for strategy in ("unroll", "scan"))
    if unrolled <= scanned:
        reason = f"{unrolled:.0f} us in a straight line, {scanned:.0f} us in a Scan by the cost model"
        return Choice("unroll", reason)
    reason = f"{scanned:.0f} us in a Scan, {unrolled:.0f} us in a straight line by the cost model"
    return Choice("scan", reason)
