"""What emitted nodes cost to run, counted on the nodes themselves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping

import onnx

__all__ = ["Counts", "count"]

Shapes = Mapping[str, tuple[int, ...]]

_FREE = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators that move no element."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """What time is spent on. Each is also the name of its price in a target's table ``[costs]``.

    Attributes:
        loops: Scan and Loop nodes.
        nodes: Nodes that run, once for each time; an activation right behind a product is part of it.
        elements: Elements that are written.
        weight_bytes: Bytes of constant matrices that products read.
        multiplies: Multiplications of products.
        loaded: Nodes that a session holds.
    """

    loops: float = 0.0
    nodes: float = 0.0
    elements: float = 0.0
    weight_bytes: float = 0.0
    multiplies: float = 0.0
    loaded: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return _combined(lambda one, two: one + two, self, other)

    def times(self, runs: float) -> Counts:
        """As much in each of a number of runs of the same nodes."""
        return dataclasses.replace(_combined(lambda one: runs * one, self), loaded=self.loaded)

    def of_line(self, longer: Counts, steps: int) -> Counts:
        """A straight line of `steps`, where this one has two steps and `longer` three."""
        return _combined(lambda two, three: two + (steps - 2) * (three - two), self, longer)

    def price(self, costs: Mapping[str, float]) -> float:
        """Microseconds, by what one of each costs."""
        return float(sum(costs[name] * value for name, value in dataclasses.asdict(self).items()))


def count(
    graph: onnx.GraphProto, shapes: Shapes, constants: Collection[str], steps: int, fused: frozenset[str]
) -> Counts:
    """Counts a graph's nodes.

    Args:
        graph: The graph.
        shapes: The shapes of all values, those of bodies too.
        constants: The names of the values that are constants.
        steps: How often the bodies of Scan and Loop run.
        fused: Activations that the runtime makes part of a Gemm in front of them.
    """
    total = Counts()
    behind_gemm = {node.output[0] for node in graph.node if node.op_type == "Gemm"}
    for node in graph.node:
        total += _own(node, shapes, constants)
        if node.op_type in fused and node.input[0] in behind_gemm:
            total += Counts(nodes=-1, elements=-_size(shapes, node.output[0]))
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner = count(attribute.g, shapes, constants, steps, fused)
                total += inner.times(steps if node.op_type in ("Scan", "Loop") else 1)
    return total


def _combined(combine: Callable[..., float], *counts: Counts) -> Counts:
    """Each count of what the same counts of all make."""
    names = [field.name for field in dataclasses.fields(Counts)]
    return Counts(**{name: combine(*(getattr(each, name) for each in counts)) for name in names})


def _own(node: onnx.NodeProto, shapes: Shapes, constants: Collection[str]) -> Counts:
    """One run of a node, without its bodies."""
    if node.op_type in ("Scan", "Loop"):
        return Counts(loops=1, loaded=1)
    elements = 0.0
    if node.op_type not in _FREE:
        elements = float(sum(_size(shapes, name) for name in node.output))
    if node.op_type not in ("Gemm", "MatMul"):
        return Counts(nodes=1, elements=elements, loaded=1)
    weights = shapes.get(node.input[1], (1, 1))
    if node.op_type == "Gemm" and len(node.input) > 2 and len(shapes.get(node.input[2], ())) > 1:
        # Gemm copies what it adds to.
        elements *= 2
    out = shapes.get(node.output[0], (1,))
    return Counts(
        nodes=1,
        elements=elements,
        weight_bytes=4.0 * math.prod(weights) if node.input[1] in constants else 0.0,
        multiplies=math.prod(out[:-1]) * math.prod(weights[-2:]),
        loaded=1,
    )


def _size(shapes: Shapes, name: str) -> int:
    return math.prod(shapes.get(name, (1,)))
