"""Functions of a model that is converted to an opset without functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from rnnlower.errors import InvalidModelError, OpsetError
from rnnlower.graph.inlining import functions_with, inline_functions
from rnnlower.graph.walk import values_of
from rnnlower.opset.value_types import ValueTypes
from rnnlower.opset.view import Session


def drop_uncalled(session: Session) -> None:
    """Remove the functions that nothing calls: there is no place to inline them."""
    model = session.model
    before = list(model.functions)
    if RemoveUnusedFunctionsPass()(model).modified:  # type: ignore[no-untyped-call]
        names = session.report.unused = [_name(each) for each in before if each not in model.functions]
        session.report.notes.append(
            f"opset {session.target} has no functions: {', '.join(names)} "
            f"{'is' if len(names) == 1 else 'are'} never called, and left out"
        )


def meeting_point(session: Session) -> int:
    """Return the opset at which to inline the functions: on the model's way, and close to their own."""
    low, high = sorted((session.source, session.target))
    imports = [each.opset_imports for each in session.model.functions.values()]
    own = max((each[""] for each in imports if "" in each), default=session.source)
    return min(max(own, low), high)


def inline_all(session: Session) -> None:
    """Replace every call of a function by its body, and drop the functions.

    The functions must have the model's opset.

    Raises:
        OpsetError: A call cannot be expanded.
    """
    model, report = session.model, session.report
    report.inlined += map(_name, model.functions)
    outputs = _outputs_of_calls(model)
    try:
        inline_functions(model, functions_with(model, lambda node: True))
    except InvalidModelError as error:
        raise OpsetError(f"opset {session.target} has no functions, and {error}") from error
    if model.functions:
        name = _name(next(iter(model.functions)))
        raise OpsetError(f"opset {session.target} has no functions, and {name} has no nodes to inline")
    _restore(model, outputs)
    # The inlined bodies are new values, of which nothing is known yet.
    session.types = ValueTypes(model)
    session.collect_names()
    report.notes.append(f"opset {session.target} has no functions: {len(report.inlined)} were inlined")


def _name(identifier: ir.OperatorIdentifier) -> str:
    domain, name, overload = identifier
    return f"{domain}::{name}:{overload}" if overload else f"{domain}::{name}"


def _outputs_of_calls(model: ir.Model) -> dict[str, ir.Value]:
    return {
        str(value.name): value
        for node in model.graph.all_nodes()
        if node.op_identifier() in model.functions
        for value in node.outputs
        if value.name
    }


def _restore(model: ir.Model, outputs: dict[str, ir.Value]) -> None:
    """Restore annotations of call outputs: inlining keeps their names, but not their metadata."""
    for value in values_of(model.graph):
        old = outputs.get(str(value.name))
        if old is None:
            continue
        value.type, value.shape = value.type or old.type, value.shape or old.shape
        value.doc_string = value.doc_string or old.doc_string
        value.metadata_props.update(old.metadata_props)
        value.meta.update(old.meta)
