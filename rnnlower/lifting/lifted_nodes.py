"""The replacement of a frame by recurrent nodes, their joining to bidirectional ones, and the report."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from rnnlower.errors import OpsetError
from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource
from rnnlower.graph.rewiring import detach, remove_orphans, replace_value
from rnnlower.graph.walk import (
    LocatedNode,
    ancestors,
    is_read,
    look_through_identities,
    operand,
    reachable,
    trim_omitted,
)
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.cell_search import FoundCell, find_cells
from rnnlower.lifting.emission import EmittedNode, emit_cell, emit_node, emit_result, emit_state
from rnnlower.lifting.frames import Frame, is_same_value
from rnnlower.lifting.products import ProductReader
from rnnlower.lifting.results import Rest, Result, find_results, require_steps, unguarded_states
from rnnlower.lifting.vectorizing import StepVectorizer
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.recurrent.node import KEEPS_INITIAL, Semantics
from rnnlower.recurrent.state_operators import STATE_OPERATORS_OPSET, STATE_OUTPUTS

_FIRST_OPSET = 7
_FIRST_WITH_BFLOAT16 = 22
_LENGTHS, _INITIAL = 4, (5, 6)
"""The positions of the inputs."""


@dataclasses.dataclass(frozen=True)
class LiftedNode:
    """The report on one recurrence.

    Attributes:
        name: The name of the Loop or Scan, or of the first operator of a straight line.
        path: The subgraph that holds it.
        form: ``loop``, ``scan`` or ``line``.
        op_type: LSTM, GRU, RNN, LinearAttention or CausalConvWithState; ``None`` if it stays.
        direction: forward, reverse or bidirectional; ``None`` if it stays.
        hidden_size: The number of units, or elements of another state; ``None`` if it stays.
        reason: Why it stays.
    """

    name: str
    path: str
    form: str
    op_type: str | None = None
    direction: str | None = None
    hidden_size: int | None = None
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class Lifted:
    """A node that replaces a recurrence, and the report without the fields that the node determines."""

    emitted: EmittedNode
    partial_report: LiftedNode

    @property
    def report(self) -> LiftedNode:
        """The complete report."""
        node, cell = self.emitted.node, self.emitted.cells[0]
        direction = node.attributes.get_string("direction", "forward")
        return dataclasses.replace(
            self.partial_report, op_type=cell.op_type, direction=direction, hidden_size=cell.hidden_size
        )


class FrameLifter:
    """A rewriter of frames."""

    def __init__(self, facts: Facts, names: NameSource, semantics: Semantics, *, empty: bool) -> None:
        self._facts, self._names, self._semantics, self._empty = facts, names, semantics, empty

    def lift(self, located: LocatedNode, frame: Frame) -> list[Lifted]:
        """Replace a frame by nodes.

        Raises:
            NotLiftableError: It computes more than recurrent operators; nothing has changed.
        """
        try:
            return self._lift(located, frame)
        except NotLiftableError as error:
            return self._lift_with_prepared_inputs(located, frame, error)

    def _lift_with_prepared_inputs(
        self, located: LocatedNode, frame: Frame, error: NotLiftableError
    ) -> list[Lifted]:
        """Replace a frame whose steps prepare their inputs, or else raise the error."""
        with open_emitter(self._facts, self._names, located, ir.DataType.FLOAT) as e:
            try:
                series = self._vectorizer(e, located, frame).emit_inputs()
            except NotLiftableError:
                raise error from None
            graph = frame.node.graph
            assert graph is not None
            graph.insert_before(frame.node, e.nodes)
            try:
                if not series:
                    raise error
                return self._lift(located, dataclasses.replace(frame, inputs=[*frame.inputs, *series]))
            except NotLiftableError:
                graph.remove(e.nodes)
                raise
            finally:
                remove_orphans([each.outer for each in series])

    def _vectorizer(self, e: Emitter, located: LocatedNode, frame: Frame) -> StepVectorizer:
        body = located.node.attributes["body"].as_graph()
        states = [state.before for state in frame.states]
        products = ProductReader(self._facts, body, states, frame.aliases)
        return StepVectorizer(e, self._facts, frame, products)

    def _lift(self, located: LocatedNode, frame: Frame) -> list[Lifted]:
        if located.opset < _FIRST_OPSET:
            raise NotLiftableError(f"runtimes do not know the recurrent operators of opset {located.opset}")
        found = find_cells(self._facts, frame, self._semantics)
        for each in found if not self._empty or found[0].steps != 0 else ():
            require_steps(self._facts, each, self._semantics)
        results, rest = find_results(self._facts, frame, found)
        dtype = self._facts.dtype(found[0].states[0].start)
        if dtype is None:
            raise NotLiftableError("the type of the state is not known")
        if dtype == ir.DataType.BFLOAT16 and located.opset < _FIRST_WITH_BFLOAT16:
            raise NotLiftableError("recurrent operators take bfloat16 only from opset 22 on")
        with open_emitter(self._facts, self._names, located, dtype) as e:
            nodes, replaced = self._emit(e, located, found, results)
            if rest:
                replaced += self._emit_rest(e, located, frame, found, nodes, rest)
        if not found[0].steps:
            for each, lifted in zip(found, nodes, strict=True):
                unguarded = unguarded_states(self._facts, each, frame.inputs)
                lifted.emitted.node.meta[KEEPS_INITIAL] = any(True for _ in unguarded)
        own_name = located.node.name
        replace_lifted(self._facts, located, frame.node, e.nodes, [*replaced, *frame.unchanged])
        if own_name == _base_name(located):
            # The name is free now.
            nodes[0].emitted.node.name = own_name
        return nodes

    def _emit(
        self, e: Emitter, located: LocatedNode, found: Sequence[FoundCell], results: Sequence[Result]
    ) -> tuple[list[Lifted], list[tuple[ir.Value, ir.Value]]]:
        name = _base_name(located)
        emitted: list[EmittedNode] = []
        ready: dict[object, ir.Value] = {}
        for number, each in enumerate(found):
            emitted.append(emit_cell(e, self._facts, each, ready, name))
            ready[number] = emitted[-1].Y
        replaced: dict[ir.Value, list[ir.Value]] = {}
        axes: dict[ir.Value, int] = {}
        for result in results:
            part = emit_result(e, found[result.cell], result, emitted[result.cell])
            replaced.setdefault(result.value, []).append(part)
            axes[result.value] = result.tags.index("D") if "D" in result.tags else 0
        for each, output in zip(found, emitted, strict=True):
            for state, last in zip(each.states, output.last, strict=True):
                if is_read(state.end):
                    replaced.setdefault(state.end, []).append(emit_state(e, each, last))
        # A value with an axis of directions has two parts.
        directions = max(len(parts) for parts in replaced.values()) if replaced else 1
        if any(len(parts) < directions and old in axes for old, parts in replaced.items()):
            raise NotLiftableError("the two directions are read in different layouts")
        new = [(old, e.concat(parts, axes.get(old, 0))) for old, parts in replaced.items()]
        report = LiftedNode(located.name, located.path, located.node.op_type.lower())
        return [Lifted(one, report) for one in emitted], new

    def _emit_rest(
        self,
        e: Emitter,
        located: LocatedNode,
        frame: Frame,
        found: Sequence[FoundCell],
        nodes: Sequence[Lifted],
        rest: Rest,
    ) -> list[tuple[ir.Value, ir.Value]]:
        """Emit what the steps compute of H, for all steps at once."""
        ((_, reason), *_) = rest
        try:
            vectorizer = self._vectorizer(e, located, frame)
            for number, (each, lifted) in enumerate(zip(found, nodes, strict=True)):
                if any(known is not None for known in (each.lengths, each.taken, each.direction)):
                    raise reason
                result = Result(each.hidden, number, ("T", *each.tags), (1, *each.shape), reverse=False)
                H = emit_result(e, each, result, lifted.emitted)
                after = each.states[0].after
                for value in (each.hidden, after, look_through_identities(after)):
                    vectorizer.define(value, H)
            return [(series.outer, vectorizer.emit_output(series)) for series, _ in rest]
        except NotLiftableError:
            raise reason from None


def _base_name(located: LocatedNode) -> str:
    """Return the name of a Loop or Scan without the suffix that this tool gives it."""
    return located.name.removesuffix("/Scan").removesuffix("/Loop") or located.name


@contextlib.contextmanager
def open_emitter(
    facts: Facts, names: NameSource, located: LocatedNode, dtype: ir.DataType
) -> Iterator[Emitter]:
    """Open an emitter for the replacement of a node; if that is not liftable, nothing of it is left."""
    emitters = Emitters(facts.model, names=names)
    e = emitters.at(located.name, dtype)
    try:
        yield e
    except (NotLiftableError, OpsetError) as error:
        detach(e.nodes)
        remove_orphans(emitters.constants.values())
        raise error if isinstance(error, NotLiftableError) else NotLiftableError(str(error)) from None


def emit_state_operator(
    e: Emitter,
    name: str,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Sequence[ir.Attr],
    is_standard: bool = True,
) -> list[ir.Value]:
    """Emit a LinearAttention or CausalConvWithState; com.microsoft's if the standard lacks it."""
    outputs = [ir.Value(name=e.names.fresh(role)) for role in STATE_OUTPUTS]
    domain = "" if is_standard and e.opset >= STATE_OPERATORS_OPSET else "com.microsoft"
    given = trim_omitted(inputs)
    node = ir.Node(domain, op_type, given, attributes, outputs=outputs, name=e.names.source.fresh(name))
    return list(e.add(node))


def replace_lifted(
    facts: Facts,
    located: LocatedNode,
    node: ir.Node,
    nodes: Sequence[ir.Node],
    replaced: Sequence[tuple[ir.Value, ir.Value]],
) -> None:
    """Replace a node and the listed values by new nodes; remove nodes that nothing reads."""
    node.prepend(nodes)
    for old, new in replaced:
        replace_value(node, old, new, is_new=new.producer() in nodes)
        facts.transfer(old, new)
    for each in reversed(nodes):
        remove_orphans(each.outputs)
    # What follows from other outputs is part of no result: nothing reads it in the end.
    more = reachable(node.outputs, lambda value: [out for user, _ in value.uses() for out in user.outputs])
    remove_orphans([*more, *(old for old, _ in replaced)])
    assert node.graph is None, f"{located.label} still has readers"
    for each in nodes:
        if each.domain:
            facts.model.opset_imports.setdefault(each.domain, 1)


def join_directions(facts: Facts, names: NameSource, lifted: Sequence[Lifted]) -> list[Lifted]:
    """Join pairs of lifted nodes into bidirectional ones; return all nodes that are left."""
    left = list(lifted)
    for one, other in itertools.permutations(lifted, 2):
        if one in left and other in left and _can_join(facts, one.emitted, other.emitted):
            emitted = _join(facts, names, (one.emitted, other.emitted))
            left[left.index(one)] = Lifted(emitted, one.partial_report)
            left.remove(other)
    return left


def _can_join(facts: Facts, one: EmittedNode, other: EmittedNode) -> bool:
    first, second = one.node, other.node
    cells = [dataclasses.replace(cell, activations=()) for cell in (*one.cells, *other.cells)]
    directions = [node.attributes.get_string("direction", "forward") for node in (first, second)]
    return (
        directions == ["forward", "reverse"]
        and cells[0] == cells[1]
        and cells[0].hidden_size == cells[1].hidden_size
        and first.graph is second.graph is not None
        and is_same_value(facts, first.inputs[0], second.inputs[0])
        and is_same_value(facts, operand(first, _LENGTHS), operand(second, _LENGTHS))
        and {*first.outputs}.isdisjoint(ancestors(second.outputs[0]))
        and {*second.outputs}.isdisjoint(ancestors(first.outputs[0]))
    )


def _join(facts: Facts, names: NameSource, pair: tuple[EmittedNode, EmittedNode]) -> EmittedNode:
    """Replace two nodes by a bidirectional one."""
    nodes = [emitted.node for emitted in pair]
    graph, name = nodes[0].graph, nodes[0].name or nodes[0].op_type
    assert graph is not None
    dtype = facts.dtype(nodes[0].inputs[0])
    assert dtype is not None
    e = Emitters(facts.model, names=names).at(name, dtype)
    cells = [cell for emitted in pair for cell in emitted.cells]
    given: list[ir.Value | None] = [nodes[0].inputs[0], operand(nodes[0], _LENGTHS)]
    for place in _INITIAL[: len(nodes[0].outputs) - 1]:
        states = [operand(node, place) for node in nodes]
        known = next((value for value in states if value is not None), None)
        if known is None:
            given.append(None)
            continue
        dims = enumerate(facts.shape(known) or (None, None, None))
        sizes = [e.dim(known, axis) if dim is None else dim for axis, dim in dims]
        given.append(e.concat([e.zeros(sizes) if value is None else value for value in states], 0))
    node = emit_node(e, cells, "bidirectional", given, name)
    if marks := [each.meta[KEEPS_INITIAL] for each in nodes if KEEPS_INITIAL in each.meta]:
        node.meta[KEEPS_INITIAL] = any(marks)
    Y = e.split(node.outputs[0], [1, 1], 1)
    halves = [Y, *(e.split(value, [1, 1], 0) for value in node.outputs[1:])]
    graph.extend(e.nodes)
    for place, half in enumerate(halves):
        for direction, value in enumerate(half):
            old = nodes[direction].outputs[place]
            old.replace_all_uses_with(value)
            facts.transfer(old, value)
    remove_orphans(out for old in nodes for out in old.outputs)
    node.name = name
    for half in halves:
        remove_orphans(half)
    graph.sort()
    return EmittedNode(node, cells, Y[0], [half[0] for half in halves[1:]])
