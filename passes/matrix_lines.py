"""The lifting of straight lines whose state is a matrix."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource
from rnnlower.graph.rollback import rollback_on_failure
from rnnlower.graph.walk import LocatedNode
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.attention_emission import lift_attentions
from rnnlower.lifting.frames import scan_frame
from rnnlower.lifting.lifted_nodes import LiftedNode
from rnnlower.lifting.line_rolling import LineRoller, matrix_lines
from rnnlower.lowering.emitter import Emitters
from rnnlower.passes.joined_values import join_writes


class NothingLiftedError(Exception):
    """No line was lifted after its values were read or written in another way."""


def lift_matrix_lines(
    facts: Facts,
    names: NameSource,
    graph: ir.Graph,
    locate: Callable[[Sequence[ir.Value]], LocatedNode | None],
    reports: list[LiftedNode],
    kept: list[LiftedNode],
) -> None:
    """Lift straight lines of a graph; report those that were lifted, and those that stay.

    `locate` returns where a line with these states is, or ``None`` if it is not to be lifted.
    """
    lifted: list[LiftedNode] = []
    failed: list[tuple[ir.Value, LiftedNode]] = []
    if not any(map(locate, matrix_lines(facts, graph))):
        return
    with contextlib.suppress(NothingLiftedError), rollback_on_failure(facts.model):
        join_writes(facts, names, graph)
        for states in [*matrix_lines(facts, graph)]:
            located = locate(states)
            if located is None:
                continue
            try:
                with rollback_on_failure(facts.model):
                    lifted.append(_lift_line(facts, names, graph, located, states))
            except NotLiftableError as error:
                facts.forget()
                report = LiftedNode(located.name, located.path, "line", reason=str(error))
                failed.append((states[1], report))
        if not lifted:
            raise NothingLiftedError
    facts.forget()
    reports += lifted
    # Other values of a step may have looked like its state.
    kept += [report for state, report in failed if state.graph is not None]


def _lift_line(
    facts: Facts, names: NameSource, graph: ir.Graph, located: LocatedNode, states: Sequence[ir.Value]
) -> LiftedNode:
    """Replace a line by a Scan, and that by a LinearAttention."""
    scan = LineRoller(facts, Emitters(facts.model, names=names), graph, located.name, states).roll()
    rolled, other = (
        dataclasses.replace(located, node=scan),
        NotLiftableError("its steps are sums of products"),
    )
    (report,) = lift_attentions(facts, names, rolled, scan_frame(facts, scan, None), other)
    return dataclasses.replace(report, form="line")
