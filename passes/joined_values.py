"""Values that are joined: slices of them are read from the parts, and what is written in parts is joined."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from rnnlower.graph.evaluation import Dims
from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource
from rnnlower.graph.rewiring import replace_with_values
from rnnlower.graph.slicing import axis_slices, cut_parts
from rnnlower.graph.walk import look_through_identities, producer_of, required_input
from rnnlower.lifting.element_writes import read_write
from rnnlower.lowering.emitter import Emitter, Emitters


@dataclasses.dataclass(frozen=True)
class Joined:
    """A value that is concatenated or stacked.

    Attributes:
        index: Its index among the states of a Loop or Scan.
        bounds: The start and end of each part on the axis.
        parts: The parts, without the axis if it is new.
        is_new: Whether they are stacked.
    """

    index: int
    axis: int
    bounds: Sequence[tuple[int, int]]
    parts: Sequence[ir.Value]
    is_new: bool

    def join(self, e: Emitter, parts: Sequence[ir.Value]) -> ir.Value:
        """Emit the value of its parts."""
        return e.stack(parts, self.axis) if self.is_new else e.concat(parts, self.axis)


def has_read_parts(facts: Facts, graph: ir.Graph) -> bool:
    """Return whether something reads slices of concatenated or stacked values."""
    return any(
        _find_parts(facts, reader, joined, joined.parts) for reader, joined in _part_readers(facts, graph)
    )


def read_parts(facts: Facts, names: NameSource, graph: ir.Graph) -> None:
    """Let what reads slices of concatenated or stacked values read these values."""
    emitters = Emitters(facts.model, names=names)
    for reader, joined in _part_readers(facts, graph):
        read_slices(facts, emitters, reader, joined, joined.parts)


def join_writes(facts: Facts, names: NameSource, graph: ir.Graph) -> None:
    """Let a tensor into which operators write one element after another be the Concat of the elements."""
    emitters = Emitters(facts.model, names=names)
    for node, axis, elements in [*_written(facts, graph)]:
        with emitters.before(node) as e:
            given = [
                value if has_axis else e.with_axes("Unsqueeze", value, [axis]) for value, has_axis in elements
            ]
            joined = e.concat_tree(given, axis)
        replace_with_values(node, [joined])


def has_writes(facts: Facts, graph: ir.Graph) -> bool:
    """Return whether operators write all elements of a tensor, one after another."""
    return any(True for _ in _written(facts, graph))


def _written(facts: Facts, graph: ir.Graph) -> Iterator[tuple[ir.Node, int, list[tuple[ir.Value, bool]]]]:
    """Yield what writes the last element of a tensor, the axis, and the elements in their order.

    With each element comes whether it has the axis.
    """
    seen = set[ir.Node]()
    for last in reversed(graph):
        found: dict[int, tuple[ir.Value, bool]] = {}
        whole, axis, size = last.outputs[0], -1, 0
        while (node := producer_of(whole, "ScatterElements", "ScatterND")) is not None and node not in seen:
            seen.add(node)
            write, whole = read_write(facts, node, {}), look_through_identities(required_input(node))
            if write is None or not isinstance(write.place, int) or (found and write.axis != axis):
                break
            axis, known = write.axis, (facts.dims(whole) or ())[write.axis]
            if not isinstance(known, int):
                break
            size = known
            bare = _without_axis(facts, write.update, axis) if write.keeps_axis else write.update
            element = (write.update, True) if bare is None else (_before_noops(facts, bare), False)
            found.setdefault(write.place % size, element)
        if len(found) == size > 1:
            yield last, axis, [found[place] for place in range(size)]


def _before_noops(facts: Facts, value: ir.Value) -> ir.Value:
    """Return the value before operators that return it as it is."""
    node, dims = producer_of(value, "Expand", "Identity", "Reshape"), facts.dims(value)
    if node is None or node.inputs[0] is None or dims is None or None in dims:
        return value
    return _before_noops(facts, node.inputs[0]) if facts.dims(node.inputs[0]) == dims else value


def _part_readers(facts: Facts, graph: ir.Graph) -> Iterator[tuple[ir.Node, Joined]]:
    """Yield what reads a concatenated or stacked value first, with its parts."""
    for writer in [node for node in graph if producer_of(node.outputs[0], "Concat")]:
        whole = writer.outputs[0]
        for joined in joined_parts(facts, writer, facts.dims(whole)):
            readers = [use.node for use in whole.uses() if use.idx == 0 and use.node.graph is graph]
            yield from ((reader, joined) for reader in readers)


def joined_parts(facts: Facts, writer: ir.Node, dims: Dims | None, index: int = 0) -> Iterator[Joined]:
    """Yield the parts that a Concat joins, if their sizes are known."""
    if not dims:
        return
    parts = [each for each in writer.inputs if each is not None]
    given = [facts.dims(each) or () for each in parts]
    axis = writer.attributes.get_int("axis", 0) % len(dims)
    sizes = [
        size for each in given if len(each) == len(dims) and isinstance(size := each[axis], int) and size
    ]
    if len(sizes) == len(writer.inputs) > 1 and sum(sizes) == dims[axis]:
        inner = [_without_axis(facts, each, axis) for each in parts]
        stacked = [each for each in inner if each is not None]
        is_new = len(stacked) == len(parts)
        bounds = [*itertools.pairwise([0, *itertools.accumulate(sizes)])]
        yield Joined(index, axis, bounds, stacked if is_new else parts, is_new)


def _without_axis(facts: Facts, value: ir.Value, axis: int) -> ir.Value | None:
    """Return what a view inserts an axis of size 1 into, to make this value."""
    node, dims = producer_of(value, "Reshape", "Unsqueeze"), facts.dims(value) or ()
    source = None if node is None else node.inputs[0]
    inner = None if source is None else facts.dims(source)
    is_same = inner is not None and None not in inner and (*inner[:axis], 1, *inner[axis:]) == (*dims,)
    return source if is_same else None


def read_slices(
    facts: Facts, emitters: Emitters, reader: ir.Node, joined: Joined, parts: Sequence[ir.Value]
) -> None:
    """Let a node that reads slices of parts read them from these."""
    found = _find_parts(facts, reader, joined, parts)
    if not found:
        return
    drops_axis = reader.op_type == "Gather" and facts.shape(reader.inputs[1]) == ()
    with emitters.before(reader) as e:
        results = [
            part if is_whole else e.slice(part, [first], [last], [joined.axis])
            for part, first, last, is_whole in found
        ]
        if drops_axis != joined.is_new:
            change = "Squeeze" if drops_axis else "Unsqueeze"
            results = [e.with_axes(change, result, [joined.axis]) for result in results]
    replace_with_values(reader, results)


def _find_parts(
    facts: Facts, reader: ir.Node, joined: Joined, parts: Sequence[ir.Value]
) -> list[tuple[ir.Value, int, int, bool]]:
    """Return the part that each output of a node is cut from, where, and whether it is all of the part.

    Empty if some output is no slice of a part.
    """
    slices = [
        (cut.start, cut.start + cut.size)
        for cut in cut_parts(reader, facts)
        if cut.axis == joined.axis and isinstance(cut.size, int)
    ]
    found = [
        (part, first - low, last - low, last - first == high - low)
        for first, last in slices
        for part, (low, high) in zip(parts, joined.bounds, strict=True)
        if low <= first < last <= high
    ]
    return found if len(found) == len(slices) else []


def is_view(facts: Facts, node: ir.Node) -> bool:
    """Return whether a node returns its first input as it is."""
    cuts = axis_slices(node, facts.constant)
    return cuts is not None and all(cut.is_whole() for cut in cuts)
