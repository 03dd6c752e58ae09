"""Straight lines whose state is a matrix: their equal steps, one after another, become the body of a Scan."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import RANDOM, VIEWS
from rnnlower.graph.rewiring import remove_orphans, replace_value, replace_with_values
from rnnlower.graph.walk import is_read, producer_of, subgraphs_of, values_read_by
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.chains import MAX_OPERATORS, dependents, producer_index
from rnnlower.lifting.line_steps import find_origin
from rnnlower.lowering.emitter import Emitters

_SUMS = ("Add", "Sub", "Sum")
_MAX_SUMS = 3
"""The most sums of the size of the state that a step has."""
_MIN_STEPS = 3
"""The least number of steps: sums are often alike by chance."""
_LINEAR = {*VIEWS, *_SUMS, "Einsum", "Expand", "MatMul", "Mul", "Neg", "ReduceSum", "Transpose"}
"""Operators between an old state and a new one."""

Column = tuple[ir.Value, ...]
"""The values that an operator of a step has in all steps."""


def matrix_lines(facts: Facts, graph: ir.Graph) -> Iterator[list[ir.Value]]:
    """Yield the states of lines whose steps are sums of products, the initial state first."""
    order = {node: number for number, node in enumerate(graph)}
    groups = collections.defaultdict[object, list[ir.Value]](list)
    for node in graph:
        dims = facts.dims(node.outputs[0]) if producer_of(node.outputs[0], *_SUMS) else None
        if dims and sum(isinstance(dim, int) and dim > 1 for dim in dims) > 1:
            groups[dims].append(node.outputs[0])
    for sums in groups.values():
        while len(sums) > 1:
            new = sums.pop()
            lines = (_find_line(facts, order, old, new) for old in sums[: -_MAX_SUMS - 1 : -1])
            if (line := next(filter(None, lines), None)) is not None:
                yield line
                start = producer_index(order, line[1])
                sums = [each for each in sums if producer_index(order, each) < start]


def _find_line(
    facts: Facts, order: dict[ir.Node, int], old: ir.Value, new: ir.Value
) -> list[ir.Value] | None:
    """Return the states of the line that ends with the step between two states."""
    step = dependents(order, old, producer_index(order, new))
    path, pending = {old}, [new]
    while pending:
        value = pending.pop()
        if value not in path:
            path.add(value)
            node = producer_of(value, *_LINEAR)
            if value not in step or node is None:
                return None
            pending += [each for each in node.inputs if each in step or each is old]
    if len(path) == 1:
        return None
    line = [old, new]
    while (before := _state_before(facts, path, (old, new), line[0])) is not None:
        line.insert(0, before)
    return line if len(line) > _MIN_STEPS else None


def _state_before(
    facts: Facts, path: set[ir.Value], step: tuple[ir.Value, ir.Value], new: ir.Value
) -> ir.Value | None:
    """Return the state from which a value is computed, as in a step whose values are a path."""
    (old, last), found = step, list[ir.Value]()
    pending, seen = [(last, new)], set[tuple[ir.Value, ir.Value]]()
    while pending:
        pair = value, like = pending.pop()
        if value is old:
            found.append(like)
        elif value in path and pair not in seen:
            seen.add(pair)
            node, other = value.producer(), like.producer()
            if node is None or other is None or not _are_alike([node, other]):
                return None
            pending += [
                (a, b)
                for a, b in zip(node.inputs, other.inputs, strict=True)
                if a is not None and b is not None
            ]
    if facts.dims(found[0]) != facts.dims(old) or not all(_is_same(facts, found[0], each) for each in found):
        return None
    return found[0]


def _are_alike(nodes: Sequence[ir.Node]) -> bool:
    """Return whether nodes are the same operator with the same attributes."""
    first, *others = nodes
    if first.op_type in RANDOM or any(True for _ in subgraphs_of(first)):
        return False
    return all(_form(node) == _form(first) for node in others)


def _form(node: ir.Node) -> tuple[object, ...]:
    given = [value is not None for value in node.inputs]
    return node.domain, node.op_type, node.overload, given, dict(node.attributes)


def _is_same(facts: Facts, one: ir.Value, other: ir.Value) -> bool:
    """Return whether two values are one, or equal constants."""
    a, b = facts.constant(one), facts.constant(other)
    return one is other or (a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b))


class LineRoller:
    """A rewriter of a line to a Scan.

    Args:
        states: The initial state, and those after each step.
    """

    def __init__(
        self, facts: Facts, emitters: Emitters, graph: ir.Graph, name: str, states: Sequence[ir.Value]
    ):
        self._facts, self._graph = facts, graph
        self._e, self._body = (emitters.at(name, ir.DataType.FLOAT) for _ in range(2))
        self._take(states)
        if self._results[0] and not self._results[-1]:
            # The steps read the state before it changes: that after the last step is read by none.
            self._take(states[:-1])
        self._known: dict[Column, ir.Value] = {}
        self._depth = 0
        self._series: list[tuple[ir.Value, ir.Value, int, bool]] = []
        """Elements in the step, with their tensors, the axes, and whether the last comes first."""

    def _take(self, states: Sequence[ir.Value]) -> None:
        self._before, self._after = tuple(states[:-1]), tuple(states[1:])
        self._owners = self._find_owners()
        self._results = self._find_results()

    def roll(self) -> ir.Node:
        """Replace the line by a Scan; return it.

        Raises:
            NotLiftableError: Its steps differ, or something else reads values of them.
        """
        if len({*map(len, self._results)}) > 1:
            raise NotLiftableError("its steps differ")
        before = self._known[self._before] = self._new_value("state", self._before)
        results = [self._after, *zip(*self._results, strict=True)]
        made = [self._body.op("Identity", self._value(column)) for column in results]
        if not self._series:
            raise NotLiftableError("its steps read no inputs")
        for value, column in zip(made, results, strict=True):
            value.type, value.shape = self._facts.type(column[0]), None
        body = ir.Graph(
            [before, *(inner for inner, *_ in self._series)],
            made,
            nodes=self._body.nodes,
            name=self._e.names.fresh("step"),
        )
        e = self._e
        end, *stacked = e.ops(
            "Scan",
            self._before[0],
            *(outer for _, outer, *_ in self._series),
            outputs=len(results),
            since=9,
            body=body,
            num_scan_inputs=len(self._series),
            scan_input_axes=[axis for *_, axis, _ in self._series],
            scan_input_directions=[int(reverse) for *_, reverse in self._series],
        )
        (scan,) = [node for node in e.nodes if node.op_type == "Scan"]
        self._insert()
        for column, value in zip(results[1:], stacked, strict=True):
            self._replace(column, value)
        if is_read(self._after[-1]):
            replace_value(scan, self._after[-1], end, is_new=True)
        remove_orphans(self._after)
        if any(is_read(value) for value in self._after):
            raise NotLiftableError("its states are read by something else")
        self._graph.sort()
        return scan

    def _find_owners(self) -> dict[ir.Value, int | None]:
        """Return the step whose new state each value depends on; ``None`` if there are several."""
        owners: dict[ir.Value, int | None] = {state: step for step, state in enumerate(self._after)}
        for node in self._graph:
            found = {owners[each] for each in values_read_by(node) if each is not None and each in owners}
            if found:
                owner = found.pop() if len(found) == 1 else None
                for out in node.outputs:
                    owners.setdefault(out, owner)
        return owners

    def _find_results(self) -> list[list[ir.Value]]:
        """Return the values of each step that are read outside it."""
        found: list[dict[ir.Value, None]] = [{} for _ in self._after]
        for node in self._graph:
            is_outside = self._owners.get(node.outputs[0], 0) is None
            for value in values_read_by(node) if is_outside else ():
                step = None if value is None else self._owners.get(value)
                if value is not None and step is not None:
                    found[step][value] = None
        for value in self._graph.outputs:
            step = self._owners.get(value)
            if step is not None and (step < len(found) - 1 or self._is_result(value, found[0])):
                found[step][value] = None
        return [[*values] for values in found]

    def _is_result(self, value: ir.Value, first: Iterable[ir.Value]) -> bool:
        """Return whether a value of the last step is computed as a result of the first one."""
        pairs = ((value.producer(), each.producer()) for each in first if value not in self._after)
        return any(a is not None and b is not None and _are_alike([a, b]) for a, b in pairs)

    def _value(self, column: Column) -> ir.Value:
        """Return the value of the body that stands for a column."""
        if column not in self._known:
            self._depth += 1
            self._known[column] = self._make_value(column)
            self._depth -= 1
        return self._known[column]

    def _make_value(self, column: Column) -> ir.Value:
        first, owners = column[0], [self._owners.get(value, -1) for value in column]
        steps = [*range(len(column))]
        is_old = owners == [step - 1 for step in steps]
        if is_old and column[1:] == self._before[1:] and _is_same(self._facts, first, self._before[0]):
            return self._known[self._before]
        is_given = {*owners} == {-1}
        if not (is_given or is_old or owners == steps):
            raise NotLiftableError("its steps differ")
        if len({self._facts.dims(value) for value in column}) > 1:
            raise NotLiftableError("the sizes of its steps differ")
        if is_given:
            if all(_is_same(self._facts, first, value) for value in column[1:]):
                return first
            if (element := self._read_series(column)) is not None:
                return element
        nodes = [node for value in column if (node := value.producer()) is not None]
        places = {value.index() for value in column}
        is_flat = self._depth < MAX_OPERATORS
        if is_flat and len(nodes) == len(column) and len(places) == 1 and _are_alike(nodes):
            return self._copy_nodes(nodes)[places.pop() or 0]
        if not is_given:
            raise NotLiftableError("its steps differ")
        return self._stack(column)

    def _copy_nodes(self, nodes: Sequence[ir.Node]) -> Sequence[ir.Value]:
        """Copy a node of each step into the body."""
        given = [
            None if values[0] is None else self._value(tuple(value for value in values if value is not None))
            for values in zip(*(node.inputs for node in nodes), strict=True)
        ]
        node = nodes[0]
        outputs = [self._new_value("value", [out]) for out in node.outputs]
        return self._body.add(
            ir.Node(
                node.domain,
                node.op_type,
                given,
                node.attributes.values(),
                overload=node.overload,
                outputs=outputs,
            )
        )

    def _read_series(self, column: Column) -> ir.Value | None:
        """Return the element of a tensor of which each step reads one; ``None`` if they read no elements."""
        origins = [find_origin(self._facts, value) for value in column]
        found = [origin for origin in origins if origin is not None and origin.size == 1]
        if len(found) < len(column) or len({origin.whole for origin in found}) > 1:
            return None
        first, second, count = found[0], found[1], len(column)
        step = 1 if second.start > first.start else -1
        starts = range(first.start, first.start + count * step, step)
        if found != [dataclasses.replace(first, start=start) for start in starts]:
            return self._stack(column)
        whole, axis = first.whole, first.axis
        low = min(starts)
        if (self._facts.dims(whole) or ())[axis] != count:
            whole = self._e.slice(whole, [low], [low + count], [axis])
        element = self._add_series(column, whole, axis, reverse=step < 0)
        return self._body.unsqueeze(element, axis, []) if first.keeps_axis else element

    def _stack(self, column: Column) -> ir.Value:
        """Let the Scan read the values of a column one after another; return the element."""
        return self._add_series(column, self._e.stack(column, 0), 0, reverse=False)

    def _add_series(self, column: Column, whole: ir.Value, axis: int, *, reverse: bool) -> ir.Value:
        """Let the Scan read a tensor; return its element."""
        element = self._new_value("element", column)
        self._insert()
        self._series.append((element, whole, axis, reverse))
        return element

    def _new_value(self, role: str, column: Sequence[ir.Value]) -> ir.Value:
        return ir.Value(name=self._e.names.fresh(role), type=self._facts.type(column[0]))

    def _replace(self, column: Column, stacked: ir.Value) -> None:
        """Replace the values of the steps by elements of a tensor; what joins them reads all of it."""
        e, scan = self._e, stacked.producer()
        assert scan is not None
        readers = [node for node, _ in column[0].uses() if node.graph is self._graph]
        for join in [node for node in readers if producer_of(node.outputs[0], "Concat")]:
            given = [each for each in join.inputs if each is not None]
            axis = join.attributes.get_int("axis", 0)
            for values, is_reversed in ((column, False), (column[::-1], True)):
                place = given.index(values[0]) if values[0] in given else len(given)
                dims = self._facts.dims(values[0]) or ()
                if tuple(given[place : place + len(values)]) != values or dims[axis % len(dims)] != 1:
                    continue
                axis %= len(dims)
                whole = e.flip(stacked, 0) if is_reversed else stacked
                whole = e.squeeze(whole, axis + 1, [])
                order = [*range(1, len(dims))]
                whole = e.transpose(whole, [*order[:axis], 0, *order[axis:]])
                given[place : place + len(values)] = [whole]
                joined = whole if len(given) == 1 else e.concat(given, axis)
                self._insert()
                replace_with_values(join, [joined])
                break
        for number, value in enumerate(column):
            if is_read(value) and value not in self._after:
                element = e.op("Gather", stacked, e.constant(np.array(number, np.int64)), axis=0)
                self._insert()
                replace_value(scan, value, element, is_new=True)
        remove_orphans(column)

    def _insert(self) -> None:
        """Move the emitted nodes into the graph, so that facts about them are known."""
        self._graph.extend(self._e.nodes)
        self._e.nodes.clear()
