"""The time axis, followed forward through a graph, node by node."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from rnnlower.graph.constants import constant_of
from rnnlower.graph.dependence import decided_by
from rnnlower.graph.walk import Located, subgraphs_of, walk
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.streaming.contents import LARGEST, compute, held
from rnnlower.streaming.edits import Cached, Edit, Start
from rnnlower.streaming.facts import (
    MODERN_OPSET,
    Array,
    ChunkError,
    Content,
    CoupledError,
    Fact,
    Sample,
    Track,
    fix_batch,
    fix_shapes,
    newer_opset,
    number,
)

LATEST = "latest"
"""A rule's result for an output that follows from the stream and has no time axis."""

Outcome = Track | str | None
Rule: TypeAlias = "Callable[[Flow, ir.Node], Outcome | list[Outcome]]"


class Flow:
    """The propagation of the time axis through a main graph without function calls.

    Args:
        model: The model; it is not changed.
        sample: The time axes of the inputs, and sizes.
        allow_delay: Whether the stream may be late.
        strict: Whether a node that couples time steps is an error; else its outputs are unknown.

    Attributes:
        facts: The facts about each value.
        edits: The edits of the graph.
        ahead: The nodes that look ahead, with the number of frames.
        recurrent: The recurrent nodes that run over the time axis.
        lost: The obstacles that were recorded, and if not strict, all others.
    """

    def __init__(self, model: ir.Model, sample: Sample, *, allow_delay: bool, strict: bool = True) -> None:
        self.model = model
        self.sample = sample
        self.allow_delay = allow_delay
        self.opset = model.opset_imports.get("", 1)
        self.facts: dict[ir.Value, Fact] = {}
        self.edits: list[Edit] = []
        self.ahead: dict[ir.Node, int] = {}
        self.recurrent: list[ir.Node] = []
        self.lost: list[CoupledError] = []
        self._types: dict[ir.Value, ir.DataType] = {}
        self.strict = strict

    def run(self) -> None:
        """Follow the axis to the end.

        Raises:
            CoupledError: A node couples time steps.
        """
        for value in self.model.graph.initializers.values():
            self.facts[value] = _of_initializer(value)
        for value in self.model.graph.inputs:
            self.facts[value] = self._of_input(value)
        for node in self.model.graph:
            self._visit(node)
        self._refuse_recorded()

    def _of_input(self, value: ir.Value) -> Fact:
        shape = self.sample.shape(value)
        if value.name is not None and value.name in self.sample.axes:
            track = Track(self.sample.axes[value.name], self.sample.steps, self.sample.chunk)
            return Fact(shape, track)
        return Fact(shape)

    # Queries of the rules.

    def fact(self, value: ir.Value | None) -> Fact:
        """Return the facts about a value."""
        return Fact() if value is None else self.facts.get(value, Fact())

    def track(self, node: ir.Node, index: int = 0) -> Track | None:
        """Return the position of an input's frames."""
        return self.fact(node.inputs[index]).track if index < len(node.inputs) else None

    def shape(self, node: ir.Node, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input for the whole sequence."""
        shape = self.fact(node.inputs[index]).shape
        if shape is None:
            raise CoupledError("has an input of unknown shape")
        return shape

    def result(self, node: ir.Node, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an output for the whole sequence."""
        shape = self.fact(node.outputs[index]).shape
        if shape is None:
            raise CoupledError("has a result of unknown shape", fix_shapes())
        return shape

    def content(self, node: ir.Node, index: int) -> Content | None:
        """Return the content of an input."""
        return self.fact(node.inputs[index]).content if index < len(node.inputs) else None

    def name(self, node: ir.Node) -> str:
        """Return the name of a node; unnamed ones are named after operator and number."""
        return located(self.model, node).name

    def shifts(self) -> str:
        """Describe the nodes that shift time, for messages."""
        ahead = (
            f"{node.op_type} node {self.name(node)!r}, which looks {frames} frame{'s' * (frames > 1)} ahead"
            for node, frames in self.ahead.items()
        )
        return " and ".join(ahead) or "frames that are put in front of the sequence, or cut off its end"

    def is_constant(self, value: ir.Value) -> bool:
        """Return whether it is an initializer that cannot be overridden."""
        return value.is_initializer() and not value.is_graph_input()

    # Actions of the rules.

    def record(self, node: ir.Node, problem: str) -> None:
        """Record an obstacle after which time can be followed further: all of them are told together."""
        self.lost.append(CoupledError(problem, node=node))

    def require_multiple(self, node: ir.Node, track: Track, frames: int, problem: str) -> None:
        """Refuse a chunk that is not a multiple of this number of a value's frames."""
        if track.chunk % frames and self.strict:
            # A frame may be several time steps.
            steps = self.sample.chunk // math.gcd(self.sample.chunk, track.chunk)
            raise ChunkError(node, problem, steps * frames)

    def settle(self, node: ir.Node, index: int, lag: int | None = None) -> Track:
        """Make an input late by the given lag, or at least not ahead of the stream."""
        track = self.track(node, index)
        assert track is not None
        wanted = max(track.lag, 0) if lag is None else lag
        missing = wanted - track.lag
        if missing:
            fill = track.fill if track.lag < 0 else 0.0
            self.cache(node, index, track, missing, track.chunk, fill)
        return track.with_(lag=wanted)

    def settle_output(self, place: int, lag: int) -> Track:
        """Make an output of the model late by the given lag."""
        value = self.model.graph.outputs[place]
        track = self.fact(value).track
        assert track is not None
        if lag != track.lag:
            fill = track.fill if track.lag < 0 else 0.0
            self._cache(None, place, value, track, lag - track.lag, track.chunk, fill)
        return track.with_(lag=lag)

    def wait(self, node: ir.Node, index: int) -> tuple[Track, int]:
        """Make an input late by whole chunks and return their number: a state must not see earlier frames.

        Frames that leave the stream before the first one belong to no step.
        """
        track = self.track(node, index)
        assert track is not None
        calls = -(-max(track.lag, 0) // track.chunk)
        return self.settle(node, index, calls * track.chunk), calls

    def cache(
        self, node: ir.Node, index: int, track: Track, frames: int, take: int, start: Start, calls: int = 0
    ) -> None:
        """Keep frames of an input for the next chunk, and put them before it."""
        value = node.inputs[index]
        assert value is not None
        self._cache(node, index, value, track, frames, take, start, calls)

    def _cache(
        self,
        node: ir.Node | None,
        index: int,
        value: ir.Value,
        track: Track,
        frames: int,
        take: int,
        start: Start,
        calls: int = 0,
    ) -> None:
        if track.outer != 1:
            raise CoupledError(
                "needs frames of the chunk before, but time is folded behind another axis", fix_batch()
            )
        shape = list(self.fact(value).shape or ())
        named: list[int | str | None] = [self.sample.named(size) for size in shape]
        named[track.axis] = frames * track.inner
        kept, drop = frames * track.inner, (frames + track.chunk - take) * track.inner
        dtype = self.dtype(value)
        self.edits.append(
            Cached(node, index, track.axis, kept, drop, start, tuple(named), value, dtype, calls)
        )

    def _visit(self, node: ir.Node) -> None:
        for out in node.outputs:
            self.facts[out] = Fact()
        try:
            self._follow(node)
        except CoupledError as error:
            error.node = error.node or node
            self._refuse_recorded()
            if self.strict:
                raise
            self.lost.append(error)

    def _refuse_recorded(self) -> None:
        if self.strict and self.lost:
            first, *others = self.lost
            first.also = [error.node for error in others if error.node is not None]
            raise first

    def _follow(self, node: ir.Node) -> None:
        for out, shape in zip(node.outputs, self._infer(node), strict=True):
            self.facts[out] = Fact(shape)
        content = self._compute(node)
        if content is not None:
            self.facts[node.outputs[0]] = Fact(content[0].shape, content=content)
            return
        captured = [self.fact(value) for value in _captured(node)]
        facts = [*captured, *(self.fact(value) for value in node.inputs if value is not None)]
        if any(fact.track is not None or fact.is_sized for fact in captured):
            remedy = decided_by(self.model, node.inputs[0]) if node.op_type == "If" else ""
            raise CoupledError(
                "has a body that reads values over time; only the main graph is streamed", remedy
            )
        if any(fact.track is not None or fact.is_sized for fact in facts):
            self._apply(node)
        elif any(fact.latest for fact in facts):
            for out in node.outputs:
                self.facts[out] = dataclasses.replace(self.facts[out], latest=True)

    def _apply(self, node: ir.Node) -> None:
        from rnnlower.streaming.rules import RULES

        rule = RULES.get(node.op_type) if not node.domain or is_recurrent(node) else None
        if rule is None:
            domain = f"{node.domain}." if node.domain else ""
            raise CoupledError(
                f"may couple time steps: the behavior of {domain}{node.op_type} over time is not known"
            )
        outcome = rule(self, node)
        outcomes = [outcome] * len(node.outputs) if not isinstance(outcome, list) else outcome
        for out, one in zip(node.outputs, outcomes, strict=False):
            fact = self.facts[out]
            if isinstance(one, Track):
                if fact.shape is not None and fact.shape[one.axis : one.axis + 1] != (one.size,):
                    raise CoupledError("changes the length of the time axis in a way that is not followed")
                self.facts[out] = dataclasses.replace(fact, track=one)
            elif one == LATEST:
                self.facts[out] = dataclasses.replace(fact, latest=True)

    # Shapes and contents.

    def _compute(self, node: ir.Node) -> Content | None:
        if node.op_type == "Constant" and not node.domain:
            array = held(node)
            return None if array is None else (array, array)
        if node.op_type in ("Shape", "Size") and not node.domain:
            fact = self.fact(node.inputs[0])
            whole, chunk = fact.shape, fact.chunk_shape
            return None if whole is None or chunk is None else (_size(node, whole), _size(node, chunk))
        contents = [self.fact(value).content for value in node.inputs]
        if any(value is not None and c is None for value, c in zip(node.inputs, contents, strict=True)):
            return None
        if node.op_type in _FILLING and any(self.fact(value).is_sized for value in node.inputs):
            # It is as long as the sequence: a value over time whose content is not known.
            return None
        worlds = [compute(node, [None if c is None else c[world] for c in contents]) for world in (0, 1)]
        return None if worlds[0] is None or worlds[1] is None else (worlds[0], worlds[1])

    def _infer(self, node: ir.Node) -> list[tuple[int, ...] | None]:
        """Return the shapes of the outputs, as inferred by onnx or declared in the model."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, node.domain)
        except onnx.defs.SchemaError:
            return [_static(out) for out in node.outputs]
        if any(True for _ in subgraphs_of(node)):
            return [_static(out) for out in node.outputs]
        proto = ir.serde.serialize_node(node)
        types, data = {}, {}
        for value in node.inputs:
            if value is None or not value.name:
                continue
            fact = self.fact(value)
            types[value.name] = onnx.helper.make_tensor_type_proto(self.dtype(value).value, fact.shape)
            if fact.content is not None and fact.content[0].size <= _SHAPE_LIKE:
                data[value.name] = onnx.numpy_helper.from_array(np.asarray(fact.content[0]), value.name)
        try:
            inferred = infer_node_outputs(
                schema,
                proto,
                types,
                data,
                opset_imports=[onnx.helper.make_opsetid(node.domain, self.opset)],
                ir_version=self.model.ir_version or 8,
            )
        except (InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            remedy = newer_opset() if self.opset < MODERN_OPSET else ""
            raise CoupledError(
                f"cannot be followed, as no shape can be inferred: {reason}", remedy
            ) from error
        return [self._learn(out, inferred.get(out.name or "")) for out in node.outputs]

    def dtype(self, value: ir.Value) -> ir.DataType:
        """Return the type of a value."""
        content = self.fact(value).content
        known = self._types.get(value) or value.dtype
        if known is None and content is not None:
            known = ir.DataType.from_numpy(content[0].dtype)
        return known or ir.DataType.FLOAT

    def _learn(self, out: ir.Value, inferred: onnx.TypeProto | None) -> tuple[int, ...] | None:
        if inferred is None or not inferred.tensor_type.HasField("shape"):
            return None
        self._types[out] = ir.DataType(inferred.tensor_type.elem_type)
        dims = inferred.tensor_type.shape.dim
        return (
            tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None
        )


def located(model: ir.Model, node: ir.Node) -> Located:
    """Return a node of the main graph with its name; unnamed ones are named after operator and number."""
    name = node.name
    if not name:
        twins = [other for other in model.graph if other.op_type == node.op_type]
        name = f"{node.op_type}_{twins.index(node)}"
    return Located(node, name, "", model.opset_imports.get("", 1))


_SHAPE_LIKE = 64
_FILLING = {"ConstantOfShape", "Expand", "Range", "Tile"}


def _of_initializer(value: ir.Value) -> Fact:
    tensor = constant_of(value)
    if tensor is None or tensor.size > LARGEST or tensor.dtype == ir.DataType.STRING:
        return Fact(_static(value))
    array = tensor.numpy()
    return Fact(array.shape, content=(array, array))


def _static(value: ir.Value) -> tuple[int, ...] | None:
    if value.shape is None or not all(isinstance(dim, int) and dim >= 0 for dim in value.shape):
        return None
    return tuple(int(dim) for dim in value.shape if isinstance(dim, int))


def _size(node: ir.Node, shape: tuple[int, ...]) -> Array:
    if node.op_type == "Size":
        return np.array(int(np.prod(shape)), np.int64)
    attribute = node.attributes.get("end")
    end = len(shape) if attribute is None else int(attribute.value)
    return np.array(shape[number(node, "start", 0) : end], np.int64)


def _captured(node: ir.Node) -> Iterable[ir.Value]:
    """Yield the values of the graph that the bodies of a node read."""
    for graph in subgraphs_of(node):
        for inner, _ in walk(graph):
            for value in inner.inputs:
                if value is not None and value.graph is node.graph:
                    yield value
        # A branch may return a value of the outer graph unchanged.
        yield from (value for value in graph.outputs if value.graph is node.graph)
