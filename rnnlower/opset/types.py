"""Element types and shapes of the values of a model, as far as they can be known.

Declared types are used as they are. Undeclared types come from onnx's shape inference, on a copy of the
model with unique names and without large tensors: weights never pass through protobuf.
A function's body is inferred once for each of its calls, so a value in it may have several types.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir

from rnnlower.graph.inference import guarded
from rnnlower.graph.walk import forget_negative_sizes, op_types, subgraphs_of
from rnnlower.opset import schema

__all__ = ["ValueTypes", "all_graphs", "all_values", "called_functions", "resolve_references"]

logger = logging.getLogger(__name__)

# Larger tensors contain no shapes or axes that shape inference needs.
SMALL_BYTES = 2048
FUNCTIONS_HAVE_TYPES_IR = 10


@dataclasses.dataclass(frozen=True)
class _Known:
    type: ir.TypeProtocol | None
    shape: ir.Shape | None


def all_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield `graph` and every graph below it, outer ones first."""
    yield graph
    for node in graph:
        for subgraph in subgraphs_of(node):
            yield from all_graphs(subgraph)


def called_functions(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return the functions that the main graph calls, directly or indirectly."""
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


def all_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield inputs, initializers and node outputs of `graph` and every graph below it, in a fixed order."""
    for each in all_graphs(graph):
        yield from each.inputs
        yield from (value for value in each.initializers.values() if not value.is_graph_input())
        for node in each:
            yield from node.outputs


class ValueTypes:
    """The known types and shapes of a model's values before the conversion, and of values that it adds."""

    def __init__(self, model: ir.Model | None = None) -> None:
        self._known: dict[ir.Value, list[_Known]] = {}
        self._strings: dict[ir.Value, frozenset[str]] = {}
        self._uncalled: set[ir.Value] = set()
        if model is not None:
            self._infer(model)

    def types(self, value: ir.Value) -> frozenset[str]:
        """Return the types of `value` as the schemas write them: none if unknown, several in a function."""
        found = self._strings.get(value)
        if found is None:
            names = (schema.type_string(each.type) for each in self._all(value))
            found = self._strings[value] = frozenset(each for each in names if each is not None)
        return found

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type of a tensor, or ``None`` if it is unknown or not a single one."""
        if value is None:
            return None
        found = {each.type.dtype for each in self._all(value) if isinstance(each.type, ir.TensorType)}
        found.discard(ir.DataType.UNDEFINED)
        return found.pop() if len(found) == 1 else None

    def shape(self, value: ir.Value | None) -> ir.Shape | None:
        """Return the shape of a tensor; ``None`` if unknown or different in the calls of a function."""
        if value is None:
            return None
        shapes = [each.shape for each in self._all(value)]
        if not shapes or shapes[0] is None or any(shape != shapes[0] for shape in shapes):
            return None
        # Exporters write -1 for an unknown size.
        return ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in shapes[0]])

    def rank(self, value: ir.Value | None) -> int | None:
        """Return the rank of a tensor, if everything known agrees on one."""
        if value is None:
            return None
        ranks = {None if each.shape is None else len(each.shape) for each in self._all(value)}
        return ranks.pop() if len(ranks) == 1 else None

    def learn(self, model: ir.Model) -> None:
        """Add the result of inference on the current model for values of unknown shape."""
        for value, known in ValueTypes(model)._known.items():
            if self.rank(value) is None:
                self._known[value] = known
                self._strings.pop(value, None)

    def is_uncalled(self, value: ir.Value) -> bool:
        """Return whether `value` belongs to a function that nothing calls: it then has no type."""
        return value in self._uncalled

    def record(self, value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> None:
        """Record the type and shape of a value that the conversion has added."""
        self._known[value] = [_Known(type_, shape)]
        self._strings.pop(value, None)

    def alias(self, value: ir.Value, original: ir.Value, others: ValueTypes | None = None) -> None:
        """Record that `value` equals `original`, of `others` if that belongs to another copy of the model."""
        others = others or self
        self._known[value] = others._all(original)
        self._strings.pop(value, None)
        if original in others._uncalled:
            self._uncalled.add(value)

    def _all(self, value: ir.Value) -> list[_Known]:
        known = self._known.get(value)
        if known:
            return known
        tensor = value.const_value
        if tensor is not None and value.type is None:
            return [_Known(ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy()))]
        return [_Known(value.type, value.shape)]

    def _infer(self, model: ir.Model) -> None:
        copy = _InferenceCopy(model)
        self._uncalled = copy.uncalled
        inferred = copy.infer()
        for original, name in copy.names():
            known = inferred.get(name)
            if known is None or known.type is None:
                continue
            merged = _Known(known.type, known.shape if known.shape is not None else original.shape)
            self._known.setdefault(original, []).append(merged)
        for call in copy.unexpanded:
            self._infer_call(model, call, inferred)

    def _infer_call(self, model: ir.Model, call: ir.Node, inferred: Mapping[str, _Known]) -> None:
        """Infer the values inside a function of another opset, for one of its calls."""
        function = model.functions[call.op_identifier()]
        body = function.clone()
        for graph in all_graphs(body.graph):
            for node in graph:
                resolve_references(node, {**function.attributes, **call.attributes})
        for formal, actual in zip(body.inputs, call.inputs, strict=False):
            known = None if actual is None else inferred.get(str(actual.name))
            if known is not None:
                formal.type, formal.shape = known.type, known.shape
        inside = ValueTypes(
            ir.Model(body.graph, ir_version=model.ir_version, functions=list(model.functions.values()))
        )
        for original, copied in zip(all_values(function.graph), all_values(body.graph), strict=True):
            self._known.setdefault(original, []).extend(inside._known.pop(copied, []))
        for value, several in inside._known.items():
            self._known.setdefault(value, []).extend(several)


class _InferenceCopy:
    """A copy of a model for shape inference: unique names, no large tensors, function calls expanded."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._copy = model.clone()
        forget_negative_sizes(self._copy)
        self._pairs = list(zip(all_values(model.graph), all_values(self._copy.graph), strict=True))
        self._replaced: dict[ir.Value, ir.Value] = {}
        self.unexpanded: list[ir.Node] = []
        for graph in list(all_graphs(self._copy.graph)):
            self._expand_calls(graph)
        called = called_functions(model)
        self.uncalled = {
            value
            for identifier, function in model.functions.items()
            if identifier not in called
            for value in all_values(function.graph)
        }
        self._strip()
        if not self.unexpanded:
            self._copy.functions.clear()
        # Older files declare the values of functions among those of the model.
        self._copy.ir_version = max(self._copy.ir_version, FUNCTIONS_HAVE_TYPES_IR)

    def names(self) -> Iterator[tuple[ir.Value, str]]:
        """Yield each value of the model with its name in the copy."""
        for original, copied in self._pairs:
            name = self._replaced.get(copied, copied).name
            if name:
                yield original, name

    def infer(self) -> dict[str, _Known]:
        """Return everything that shape inference finds out, by name."""
        try:
            proto = guarded(op_types(self._copy), _infer, self._copy)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
            logger.debug("shape inference fails on this model: %s", error)
            return {}
        found: dict[str, _Known] = {}
        _collect(proto.graph, found)
        return found

    def _has_opset_of_model(self, function: ir.Function) -> bool:
        version = self._model.graph.opset_imports.get("", 1)
        return function.opset_imports.get("", version) == version

    def _expand_calls(self, graph: ir.Graph) -> None:
        pending = list(graph)
        while pending:
            node = pending.pop()
            function = self._model.functions.get(node.op_identifier())
            if function is None:
                continue
            if not self._has_opset_of_model(function):
                self.unexpanded.append(node)
            else:
                pending += self._expand(graph, node, function)

    def _expand(self, graph: ir.Graph, call: ir.Node, function: ir.Function) -> list[ir.Node]:
        body = function.clone()
        self._pairs += zip(all_values(function.graph), all_values(body.graph), strict=True)
        for each in all_graphs(body.graph):
            for node in each:
                resolve_references(node, {**function.attributes, **call.attributes})
        actuals = [*call.inputs, *[None] * len(body.inputs)]
        for formal, actual in zip(body.inputs, actuals, strict=False):
            for user, position in list(formal.uses()):
                user.replace_input_with(position, actual)
            if actual is not None:
                self._replaced[formal] = actual
        outputs = list(body.outputs)
        nodes = list(body)
        body.graph.outputs.clear()
        body.graph.remove(nodes)
        for old, new in zip(call.outputs, outputs, strict=False):
            copy = ir.node("Identity", [self._replaced.get(new, new)])
            nodes.append(copy)
            ir.convenience.replace_all_uses_with(old, copy.outputs[0], replace_graph_outputs=True)
            self._replaced[old] = copy.outputs[0]
        graph.insert_before(call, nodes)
        graph.remove(call)
        return nodes

    def _strip(self) -> None:
        root = self._copy.graph
        graphs = list(all_graphs(root))
        for number, value in enumerate(list(_all_unique(graphs))):
            if value.name == "":
                continue
            tensor = value.const_value
            if tensor is not None:
                value.type = value.type or ir.TensorType(tensor.dtype)
                value.shape = value.shape or ir.Shape(tensor.shape.numpy())
                value.const_value = None if tensor.nbytes > SMALL_BYTES else _copied(tensor)
            value.name = f"v{number}"
        for graph in graphs:
            for value in list(graph.initializers.values()):
                if value.const_value is None:
                    graph.initializers.pop(str(value.name))
                    if not value.is_graph_input():
                        root.inputs.append(value)
            for node in list(graph):
                self._strip_constant(root, graph, node)

    def _strip_constant(self, root: ir.Graph, graph: ir.Graph, node: ir.Node) -> None:
        attribute = node.attributes.get("value")
        if node.op_type != "Constant" or node.domain or attribute is None or attribute.is_ref():
            return
        tensor = attribute.as_tensor()
        output = node.outputs[0]
        if tensor.nbytes <= SMALL_BYTES or output.is_graph_output():
            return
        stand_in = ir.Value(
            name=output.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy())
        )
        output.replace_all_uses_with(stand_in)
        self._replaced[output] = stand_in
        root.inputs.append(stand_in)
        graph.remove(node)


def _infer(model: ir.Model) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(ir.to_proto(model), data_prop=True)


def _all_unique(graphs: list[ir.Graph]) -> Iterator[ir.Value]:
    for graph in graphs:
        yield from graph.inputs
        yield from (value for value in list(graph.initializers.values()) if not value.is_graph_input())
        for node in graph:
            yield from node.outputs


def _copied(tensor: ir.TensorProtocol) -> ir.TensorProtocol | None:
    # Renaming a value renames its tensor, which is shared with the model: give inference a copy.
    try:
        if tensor.dtype == ir.DataType.STRING:
            return ir.tensor([bytes(each) for each in tensor.numpy().reshape(-1).tolist()])
        return ir.Tensor(tensor.numpy(), dtype=tensor.dtype)
    except OSError as error:
        logger.debug("the data of %r cannot be read for shape inference: %s", tensor.name, error)
        return None


def resolve_references(node: ir.Node, actuals: Mapping[str, ir.Attr]) -> None:
    """Put `actuals` in the place of a function's parameters; a parameter without a value is removed."""
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


def _collect(proto: onnx.GraphProto, found: dict[str, _Known]) -> None:
    for info in (*proto.value_info, *proto.input, *proto.output):
        if not info.type.WhichOneof("value"):
            continue
        type_ = ir.serde.deserialize_type_proto_for_type(info.type)
        found[info.name] = _Known(type_, ir.serde.deserialize_type_proto_for_shape(info.type))
    for tensor in proto.initializer:
        type_ = ir.TensorType(ir.DataType(tensor.data_type))
        found.setdefault(tensor.name, _Known(type_, ir.Shape(tensor.dims)))
    for node in proto.node:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _collect(graph, found)
