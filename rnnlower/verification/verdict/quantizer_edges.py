"""Quantizers on the edge: floats that differ by rounding may round to neighboring steps of 8 bits.

Such a step is far larger than any tolerance, and no fault of the candidate. That nothing else differs is
shown by another run of the candidate, in which every quantizer hands on the reference's result. Then

- the output and each float that enters a quantizer must be equal within the usual tolerances,
- each quantizer must give the reference's result, bit for bit, on the reference's floats,
- its result on the candidate's own floats may be at most one step off.

An integer operator of the reference, such as QLinearMul, may be a QuantizeLinear of floats in the candidate.
It has no floats to compare: only the last condition holds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

from rnnlower.engines.session import Array, LoadError, RunError
from rnnlower.verification.interface import accepted_by
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.compare import Tolerance, compare_values
from rnnlower.verification.verdict.narrow import with_outputs

Tolerances = Callable[[Any], Tolerance]

_QUANTIZERS = ("DynamicQuantizeLinear", "QuantizeLinear")
_INTEGER = ("QLinear", "QGemm")
_OWN, _FED, _AGAIN = "/own", "/fed", "/again"


@dataclass(frozen=True)
class Quantizers:
    """The values of the two models if the candidate's quantizers hand on the reference's results."""

    nodes: Sequence[onnx.NodeProto]
    expected: Mapping[str, Any]
    found: Mapping[str, Any]
    tolerances: Tolerances

    @classmethod
    def settle(cls, runner: Runner, feeds: dict[str, Array], tolerances: Tolerances) -> Quantizers | None:
        """Run both models; ``None`` if they quantize no value in common, or do not run that way."""
        nodes = _common(runner.reference.proto.graph, runner.candidate.proto.graph)
        if not nodes:
            return None
        read = dict.fromkeys(name for node in nodes for name in (*_floats(node), *node.output))
        given = {value.name for value in runner.reference.proto.graph.output}
        reference = with_outputs(runner.reference, [name for name in read if name not in given])
        candidate = with_outputs(runner.candidate, ())
        if reference is None or candidate is None:
            return None
        try:
            with runner.open(reference) as run:
                expected = run(feeds)
            values = {**feeds, **expected, **_hand_on(candidate.proto.graph, nodes, expected)}
            with runner.open(candidate) as run:
                found = run(accepted_by(candidate.proto, values))
        except (LoadError, RunError):
            # The difference remains unexplained.
            return None
        return cls(nodes, expected, found, tolerances)

    def explain(self, name: str, output: Any) -> bool:
        """Return whether the reference's ``output`` of this name differs in the candidate by edges alone."""
        return self.edge is not None and all(
            self._is_equal(name, output, other) for other in (self.expected[name], self.found[name])
        )

    @cached_property
    def edge(self) -> str | None:
        """The first quantizer whose own result is a step off, in words.

        ``None`` if there is none, or if more than that differs.
        """
        words = None
        for node in self.nodes:
            floats = _floats(node)
            if not all(self._is_equal(name, self.expected[name], self.found[name]) for name in floats):
                return None
            for name in node.output:
                theirs, own = self.expected[name], self.found[name + _OWN]
                if floats and not np.array_equal(theirs, self.found[name + _AGAIN]):
                    return None
                if theirs.dtype.kind not in "iu" or not theirs.size:
                    if not self._is_equal(name, theirs, own):
                        return None
                    continue
                apart = np.abs(theirs.astype(np.int64) - own)
                place = np.unravel_index(int(np.argmax(apart)), apart.shape)
                if apart[place] > 1:
                    return None
                if apart[place] and not words:
                    words = f"{node.op_type} node {node.name!r} makes {theirs[place]} and {own[place]}"
                    for source in floats:
                        largest = np.abs(self.expected[source].astype(np.float64) - self.found[source]).max()
                        words += f" of floats that are at most {largest:.2g} apart"
        return words

    def _is_equal(self, name: str, theirs: Any, own: Any) -> bool:
        return compare_values(name, theirs, own, self.tolerances(getattr(theirs, "dtype", None))).equal


def _common(reference: onnx.GraphProto, candidate: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the reference's nodes whose results both main graphs quantize, from values of the same names."""
    theirs = {node.output[0]: node for node in candidate.node if node.op_type in _QUANTIZERS}
    made = {name for node in reference.node for name in node.output}
    return [
        node
        for node in reference.node
        if (own := theirs.get(node.output[0])) is not None
        and (_is_integer(node) or (own.op_type, own.input[0]) == (node.op_type, node.input[0]))
        and made.issuperset(_floats(node))
    ]


def _is_integer(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith(_INTEGER)


def _floats(node: onnx.NodeProto) -> Sequence[str]:
    """Return the value that a quantizer rounds; an integer operator has none."""
    return () if _is_integer(node) else node.input[:1]


def _hand_on(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], expected: Mapping[str, Any]
) -> dict[str, Array]:
    """Make inputs of the results of these nodes; return what is fed, also to a twin of each quantizer.

    What enters the quantizers, their own results and those of the twins become outputs.
    """
    floats = {node.output[0]: _floats(node) for node in nodes}
    inputs: dict[str, Array] = {}
    outputs = {value.name: value for value in graph.output}
    for own in [node for node in graph.node if node.output and node.output[0] in floats]:
        names, made = list(own.output), []
        inputs |= {name: expected[name] for name in names}
        for source in floats[names[0]]:
            twin = graph.node.add()
            twin.CopyFrom(own)
            twin.input[0] = source + _FED
            twin.output[:] = [name + _AGAIN for name in names]
            twin.name = own.name + _AGAIN
            inputs[twin.input[0]] = expected[source]
            made += [source, *twin.output]
        own.output[:] = [name + _OWN for name in names]
        for name in (*own.output, *made):
            outputs.setdefault(name, onnx.ValueInfoProto(name=name))
    graph.input.extend(
        make_tensor_value_info(name, np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    )
    graph.output.extend([*outputs.values()][len(graph.output) :])
    return inputs
