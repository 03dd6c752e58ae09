"""The replacement of a straight line of cells by one node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.cleanup import remove_orphans
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, Scope
from rnnlower.graph.restoring import undone_on_failure
from rnnlower.graph.splicing import replace_value
from rnnlower.graph.walk import Located, sources
from rnnlower.lifting.analysis import Found, Source, row_tags
from rnnlower.lifting.emission import Outputs, dtype_of, emit_cell, emit_state, inputs_of
from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.evaluation import Evaluator
from rnnlower.lifting.forms import Atoms
from rnnlower.lifting.frames import Series, State
from rnnlower.lifting.lines import Line
from rnnlower.lifting.replacing import LiftedNode
from rnnlower.lowering.emitter import Emitter

_VIEWS = ("Identity", "Reshape", "Squeeze")


class Straightener:
    """A rewriter of straight lines.

    Args:
        model: The model.
        facts: The facts about it.
        names: Source of fresh names.
    """

    def __init__(self, model: ir.Model, facts: Facts, names: NameSource) -> None:
        self._model, self._facts, self._names = model, facts, names

    def lift(self, located: Located, graph: ir.Graph, line: Line) -> LiftedNode:
        """Replace a line by a node.

        Raises:
            NotLiftableError: Something else reads values of its steps; nothing has changed.
        """
        with undone_on_failure(self._model):
            return self._lift(located, graph, line)

    def _lift(self, located: Located, graph: ir.Graph, line: Line) -> LiftedNode:
        facts, steps = self._facts, line.steps
        last = steps[-1].new
        dtype = facts.type(last[0])
        assert isinstance(dtype, ir.TensorType)
        pool = InitializerPool(self._model, self._names)
        e = Emitter(located.opset, Scope(self._names, f"{located.name}/"), dtype.dtype, pool)
        given = {
            place: self._series(e, graph, [step.leaves[place] for step in steps]) for place in line.cell.W
        }
        own = {value for step in steps for value in step.new}
        for series, _ in given.values():
            if sources(series.outer) & own:
                raise NotLiftableError("what its steps read depends on their results")
        directions = {series.reverse for series, _ in given.values()}
        if len(directions) != 1:
            raise NotLiftableError("a step reads one input forward and another one backward")
        zero = self._zeros(e, line)
        states = [
            State(value, value, zero if start is None else start, None)
            for start, value in zip(line.starts, last, strict=True)
        ]
        inputs = {
            place: Source(series, None, tags, line.cell.W[place].shape[1])
            for place, (series, tags) in given.items()
        }
        (reverse,) = directions
        evaluator = Evaluator(facts, Atoms(), {})
        found = Found(line.cell, inputs, states, line.tags, line.shape, last[0], evaluator, reverse, None)
        dtype_of(facts, found)
        parts = inputs_of(e, facts, found, [], {})
        name = _common_name([step.new[0] for step in steps]) or located.name
        (outputs,) = emit_cell(e, facts, [found], [parts], name)
        anchor = next(node for node in e.nodes if node.op_type == line.cell.op_type)
        graph.extend(e.nodes)
        e.nodes.clear()
        self._replace(e, graph, anchor, line, found, outputs)
        graph.extend(e.nodes)
        remove_orphans(pool.values())
        remove_orphans(out for node in e.everything if node.graph is not None for out in node.outputs)
        graph.sort()
        direction = "reverse" if reverse else "forward"
        return LiftedNode(
            located.name, located.path, "line", line.cell.op_type, direction, line.cell.hidden_size
        )

    def _zeros(self, e: Emitter, line: Line) -> ir.Value:
        return e.constant(np.zeros((1, line.cell.hidden_size), e.dtype.numpy()))

    def _series(
        self, e: Emitter, graph: ir.Graph, leaves: Sequence[ir.Value]
    ) -> tuple[Series, tuple[str, ...]]:
        """Return the series whose elements are these values; it is put together if there is none."""
        tags, _ = row_tags(self._facts, leaves[0])
        for turned in (False, True):
            ordered = list(reversed(leaves)) if turned else list(leaves)
            found = self._split(e, graph, ordered) or self._parts(ordered)
            if found is not None:
                outer, axis, is_kept = found
                if is_kept:
                    tags = (*tags[:axis], *tags[axis + 1 :])
                return Series(leaves[0], outer, axis, turned), tags
        joined = e.concat([e.unsqueeze(leaf, 0, []) for leaf in leaves], 0)
        self._add(e, graph)
        return Series(leaves[0], joined, 0, False), tags

    def _add(self, e: Emitter, graph: ir.Graph) -> None:
        """Put nodes into the graph, so that facts about them are known."""
        graph.extend(e.nodes)
        e.nodes.clear()

    def _split(
        self, e: Emitter, graph: ir.Graph, leaves: Sequence[ir.Value]
    ) -> tuple[ir.Value, int, bool] | None:
        """Return the series that a Split cuts into these values."""
        node = leaves[0].producer()
        if node is None or node.op_type != "Split" or list(node.outputs) != list(leaves):
            return None
        whole, dims = node.inputs[0], self._facts.dims(leaves[0])
        if whole is None or dims is None:
            return None
        axis = node.attributes.get_int("axis", 0) % len(dims)
        if dims[axis] == 1:
            return whole, axis, True
        if axis or len(dims) != 2 or not isinstance(dims[1], int):
            return None
        series = e.op("Reshape", whole, e.integers(len(leaves), -1, dims[1]), since=5)
        self._add(e, graph)
        return series, 0, False

    def _parts(self, leaves: Sequence[ir.Value]) -> tuple[ir.Value, int, bool] | None:
        """Return the series of which Gather or Slice nodes take one element after another."""
        wholes, axes, kinds = set(), set(), set()
        for number, leaf in enumerate(leaves):
            part, is_view = leaf, False
            producer = part.producer()
            while producer is not None and producer.op_type in _VIEWS and producer.inputs[0] is not None:
                part, is_view = producer.inputs[0], True
                producer = part.producer()
            place = None if producer is None else self._place(producer, part)
            dims, shape = self._facts.dims(part), self._facts.dims(leaf)
            if place is None or place[1] != number or dims is None or shape is None:
                return None
            whole, _, axis, is_kept = place
            if is_view:
                if not is_kept or (*dims[:axis], *dims[axis + 1 :]) != shape:
                    return None
                is_kept = False
            wholes.add(whole)
            axes.add(axis)
            kinds.add(is_kept)
        (whole, *others), (axis, *_), (is_kept, *_) = wholes, axes, kinds
        sizes = self._facts.dims(whole)
        if others or len(axes) > 1 or len(kinds) > 1 or sizes is None or sizes[axis] != len(leaves):
            return None
        return whole, axis, is_kept

    def _place(self, node: ir.Node, part: ir.Value) -> tuple[ir.Value, int, int, bool] | None:
        """Return of which value a node takes one element, its position, the axis, and whether that stays."""
        whole, facts = node.inputs[0], self._facts
        sizes = facts.dims(whole)
        if whole is None or sizes is None or node.domain:
            return None
        if node.op_type == "Gather":
            axis, place = node.attributes.get_int("axis", 0) % len(sizes), facts.constant(node.inputs[1])
            if place is None or place.size != 1 or place.ndim > 1:
                return None
            number = int(place.reshape(-1)[0])
            return whole, number + (len_of(sizes[axis]) if number < 0 else 0), axis, place.ndim == 1
        if node.op_type == "Split":
            axis = node.attributes.get_int("axis", 0) % len(sizes)
            shape = facts.dims(part)
            is_one = shape is not None and shape[axis] == 1
            return (whole, list(node.outputs).index(part), axis, True) if is_one else None
        if node.op_type == "Slice" and len(node.inputs) >= 4:
            given = [facts.constant(value) for value in node.inputs[1:]]
            if any(each is None or each.size != 1 for each in given):
                return None
            start, end, axis, *step = (int(each.reshape(-1)[0]) for each in given if each is not None)
            axis %= len(sizes)
            size = len_of(sizes[axis])
            first, after = (place + size if place < 0 else min(place, size) for place in (start, end))
            return (whole, first, axis, True) if after == first + 1 and step in ([], [1]) else None
        return None

    def _replace(
        self, e: Emitter, graph: ir.Graph, anchor: ir.Node, line: Line, found: Found, outputs: Outputs
    ) -> None:
        """Let the readers of the steps' results read the node's."""
        steps = line.steps
        for value, last in zip(steps[-1].new, outputs.last, strict=True):
            if value.uses() or value.is_graph_output():
                replace_value(graph, anchor, value, emit_state(e, found, last))
                self._add(e, graph)
        self._replace_joined(e, graph, anchor, line, found, outputs)
        for number in range(len(steps) - 1, -1, -1):
            h, *others = steps[number].new
            if number + 1 < len(steps):
                remove_orphans(steps[number + 1].new)
            if number + 1 < len(steps) and (h.uses() or h.is_graph_output()):
                time = len(steps) - 1 - number if found.reverse else number
                element = e.op("Gather", outputs.Y, e.constant(np.array(time, np.int64)), axis=0)
                replace_value(graph, anchor, h, emit_state(e, found, element))
                self._add(e, graph)
            remove_orphans([h, *others])
        for value in (value for step in steps for value in step.new):
            producer = value.producer()
            if producer is not None and producer.graph is not None:
                raise NotLiftableError(f"{value.name!r} is read, which no cell returns")

    def _replace_joined(
        self, e: Emitter, graph: ir.Graph, anchor: ir.Node, line: Line, found: Found, outputs: Outputs
    ) -> None:
        """Replace a Concat of all states of rank 2 along their rows by all of Y."""
        states = [step.new[0] for step in line.steps]
        # The last state has been replaced.
        head = states[:-1]
        if len(found.tags) != 2:
            return
        wanted = list(reversed(head)) if found.reverse else head
        for node in {user for user, _ in head[0].uses()}:
            values = list(node.inputs[1:] if found.reverse else node.inputs[:-1])
            rest = node.inputs[0] if found.reverse else node.inputs[-1]
            if node.op_type != "Concat" or values != wanted or node.attributes.get_int("axis", 1) != 0:
                continue
            made = None if rest is None else rest.producer()
            if made is None or made not in e.everything:
                continue
            flat = e.op("Reshape", outputs.Y, e.integers(-1, found.cell.hidden_size), since=5)
            replace_value(graph, anchor, node.outputs[0], flat)
            self._add(e, graph)
            remove_orphans(node.outputs)


def len_of(size: int | ir.SymbolicDim | None) -> int:
    """Return a size that must be known.

    Raises:
        NotLiftableError: It is not.
    """
    if not isinstance(size, int):
        raise NotLiftableError("the length of what its steps read is not known")
    return size


def _common_name(values: Sequence[ir.Value]) -> str:
    names = [producer.name or "" for value in values if (producer := value.producer()) is not None]
    columns = enumerate(zip(*names, strict=False))
    shared = next((number for number, letters in columns if len({*letters}) > 1), 0)
    return names[0][:shared].rpartition("/")[0]
