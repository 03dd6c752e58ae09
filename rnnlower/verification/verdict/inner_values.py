"""Inner values of models, to locate the first difference and to find branches that never ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import uses_external_data

from rnnlower.engines.session import Array
from rnnlower.verification.inputs.uses import RECURRENT
from rnnlower.verification.models import ParsedModel, RunModel
from rnnlower.verification.verdict.compare import Tolerance, compare_values, is_inexact

# More values than these are sampled evenly: they are all held in memory at once.
_MAX_VALUES = 300


def common_names(reference: ParsedModel, candidate: ParsedModel) -> list[str]:
    """Return the names of inner values of the main graphs that both models have, in the reference's order.

    Both models compute them by the same operator, or the reference by a recurrent operator, which may have
    been lowered: quantizers and optimizers give the names of values that they remove to other values.
    """
    makers = _producers(candidate.proto.graph)
    outputs = {value.name for value in reference.proto.graph.output}
    names = [
        name
        for name, node in _producers(reference.proto.graph).items()
        if name not in outputs and name in makers and _is_same(node, makers[name])
    ]
    stride = -(-len(names) // _MAX_VALUES) or 1
    return names[::stride]


def _producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output if name}


def _is_same(node: onnx.NodeProto, other: onnx.NodeProto) -> bool:
    if node.op_type in RECURRENT:
        return other.op_type != "DequantizeLinear"
    return (node.domain, node.op_type) == (other.domain, other.op_type)


def with_outputs(model: ParsedModel, names: Iterable[str]) -> ParsedModel | None:
    """Return ``model`` with inner values as outputs; ``None`` if it is too large to hold with its data."""
    external = any(uses_external_data(tensor) for tensor in model.proto.graph.initializer)
    if external and not model.fits_memory:
        return None
    extended = deepcopy(model.with_data() if external else model.proto)
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model.with_proto(extended)


def first_difference(
    graph: onnx.GraphProto,
    names: Iterable[str],
    expected: dict[str, Any],
    found: dict[str, Any],
    tolerances: Callable[[Any], Tolerance],
) -> str | None:
    """Describe the first of ``names`` on which two runs differ.

    Floats of two types are compared in the wider one; other values of different types are skipped.
    """
    makers = _producers(graph)
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


@dataclass(frozen=True)
class _Branch:
    """A branch of an If, with the conditions of the enclosing Ifs and, last, its own."""

    node: onnx.NodeProto
    name: str
    way: tuple[tuple[str, bool], ...]

    def __str__(self) -> str:
        label = self.node.name or self.node.output[0]
        return f"If node {label!r}: its {self.name} never ran, and was not compared"


def _branches(
    graph: onnx.GraphProto, conditions: frozenset[str], way: tuple[tuple[str, bool], ...] = ()
) -> Iterator[_Branch]:
    """Yield the branches of Ifs with these conditions, including nested ones."""
    for node in graph.node:
        if node.op_type != "If" or node.domain or node.input[0] not in conditions:
            continue
        for attribute in node.attribute:
            branch = _Branch(node, attribute.name, (*way, (node.input[0], attribute.name == "then_branch")))
            yield branch
            yield from _branches(attribute.g, conditions, branch.way)


class BranchWatch:
    """A record of the branches that the Ifs take, as far as values of the main graph decide.

    ``model`` is the model with these conditions as outputs, which `watched` removes again; ``sets`` are
    values of inputs that every run gets.
    """

    def __init__(self, model: ParsedModel, sets: Mapping[str, Array]) -> None:
        self._sets = dict(sets)
        graph = model.proto.graph
        given = {value.name for value in (*graph.input, *graph.output)}
        values = given.union(*(node.output for node in graph.node))
        values -= {tensor.name for tensor in graph.initializer}
        self._branches = list(_branches(graph, frozenset(values)))
        self._added = list(dict.fromkeys(b.way[-1][0] for b in self._branches if b.way[-1][0] not in given))
        self._ran: set[tuple[tuple[str, bool], ...]] = set()
        # Not worth a second copy of external data.
        external = any(uses_external_data(tensor) for tensor in graph.initializer)
        extended = with_outputs(model, self._added) if self._added and not external else None
        self.model = extended or model
        if self._added and extended is None:
            self._branches = []

    def watch(self, run: RunModel) -> RunModel:
        """Wrap ``run``, which runs ``model``, to record the conditions and remove them from the outputs."""

        def noting(feeds: dict[str, Array]) -> dict[str, Any]:
            outputs = run(feeds)
            values = self._sets | feeds | outputs
            for branch in self._branches:
                if all(bool(np.ravel(values[name])[0]) == value for name, value in branch.way):
                    self._ran.add(branch.way)
            return {name: value for name, value in outputs.items() if name not in self._added}

        return noting

    def notes(self) -> list[str]:
        """Return a note for each branch that never ran although its enclosing branch did."""
        reached = self._ran | {()} if self._ran else set()
        return [str(b) for b in self._branches if b.way not in self._ran and b.way[:-1] in reached]
