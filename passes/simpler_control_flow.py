"""Passes that simplify the model's own control flow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import LoopSignature
from rnnlower.graph.rewiring import remove_orphans, splice, take_place_of
from rnnlower.graph.walk import (
    default_opset,
    display_name,
    is_read,
    look_through_identities,
    subgraphs_of,
    walk,
)
from rnnlower.lifting.loops import iterations
from rnnlower.lowering.emitter import Emitters
from rnnlower.passes.base import Pass, are_gone


def _no_state_is_loop_invariant(model: ir.Model, owner: object) -> bool:
    return not any(_loop_invariant_states(model, node) for node in loops(model))


_FIRST_WITHOUT_STATES = 11
"""The first opset whose Loop may have no states; it has outputs at any opset."""


class CaptureStatesPass(Pass):
    """Makes Loop bodies capture loop-invariant values instead of carrying them as states.

    A state stays if the body returns it more than once, or if its final value is a graph output.

    Before::

        (float[5, 2] x, float[2] h, float[2] w) => (float[5, 2] y) <int64 steps = {5}> {
            last, same, y = Loop (steps, , h, w) <body = each (int64 i, bool c, float[2] h_in, float[2] w_in)
                => (bool c, float[2] h_out, float[2] w_in, float[2] row) {
                x_t = Gather (x, i)
                s = Mul (h_in, w_in)
                h_out = Add (s, x_t)
                row = Identity (h_out)
            }>
        }

    After ``CaptureStatesPass()``::

        (float[5, 2] x, float[2] h, float[2] w) => (float[5, 2] y) <int64 steps = {5}> {
            last, y = Loop (steps, , h) <body = each (int64 i, bool c, float[2] h_in)
                => (bool c, float[2] h_out, float[2] row) {
                x_t = Gather (x, i)
                s = Mul (h_in, w)
                h_out = Add (s, x_t)
                row = Identity (h_out)
            }>
        }

    TensorFlow's loops carry their weights in this way. Captured, a constant is known inside the body as well.
    OpenVINO refuses a body that returns one of its inputs.
    """

    ENSURES = (_no_state_is_loop_invariant,)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in loops(model):
            if same := _loop_invariant_states(model, node):
                _capture_states(node, same)
                modified = True
        return ir.passes.PassResult(model, modified)


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
        loop, emitters = LoopSignature(node), Emitters(model)
        count, numbers = iterations(self.facts, node)
        body, goes = loop.body, loop.body.outputs[0]
        indices = [index for index in map(loop.before.index, numbers) if self._is_needless(node, index)]
        needs_one = default_opset(model) < _FIRST_WITHOUT_STATES or not loop.stacked
        is_fixed = self.facts.constant(goes) is not None or look_through_identities(goes) is body.inputs[1]
        if count is None or (is_fixed and not indices) or (len(indices) == loop.states and needs_one):
            return False
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
            for index in indices:
                dtype = self.facts.dtype(loop.before[index])
                assert dtype is not None
                loop.before[index].replace_all_uses_with(e.cast(body.inputs[0], dtype))
        starts = [value for index in indices if (value := node.inputs[2 + index]) is not None]
        replace_loop(node, indices, {})
        remove_orphans([*(loop.after[index] for index in indices), *starts])
        return True

    def _is_needless(self, node: ir.Node, index: int) -> bool:
        """Return whether only its body reads a counter, which has the shape of the iteration number."""
        body = node.attributes["body"].as_graph()
        number, counter = body.inputs[0], body.inputs[2 + index]
        is_result = is_read(node.outputs[index]) or counter.is_graph_output()
        return not is_result and self.facts.shape(number) == self.facts.shape(counter) is not None


def loops(model: ir.Model) -> list[ir.Node]:
    """Return the Loops of the main graph and its subgraphs."""
    return [node for node, _ in walk(model.graph) if node.op_type == "Loop" and not node.domain]


def _loop_invariant_states(model: ir.Model, node: ir.Node) -> list[int]:
    body, states = node.attributes["body"].as_graph(), len(node.inputs) - 2
    same = [index for index in range(states) if _is_loop_invariant(node, body, index)]
    needs_one = default_opset(model) < _FIRST_WITHOUT_STATES or len(node.outputs) == states
    return same[1:] if len(same) == states and needs_one else same


def _capture_states(node: ir.Node, same: Sequence[int]) -> None:
    body = node.attributes["body"].as_graph()
    given = {body.inputs[2 + index]: value for index in same if (value := node.inputs[2 + index])}
    returned = [body.outputs[1 + index] for index in same]
    for index, value in zip(same, given.values(), strict=True):
        node.outputs[index].replace_all_uses_with(value)
    replace_loop(node, same, {})
    remove_orphans(returned)
    for inner, value in given.items():
        inner.replace_all_uses_with(value)


@dataclasses.dataclass(frozen=True)
class CarriedState:
    """A state of a Loop or Scan: what it starts with, is before and after an iteration, and ends with."""

    start: ir.Value
    before: ir.Value
    after: ir.Value
    end: ir.Value


def replace_loop(
    node: ir.Node,
    dropped: Sequence[int],
    stacks: Mapping[ir.Value, ir.Value],
    carried: Sequence[CarriedState] = (),
) -> ir.Node:
    """Replace a Loop or Scan, and return the new one.

    Args:
        node: The Loop or Scan.
        dropped: The indices of the states that go.
        stacks: More values of its body to stack, with what holds them then; for a Loop.
        carried: More states, which come first.
    """
    loop, graph = LoopSignature(node), node.graph
    assert graph is not None
    body, first = loop.body, loop.first_input
    for index in reversed(dropped):
        body.outputs.pop(loop.first_output + index)
        body.inputs.pop(first + index)
    for index, state in enumerate(carried):
        body.outputs.insert(loop.first_output + index, state.after)
        body.inputs.insert(first + index, state.before)
    body.outputs.extend(stacks)
    kept = {
        value: ir.Value(doc_string=value.doc_string, metadata_props=value.metadata_props)
        for at, value in enumerate(node.outputs)
        if at not in dropped
    }
    inputs = [value for at, value in enumerate(node.inputs) if at - first not in dropped]
    other = ir.Node(
        "",
        node.op_type,
        [*inputs[:first], *(state.start for state in carried), *inputs[first:]],
        node.attributes.values(),
        outputs=[*(state.end for state in carried), *kept.values(), *stacks.values()],
        name=node.name,
        version=node.version,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
    other.meta.update(node.meta)
    graph.insert_before(node, other)
    for old, new in kept.items():
        take_place_of(new, old)
    graph.remove(node, safe=True)
    return other


def _is_loop_invariant(node: ir.Node, body: ir.Graph, index: int) -> bool:
    inner, returned = body.inputs[2 + index], body.outputs[1 + index]
    is_result = node.outputs[index].is_graph_output()
    others = [*body.outputs[: 1 + index], *body.outputs[2 + index :]]
    return look_through_identities(returned) is inner and inner not in others and not is_result


def _decided_ifs_are_gone(model: ir.Model, taking: TakeBranchesPass) -> bool:
    return are_gone(model, {"If": taking.taken})


class TakeBranchesPass(Pass):
    """Replaces every If whose condition follows from constants and static sizes by its branch, at any depth.

    Before::

        (float[2] x) => (float[2] y) <bool yes = {1}> {
            y = If (yes) <
                then_branch = p () => (a) { a = Neg (x) },
                else_branch = q () => (b) { b = Abs (x) }
            >
        }

    After ``TakeBranchesPass()``::

        (float[2] x) => (float[2] y) {
            y = Neg (x)
        }

    Attributes:
        taken: The branch of each such If, by the If's name or that of its first output.
    """

    KEEPS_FACTS = True
    ENSURES = (_decided_ifs_are_gone,)

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.taken |= take_branches(self.facts, model.graph)
        return ir.passes.PassResult(model, modified=bool(self.taken))


def take_branches(facts: Facts, graph: ir.Graph) -> dict[str, str]:
    """Replace the Ifs of known condition by their branches; return which ones, by the names of the Ifs."""
    taken: dict[str, str] = {}
    for node in list(graph):
        condition = facts.condition(node) if node.op_type == "If" and not node.domain else None
        if condition is None:
            for inner in subgraphs_of(node):
                taken |= take_branches(facts, inner)
            continue
        name = "then_branch" if condition else "else_branch"
        branch = node.attributes[name].as_graph()
        taken |= {display_name(node): name} | take_branches(facts, branch)
        splice(facts.model, node, branch)
    return taken
