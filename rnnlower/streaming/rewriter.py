"""The rewriter that applies the edits of a stream's analysis."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.files.metadata import StreamMetadata
from rnnlower.graph.inference import forget_inner_shapes
from rnnlower.graph.rewiring import prepend, remove_orphans, replace_with_values, set_input, take_place_of
from rnnlower.graph.walk import operand, required_input
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.streaming.analysis import Analysis
from rnnlower.timeflow import edits

_COUNTER = "calls"


class StreamRewriter:
    """A rewriter of the main graph of a model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._graph = model.graph
        self._emitters = Emitters(model)
        self._names, self._pool = self._emitters.names, self._emitters.constants
        self._states: dict[str, str] = {}
        self._starts: dict[str, Any] = {}
        self._shared: dict[tuple[object, ...], ir.Value] = {}
        self._ready: dict[int, ir.Value] = {}
        self._counter: ir.Value | None = None
        self._positions: dict[int, ir.Value] = {}
        self._pending_position_outputs: dict[int, str] = {}
        self._is_open = False

    def rewrite(self, analysis: Analysis) -> Mapping[str, str]:
        """Apply the edits; return the output of each state with the input that takes it."""
        steps: dict[type, Callable[[Any], None]] = {
            edits.BlankFrames: self._blank,
            edits.BypassNode: self._bypass,
            edits.CacheInput: self._cache,
            edits.ContinuePositions: self._count,
            edits.HoldState: self._hold,
            edits.OverlapAdd: self._overlap,
            edits.ReplaceInput: self._replace,
            edits.SetAttribute: self._set_attribute,
            edits.ContinueSum: self._sum,
        }
        self._is_open = analysis.chunk is None
        # Positions may have lost their readers.
        for edit in sorted(analysis.edits, key=lambda edit: isinstance(edit, edits.ContinuePositions)):
            steps[type(edit)](edit)
        self._forget_shapes(analysis)
        tracks = {name: track.unfolded for name, track in analysis.outputs.items()}
        StreamMetadata(
            chunk=analysis.chunk,
            inputs=analysis.axes,
            outputs={name: track.axis for name, track in tracks.items()},
            delay=analysis.delay,
            states=self._states,
            start=self._starts,
            rates={name: rate for name, track in tracks.items() if (rate := track.rate) != 1},
            stages={name: track.stages for name, track in tracks.items() if track.stages != ((1, 0, 1),)},
            unreached=analysis.unreached,
            limit=analysis.limit,
            steps=analysis.steps,
        ).write(self._model.metadata_props)
        return self._states

    # States.

    def _state(
        self, name: str, dtype: ir.DataType, shape: edits.Dims, start: edits.Start
    ) -> tuple[ir.Value, str]:
        """Add an input for a state; return it with the name of its output."""
        bases = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        base = next(base for base in bases if self._names.is_free(f"{base}_in", f"{base}_out"))
        value = ir.Value(
            name=self._names.fresh(f"{base}_in"), type=ir.TensorType(dtype), shape=ir.Shape(list(shape))
        )
        self._graph.inputs.append(value)
        out = self._names.fresh(f"{base}_out")
        self._states[out] = str(value.name)
        self._starts[str(value.name)] = _as_json(start)
        return value, out

    def _add_state_output(self, value: ir.Value, name: str, old: ir.Value, calls: int) -> None:
        """Make a value the output of a state; before the first real frame the old value is kept."""
        emitter = self._emitter(old, name)
        if calls:
            value = emitter.op("Where", self._is_ready(calls), value, old, since=9)
        if not calls and (value.is_graph_output() or value.is_graph_input()):
            value = emitter.op("Identity", value)
        self._graph.extend(emitter.nodes)
        value.name = name
        value.type = old.type
        value.shape = old.shape
        self._graph.outputs.append(value)

    def _is_ready(self, calls: int) -> ir.Value:
        """Emit whether there were at least this many calls before."""
        if self._counter is None:
            self._counter, name = self._state(_COUNTER, ir.DataType.FLOAT, (1,), 0.0)
            emitter = self._emitter(self._counter, _COUNTER)
            # The float stops growing only far beyond all limits.
            more = emitter.op("Add", self._counter, emitter.constant(np.ones(1, np.float32)))
            self._place(emitter, None)
            self._add_state_output(more, name, self._counter, 0)
        if calls not in self._ready:
            emitter = self._emitter(self._counter, _COUNTER)
            limit = emitter.constant(np.array([calls - 0.5], np.float32))
            self._ready[calls] = emitter.op("Greater", self._counter, limit, since=9)
            self._place(emitter, None)
        return self._ready[calls]

    def _hold(self, edit: edits.HoldState) -> None:
        node = edit.node
        if len(node.outputs) <= edit.output:
            node.resize_outputs(edit.output + 1)
        final = node.outputs[edit.output]
        if not final.name:
            final.name = self._names.fresh(f"{edit.name}_final")
        if edit.kept is not None:
            self._keep(*edit.kept, final, node.inputs[edit.index], edit.calls)
            return
        value, out = self._state(edit.name, edit.dtype, edit.shape, edit.start)
        self._set_input(node, edit.index, value)
        self._add_state_output(final, out, value, edit.calls)

    def _keep(
        self, value: ir.Value, output: ir.Value | None, final: ir.Value, taken: ir.Value | None, calls: int
    ) -> None:
        """Keep a state that is an input already; its output exists, or is added in the shape of the input.

        It starts with its default, or with zeros, as callers start such models.
        """
        assert value.name is not None
        default = value.const_value
        self._starts[value.name] = 0.0 if default is None else _as_json(default.numpy())
        if value.name in self._states.values():
            return
        if output is not None:
            assert output.name is not None
            self._states[output.name] = value.name
            if calls:
                emitter = self._emitter(value, output.name)
                held = emitter.op("Where", self._is_ready(calls), output, value, since=9)
                self._graph.extend(emitter.nodes)
                early = self._names.fresh(f"{output.name}_early")
                take_place_of(held, output, old_name=early, readers=())
        else:
            name = self._names.fresh(f"{value.name}_out")
            self._states[name] = value.name
            if taken is not value and value.shape is not None:
                emitter = self._emitter(final, name)
                sizes = [
                    size if isinstance(size, int) else emitter.dim(value, axis)
                    for axis, size in enumerate(value.shape)
                ]
                final = emitter.reshape(final, sizes)
                final.type = value.type
                self._graph.extend(emitter.nodes)
            self._add_state_output(final, name, value, calls)

    def _cache(self, edit: edits.CacheInput) -> None:
        value = self._graph.outputs[edit.index] if edit.node is None else edit.node.inputs[edit.index]
        assert value is not None
        start = edit.start.tobytes() if isinstance(edit.start, np.ndarray) else edit.start
        key = (value, edit.axis, edit.cache, edit.drop, start, edit.calls, edit.repeats, edit.repeated)
        if key not in self._shared or edit.node is None:
            self._shared[key] = self._with_cache(edit, value)
        if edit.node is not None:
            edit.node.replace_input_with(edit.index, self._shared[key])
            return
        early = self._names.fresh(f"{value.name}_early")
        take_place_of(self._shared[key], value, old_name=early, readers=())

    def _with_cache(self, edit: edits.CacheInput, value: ir.Value) -> ir.Value:
        name = f"{edit.value.name or value.name}_cache"
        state, out = self._state(name, edit.dtype, edit.shape, edit.start)
        emitter = self._emitter(value, name)
        front = self._with_repeated(edit, emitter, state, value) if edit.repeats else state
        joined = emitter.concat([front, value], edit.axis)
        last = emitter.slice(joined, [-edit.cache], [np.iinfo(np.int64).max], [edit.axis])
        front = joined
        if edit.drop:
            front = emitter.slice(joined, [0], [-edit.drop], [edit.axis])
        for each in (joined, last, front):
            each.type = ir.TensorType(edit.dtype)
        self._place(emitter, value.producer())
        self._add_state_output(last, out, state, edit.calls)
        return front

    def _with_repeated(
        self, edit: edits.CacheInput, emitter: Emitter, state: ir.Value, value: ir.Value
    ) -> ir.Value:
        """Emit the state whose last frames repeat frames of the first chunk, in the call with that chunk."""
        reflects = edit.repeats == "reflect"
        first = emitter.slice(value, [int(reflects)], [edit.repeated * reflects + 1], [edit.axis])
        first = emitter.flip(first, edit.axis) if reflects else first
        is_later, cut = self._is_ready(edit.calls + 1), edit.cache - edit.repeated
        if not cut:
            return emitter.op("Where", is_later, state, first, since=9)
        front = emitter.slice(state, [0], [cut], [edit.axis])
        last = emitter.slice(state, [cut], [edit.cache], [edit.axis])
        return emitter.concat([front, emitter.op("Where", is_later, last, first, since=9)], edit.axis)

    def _sum(self, edit: edits.ContinueSum) -> None:
        node = edit.node
        total = node.outputs[0]
        source = required_input(node)
        state, out = self._state(f"{total.name}_sum", edit.dtype, edit.shape, 0.0)
        emitter = self._emitter(source, f"{total.name}_sum")
        ongoing = emitter.op("Add", total, state)
        ends = ([-1], [np.iinfo(np.int64).max], [edit.axis])
        last = emitter.slice(ongoing, *ends)
        if "exclusive" in node.attributes and node.attributes["exclusive"].value:
            last = emitter.op("Add", last, emitter.slice(source, *ends))
        self._continue(total, ongoing)
        self._place(emitter, node)
        self._add_state_output(last, out, state, edit.calls)

    def _position_of(self, chunk: int) -> ir.Value:
        """Return the number of frames before a chunk, where one of the stream has this many."""
        if chunk not in self._positions:
            state = self._state("position", ir.DataType.INT64, (1,), 0)
            self._positions[chunk], self._pending_position_outputs[chunk] = state
        return self._positions[chunk]

    def _advance(self, chunk: int, count: ir.Value) -> None:
        """Advance the position by the frames of a call, unless done already."""
        if chunk in self._pending_position_outputs:
            position = self._positions[chunk]
            emitter = self._emitter(position, "position")
            later = emitter.op("Add", position, count)
            self._graph.extend(emitter.nodes)
            self._add_state_output(later, self._pending_position_outputs.pop(chunk), position, 0)

    def _blank(self, edit: edits.BlankFrames) -> None:
        value = required_input(edit.node, edit.index)
        key = (value, "blank", edit.late, edit.fill)
        if key not in self._shared:
            emitter = self._emitter(value, f"{value.name}_blank")
            fill = emitter.constant(np.array(edit.fill, edit.dtype.numpy()))
            count, steps = emitter.integers(edit.chunk), emitter.constant(np.arange(edit.chunk))
            if self._is_open:
                count = emitter.dim(value, edit.axis)
                steps = emitter.cast(emitter.arange(count), ir.DataType.INT64)
            places = emitter.op("Add", steps, self._position_of(edit.chunk))
            is_late = emitter.op("Less", places, emitter.integers(edit.late), since=9)
            if edit.axis + 1 < edit.rank:
                is_late = emitter.reshape(is_late, [-1, *[1] * (edit.rank - edit.axis - 1)])
            blanked = emitter.op("Where", is_late, fill, value, since=9)
            blanked.type = ir.TensorType(edit.dtype)
            self._place(emitter, value.producer())
            self._advance(edit.chunk, count)
            self._shared[key] = blanked
        edit.node.replace_input_with(edit.index, self._shared[key])

    def _count(self, edit: edits.ContinuePositions) -> None:
        node = edit.node
        if node.graph is None:
            return
        position = self._position_of(edit.chunk)
        emitter = self._emitter(position, "position")
        if edit.table is None:
            first = emitter.op("Mul", position, emitter.integers(edit.step)) if edit.step != 1 else position
            value = node.outputs[0]
            ongoing = emitter.op("Add", value, emitter.cast(first, edit.dtype))
            self._continue(value, ongoing)
            is_counted = self._is_open and edit.chunk in self._pending_position_outputs
            count = emitter.op("Shape", value) if is_counted else emitter.integers(edit.chunk)
            self._place(emitter, node)
        else:
            count, rows = self._rows(edit, emitter, position)
            emitter.insert_before(node)
            self._set_input(node, edit.index, rows)
        self._advance(edit.chunk, count)

    def _rows(
        self, edit: edits.ContinuePositions, emitter: Emitter, position: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Emit the rows of a table for a chunk; return their number, and them."""
        table, first = edit.table, position
        if not isinstance(table, ir.Value):
            table = self._pool.intern(ir.Tensor(np.array(table, order="C")))
        if edit.holds is not None:
            limit = emitter.integers(edit.holds)
            is_before = emitter.op("Less", position, limit, since=9)
            first = emitter.op("Where", is_before, position, limit, since=9)
        count, steps = emitter.integers(edit.chunk), emitter.constant(np.arange(edit.chunk))
        if self._is_open and edit.count is not None:
            vector, place = edit.count
            count = emitter.slice(vector, [place], [place + 1], [0])
            steps = emitter.cast(emitter.arange(count), ir.DataType.INT64)
        return count, emitter.op("Gather", table, emitter.op("Add", steps, first), axis=edit.axis)

    def _continue(self, value: ir.Value, ongoing: ir.Value) -> None:
        """Let a result computed from a value take over its name and its other uses."""
        readers = [use for use in value.uses() if use.node is not ongoing.producer()]
        take_place_of(ongoing, value, old_name=self._names.fresh(f"{value.name}_of_chunk"), readers=readers)

    def _overlap(self, edit: edits.OverlapAdd) -> None:
        node, axis, kernel, hop = edit.node, edit.axis, edit.kernel, edit.hop
        value, shape = required_input(node, edit.index), edit.shape
        emitter = self._emitter(value, f"{node.outputs[0].name}_overlap")
        parts, before = -(-kernel // hop), -(-kernel // hop) - 1
        sizes = [emitter.dim(value, place) if dim is None else dim for place, dim in enumerate(shape)]
        if edit.is_folded:
            value = emitter.reshape(value, [*sizes[:axis], edit.frames + before, kernel, *sizes[axis + 1 :]])
        else:
            del sizes[axis + 1]
        if kernel < parts * hop:
            pads = [0] * (2 * len(sizes) + 2)
            pads[len(sizes) + axis + 2] = parts * hop - kernel
            value = emitter.op("Pad", value, emitter.integers(*pads), since=11)
        shifted = (
            emitter.slice(
                value, [first, part * hop], [first + edit.frames, (part + 1) * hop], [axis, axis + 1]
            )
            for part, first in enumerate(range(before, -1, -1))
        )
        total = functools.reduce(functools.partial(emitter.op, "Add"), shifted)
        total = emitter.reshape(total, [*sizes[:axis], edit.frames * hop, *sizes[axis + 1 :]])
        emitter.insert_before(node)
        replace_with_values(node, [total])

    # Other edits.

    def _replace(self, edit: edits.ReplaceInput) -> None:
        new = None if edit.array is None else self._pool.intern(ir.Tensor(np.array(edit.array, order="C")))
        self._set_input(edit.node, edit.index, new)

    def _set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Set an input of a node, and remove what nothing reads any more."""
        old = operand(node, index)
        set_input(node, index, value)
        if old is not None:
            remove_orphans([old])

    def _set_attribute(self, edit: edits.SetAttribute) -> None:
        edit.node.attributes[edit.name] = ir.AttrInt64s(edit.name, list(edit.value))
        if edit.name == "pads":
            # VALID, which means none: a node has one or the other.
            edit.node.attributes.pop("auto_pad", None)

    def _bypass(self, edit: edits.BypassNode) -> None:
        (out,) = edit.node.outputs
        identity = ir.node("Identity", [edit.node.inputs[edit.index]])
        self._graph.insert_before(edit.node, identity)
        take_place_of(identity.outputs[0], out)
        remove_orphans([out])

    def _emitter(self, value: ir.Value, name: str) -> Emitter:
        return self._emitters.at(name, value.dtype or ir.DataType.FLOAT)

    def _place(self, emitter: Emitter, after: ir.Node | None) -> None:
        """Insert emitted nodes after a node, or at the beginning."""
        if after is None:
            prepend(self._graph, emitter.nodes)
        else:
            emitter.insert_after(after)

    def _forget_shapes(self, analysis: Analysis) -> None:
        """Remove shapes inside the graph, and declare those of a chunk at its inputs and outputs."""
        forget_inner_shapes(self._graph)
        for value in self._graph.inputs:
            axis = analysis.axes.get(value.name or "")
            if axis is not None and value.shape is not None and analysis.chunk is not None:
                value.shape = _with_size(value.shape, axis, analysis.chunk)
            if analysis.single and value.shape is not None:
                dims = enumerate(value.shape)
                value.shape = ir.Shape(
                    [dim if isinstance(dim, int) or place == axis else 1 for place, dim in dims]
                )
        for value in self._graph.outputs:
            track = analysis.outputs.get(value.name or "")
            if track is not None and value.shape is not None and analysis.chunk is not None:
                value.shape = _with_size(value.shape, track.axis, track.chunk_size)


def _as_json(start: edits.Start) -> object:
    """Return a start as JSON data."""
    return start.tolist() if isinstance(start, np.ndarray) else start


def _with_size(shape: ir.Shape, axis: int, size: int) -> ir.Shape:
    return ir.Shape([size if place == axis else dim for place, dim in enumerate(shape)])
