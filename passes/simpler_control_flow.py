"""Passes that simplify the model's own control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import LoopSignature, State
from rnnlower.graph.rewiring import remove_orphans, splice, take_place_of
from rnnlower.graph.walk import default_opset, display_name, subgraphs_of, walk
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


def loops(model: ir.Model) -> list[ir.Node]:
    """Return the Loops of the main graph and its subgraphs."""
    return [node for node, _ in walk(model.graph) if node.op_type == "Loop" and not node.domain]


def needs_state(model: ir.Model, node: ir.Node) -> bool:
    """Return whether a Loop must carry a state."""
    return default_opset(model) < _FIRST_WITHOUT_STATES or not LoopSignature(node).stacked


def _loop_invariant_states(model: ir.Model, node: ir.Node) -> dict[int, State]:
    """Return the states that never change, and that the body returns as nothing else, by their indices."""
    loop = LoopSignature(node)
    same = {
        index: state
        for index, state in enumerate(loop.states)
        if state.is_invariant
        and not state.end.is_graph_output()
        and loop.body.outputs.count(state.before) == (state.after is state.before)
    }
    if len(same) == loop.count and needs_state(model, node):
        same.pop(0, None)
    return same


def _capture_states(node: ir.Node, same: Mapping[int, State]) -> None:
    for state in same.values():
        state.end.replace_all_uses_with(state.start)
    replace_loop(node, [*same], {})
    remove_orphans(state.after for state in same.values())
    for state in same.values():
        state.before.replace_all_uses_with(state.start)


def replace_loop(
    node: ir.Node, dropped: Sequence[int], stacks: Mapping[ir.Value, ir.Value], carried: Sequence[State] = ()
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


def take_branches(
    facts: Facts, graph: ir.Graph, wanted: Callable[[ir.Node], bool] = lambda node: True
) -> dict[str, str]:
    """Replace the wanted Ifs of known condition by their branches; return these, by the names of the Ifs."""
    taken: dict[str, str] = {}
    for node in list(graph):
        condition = facts.condition(node) if node.op_type == "If" and not node.domain else None
        if condition is None or not wanted(node):
            for inner in subgraphs_of(node):
                taken |= take_branches(facts, inner, wanted)
            continue
        name = "then_branch" if condition else "else_branch"
        branch = node.attributes[name].as_graph()
        taken |= {display_name(node): name} | take_branches(facts, branch, wanted)
        splice(facts.model, node, branch)
    return taken
