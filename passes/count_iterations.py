"""Loops that end by a condition, with a trip count."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.graph.loop_signature import LoopSignature, State
from rnnlower.graph.rewiring import remove_orphans
from rnnlower.graph.walk import is_read, look_through_identities
from rnnlower.lifting.loops import iterations
from rnnlower.lowering.emitter import Emitters
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
