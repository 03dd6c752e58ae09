"""The place where a difference begins: the first value that both models name and that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx
from onnx.external_data_helper import uses_external_data

from rnnlower.verification.models import HeldModel
from rnnlower.verification.verdict.compare import Tolerance, compare_values

__all__ = ["common_values", "first_difference", "with_outputs"]

# More values than these are sampled evenly: they are all held in memory at once.
_MOST_VALUES = 300


def common_values(reference: HeldModel, candidate: HeldModel) -> list[str]:
    """Return the names of inner values of the main graphs that both models have, in the reference's order."""
    theirs = set(_made(candidate.proto.graph))
    outputs = {value.name for value in reference.proto.graph.output}
    names = [name for name in _made(reference.proto.graph) if name in theirs and name not in outputs]
    stride = -(-len(names) // _MOST_VALUES) or 1
    return names[::stride]


def _made(graph: onnx.GraphProto) -> Iterable[str]:
    return (name for node in graph.node for name in node.output if name)


def with_outputs(model: HeldModel, names: Iterable[str]) -> HeldModel | None:
    """Return ``model`` with inner values as outputs; ``None`` if it is too large to hold with its data."""
    external = any(uses_external_data(tensor) for tensor in model.proto.graph.initializer)
    if external and not model.fits_memory:
        return None
    extended = onnx.ModelProto()
    extended.CopyFrom(model.with_data() if external else model.proto)
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return HeldModel(model.role, extended, None)


def first_difference(
    graph: onnx.GraphProto,
    names: Iterable[str],
    expected: dict[str, Any],
    found: dict[str, Any],
    tolerances: Callable[[Any], Tolerance],
) -> str | None:
    """Describe the first of ``names`` on which two runs differ."""
    makers = {name: node for node in graph.node for name in node.output}
    for name in names:
        comparison = compare_values(
            name, expected[name], found[name], tolerances(getattr(expected[name], "dtype", None))
        )
        if not comparison.equal:
            node = makers[name]
            return f"{comparison} (from {node.op_type} node {node.name!r})"
    return None
