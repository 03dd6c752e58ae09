"""The time axis, followed forward through a graph, node by node."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rnnlower.graph.dynamic_sizes import describe_deciding_inputs
from rnnlower.graph.evaluation import Array
from rnnlower.graph.walk import LocatedNode, captured_values, default_opset, operand, qualified_op_type
from rnnlower.recurrent.finding import is_stateful, shown_names
from rnnlower.timeflow.edits import BlankFrames, CacheInput, Edit, ReplaceInput, SetAttribute, Start
from rnnlower.timeflow.tracks import (
    ChunkError,
    Contents,
    CoupledError,
    Sample,
    Scores,
    Track,
    batch_remedy,
    facts_about,
    shapes_remedy,
)

LATEST = "latest"
"""A rule's result for an output that follows from the stream and has no time axis."""

Outcome = Track | Scores | CoupledError | str | None
"""The position of an output's frames.

An error is raised where the output is read: it depends on the number of steps, but has no time axis.
"""
Rule: TypeAlias = "Callable[[Flow, ir.Node], Outcome | list[Outcome]]"


class Flow(Contents):
    """The propagation of the time axis through a main graph without function calls.

    Args:
        model, sample: As in `Contents`.
        rules: For each operator, where the time of its inputs goes.
        of_scores: The same for operators that take the scores of an attention.
        strict: Whether a node that couples time steps is an error; else its outputs have no time.

    Attributes:
        tracks: The position of the frames of each value that has any.
        pending: The values that follow from the number of steps alone, but are not as long as the sequence,
            with the error where a node cannot take that.
        scores: The values that compare each step with each.
        latest: The values that follow from the stream without a time axis: a final state, the last frame.
            A chunk's is that of the sequence up to its end.
        edits: The edits of the graph.
        ahead: The nodes that look ahead, with the number of frames.
        recurrent: The recurrent nodes and loops that run over the time axis.
        limits: The number of time steps for which there are positions, if it is limited.
        obstacles: The obstacles that were recorded, and if not strict, all others.
    """

    def __init__(
        self,
        model: ir.Model,
        sample: Sample,
        rules: Mapping[str, Rule],
        of_scores: Mapping[str, Rule],
        *,
        strict: bool,
    ) -> None:
        super().__init__(model, sample)
        self.strict = strict
        self.tracks: dict[ir.Value, Track] = {}
        self.pending: dict[ir.Value, CoupledError] = {}
        self.scores: dict[ir.Value, Scores] = {}
        self.latest: set[ir.Value] = set()
        self.edits: list[Edit] = []
        self.ahead: dict[ir.Node, int] = {}
        self.recurrent: list[ir.Node] = []
        self.obstacles: list[CoupledError] = []
        self.limits: int | None = None
        self._rules, self._of_scores = rules, of_scores
        self._by_size: set[ir.Value] = set()

    def run(self) -> Flow:
        """Follow the axis to the end.

        Raises:
            CoupledError: A node couples time steps.
        """
        for value in self.model.graph.inputs:
            shape = self.sample.shape(value)
            if value.name is not None and value.name in self.sample.axes:
                self.tracks[value] = Track(self.sample.axes[value.name], self.sample)
            if shape is not None:
                self._assume_lengths(value, shape)
        for node in self.model.graph:
            self._visit(node)
        self._refuse_recorded()
        return self

    # Queries of the rules.

    def track(self, node: ir.Node, index: int = 0) -> Track | None:
        """Return the position of an input's frames."""
        value = operand(node, index)
        return None if value is None else self.tracks.get(value)

    def required_track(self, node: ir.Node, index: int = 0) -> Track:
        """Return the position of an input's frames; refuse an input without a time axis."""
        return self._track_of(operand(node, index))

    def _track_of(self, value: ir.Value | None) -> Track:
        if value not in self.tracks:
            raise CoupledError("computes with the number of time steps, which a stream does not have")
        return self.tracks[value]

    def is_streamed(self, value: ir.Value | None) -> bool:
        """Return whether a value follows from the stream."""
        return value in self.tracks or value in self.latest or value in self.scores

    def is_over_time(self, value: ir.Value | None) -> bool:
        """Return whether a value follows from the stream, or from the number of its steps."""
        followed = self.tracks, self.pending, self.scores
        return any(value in each for each in followed) or self.depends_on_length(value)

    def varies(self, value: ir.Value | None) -> bool:
        """Return whether a value follows from the stream, from its end, or from the number of its steps."""
        return self.is_over_time(value) or value in self.latest

    def follows_from_size(self, value: ir.Value | None) -> bool:
        """Return whether a value follows from constants and from the sizes of the inputs alone."""
        if value is None or value.producer() is not None:
            return value is None or value in self._by_size
        return value.is_initializer() and not value.is_graph_input()

    def known_content(self, value: ir.Value | None) -> Array | None:
        """Return the content of a value for the whole sequence, even if computed over time from sizes."""
        return self.whole.constant(value) if self.is_over_time(value) else self.content(value)

    def shifts(self) -> str:
        """Describe the nodes that shift time, for messages."""
        ahead = (
            f"{locate(self.model, node).label}, which looks {frames} frame{'s' * (frames > 1)} ahead"
            for node, frames in self.ahead.items()
        )
        return " and ".join(ahead) or "frames that are put in front of the sequence, or cut off its end"

    # Actions of the rules.

    def set_ints(self, node: ir.Node, name: str, index: int | None, values: Sequence[int]) -> None:
        """Set integers that are an attribute, or in newer versions an input."""
        if index is None or name in node.attributes:
            self.edits.append(SetAttribute(node, name, tuple(values)))
        else:
            self.edits.append(ReplaceInput(node, index, np.array(values, np.int64)))

    def collapse_batch(self, array: Array, what: str, but: int | None = None) -> Array:
        """Return an array with one row for all of a dynamic batch, where they must be equal."""
        for axis, size in enumerate(array.shape):
            if axis != but and self.is_dynamic(size):
                if not np.array_equal(array, np.repeat(array.take([0], axis), size, axis)):
                    raise CoupledError(f"{what} between rows of a dynamic batch")
                array = array.take([0], axis)
        return array

    def refuse_of_batch(self, value: ir.Value, what: str) -> None:
        """Refuse to store a constant whose numbers depend on the size of a dynamic batch."""
        if value not in self._by_size or not any(map(self.is_dynamic, self.sample.sizes.values())):
            return
        one = dataclasses.replace(self.sample, sizes=dict.fromkeys(self.sample.sizes, 1))
        facts = facts_about(self.model, one)
        first, array = facts.constant(value), self.whole.constant(value)
        if first is None or array is None or first.ndim != array.ndim:
            return
        if not _are_equal(first, array[tuple(map(slice, first.shape))]):
            raise CoupledError(f"{what} between sizes of a dynamic batch", shapes_remedy())

    def is_dynamic(self, size: int) -> bool:
        """Return whether a size of the sample is that of a dynamic batch, or a multiple of it."""
        return not isinstance(self.sample.named(size), int)

    def require_multiple(self, node: ir.Node, track: Track, frames: int, problem: str) -> None:
        """Refuse a chunk whose frames of a value are not a multiple of this number."""
        if track.chunk % frames and self.strict:
            # A frame may be several time steps, and a time step several frames.
            common = math.gcd(self.sample.chunk, track.chunk)
            steps, at_once = self.sample.chunk // common, track.chunk // common
            raise ChunkError(node, problem, steps * frames // math.gcd(at_once, frames))

    def require_frames(self, node: ir.Node, track: Track, frames: int, problem: str) -> None:
        """Refuse a chunk with fewer frames of a value."""
        if track.chunk < frames and self.strict:
            raise ChunkError(node, problem, 1, -(-frames * self.sample.chunk // track.chunk))

    def limit_positions(self, frames: int, track: Track) -> None:
        """Record that positions exist for this many frames only."""
        if frames < track.chunk:
            raise CoupledError(f"has a table of {frames} positions, and a chunk has {track.chunk} frames")
        steps = int(frames / track.rate)
        self.limits = min(self.limits or steps, steps)

    def delay_to(
        self, node: ir.Node | None, index: int = 0, lag: int | None = None, track: Track | None = None
    ) -> Track:
        """Delay an input, or a graph output, to the given lag; by default to 0, if it is ahead."""
        value = self.model.graph.outputs[index] if node is None else node.inputs[index]
        track = self._track_of(value) if track is None else track
        wanted = max(track.lag, 0) if lag is None else lag
        if wanted != track.lag:
            before = -min(track.lag, 0)
            start = track.fill if before and not isinstance(track.fill, str) else 0.0
            self.cache(node, index, track, wanted - track.lag, start, repeated=before)
        return track.with_(lag=wanted, fill=0.0)

    def delay_by_chunks(self, node: ir.Node, index: int, track: Track | None = None) -> tuple[Track, int]:
        """Delay an input by whole chunks; return their number: a state must not see earlier frames.

        Frames that leave the stream before the first one belong to no step.
        """
        track = self.required_track(node, index) if track is None else track
        calls = -(-max(track.lag, 0) // track.chunk)
        return self.delay_to(node, index, calls * track.chunk, track), calls

    def blank_frames(self, node: ir.Node, index: int, track: Track, fill: float) -> None:
        """Replace what leaves the stream before the first frame by a constant."""
        rank, dtype = len(self._known_shape(node.inputs[index], "an input")), self.dtype(node.inputs[index])
        self.edits.append(BlankFrames(node, index, track.axis, rank, track.lag, track.chunk, fill, dtype))

    def cache(
        self,
        node: ir.Node | None,
        index: int,
        track: Track,
        frames: int,
        start: Start,
        *,
        more: int = 0,
        calls: int = 0,
        repeated: int = 0,
    ) -> None:
        """Prepend frames cached from previous chunks to an input; ``more`` are taken in all.

        The last ``repeated`` ones repeat frames of the first chunk, if the track has such a ``fill``.
        """
        value = self.model.graph.outputs[index] if node is None else node.inputs[index]
        assert value is not None
        if track.outer != 1:
            raise CoupledError(
                "needs frames of the chunk before, but time is folded after another axis", batch_remedy()
            )
        kept, drop = frames * track.inner, (frames - more) * track.inner
        mode = track.fill if repeated and isinstance(track.fill, str) else ""
        if mode and track.is_folded:
            raise CoupledError("reflects frames of an axis in which time is folded")
        named = [self.sample.named(size) for size in self.shape_of(value) or ()]
        named[track.axis] = kept
        shape, dtype = tuple(named), self.dtype(value)
        edit = CacheInput(
            node, index, track.axis, kept, drop, start, shape, value, dtype, calls, mode, repeated
        )
        self.edits.append(edit)

    def _visit(self, node: ir.Node) -> None:
        try:
            self._follow(node)
        except CoupledError as error:
            error.node = error.node or node
            if node.outputs[0] in self._by_size:
                # A mask, say, is known where it is applied.
                self.pending |= dict.fromkeys(node.outputs, error.with_traceback(None))
                return
            self._refuse_recorded()
            if self.strict:
                raise
            # With a traceback it would keep this flow, and all contents, alive.
            self.obstacles.append(error.with_traceback(None))

    def _refuse_recorded(self) -> None:
        if self.strict and self.obstacles:
            first, *others = self.obstacles
            first.also = [error.node for error in others if error.node is not None]
            raise first

    def _follow(self, node: ir.Node) -> None:
        in_body = captured_values(node)
        if any(map(self.is_over_time, in_body)) and node.op_type not in BODIES:
            remedy = describe_deciding_inputs(self.model, node.inputs[0]) if node.op_type == "If" else ""
            raise CoupledError(
                "has a body that reads values over time; only the main graph is streamed", remedy
            )
        is_shape = node.op_type in ("Shape", "Size") and not node.domain
        if is_shape or all(map(self.follows_from_size, (*in_body, *node.inputs))):
            self._by_size.update(node.outputs)
        if self._has_content(node):
            return
        held = next((value for value in node.inputs if value in self.pending), None)
        if held is not None and not any(map(self.is_streamed, node.inputs)):
            self.pending |= dict.fromkeys(node.outputs, self.pending[held])
        elif any(map(self.is_over_time, (*in_body, *node.inputs))):
            if held is not None and node.op_type not in _POSITIONAL:
                raise self.pending[held]
            self._apply(node)
        elif any(value in self.latest for value in (*in_body, *node.inputs)):
            self.latest.update(node.outputs)

    def _has_content(self, node: ir.Node) -> bool:
        """Return whether the content of a node's output follows from constants and sizes, and record it."""
        over_time = any(map(self.is_over_time, node.inputs))
        if node.op_type not in ("Shape", "Size") or node.domain:
            # A table: as many rows of a constant as there are steps.
            is_table = node.op_type == "Slice" and not self.depends_on_length(node.inputs[0])
            if over_time and (is_table or self._spans_time_axis(node)):
                # It is as long as the sequence: a value over time whose content is not known.
                return False
            if any(value is not None and self._lacks_content(value) for value in node.inputs):
                return False
        for out in node.outputs:
            whole = self.whole.constant(out)
            others = [facts.constant(out) for facts in (self.part, self.longer)] if over_time else []
            if whole is not None and (not others or others[0] is not None):
                self._is_sized[out] = not all(_are_equal(whole, other) for other in others)
        return node.outputs[0] in self._is_sized

    def _spans_time_axis(self, node: ir.Node) -> bool:
        """Return whether a node fills an axis that is as long as the sequence."""
        if node.op_type not in _FILLING:
            return False
        whole, chunk = self.whole.shape(node.outputs[0]), self.part.shape(node.outputs[0])
        return whole is None or whole != chunk

    def _lacks_content(self, value: ir.Value) -> bool:
        if value.producer() is None:
            return value.is_graph_input() or not value.is_initializer()
        return value not in self._is_sized

    def _apply(self, node: ir.Node) -> None:
        is_known = not node.domain or is_stateful(node) or qualified_op_type(node) in _LIKE_STANDARD
        rule = self._rules.get(node.op_type) if is_known else None
        if any(value in self.scores for value in node.inputs):
            rule = self._of_scores.get("" if node.domain else node.op_type)
            if rule is None:
                raise CoupledError("computes with the scores of an attention in an unsupported way")
        if rule is None:
            raise CoupledError(
                f"may couple time steps: the behavior of {qualified_op_type(node)} over time is not known"
            )
        outcome = rule(self, node)
        outcomes = outcome if isinstance(outcome, list) else [outcome] * len(node.outputs)
        for out, one in zip(node.outputs, outcomes, strict=False):
            shape = self.shape_of(out)
            if isinstance(one, Track):
                if shape is not None and shape[one.axis : one.axis + 1] != (one.size,):
                    raise CoupledError("changes the length of the time axis in an unsupported way")
                self.tracks[out] = one
            elif isinstance(one, Scores):
                self.scores[out] = one
                if shape is None:
                    # A mask may be shorter than the example.
                    self.whole.transfer(one.product.outputs[0], out)
                    self.whole.assume(out, self._known_shape(one.product.outputs[0], "a result"))
                continue
            elif isinstance(one, CoupledError):
                self.pending[out] = one
            elif one == LATEST:
                self.latest.add(out)
            if shape is not None:
                self._assume_lengths(out, shape)

    def _assume_lengths(self, value: ir.Value, shape: tuple[int, ...]) -> None:
        """Assume a value to have the shapes that it has for a chunk, and for a longer sequence."""
        track = self.tracks.get(value)
        before, after = (shape, ()) if track is None else (shape[: track.axis], shape[track.axis + 1 :])
        self.part.assume(value, (*before, *(() if track is None else (track.chunk_size,)), *after))
        if self.has_dynamic_length:
            size = () if track is None else (track.with_(sample=self.sample.longer).size,)
            self.longer.assume(value, (*before, *size, *after))


def locate(model: ir.Model, node: ir.Node) -> LocatedNode:
    """Return a node of the main graph with its name."""
    return LocatedNode(node, node.name or shown_names(model)[node], "", default_opset(model))


_LIKE_STANDARD = frozenset(
    f"com.microsoft.{name}" for name in ("DequantizeLinear", "Gelu", "QuantizeLinear", "QuickGelu")
)
"""Operators of onnxruntime that treat time as the operator of the same name, or as an activation."""
BODIES = frozenset(("Loop", "Scan"))
"""Operators whose rules inspect the values that their bodies read."""
_POSITIONAL = {"Add", "Concat", "Div", "Gather", "Mul", "ScatterElements", "ScatterND", "Sub", "Where"}
"""Operators whose rules know what to do with positions that are computed from the number of steps."""
_FILLING = {"ConstantOfShape", "Expand", "Range", "Tile"}


def _are_equal(a: Array, b: Array | None) -> bool:
    return b is not None and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
