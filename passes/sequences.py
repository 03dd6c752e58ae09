"""Passes that replace sequences by tensors: by the stack that a Loop makes, or by the known elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Shape
from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import LoopSignature, State
from rnnlower.graph.rewiring import remove_orphans, replace_with_values
from rnnlower.graph.slicing import keeps_split_axis
from rnnlower.graph.symbols import is_known
from rnnlower.graph.walk import captured_values, op_types, operand, producer_of, subgraphs_of, walk
from rnnlower.lifting.frames import same_number
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.passes.base import Pass
from rnnlower.passes.simpler_control_flow import loops, replace_loop

_READERS = ("SequenceAt", "SequenceLength")
_BUILDERS = ("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence")
SEQUENCE_OPS = frozenset([*_READERS, *_BUILDERS, "ConcatFromSequence"])


class StackSequencesPass(Pass):
    """Makes Loops stack what their bodies insert at an end of sequences that are only read afterward.

    Readers take elements by their positions, count them or concatenate them; the elements have the same sizes
    in each iteration. What is concatenated along an axis of its own has a size of 1 there in each iteration,
    or another one that is known, as are the sizes of the axes after it.

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

    TorchScript writes lists so. Other runtimes than onnxruntime have Loops, but few have sequences. Slices of
    size 1 that a SplitToSequence makes are read from the tensor, too.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        splits = [node for node, _ in walk(model.graph) if node.op_type == "SplitToSequence"]
        modified = sum(self._join_slices(model, node) for node in splits) > 0
        while "SequenceEmpty" in op_types(model):
            # More is known of Loops that read or hold what has been stacked.
            self.facts.forget()
            if not sum(self._stack_appended(model, node) for node in loops(model)):
                break
            modified = True
        return ir.passes.PassResult(model, modified)

    def _join_slices(self, model: ir.Model, node: ir.Node) -> bool:
        """Let readers of slices of size 1 read them from the tensor; return whether there are any."""
        whole, sizes = operand(node, 0), operand(node, 1)
        known = np.array(1) if sizes is None else self.facts.constant(sizes)
        readers = [use.node for use in node.outputs[0].uses() if use.node.op_type in _READERS]
        if whole is None or not readers or known is None or (known != 1).any():
            return False
        axis, emitters = node.attributes.get_int("axis", 0), Emitters(model)
        keeps_axis = keeps_split_axis(node, known)
        for reader in readers:
            with emitters.before(reader) as e:
                read = self._read_slice(e, whole, axis, reader, keeps_axis)
            replace_with_values(reader, [read])
        remove_orphans([node.outputs[0]])
        return True

    def _read_slice(
        self, e: Emitter, whole: ir.Value, axis: int, reader: ir.Node, keeps_axis: bool = False
    ) -> ir.Value:
        """Emit what a node reads of the slices of a tensor: one of them, or their number."""
        if reader.op_type == "SequenceLength":
            return e.op("Gather", e.op("Shape", whole), e.constant(np.array(axis)), axis=0)
        position = reader.inputs[1]
        assert position is not None
        if keeps_axis or self.facts.shape(position) != ():
            position = e.op("Reshape", position, e.integers(*[1] * keeps_axis))
        return e.op("Gather", whole, position, axis=axis)

    def _stack_appended(self, model: ir.Model, node: ir.Node) -> bool:
        found = {
            index: (state, insert)
            for index, state in enumerate(LoopSignature(node).states)
            if (insert := self._find_insert(node, state)) is not None
        }
        if found:
            self._stack(model, node, found)
        return bool(found)

    def _find_insert(self, node: ir.Node, state: State) -> ir.Node | None:
        """Return what inserts at an end of a state that is an empty sequence before the Loop."""
        body, before, after = node.attributes["body"].as_graph(), state.before, state.after
        start, insert = producer_of(state.start, "SequenceEmpty"), producer_of(after, "SequenceInsert")
        if start is None or insert is None:
            return None
        place = operand(insert, 2)
        known = self.facts.constant(place)
        is_first = known is not None and not known.any()
        # In each iteration, the sequence is as long as the number of iterations before.
        is_last = place is None or same_number(place) is body.inputs[0]
        if not (is_first or is_last):
            return None
        if insert.inputs[0] is not before or len(before.uses()) > 1 or after.uses():
            return None
        if before.is_graph_output() or body.outputs.count(after) > 1:
            return None
        element = insert.inputs[1]
        shape = self.facts.shape(element)
        if shape is None or self.facts.dtype(element) is None or state.end.is_graph_output():
            return None
        readers = [use.node for use in state.end.uses()]
        if not all(_can_read_stack(reader, shape) for reader in readers):
            return None
        # What is concatenated has the same sizes.
        is_joined = any(reader.op_type not in _READERS for reader in readers)
        return insert if is_joined or self._keeps_sizes(node, element) else None

    def _keeps_sizes(self, node: ir.Node, element: ir.Value | None) -> bool:
        """Return whether a value of a Loop's body has the same sizes in each iteration."""
        outside = {*filter(None, node.inputs), *captured_values(node)}
        sizes = {size for value in outside for size in self.facts.dims(value) or ()}
        return all(is_known(size) or size in sizes for size in self.facts.dims(element) or ())

    def _stack(self, model: ir.Model, node: ir.Node, found: Mapping[int, tuple[State, ir.Node]]) -> None:
        emitters, stacks = Emitters(model), {}
        body, names = node.attributes["body"].as_graph(), emitters.names
        for state, insert in found.values():
            element = insert.inputs[1]
            assert element is not None
            name, sizes = names.fresh(f"{element.name}/row"), ir.Shape(self.facts.shape(element) or ())
            row = ir.Value(name=name, type=self.facts.type(element), shape=sizes)
            body.append(ir.node("Identity", [element], outputs=[row], name=names.fresh(f"{name}/Identity")))
            stacks[row] = ir.Value(name=names.fresh(f"{state.end.name}/stack"))
            state.end.replace_all_uses_with(stacks[row])
        replace_loop(node, [*found], stacks)
        for stack, (_, insert) in zip(stacks.values(), found.values(), strict=True):
            for use in list(stack.uses()):
                with emitters.before(use.node) as e:
                    read = self._read(e, stack, insert, use.node)
                replace_with_values(use.node, [read])
        remove_orphans(value for state, _ in found.values() for value in (state.after, state.start))

    def _read(self, e: Emitter, stack: ir.Value, insert: ir.Node, reader: ir.Node) -> ir.Value:
        """Emit what a node reads of the elements, which are stacked on the first axis."""
        is_first = self.facts.constant(operand(insert, 2)) is not None
        if is_first and reader.op_type != "SequenceLength":
            stack = e.flip(stack, 0)
        if reader.op_type in _READERS:
            return self._read_slice(e, stack, 0, reader)
        return _join(e, stack, reader, self.facts.shape(insert.inputs[1]) or ())


def _can_read_stack(reader: ir.Node, shape: Shape) -> bool:
    if reader.op_type in _READERS:
        return True
    if reader.op_type != "ConcatFromSequence":
        return False
    axis, is_new = reader.attributes.get_int("axis", 0), reader.attributes.get_int("new_axis", 0) == 1
    if is_new or not shape:
        return is_new
    sizes = shape[axis % len(shape) :]
    # A Reshape to -1 needs sizes other than 0.
    return sizes[0] == 1 or (None not in sizes and 0 not in shape)


def _join(e: Emitter, stack: ir.Value, reader: ir.Node, shape: Shape) -> ir.Value:
    """Emit what a ConcatFromSequence makes of elements of this shape, which are stacked on the first axis."""
    rank, is_new = len(shape), reader.attributes.get_int("new_axis", 0) == 1
    axis = reader.attributes.get_int("axis", 0) % (rank + is_new)
    moved = e.transpose(stack, [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)]) if axis else stack
    if is_new:
        return moved
    if shape[axis] == 1:
        return e.with_axes("Squeeze", moved, [axis + 1])
    return e.reshape(moved, [*[0] * axis, -1, *(size for size in shape[axis + 1 :] if size is not None)])


class ResolveSequencesPass(Pass):
    """Replaces operators that read a sequence by operators that read its elements, where these are known.

    They are known if the positions of insertions and the sizes of splits are constants, and no Loop builds
    the sequence. Nodes that build a sequence are removed when nothing reads it any more.

    Before::

        (float[2] a, float[2] b) => (float[2, 2] y) {
            none = SequenceEmpty ()
            one = SequenceInsert (none, a)
            two = SequenceInsert (one, b)
            y = ConcatFromSequence <axis = 0, new_axis = 1> (two)
        }

    After ``ResolveSequencesPass()``::

        (float[2] a, float[2] b) => (float[2, 2] y) <int64[1] axes = {0}> {
            a_0 = Unsqueeze (a, axes)
            b_0 = Unsqueeze (b, axes)
            y = Concat <axis = 0> (a_0, b_0)
        }
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if not any(node.op_type in SEQUENCE_OPS and not node.domain for node, _ in walk(model.graph)):
            return ir.passes.PassResult(model, modified=False)
        resolver = _SequenceResolver(model, self.facts)
        resolver.resolve(model.graph)
        return ir.passes.PassResult(model, modified=resolver.modified)


class _SequenceResolver:
    """A walk over the nodes in order that records the elements of each known sequence."""

    def __init__(self, model: ir.Model, facts: Facts) -> None:
        self.modified = False
        self._facts = facts
        self._emitters = Emitters(model)
        self._elements: dict[ir.Value | None, list[ir.Value]] = {}

    def resolve(self, graph: ir.Graph) -> None:
        for node in list(graph):
            kind = "" if node.domain else node.op_type
            if kind in (*_READERS, "ConcatFromSequence"):
                result = self._resolve_read(node)
                if result is not None:
                    replace_with_values(node, [result])
                    self.modified = True
            elif (elements := self._built_elements(node)) is not None:
                self._elements[node.outputs[0]] = elements
            for inner in subgraphs_of(node):
                self.resolve(inner)

    def _built_elements(self, node: ir.Node) -> list[ir.Value] | None:
        """Return the elements of the sequence that a node builds; ``None`` if they are unknown."""
        kind = "" if node.domain else node.op_type
        if kind == "SequenceEmpty":
            return []
        if kind == "SequenceConstruct":
            return [value for value in node.inputs if value is not None]
        if kind == "SplitToSequence":
            return self._split_elements(node)
        if kind not in ("Identity", "SequenceInsert", "SequenceErase"):
            return None
        elements = self._elements.get(node.inputs[0])
        if elements is None or kind == "Identity":
            return elements
        if kind == "SequenceErase":
            place = self._position(node, 1, len(elements), len(elements) - 1)
            return None if place is None else [*elements[:place], *elements[place + 1 :]]
        place, element = self._position(node, 2, len(elements), len(elements)), node.inputs[1]
        if place is None or element is None:
            return None
        return [*elements[:place], element, *elements[place:]]

    def _position(self, node: ir.Node, index: int, length: int, last: int) -> int | None:
        """Return the position that an input gives, by default the last; ``None`` if unknown or invalid."""
        place = last
        if (given := operand(node, index)) is not None:
            constant = self._facts.constant(given)
            if constant is None:
                return None
            place = int(constant.reshape(-1)[0])
            place += length if place < 0 else 0
        return place if 0 <= place <= last else None

    def _split_elements(self, node: ir.Node) -> list[ir.Value] | None:
        value, axis = node.inputs[0], node.attributes.get_int("axis", 0)
        shape = self._facts.shape(value)
        if value is None or shape is None or not -len(shape) <= axis < len(shape):
            return None
        size = shape[axis]
        given = operand(node, 1)
        sizes = np.array(1) if given is None else self._facts.constant(given)
        if size is None or sizes is None or (not sizes.ndim and int(sizes) < 1):
            return None
        if not keeps_split_axis(node, sizes):
            with self._emitters.before(node) as e:
                return e.unstack(value, size, axis) if int(sizes) == 1 else None
        each = [int(part) for part in sizes] if sizes.ndim else []
        if not sizes.ndim:
            each = [min(int(sizes), size - first) for first in range(0, size, int(sizes))]
        with self._emitters.before(node) as e:
            return list(e.split(value, each, axis))

    def _resolve_read(self, node: ir.Node) -> ir.Value | None:
        """Return the element that a node reads from a sequence; ``None`` if it is not known."""
        elements = self._elements.get(node.inputs[0])
        if elements is None:
            return None
        if node.op_type == "SequenceLength":
            return self._emitters.constants.intern(ir.Tensor(np.array(len(elements), np.int64)))
        if node.op_type == "SequenceAt":
            place = self._position(node, 1, len(elements), len(elements) - 1)
            return None if place is None else elements[place]
        if not elements:
            return None
        axis = node.attributes.get_int("axis", 0)
        with self._emitters.before(node) as e:
            return (e.stack if node.attributes.get_int("new_axis", 0) else e.concat_tree)(elements, axis)
