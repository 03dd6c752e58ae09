"""Passes that give Loops another form: with a trip count, or as Scans."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.graph.inference import forget_inner_shapes
from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH, LoopSignature, State
from rnnlower.graph.rewiring import remove_orphans, take_place_of
from rnnlower.graph.walk import (
    display_name,
    is_read,
    look_through_identities,
    reachable,
    values_read_by,
    walk,
)
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.frames import Frame
from rnnlower.lifting.loops import iterations, loop_frame
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.passes.base import Pass
from rnnlower.passes.simpler_control_flow import loops, needs_state, replace_loop


class CountIterationsPass(Pass):
    """Gives Loops that end at ``t < n`` a trip count instead of the condition, and no counters of their own.

    A counter stays if its final value is read. A condition stays if it depends on more than the number of the
    iteration, if its limit is not an integer, and if none is in front: then the first iteration always runs.

    Before::

        (float[T, 2] x, float[2] h) => (float[T, 2] y)
            <int32 zero = {0}, int32 one = {1}, int64 first = {0}> {
            sizes = Shape (x)
            long = Gather (sizes, first)
            steps = Cast <to = 6> (long)
            go = Less (zero, steps)
            end, last, y = Loop (, go, zero, h) <body = each (int64 i, bool c, int32 t, float[2] h_in)
                => (bool goes, int32 next, float[2] h_out, float[2] row) {
                x_t = Gather (x, t)
                h_out = Add (h_in, x_t)
                row = Identity (h_out)
                next = Add (t, one)
                goes = Less (next, steps)
            }>
        }

    After ``CountIterationsPass()``::

        (float[T, 2] x, float[2] h) => (float[T, 2] y) <int64 first = {0}> {
            sizes = Shape (x)
            long = Gather (sizes, first)
            last, y = Loop (long, , h) <body = each (int64 i, bool c, float[2] h_in)
                => (bool goes, float[2] h_out, float[2] row) {
                t = Cast <to = 6> (i)
                goes = Identity (c)
                x_t = Gather (x, t)
                h_out = Add (h_in, x_t)
                row = Identity (h_out)
            }>
        }

    TensorFlow's loops count so. A stream goes through Loops that have a trip count.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        counted = [self._count(model, node) for node in loops(model)]
        return ir.passes.PassResult(model, any(counted))

    def _count(self, model: ir.Model, node: ir.Node) -> bool:
        loop = LoopSignature(node)
        count, numbers = iterations(self.facts, node)
        body, goes = loop.body, loop.body.outputs[0]
        needless = {
            index: state
            for index, state in enumerate(loop.states)
            if state.before in numbers and self._is_needless(state, body)
        }
        is_fixed = self.facts.constant(goes) is not None or look_through_identities(goes) is body.inputs[1]
        if (
            count is None
            or (is_fixed and not needless)
            or (len(needless) == loop.count and needs_state(model, node))
        ):
            return False
        emitters = Emitters(model)
        if not is_fixed:
            unread = [goes, *(value for value in node.inputs[:2] if value is not None)]
            with emitters.before(node) as e:
                number = e.constant(np.array(count)) if isinstance(count, int) else count
                is_int64 = self.facts.dtype(number) == ir.DataType.INT64
                node.replace_input_with(0, number if is_int64 else e.cast(number, ir.DataType.INT64))
            node.replace_input_with(1, None)
            with emitters.before(body[0]) as e:
                always = e.op("Identity", body.inputs[1])
            always.type, always.shape = goes.type, goes.shape
            body.outputs[0] = always
            remove_orphans(unread)
        with emitters.before(body[0]) as e:
            for state in needless.values():
                dtype = self.facts.dtype(state.before)
                assert dtype is not None
                state.before.replace_all_uses_with(e.cast(body.inputs[0], dtype))
        replace_loop(node, [*needless], {})
        remove_orphans(value for state in needless.values() for value in (state.after, state.start))
        return True

    def _is_needless(self, state: State, body: ir.Graph) -> bool:
        """Return whether only the body reads a counter, which has the shape of the iteration number."""
        is_result = is_read(state.end) or state.before.is_graph_output()
        return (
            not is_result and self.facts.shape(body.inputs[0]) == self.facts.shape(state.before) is not None
        )


def _loops_are_gone(model: ir.Model, writing: WriteScansPass) -> bool:
    nodes = [node for node, _ in walk(model.graph) if node.op_type == "Loop"]
    return not {*writing.written}.intersection(map(display_name, nodes))


class WriteScansPass(Pass):
    """Writes Loops as Scans if each step reads one element of a series.

    A Loop stays if its body uses the number of the iteration in another way, or reads part of a series.

    Before::

        (float[T, 2] x, float[2] h) => (float[2] last, float[T, 2] y) <int64 first = {0}> {
            sizes = Shape (x)
            steps = Gather (sizes, first)
            last, y = Loop (steps, , h) <body = each (int64 i, bool c, float[2] h_in)
                => (bool goes, float[2] h_out, float[2] row) {
                x_t = Gather (x, i)
                h_out = Add (h_in, x_t)
                row = Neg (h_out)
                goes = Identity (c)
            }>
        }

    After ``WriteScansPass()``::

        (float[T, 2] x, float[2] h) => (float[2] last, float[T, 2] y) {
            last, y = Scan <num_scan_inputs = 1, body = each (float[2] h_in, float[2] x_t)
                => (float[2] h_out, float[2] row) {
                h_out = Add (h_in, x_t)
                row = Neg (h_out)
            }> (h, x)
        }

    Attributes:
        written: The names of the Loops.
    """

    ENSURES = (_loops_are_gone,)

    def __init__(self) -> None:
        self.written: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if self.facts.opset >= FIRST_SCAN_WITHOUT_BATCH:
            emitters = Emitters(model)
            for node in loops(model):
                try:
                    frame = loop_frame(self.facts, node, None)
                except NotLiftableError:
                    continue
                if (values := self._values_of_steps(node, frame)) is not None:
                    self.written.append(display_name(node))
                    body = self._write(emitters, node, frame, values)
                    # The length of the results is known now.
                    self.facts.forget()
                    for value in (*body.inputs, *body.outputs):
                        shape = self.facts.shape(value)
                        value.shape = None if shape is None else ir.Shape(shape)
        return ir.passes.PassResult(model, bool(self.written))

    def _values_of_steps(self, node: ir.Node, frame: Frame) -> set[ir.Value] | None:
        """Return what a step computes from its elements and states, if it needs nothing else of the Loop."""
        given = {*(series.inner for series in frame.inputs), *frame.aliases}
        results = [*(state.after for state in frame.states), *(series.inner for series in frame.outputs)]
        values = {
            *reachable(results, lambda value: [] if value in given else values_read_by(value.producer()))
        }
        own = {*LoopSignature(node).body.inputs} - given - {state.before for state in frame.states}
        is_whole = frame.inputs and all(series.window is None for series in frame.inputs)
        has_end = any(end.is_graph_output() for end, _ in frame.unchanged)
        keep_shapes = all(map(self._keeps_shape, frame.states))
        return values if is_whole and keep_shapes and not has_end and own.isdisjoint(values) else None

    def _keeps_shape(self, state: State) -> bool:
        """Return whether a state is a tensor whose sizes are those of its start after every step."""
        start, before, after = (self.facts.dims(each) for each in (state.start, state.before, state.after))
        is_tensor = isinstance(self.facts.type(state.start), ir.TensorType)
        is_same = self.facts.shape(state.start) == self.facts.shape(state.after)
        return is_tensor and is_same and after is not None and after in (start, before)

    def _write(self, emitters: Emitters, loop: ir.Node, frame: Frame, values: set[ir.Value]) -> ir.Graph:
        """Replace a Loop by a Scan, and return its body."""
        e = emitters.at(display_name(loop), ir.DataType.FLOAT)
        body = self._make_body(e, LoopSignature(loop).body, frame, values)
        attributes: dict[str, ir.Graph | int | list[int]] = {
            "body": body,
            "num_scan_inputs": len(frame.inputs),
        }
        for what, scanned in (("input", frame.inputs), ("output", frame.outputs)):
            if any(axes := [series.axis for series in scanned]):
                attributes[f"scan_{what}_axes"] = axes
            if any(directions := [int(series.reverse) for series in scanned]):
                attributes[f"scan_{what}_directions"] = directions
        starts = [*(state.start for state in frame.states), *(series.outer for series in frame.inputs)]
        ends = [*(state.end for state in frame.states), *(series.outer for series in frame.outputs)]
        scan = ir.node("Scan", starts, attributes, num_outputs=len(ends), name=loop.name)
        scan.metadata_props.update(loop.metadata_props)
        loop.prepend(scan)
        for new, old in zip(scan.outputs, ends, strict=True):
            take_place_of(new, old)
        remove_orphans(loop.outputs)
        return body

    def _make_body(self, e: Emitter, body: ir.Graph, frame: Frame, values: set[ir.Value]) -> ir.Graph:
        """Return the body of the Scan, with the nodes of the Loop's body that compute these values."""
        read = {series.inner for series in frame.inputs}
        nodes = [
            node for node in body if not values.isdisjoint(node.outputs) and read.isdisjoint(node.outputs)
        ]
        results = [*(state.after for state in frame.states), *(series.inner for series in frame.outputs)]
        types = [self.facts.type(value) for value in results]
        read_types = [self.facts.type(series.inner) for series in frame.inputs]
        elements = [ir.Value(name=e.names.fresh("element"), type=type_) for type_ in read_types]
        instead = {**frame.aliases, **dict(frame.unchanged)}
        for scanned, element in zip(frame.inputs, elements, strict=True):
            instead[scanned.inner] = e.unsqueeze(element, scanned.axis, []) if scanned.keeps_axis else element
        body.remove(nodes)
        nodes = [*e.nodes, *nodes]
        e.nodes.clear()
        initializers = list(body.initializers.values())
        for part in (body.inputs, body.outputs, body.initializers):
            part.clear()
        for old, new in instead.items():
            old.replace_all_uses_with(new)
        states = [state.before for state in frame.states]
        for at, value in enumerate(results):
            value = instead.get(value, value)
            series = frame.outputs[at - len(states)] if at >= len(states) else None
            if series is not None and series.keeps_axis:
                value = e.squeeze(value, series.axis, [])
            # A body returns what it computes, and once. tract does not stack what the body reads.
            is_read = series is not None and bool(value.uses())
            if is_read or value in results[:at] or value.producer() not in (*nodes, *e.nodes):
                value = e.op("Identity", value)
            results[at], value.type = value, types[at]
        step = ir.Graph(
            [*states, *elements], results, nodes=[*nodes, *e.nodes], initializers=initializers, name=body.name
        )
        # Exporters give each value a size of its own, which a runtime would believe.
        forget_inner_shapes(step)
        for value in (*states, *results):
            value.shape = None
        return step
