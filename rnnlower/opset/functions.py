"""Functions of a model on its way to an opset that has none."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rnnlower.errors import InvalidModelError, OpsetError
from rnnlower.opset.constants import Constants
from rnnlower.opset.types import ValueTypes, all_graphs, all_values
from rnnlower.opset.view import Session

__all__ = ["inline_all"]

Move = Callable[[ir.Graph, int, int, str], None]


def inline_all(session: Session, move: Move) -> None:
    """Put the body of every function in the place of its calls, and drop the functions.

    `move` converts a graph from one opset to another: a function may import another one than the model.

    Raises:
        OpsetError: a call cannot be expanded.
    """
    # The passes are built on this package.
    from rnnlower.passes.inline_functions import InlineFunctionsPass

    model, report = session.model, session.report
    called = _called(model)
    for identifier, function in model.functions.items():
        name = "::".join(identifier[:2]) + (f":{identifier[2]}" if identifier[2] else "")
        (report.inlined if identifier in called else report.unused).append(name)
        move(
            function.graph, function.opset_imports.get("", session.source), session.source, f"function:{name}"
        )
        if "" in function.opset_imports:
            function.opset_imports[""] = session.source
    for identifier in [each for each in model.functions if each not in called]:
        del model.functions[identifier]
    outputs = _outputs_of_calls(model)
    try:
        InlineFunctionsPass(lambda node: True)(model)
    except InvalidModelError as error:
        raise OpsetError(f"opset {session.target} has no functions, and {error}") from error
    if model.functions:
        name = "::".join(next(iter(model.functions))[:2])
        raise OpsetError(f"opset {session.target} has no functions, and {name} cannot be inlined")
    _restore(model, outputs)
    # The inlined bodies are new values, of which nothing is known yet.
    session.types = ValueTypes(model)
    session.constants = Constants(model, session.types)
    session.collect_names()
    report.notes.append(f"opset {session.target} has no functions: {len(report.inlined)} were inlined")


def _outputs_of_calls(model: ir.Model) -> dict[str, ir.Value]:
    return {
        str(value.name): value
        for graph in all_graphs(model.graph)
        for node in graph
        if node.op_identifier() in model.functions
        for value in node.outputs
        if value.name
    }


def _restore(model: ir.Model, outputs: dict[str, ir.Value]) -> None:
    """Inlining keeps the name of a call's output, but not what is written about it."""
    for value in all_values(model.graph):
        old = outputs.get(str(value.name))
        if old is None:
            continue
        value.type, value.shape = value.type or old.type, value.shape or old.shape
        value.doc_string = value.doc_string or old.doc_string
        value.metadata_props.update(old.metadata_props)
        value.meta.update(old.meta)


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
