"""The place where a difference begins: the first value that both models name and that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx
from onnx.external_data_helper import uses_external_data

from rnnlower.verification.inputs.uses import RECURRENT
from rnnlower.verification.models import HeldModel, copy_of
from rnnlower.verification.verdict.compare import Tolerance, compare_values, is_inexact

# More values than these are sampled evenly: they are all held in memory at once.
_MOST_VALUES = 300


def common_values(reference: HeldModel, candidate: HeldModel) -> list[str]:
    """Return the names of inner values of the main graphs that both models have, in the reference's order.

    Both compute them by the same operator, or the reference by a recurrent one, whose place others take:
    quantizers and optimizers give the name of a value that they remove to another.
    """
    makers = _makers(candidate.proto.graph)
    outputs = {value.name for value in reference.proto.graph.output}
    names = [
        name
        for name, node in _makers(reference.proto.graph).items()
        if name not in outputs and name in makers and _is_same(node, makers[name])
    ]
    stride = -(-len(names) // _MOST_VALUES) or 1
    return names[::stride]


def _makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output if name}


def _is_same(node: onnx.NodeProto, other: onnx.NodeProto) -> bool:
    if node.op_type in RECURRENT:
        return other.op_type != "DequantizeLinear"
    return (node.domain, node.op_type) == (other.domain, other.op_type)


def with_outputs(model: HeldModel, names: Iterable[str]) -> HeldModel | None:
    """Return ``model`` with inner values as outputs; ``None`` if it is too large to hold with its data."""
    external = any(uses_external_data(tensor) for tensor in model.proto.graph.initializer)
    if external and not model.fits_memory:
        return None
    extended = copy_of(model.with_data() if external else model.proto)
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model.changed(extended)


def first_difference(
    graph: onnx.GraphProto,
    names: Iterable[str],
    expected: dict[str, Any],
    found: dict[str, Any],
    tolerances: Callable[[Any], Tolerance],
) -> str | None:
    """Describe the first of ``names`` on which two runs differ.

    Floats of two types are compared in the wider one; values of other types are not the same thing.
    """
    makers = _makers(graph)
    for name in names:
        ours, theirs = expected[name], found[name]
        types: list[Any] = [getattr(each, "dtype", None) for each in (ours, theirs)]
        tolerance = tolerances(types[0])
        if types[0] != types[1]:
            if not all(kind is not None and is_inexact(kind) for kind in types):
                continue
            narrow, wide = sorted(types, key=lambda kind: int(kind.itemsize))
            ours, theirs, tolerance = ours.astype(wide), theirs.astype(wide), tolerances(narrow)
        comparison = compare_values(name, ours, theirs, tolerance)
        if not comparison.equal:
            node = makers[name]
            return f"{comparison} (from {node.op_type} node {node.name!r})"
    return None
