"""Inlining of model-local functions, including what `onnx_ir`'s inliner does not handle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from rnnlower.errors import InvalidModelError, OpsetError
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.walk import walk, walk_all


def functions_with(model: ir.Model, wanted: Callable[[ir.Node], bool]) -> list[ir.Function]:
    """Return the functions that contain a wanted node, or call one that does."""
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    while True:
        more = {
            key: function
            for key, function in model.functions.items()
            if key not in found
            and any(wanted(node) or node.op_identifier() in found for node, _ in walk(function))
        }
        if not more:
            return list(found.values())
        found |= more


def is_always_given(model: ir.Model, node: ir.Node, parameter: str) -> bool:
    """Return whether a parameter of the function around a node has a value in every call."""
    owners = (f for f in model.functions.values() if any(each is node for each, _ in walk(f)))
    function = next(owners, None)
    if function is None:
        return False
    formal = function.attributes.get(parameter)
    if formal is not None and formal.value is not None:
        return True
    for call, _ in walk_all(model):
        if call.op_identifier() == function.identifier():
            given = call.attributes.get(parameter)
            if given is None or (
                given.is_ref() and not is_always_given(model, call, str(given.ref_attr_name))
            ):
                return False
    return True


def inline_functions(model: ir.Model, functions: Sequence[ir.Function]) -> list[ir.Function]:
    """Inline functions of the model and remove them; return those that nothing called.

    Raises:
        InvalidModelError: The functions call each other in a circle, or a call does not fit its function.
        OpsetError: A function imports another version of a domain than the model.
    """
    for function in functions:
        _check_opsets(model, function)
    _make_names_unique(model, functions)
    _complete_outputs_of_calls(model, functions)
    _detach_passed_on_inputs(functions)
    keys = {function.identifier() for function in functions}
    try:
        InlinePass(criteria=lambda function: function.identifier() in keys)(model)
    except (ValueError, ir.passes.PreconditionError) as error:
        raise InvalidModelError(f"the model's functions cannot be inlined: {error}") from error
    uncalled = [function for function in functions if function.identifier() in model.functions]
    for function in uncalled:
        del model.functions[function.identifier()]
    return uncalled


def _check_opsets(model: ir.Model, function: ir.Function) -> None:
    for domain, version in function.opset_imports.items():
        if model.opset_imports.get(domain, version) != version:
            raise OpsetError(
                f"function {function.domain}::{function.name} imports opset {version} of domain "
                f"{domain or 'ai.onnx'!r}, the model {model.opset_imports[domain]}; "
                f"{'let both import one version' if domain else 'convert the model to one opset first'}"
            )


def _make_names_unique(model: ir.Model, functions: Sequence[ir.Function]) -> None:
    """Rename values of functions that clash with the model's subgraphs, which the inliner ignores."""
    names = NameSource(all_names(model))
    for function in functions:
        for node, _ in walk(function):
            # The inliner would call it "node", which does not show where it comes from.
            node.name = node.name or f"{function.name}.{node.op_type}"
        values = [out for node, _ in walk(function) for out in node.outputs]
        for graph in function.subgraphs():
            values.extend(graph.inputs)
            values.extend(graph.initializers.values())
        for value in values:
            if value.name:
                value.name = names.fresh(f"{function.name}.{value.name}")


def _complete_outputs_of_calls(model: ir.Model, functions: Sequence[ir.Function]) -> None:
    """Name the outputs that a call leaves out.

    The inliner would give the value inside an empty name, and requires as many outputs as the function has.
    """
    outputs = {function.identifier(): len(function.outputs) for function in functions}
    names = NameSource(all_names(model))
    for node, _ in walk_all(model):
        count = outputs.get(node.op_identifier())
        if count is None:
            continue
        if len(node.outputs) < count:
            node.resize_outputs(count)
        for number, out in enumerate(node.outputs):
            if not out.name:
                out.name = names.fresh(f"{node.op_type}.unused_{number}")


def _detach_passed_on_inputs(functions: Sequence[ir.Function]) -> None:
    """Insert an Identity after an input that is also an output, which the inliner would rename."""
    for function in functions:
        for index, out in enumerate(function.outputs):
            if out.producer() is None or out in function.outputs[:index]:
                identity = ir.node("Identity", [out])
                identity.outputs[0].name = f"{out.name}.{index}"
                function.append(identity)
                function.outputs[index] = identity.outputs[0]


def resolve_references(node: ir.Node, actuals: Mapping[str, ir.Attr]) -> None:
    """Replace a function's parameters by `actuals`; a parameter without a value is removed."""
    for name, attribute in list(node.attributes.items()):
        if not attribute.is_ref():
            continue
        actual = actuals.get(str(attribute.ref_attr_name))
        if actual is None or (not actual.is_ref() and actual.value is None):
            node.attributes.pop(name)
        elif actual.is_ref():
            node.attributes[name] = ir.RefAttr(name, str(actual.ref_attr_name), actual.type)
        else:
            node.attributes[name] = ir.Attr(name, actual.type, actual.value)
