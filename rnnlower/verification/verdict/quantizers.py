"""Quantizers on the edge: floats that differ by rounding may round to neighboring steps of 8 bits.

Such a step is far larger than any tolerance, and no fault of the candidate. That nothing else differs is
shown by another run of the candidate, in which every quantizer hands on the reference's result. Then

- the output and each float that enters a quantizer must be equal within the usual tolerances,
- each quantizer must give the reference's result, bit for bit, on the reference's floats,
- its result on the candidate's own floats may be at most one step off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

from rnnlower.engines.session import LoadError, RunError
from rnnlower.verification.interface import feedable_inputs
from rnnlower.verification.running import Runner
from rnnlower.verification.verdict.compare import Tolerance, compare_values
from rnnlower.verification.verdict.narrow import with_outputs

__all__ = ["Quantizers"]

Array = NDArray[Any]
Tolerances = Callable[[Any], Tolerance]

_QUANTIZERS = ("DynamicQuantizeLinear", "QuantizeLinear")
_OWN, _FED, _AGAIN = "/own", "/fed", "/again"


@dataclass(frozen=True)
class Quantizers:
    """The values of the two models if the candidate's quantizers hand on the reference's results.

    Attributes:
        edge: The first quantizer whose own result is a step off, in words; ``None`` if there is none, or if
            more than that differs.
    """

    expected: Mapping[str, Any]
    found: Mapping[str, Any]
    tolerances: Tolerances
    edge: str | None

    @classmethod
    def settle(cls, runner: Runner, feeds: dict[str, Array], tolerances: Tolerances) -> Quantizers | None:
        """Run both models; ``None`` if they have no quantizers in common, or do not run that way."""
        nodes = _common(runner.reference.proto.graph, runner.candidate.proto.graph)
        if not nodes:
            return None
        read = dict.fromkeys(name for node in nodes for name in (node.input[0], *node.output))
        given = {value.name for value in runner.reference.proto.graph.output}
        reference = with_outputs(runner.reference, [name for name in read if name not in given])
        candidate = with_outputs(runner.candidate, ())
        if reference is None or candidate is None:
            return None
        try:
            with runner.open(reference) as run:
                expected = run(feeds)
            values = {**feeds, **expected, **_hand_on(candidate.proto.graph, nodes, expected)}
            accepted = {value.name for value in feedable_inputs(candidate.proto)}
            with runner.open(candidate) as run:
                found = run({name: value for name, value in values.items() if name in accepted})
        except (LoadError, RunError):
            # The difference remains unexplained.
            return None
        return cls(expected, found, tolerances, _edge(nodes, expected, found, tolerances))

    def explain(self, name: str, output: Any) -> bool:
        """Return whether the reference's ``output`` of this name differs in the candidate by edges alone."""
        return self.edge is not None and all(
            _is_equal(name, output, other, self.tolerances)
            for other in (self.expected[name], self.found[name])
        )


def _common(reference: onnx.GraphProto, candidate: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the quantizers that both main graphs have, between values of the same names."""
    theirs = {_signature(node) for node in candidate.node}
    made = {name for node in reference.node for name in node.output}
    return [
        node
        for node in reference.node
        if node.op_type in _QUANTIZERS and _signature(node) in theirs and node.input[0] in made
    ]


def _signature(node: onnx.NodeProto) -> tuple[str, ...]:
    return (node.op_type, *node.input[:1], *node.output)


def _hand_on(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], expected: Mapping[str, Any]
) -> dict[str, Array]:
    """Make inputs of the results of these nodes; return what a twin of each is fed.

    What enters the nodes, their own results and those of the twins become outputs.
    """
    signatures = {_signature(node) for node in nodes}
    inputs: dict[str, Array] = {}
    outputs = {value.name: value for value in graph.output}
    for own in [node for node in graph.node if _signature(node) in signatures]:
        twin, source, names = graph.node.add(), own.input[0], list(own.output)
        twin.CopyFrom(own)
        twin.input[0] = source + _FED
        twin.output[:] = [name + _AGAIN for name in names]
        twin.name = own.name + _AGAIN
        own.output[:] = [name + _OWN for name in names]
        inputs |= {twin.input[0]: expected[source], **{name: expected[name] for name in names}}
        for name in (source, *own.output, *twin.output):
            outputs.setdefault(name, onnx.ValueInfoProto(name=name))
    graph.input.extend(
        make_tensor_value_info(name, np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    )
    graph.output.extend([*outputs.values()][len(graph.output) :])
    return inputs


def _edge(
    nodes: Sequence[onnx.NodeProto],
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    tolerances: Tolerances,
) -> str | None:
    words = None
    for node in nodes:
        source = node.input[0]
        if not _is_equal(source, expected[source], found[source], tolerances):
            return None
        for name in node.output:
            theirs, own = expected[name], found[name + _OWN]
            if not np.array_equal(theirs, found[name + _AGAIN]):
                return None
            if theirs.dtype.kind not in "iu" or not theirs.size:
                if not _is_equal(name, theirs, own, tolerances):
                    return None
                continue
            apart = np.abs(theirs.astype(np.int64) - own)
            place = np.unravel_index(int(np.argmax(apart)), apart.shape)
            if apart[place] > 1:
                return None
            if apart[place] and not words:
                largest = np.abs(expected[source].astype(np.float64) - found[source]).max()
                words = (
                    f"{node.op_type} node {node.name!r} makes {theirs[place]} and {own[place]} of floats "
                    f"that are at most {largest:.2g} apart"
                )
    return words


def _is_equal(name: str, theirs: Any, own: Any, tolerances: Tolerances) -> bool:
    return compare_values(name, theirs, own, tolerances(getattr(theirs, "dtype", None))).equal
