"""Passes that replace function calls, and operators that onnx defines as functions, by their bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.inlining import functions_with, inline_functions
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.versions import body_versions, function_body, version_at
from rnnlower.graph.walk import default_opset, display_name, subgraphs_of, walk
from rnnlower.passes.base import Pass, are_gone
from rnnlower.recurrent.finding import is_recurrent

_DOMAIN = "rnnlower.definition"
_RESOLVED_LATER = ("Constant", "ConstantOfShape", "Flatten", "Loop", "Range", "Scan", "Shape", "Size")
"""Operators that may stay in definitions: they compute sizes, folded later, or have another form."""
_ROUNDS = 8


def _expanded_nodes_are_gone(model: ir.Model, expanding: ExpandDefinitionsPass) -> bool:
    return are_gone(model, expanding.expanded)


class ExpandDefinitionsPass(Pass):
    """Replaces operators by the function bodies that onnx has for them.

    Before::

        (float[3] x) => (float[3] y) {
            y = HardSwish (x)
        }

    After ``ExpandDefinitionsPass(lambda node: node.op_type == "HardSwish")``::

        (float[3] x) => (float[3] y) {
            h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)
            y = Mul (x, h)
        }

    Args:
        unwanted: Whether to replace a node. It stays if its definition leads to such nodes again, except for
            nodes that may be folded or unrolled afterward.
        expressible: Whether the caller replaces a node in another way.

    Attributes:
        expanded: The operators that were written out, with the names of their nodes.
    """

    ENSURES = (_expanded_nodes_are_gone,)

    def __init__(
        self, unwanted: Callable[[ir.Node], bool], expressible: Callable[[ir.Node], bool] = lambda node: False
    ) -> None:
        self._unwanted = unwanted
        self._expressible = expressible
        self.expanded: dict[str, list[str]] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expand the operators.

        Raises:
            InvalidModelError: A node does not fit its operator's definition.
        """
        for _ in range(_ROUNDS):
            functions = list(self._definitions(model))
            if not functions:
                break
            for function in functions:
                model.functions[function.identifier()] = function
            model.opset_imports[_DOMAIN] = 1
            inline_functions(model, functions)
            model.opset_imports.pop(_DOMAIN, None)
            self.facts.forget()
        return ir.passes.PassResult(model, modified=bool(self.expanded))

    def _definitions(self, model: ir.Model) -> Iterator[ir.Function]:
        """Yield the definitions of unwanted nodes, each of which then calls its own."""
        nodes = [node for node, _ in walk(model.graph) if not node.domain and self._unwanted(node)]
        if not nodes:
            return
        names = NameSource(all_names(model))
        for node in nodes:
            proto = _function_body(model, self.facts, node)
            if proto is None or not self._helps(proto, model):
                continue
            self.expanded.setdefault(node.op_type, []).append(display_name(node))
            function = ir.serde.deserialize_function(proto)
            function.domain, function.name = _DOMAIN, names.fresh(node.name or node.op_type)
            function.opset_imports.clear()
            function.opset_imports[""] = default_opset(model)
            _write_out_defaults(node, model, proto)
            node.domain, node.op_type = function.domain, function.name
            yield function

    def _helps(self, proto: onnx.FunctionProto, model: ir.Model) -> bool:
        """Return whether all operators of a definition can stay, be folded, or be expanded in turn."""
        for node in proto.node:
            stays = node.op_type in _RESOLVED_LATER
            alone = ir.node(node.op_type, [])
            if stays or self._expressible(alone) or not self._unwanted(alone):
                continue
            if not any(body_versions(node.op_type, default_opset(model))):
                return False
        return True


def _function_body(model: ir.Model, facts: Facts, node: ir.Node) -> onnx.FunctionProto | None:
    """Return the operator's function body for this node, in operators of the model's opset."""
    opset = default_opset(model)
    if next(subgraphs_of(node), None) is not None or any(a.is_ref() for a in node.attributes.values()):
        return None
    function = function_body(node, opset, facts.dtype, facts.shape)
    if function is None:
        return None
    made = {name for inner in function.node for name in inner.output} | {*function.input}
    # Bodies are built without the optional outputs that a node omits.
    while function.output and function.output[-1] not in made and len(function.output) > len(node.outputs):
        del function.output[-1]
    complete = made.issuperset(function.output) and bool(function.node)
    return function if complete and _means_the_same(function, opset) else None


def _means_the_same(function: onnx.FunctionProto, opset: int) -> bool:
    """Return whether the operators of a body written for one opset mean the same at another."""
    written = next(entry.version for entry in function.opset_import if not entry.domain)
    for node in function.node:
        one, other = (version_at(node.op_type, each) for each in (written, opset))
        if one is None or other is None or one.attributes.keys() != other.attributes.keys():
            return False
        if [each.name for each in one.inputs] != [each.name for each in other.inputs]:
            return False
    return True


def _write_out_defaults(node: ir.Node, model: ir.Model, proto: onnx.FunctionProto) -> None:
    """Write out the attributes that the definition reads and the node leaves to their defaults."""
    version = version_at(node.op_type, default_opset(model))
    declared = {} if version is None else version.attributes
    for name in (*proto.attribute, *(attribute.name for attribute in proto.attribute_proto)):
        default = declared[name].default if name in declared else None
        if name not in node.attributes and default is not None:
            node.attributes[name] = ir.convenience.convert_attribute(name, default)


def _no_function_is_wanted(model: ir.Model, inlining: InlineFunctionsPass) -> bool:
    return not functions_with(model, inlining._wanted)


class InlineFunctionsPass(Pass):
    """Inlines the functions that hold a wanted node, or call one that does, and removes those functions.

    The attributes, shapes and constants that a lowering needs are only known at the call.

    Before::

        (float[3, 1, 1] X, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) {
            Y = own.Layer (X, W, R)
        }
        <domain: "own", opset_import: ["" : 17]>
        Layer (x, w, r) => (y) {
            h = Neg (x)
            y = RNN <hidden_size = 1> (h, w, r)
        }

    After ``InlineFunctionsPass()``::

        (float[3, 1, 1] X, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) {
            h = Neg (X)
            Y = RNN <hidden_size = 1> (h, W, R)
        }

    Args:
        wanted: Whether to inline the function of a node; by default, if the node is recurrent.

    Attributes:
        uncalled: The functions that were removed because nothing called them.
    """

    ENSURES = (_no_function_is_wanted,)

    def __init__(self, wanted: Callable[[ir.Node], bool] = is_recurrent) -> None:
        self._wanted = wanted
        self.uncalled: list[ir.Function] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inline the functions.

        Raises:
            InvalidModelError: The functions call each other in a circle, or a call does not fit its function.
            OpsetError: A function imports another version of a domain than the model.
        """
        functions = functions_with(model, self._wanted)
        if functions:
            self.uncalled = inline_functions(model, functions)
        return ir.passes.PassResult(model, modified=bool(functions))
