"""The cost of emitted nodes, counted on the nodes themselves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import RESHAPING
from rnnlower.graph.walk import subgraphs_of
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import RECURRENT_OPS

_FREE = RESHAPING | {"Flatten"}
"""Operators that do not move elements."""

NATIVE = "native_"
"""The prefix of the counts of a runtime's own recurrent operators."""

KINDS = ("LSTM", "GRU", "GRU_linear", "RNN")
"""Operators whose kernels take different times; a GRU has two."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """The quantities that take time. Each name is also that of its price in a target's table ``[costs]``.

    Attributes:
        loops: Scan and Loop nodes.
        iterations: Runs of their bodies.
        nodes: Runs of nodes; an activation directly after a product counts as part of it.
        pieces: Outputs of Splits and inputs of Concats.
        elements: Elements that are written.
        weight_bytes: Bytes of constant matrices that products read.
        multiplies: Multiplications of products.
        packed_bytes: Bytes of the matrices of Gemms whose inputs, except for the first, are constants. A
            runtime may keep a copy for each node; a body has one copy, however many times it runs.
        loaded: Nodes that a session holds.
        native_nodes: LSTM, GRU and RNN nodes.
        native_steps: Time steps of their directions.
        native_elements: Elements of their gates, of all steps.
        native_weight_bytes: Bytes of W, and in each step of R.
        native_multiplies: Multiplications of their products.
    """

    loops: float = 0.0
    iterations: float = 0.0
    nodes: float = 0.0
    pieces: float = 0.0
    elements: float = 0.0
    weight_bytes: float = 0.0
    multiplies: float = 0.0
    packed_bytes: float = 0.0
    loaded: float = 0.0
    native_nodes: float = 0.0
    native_steps: float = 0.0
    native_elements: float = 0.0
    native_weight_bytes: float = 0.0
    native_multiplies: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return _combine(lambda one, two: one + two, self, other)

    def times(self, runs: float) -> Counts:
        """Return the counts of a number of runs of the same nodes."""
        held = {"packed_bytes": self.packed_bytes, "loaded": self.loaded}
        return dataclasses.replace(_combine(lambda one: runs * one, self), **held)

    def of_line(self, longer: Counts, steps: int) -> Counts:
        """Return the counts of a straight line of `steps`; this one has two steps, and `longer` three."""
        return _combine(lambda two, three: two + (steps - 2) * (three - two), self, longer)

    def price(self, costs: Mapping[str, float]) -> float:
        """Return the microseconds, given the price of one unit of each count; without a price it is free."""
        return float(sum(costs.get(name, 0.0) * value for name, value in dataclasses.asdict(self).items()))


def price_kind(node: ResolvedNode) -> str:
    """Return the one of the `KINDS` that a node is."""
    return f"{node.op_type}_linear" if node.linear_before_reset else node.op_type


def price_names(*, native: bool) -> list[str]:
    """Return the prices of a runtime's own recurrent operators, or those of all others."""
    names = [field.name for field in dataclasses.fields(Counts)]
    return [name.removeprefix(NATIVE) for name in names if name.startswith(NATIVE) == native]


def count_costs(nodes: Sequence[ir.Node], facts: Facts, steps: int, fused: Collection[str]) -> Counts:
    """Count the nodes of a graph; unknown sizes count as one.

    Args:
        facts: The facts about the values.
        steps: The number of runs of the bodies of Scan and Loop.
        fused: Activations that the runtime fuses with a preceding Gemm.
    """
    parts = [Counts()]
    after_gemm = {node.outputs[0] for node in nodes if node.op_type == "Gemm"}
    for node in nodes:
        parts.append(_node_counts(node, facts))
        if node.op_type in fused and node.inputs[0] in after_gemm:
            parts.append(Counts(nodes=-1, elements=-math.prod(_sizes(facts, node.outputs[0]))))
        for body in subgraphs_of(node):
            inner = count_costs([*body], facts, steps, fused)
            if node.op_type in ("Scan", "Loop"):
                inner = (inner + Counts(iterations=1)).times(steps)
            parts.append(inner)
    return _combine(lambda *each: sum(each), *parts)


def _combine(combine: Callable[..., float], *counts: Counts) -> Counts:
    """Combine each count of all operands."""
    names = [field.name for field in dataclasses.fields(Counts)]
    return Counts(**{name: combine(*(getattr(each, name) for each in counts)) for name in names})


def _node_counts(node: ir.Node, facts: Facts) -> Counts:
    """Count one run of a node, without its bodies."""
    if node.op_type in ("Scan", "Loop"):
        return Counts(loops=1, loaded=1)
    if node.op_type in RECURRENT_OPS:
        return _native_counts(node, *(_sizes(facts, value) for value in node.inputs[:3]))
    elements = 0.0
    if node.op_type not in _FREE:
        elements = float(sum(math.prod(_sizes(facts, out)) for out in node.outputs))
    if node.op_type not in ("Gemm", "MatMul"):
        pieces = {"Split": len(node.outputs), "Concat": len(node.inputs)}.get(node.op_type, 0)
        return Counts(nodes=1, pieces=pieces, elements=elements, loaded=1)
    weights, addends = _sizes(facts, node.inputs[1]), node.inputs[2:]
    if node.op_type == "Gemm" and any(len(_sizes(facts, addend)) > 1 for addend in addends):
        # Gemm copies its addend.
        elements *= 2
    weight_bytes = 4.0 * math.prod(weights) if facts.is_constant(node.inputs[1]) else 0.0
    return Counts(
        nodes=1,
        elements=elements,
        weight_bytes=weight_bytes,
        multiplies=math.prod(_sizes(facts, node.outputs[0])[:-1]) * math.prod(weights[-2:]),
        packed_bytes=weight_bytes if node.op_type == "Gemm" and all(map(facts.is_constant, addends)) else 0.0,
        loaded=1,
    )


def _native_counts(node: ir.Node, X: Sequence[int], W: Sequence[int], R: Sequence[int]) -> Counts:
    """Return one run of a recurrent operator; the sizes are those of its inputs."""
    steps, rows = (X[1], X[0]) if node.attributes.get_int("layout", 0) else (X[0], X[1])
    return Counts(
        loaded=1,
        native_nodes=1,
        native_steps=W[0] * steps,
        native_elements=steps * rows * W[0] * W[1],
        native_weight_bytes=4.0 * (math.prod(W) + steps * math.prod(R)),
        native_multiplies=steps * rows * (math.prod(W) + math.prod(R)),
    )


def _sizes(facts: Facts, value: ir.Value | None) -> tuple[int, ...]:
    return tuple(size or 1 for size in facts.shape(value) or ())
