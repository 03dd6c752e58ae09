"""Functions of a model on its way to an opset that has none."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from rnnlower.errors import OpsetError
from rnnlower.opset.constants import Constants
from rnnlower.opset.types import ValueTypes, all_graphs
from rnnlower.opset.view import Session

__all__ = ["inline_all"]

Move = Callable[[ir.Graph, int, int, str], None]


def inline_all(session: Session, move: Move) -> None:
    """Put the body of every function in the place of its calls, and drop the functions.

    Raises:
        OpsetError: a call cannot be expanded.
    """
    model, report = session.model, session.report
    called = _called(model)
    for identifier, function in model.functions.items():
        name = f"{identifier[0]}::{identifier[1]}" + (f":{identifier[2]}" if identifier[2] else "")
        (report.inlined if identifier in called else report.unused).append(name)
        own = function.opset_imports.get("", session.source)
        move(function.graph, own, session.source, f"function:{identifier[0]}::{identifier[1]}")
        if "" in function.opset_imports:
            function.opset_imports[""] = session.source
    _name_outputs_of_calls(session)
    try:
        InlinePass()(model)
    except (ValueError, ir.passes.PassError) as error:
        raise OpsetError(f"the functions of the model cannot be inlined: {error}") from error
    model.functions.clear()
    # The inlined bodies are new values, of which nothing is known yet.
    session.types = ValueTypes(model)
    session.constants = Constants(model, session.types)
    report.notes.append(f"opset {session.target} has no functions: {len(report.inlined)} were inlined")


def _called(model: ir.Model) -> set[ir.OperatorIdentifier]:
    found: set[ir.OperatorIdentifier] = set()
    pending = [model.graph]
    while pending:
        for graph in all_graphs(pending.pop()):
            for node in graph:
                identifier = node.op_identifier()
                if identifier in model.functions and identifier not in found:
                    found.add(identifier)
                    pending.append(model.functions[identifier].graph)
    return found


def _name_outputs_of_calls(session: Session) -> None:
    # Inlining gives the body's value the name of the call's output; a call may leave an output nameless.
    model = session.model
    for root in [model.graph, *(function.graph for function in model.functions.values())]:
        for graph in all_graphs(root):
            for node in graph:
                if node.op_identifier() in model.functions:
                    for value in node.outputs:
                        value.name = value.name or session.fresh(f"{node.name or node.op_type}_unused")
