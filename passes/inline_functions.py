"""Inlining of the model-local functions that hold the nodes to be lowered.

Before::

    domain.encoder<hidden_size>(x, w, r) => (y) { y, _ = LSTM<hidden_size=@hidden_size>(x, w, r) }
    Y = domain.encoder<hidden_size=8>(X, W, R)

After::

    Y, _ = LSTM<hidden_size=8>(X, W, R)

Only a call knows the attributes, the shapes and the constants that a lowering needs.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from rnnlower.errors import InvalidModelError, OpsetError
from rnnlower.places import is_recurrent, walk

__all__ = ["InlineFunctionsPass"]


class InlineFunctionsPass(ir.passes.InPlacePass):
    """Inlines the functions that hold a wanted node, or call one that does, and removes those functions.

    Args:
        wanted: Whether a node makes its function worth inlining; left out: whether it is recurrent.

    Attributes:
        uncalled: The functions that went without having been inlined, for want of a call.
    """

    def __init__(self, wanted: Callable[[ir.Node], bool] = is_recurrent) -> None:
        super().__init__()
        self._wanted = wanted
        self.uncalled: list[ir.Function] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inlines.

        Raises:
            InvalidModelError: The functions call each other in a circle, or a call does not fit its function.
            OpsetError: A function imports another version of a domain than the model.
        """
        inlined = self.functions_to_inline(model)
        if not inlined:
            return ir.passes.PassResult(model, modified=False)
        for function in inlined:
            _check_opsets(model, function)
        _make_names_unique(model, inlined)
        _complete_outputs_of_calls(model, inlined)
        _detach_passed_on_inputs(inlined)
        keys = {function.identifier() for function in inlined}
        try:
            InlinePass(criteria=lambda function: function.identifier() in keys)(model)
        except (ValueError, ir.passes.PreconditionError) as error:
            raise InvalidModelError(f"the model's functions cannot be inlined: {error}") from error
        self.uncalled = [function for function in inlined if function.identifier() in model.functions]
        for function in self.uncalled:
            del model.functions[function.identifier()]
        return ir.passes.PassResult(model, modified=True)

    def functions_to_inline(self, model: ir.Model) -> list[ir.Function]:
        """The functions that hold a wanted node, or call one that does."""
        found: dict[ir.OperatorIdentifier, ir.Function] = {}
        while True:
            more = {
                key: function
                for key, function in model.functions.items()
                if key not in found
                and any(self._wanted(node) or node.op_identifier() in found for node, _ in walk(function))
            }
            if not more:
                return list(found.values())
            found |= more


def _check_opsets(model: ir.Model, function: ir.Function) -> None:
    for domain, version in function.opset_imports.items():
        if model.opset_imports.get(domain, version) != version:
            raise OpsetError(
                f"function {function.domain}::{function.name} imports opset {version} of domain "
                f"{domain or 'ai.onnx'!r}, the model {model.opset_imports[domain]}; "
                f"{'let both import one version' if domain else 'convert the model to one opset first'}"
            )


def _make_names_unique(model: ir.Model, functions: list[ir.Function]) -> None:
    """Names inside a function may repeat names of the model, whose subgraphs the inliner does not look at."""
    taken = {out.name for node, _ in walk(model.graph) for out in node.outputs}
    graphs = [model.graph, *model.graph.subgraphs()]
    taken |= {value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())}
    for function in functions:
        for node, _ in walk(function):
            # The inliner would call it "node", which tells nobody where it comes from.
            node.name = node.name or f"{function.name}.{node.op_type}"
        values = [out for node, _ in walk(function) for out in node.outputs]
        for graph in function.subgraphs():
            values.extend(graph.inputs)
            values.extend(graph.initializers.values())
        for value in values:
            if value.name:
                value.name = _fresh(f"{function.name}.{value.name}", taken)


def _complete_outputs_of_calls(model: ir.Model, functions: list[ir.Function]) -> None:
    """Names the outputs that a call leaves out.

    The inliner would give an empty name to the value inside, and wants as many outputs as the function has.
    """
    outputs = {function.identifier(): len(function.outputs) for function in functions}
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    taken = {out.name for graph in graphs for node, _ in walk(graph) for out in node.outputs}
    for graph in graphs:
        for node, _ in walk(graph):
            count = outputs.get(node.op_identifier())
            if count is None:
                continue
            if len(node.outputs) < count:
                node.resize_outputs(count)
            for number, out in enumerate(node.outputs):
                if not out.name:
                    out.name = _fresh(f"{node.op_type}.unused_{number}", taken)


def _detach_passed_on_inputs(functions: list[ir.Function]) -> None:
    """Puts an Identity behind an input that is an output too, which the inliner would rename."""
    for function in functions:
        for index, out in enumerate(function.outputs):
            if out.producer() is None or out in function.outputs[:index]:
                identity = ir.node("Identity", [out])
                identity.outputs[0].name = f"{out.name}.{index}"
                function.append(identity)
                function.outputs[index] = identity.outputs[0]


def _fresh(wanted: str, taken: set[str | None]) -> str:
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name
