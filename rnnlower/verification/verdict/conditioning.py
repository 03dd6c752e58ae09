"""The sensitivity of the reference's outputs to rounding, and quantizers on the edge between two steps.

Some graphs amplify rounding (deep ones, divisions by small norms): two correct evaluations then differ by
more than any fixed tolerance. Before such a difference counts, the reference runs again on inputs perturbed
by a few units in the last place, and once in another precision. No comparison can resolve changes of that
size; real faults are larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

from rnnlower.engines.session import Array, LoadError, RunError
from rnnlower.verification.models import RunModel, select_feeds
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.compare import (
    Tolerance,
    compare_values,
    floats_in,
    is_inexact,
    largest_finite,
)
from rnnlower.verification.verdict.inner_values import with_outputs

_DRAWS = 4
_FACTOR = 4.0
# Rounding inside a graph adds up to more than one unit of its inputs.
_ULPS = 8.0
# Beyond this share of an output's scale, the output carries no information.
_MAX_SHARE = 1e-2
_MAX_SHARE_OF_SMALL = 1e-1
_NEAR_OVERFLOW = 1e-3


def rounding_noise(
    run: RunModel,
    feeds: Mapping[str, Array],
    outputs: Mapping[str, Any],
    seed: int,
    opinions: Sequence[Mapping[str, Any]] = (),
    precision: Any = None,
    others: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Array | None]:
    """Return the difference to allow for rounding: float64, for each element of each float output.

    ``None`` if the inputs do not determine the output: rounding moves it by more than 1% of its scale
    (10% for 16-bit types).

    ``run`` runs the reference, ``outputs`` are its outputs on ``feeds``; ``opinions`` are those computed in
    other precisions, which count if they are close. ``precision`` is the type to which the candidate's
    runtime rounds its inputs. ``others`` are outputs with weights perturbed by rounding to a type of at most
    16 bits.
    """
    floats = floats_in(outputs)
    noise = {name: np.zeros(value.shape) for name, value in floats.items()}
    closest = _share(precision)
    for moved in perturbed_outputs(run, feeds, seed, _DRAWS, precision=precision):
        for name in noise:
            if moved[name].shape == noise[name].shape:
                noise[name] = np.fmax(noise[name], _difference(moved[name], outputs[name]))
    for rounded in others:
        closest = _MAX_SHARE_OF_SMALL
        for name in noise:
            if rounded[name].shape == noise[name].shape:
                apart = _difference(rounded[name], outputs[name])
                # Of so many weights each draw moves other elements: any may be moved by half the most.
                noise[name] = np.fmax(noise[name], np.fmax(apart, apart.max(initial=0.0) / 2))
    for name, other in ((name, each[name]) for each in opinions for name in floats if name in each):
        if other.shape != noise[name].shape:
            continue
        apart = _difference(other, outputs[name])
        if float(apart.max(initial=0.0)) <= closest * largest_finite(floats[name]):
            noise[name] = np.fmax(noise[name], apart)
    largest = {n: max(_share(each.dtype), closest) * largest_finite(each) for n, each in floats.items()}
    allowed = {name: _FACTOR * values for name, values in noise.items()}
    return {n: each if float(each.max(initial=0.0)) <= largest[n] else None for n, each in allowed.items()}


def perturbed_outputs(
    run: RunModel,
    feeds: Mapping[str, Array],
    seed: int,
    draws: int,
    *,
    evenly: bool = False,
    precision: Any = None,
) -> Iterator[dict[str, Any]]:
    """Yield the reference's outputs on inputs moved by some units in the last place, or `evenly` up to that.

    The units are those of the inputs' types, or of ``precision`` if that is coarser.
    """
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        try:
            yield run({name: _perturb(array, rng, evenly, precision) for name, array in feeds.items()})
        except RunError:
            # The model may refuse an input that was moved; the other draws are enough.
            continue


def overflowing(values: Any, dtype: Any) -> Array:
    """Return the mask of values that are NaN or near the end of the range, where the order of ops matters."""
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    # The product of two such values, somewhere inside, may exceed the range.
    bound = min(_NEAR_OVERFLOW * largest, math.sqrt(largest))
    return ~np.asarray(np.abs(values.astype(np.float64)) < bound)


def _perturb(array: Array, rng: np.random.Generator, evenly: bool, precision: Any) -> Array:
    if not is_inexact(array.dtype):
        return array
    step = max(_step(array.dtype), 0.0 if precision is None else _step(precision))
    moves = rng.uniform(-1, 1, array.shape) if evenly else rng.integers(0, 2, array.shape) * 2 - 1
    with np.errstate(over="ignore"):
        moved = (array.astype(np.float64) * (1 + step * moves)).astype(array.dtype)
    # Do not overflow the largest number of the type.
    return np.where(np.isfinite(moved), moved, array)


def _step(dtype: Any) -> float:
    # In a small type one unit is already much.
    ulps = 1.0 if _is_small(dtype) else _ULPS
    return ulps * float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def _is_small(dtype: Any) -> bool:
    return dtype is not None and np.dtype(dtype).itemsize < 4


def _difference(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore"):
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return np.where(np.isfinite(difference), difference, 0.0)


def _share(dtype: Any) -> float:
    # One unit of a small type may itself exceed the share of a large one.
    return _MAX_SHARE_OF_SMALL if _is_small(dtype) else _MAX_SHARE


Tolerances = Callable[[Any], Tolerance]

_QUANTIZERS = ("DynamicQuantizeLinear", "QuantizeLinear")
_INTEGER = ("QLinear", "QGemm")
_OWN, _FED, _AGAIN = "/own", "/fed", "/again"


@dataclass(frozen=True)
class Quantizers:
    """The values of the two models if the candidate's quantizers pass on the reference's results.

    Floats that differ by rounding may be quantized to neighboring steps of 8 bits. Such a step is far larger
    than any tolerance, but no fault of the candidate. To show that nothing else differs, the candidate runs
    again, with every quantizer replaced by the reference's result. Then

    - the output and each float that enters a quantizer must be equal within the usual tolerances,
    - each quantizer must give the reference's result, bit for bit, on the reference's floats,
    - its result on the candidate's own floats may be at most one step off.

    An integer operator of the reference, such as QLinearMul, may be a QuantizeLinear of floats in the
    candidate. It has no floats to compare: only the last condition holds for it.
    """

    nodes: Sequence[onnx.NodeProto]
    expected: Mapping[str, Any]
    found: Mapping[str, Any]
    tolerances: Tolerances

    @classmethod
    def run(cls, runner: Runner, feeds: dict[str, Array], tolerances: Tolerances) -> Quantizers | None:
        """Run both models; ``None`` if they quantize no common value, or do not run this way."""
        nodes = _common_quantizers(runner.reference.proto.graph, runner.candidate.proto.graph)
        if not nodes:
            return None
        read = dict.fromkeys(name for node in nodes for name in (*_rounded_inputs(node), *node.output))
        given = {value.name for value in runner.reference.proto.graph.output}
        reference = with_outputs(runner.reference, [name for name in read if name not in given])
        candidate = with_outputs(runner.candidate, ())
        if reference is None or candidate is None:
            return None
        try:
            with runner.open(reference) as run:
                expected = run(feeds)
            values = {**feeds, **expected, **_override_quantizers(candidate.proto.graph, nodes, expected)}
            with runner.open(candidate) as run:
                found = run(select_feeds(candidate.proto, values))
        except (LoadError, RunError):
            # The difference remains unexplained.
            return None
        return cls(nodes, expected, found, tolerances)

    def explains(self, name: str, output: Any) -> bool:
        """Return whether the candidate's output of this name differs from ``output`` only by such steps."""
        return self.off_by_one is not None and all(
            self._is_equal(name, output, other) for other in (self.expected[name], self.found[name])
        )

    @cached_property
    def off_by_one(self) -> str | None:
        """A description of the first quantizer whose own result is a step off.

        ``None`` if there is none, or if anything else differs.
        """
        words = None
        for node in self.nodes:
            floats = _rounded_inputs(node)
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


def _common_quantizers(reference: onnx.GraphProto, candidate: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the quantizers of the reference that the candidate also has, for values of the same names."""
    theirs = {node.output[0]: node for node in candidate.node if node.op_type in _QUANTIZERS}
    made = {name for node in reference.node for name in node.output}
    return [
        node
        for node in reference.node
        if (own := theirs.get(node.output[0])) is not None
        and (_is_integer(node) or (own.op_type, own.input[0]) == (node.op_type, node.input[0]))
        and made.issuperset(_rounded_inputs(node))
    ]


def _is_integer(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith(_INTEGER)


def _rounded_inputs(node: onnx.NodeProto) -> Sequence[str]:
    """Return the input that a quantizer rounds; an integer operator has none."""
    return () if _is_integer(node) else node.input[:1]


def _override_quantizers(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], expected: Mapping[str, Any]
) -> dict[str, Array]:
    """Turn the results of these nodes into graph inputs, and add a twin of each quantizer; return the feeds.

    The quantizers' inputs, their own results and those of the twins become outputs.
    """
    floats = {node.output[0]: _rounded_inputs(node) for node in nodes}
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
