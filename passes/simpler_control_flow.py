"""Passes that simplify the model's own control flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnnlower.graph.evaluation import Shape
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import remove_orphans, replace_with_values, splice, take_place_of
from rnnlower.graph.walk import display_name, operand, subgraphs_of, walk
from rnnlower.passes.base import Pass, has_node

if TYPE_CHECKING:
    from rnnlower.lowering.emitter import Emitter


def _no_state_is_loop_invariant(model: ir.Model, owner: object) -> bool:
    return not any(_loop_invariant_states(node) for node in _loops(model))


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
        for node in _loops(model):
            if same := _loop_invariant_states(node):
                _capture_states(node, same)
                modified = True
        return ir.passes.PassResult(model, modified)


def _loops(model: ir.Model) -> list[ir.Node]:
    return [node for node, _ in walk(model.graph) if node.op_type == "Loop" and not node.domain]


def _loop_invariant_states(node: ir.Node) -> list[int]:
    body = node.attributes["body"].as_graph()
    return [index for index in range(len(node.inputs) - 2) if _is_loop_invariant(node, body, index)]


def _capture_states(node: ir.Node, same: Sequence[int]) -> None:
    body = node.attributes["body"].as_graph()
    given = {body.inputs[2 + index]: value for index in same if (value := node.inputs[2 + index])}
    for index, value in zip(same, given.values(), strict=True):
        node.outputs[index].replace_all_uses_with(value)
    _replace_loop(node, same, {})
    for inner, value in given.items():
        inner.replace_all_uses_with(value)


def _replace_loop(node: ir.Node, dropped: Sequence[int], stacks: Mapping[ir.Value, ir.Value]) -> None:
    """Replace a Loop by one without these states, which also stacks values of its body: in their `stacks`."""
    body, graph = node.attributes["body"].as_graph(), node.graph
    assert graph is not None
    for index in reversed(dropped):
        body.outputs.pop(1 + index)
        body.inputs.pop(2 + index)
    body.outputs.extend(stacks)
    kept = {value: ir.Value() for at, value in enumerate(node.outputs) if at not in dropped}
    other = ir.Node(
        "",
        "Loop",
        [value for at, value in enumerate(node.inputs) if at - 2 not in dropped],
        node.attributes.values(),
        outputs=[*kept.values(), *stacks.values()],
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


def _is_loop_invariant(node: ir.Node, body: ir.Graph, index: int) -> bool:
    inner = body.inputs[2 + index]
    returned = [value for value in body.outputs if value is inner]
    is_result = node.outputs[index].is_graph_output()
    return body.outputs[1 + index] is inner and len(returned) == 1 and not is_result


class StackSequencesPass(Pass):
    """Makes Loops stack what their bodies append to sequences that are only concatenated afterward.

    What is concatenated along an axis of its own keeps its size there in each iteration, and the sizes of the
    axes after it are known.

    Before::

        (float[5, 2] x, float[2] h) => (float[2, 5] y) <int64 steps = {5}> {
            none = SequenceEmpty ()
            last, rows = Loop (steps, , h, none) <body = each
                (int64 i, bool c, float[2] h_in, seq(float) s) => (bool c, float[2] h_out, seq(float) s_out) {
                x_t = Gather (x, i)
                h_out = Add (h_in, x_t)
                s_out = SequenceInsert (s, h_out)
            }>
            y = ConcatFromSequence <axis = 1, new_axis = 1> (rows)
        }

    After ``StackSequencesPass()``::

        (float[5, 2] x, float[2] h) => (float[2, 5] y) <int64 steps = {5}> {
            last, rows = Loop (steps, , h) <body = each
                (int64 i, bool c, float[2] h_in) => (bool c, float[2] h_out, float[2] row) {
                x_t = Gather (x, i)
                h_out = Add (h_in, x_t)
                row = Identity (h_out)
            }>
            y = Transpose <perm = [1, 0]> (rows)
        }

    TorchScript writes lists so. Other runtimes than onnxruntime have Loops, but few have sequences.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in _loops(model):
            found = {
                index: element
                for index in range(len(node.inputs) - 2)
                if (element := self._appended(node, index)) is not None
            }
            if found:
                self._stack(model, node, found)
                modified = True
        return ir.passes.PassResult(model, modified)

    def _appended(self, node: ir.Node, index: int) -> ir.Value | None:
        """Return what a body appends to a state that is an empty sequence before the Loop."""
        body, given, result = node.attributes["body"].as_graph(), node.inputs[2 + index], node.outputs[index]
        before, after = body.inputs[2 + index], body.outputs[1 + index]
        start, insert = None if given is None else given.producer(), after.producer()
        if start is None or start.op_type != "SequenceEmpty" or insert is None:
            return None
        is_appended = insert.op_type == "SequenceInsert" and operand(insert, 2) is None
        if not is_appended or insert.inputs[0] is not before or len(before.uses()) > 1 or after.uses():
            return None
        element = insert.inputs[1]
        shape = self.facts.shape(element)
        if shape is None or self.facts.dtype(element) is None or result.is_graph_output():
            return None
        return element if all(_can_read_stack(use.node, shape) for use in result.uses()) else None

    def _stack(self, model: ir.Model, node: ir.Node, found: Mapping[int, ir.Value]) -> None:
        from rnnlower.lowering.emitter import Emitters

        emitters, names = Emitters(model), NameSource(all_names(model))
        body, stacks = node.attributes["body"].as_graph(), {}
        sequences = [body.outputs[1 + index] for index in found]
        sequences += [value for index in found if (value := node.inputs[2 + index])]
        for index, element in found.items():
            result, name = node.outputs[index], names.fresh(f"{element.name}/row")
            sizes = ir.Shape(self.facts.shape(element) or ())
            row = ir.Value(name=name, type=self.facts.type(element), shape=sizes)
            body.append(ir.node("Identity", [element], outputs=[row], name=names.fresh(f"{name}/Identity")))
            stacks[row] = ir.Value(name=names.fresh(f"{result.name}/stack"))
            result.replace_all_uses_with(stacks[row])
        _replace_loop(node, [*found], stacks)
        for stack, element in zip(stacks.values(), found.values(), strict=True):
            for use in list(stack.uses()):
                with emitters.before(use.node) as e:
                    joined = _join(e, stack, use.node, self.facts.shape(element) or ())
                replace_with_values(use.node, [joined])
        remove_orphans(sequences)


def _can_read_stack(reader: ir.Node, shape: Shape) -> bool:
    if reader.op_type != "ConcatFromSequence" or reader.domain:
        return False
    axis, is_new = reader.attributes.get_int("axis", 0), reader.attributes.get_int("new_axis", 0) == 1
    return is_new or None not in shape[axis % len(shape) :]


def _join(e: Emitter, stack: ir.Value, reader: ir.Node, shape: Shape) -> ir.Value:
    """Emit what a ConcatFromSequence makes of elements of this shape, which are stacked on the first axis."""
    rank, is_new = len(shape), reader.attributes.get_int("new_axis", 0) == 1
    axis = reader.attributes.get_int("axis", 0) % (rank + is_new)
    moved = e.transpose(stack, [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)]) if axis else stack
    after = [size for size in shape[axis + 1 :] if size is not None]
    return moved if is_new else e.reshape(moved, [*[0] * axis, -1, *after])


def _decided_ifs_are_gone(model: ir.Model, taking: TakeBranchesPass) -> bool:
    return not any(has_node(model, "If", name) for name in taking.taken)


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
        self._take(model, model.graph)
        return ir.passes.PassResult(model, modified=bool(self.taken))

    def _take(self, model: ir.Model, graph: ir.Graph) -> None:
        for node in list(graph):
            taken = self.facts.condition(node) if node.op_type == "If" and not node.domain else None
            if taken is None:
                for inner in subgraphs_of(node):
                    self._take(model, inner)
                continue
            name = "then_branch" if taken else "else_branch"
            self.taken[display_name(node)] = name
            branch = node.attributes[name].as_graph()
            self._take(model, branch)
            splice(model, node, branch)
