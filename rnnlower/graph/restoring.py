"""A model as it was, when a pass fails halfway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from rnnlower.graph.walk import roots, subgraphs_of

_OF_MODEL = (
    "graph",
    "ir_version",
    "doc_string",
    "domain",
    "model_version",
    "producer_name",
    "producer_version",
)
_OF_NODE = ("name", "domain", "op_type", "overload", "version", "doc_string")
_OF_VALUE = ("name", "type", "const_value", "shape", "doc_string")


@contextlib.contextmanager
def undone_on_failure(model: ir.Model) -> Iterator[None]:
    """Put the model back as it was if the block raises: the same nodes and values, not copies."""
    snapshot = _Snapshot(model)
    try:
        yield
    except BaseException:
        snapshot.restore()
        raise


class _Snapshot:
    """The parts of a model, and their connections."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._fields = {name: getattr(model, name) for name in _OF_MODEL}
        self._dictionaries: list[tuple[Any, dict[Any, Any]]] = []
        self._graphs: dict[ir.Graph, _Contents] = {}
        self._nodes: dict[ir.Node, _Node] = {}
        self._values: dict[ir.Value, _Value] = {}
        self._keep(model.functions, model.metadata_props, model.meta)
        for graph in roots(model):
            self._add(graph)

    def _keep(self, *dictionaries: Any) -> None:
        self._dictionaries += [(each, dict(each)) for each in dictionaries]

    def _add(self, graph: ir.Graph) -> None:
        contents = _Contents(graph)
        self._graphs[graph] = contents
        self._keep(graph.opset_imports, graph.metadata_props)
        for value in (*contents.inputs, *contents.outputs, *contents.initializers):
            self._add_value(value)
        for node in contents.nodes:
            self._nodes[node] = _Node(node)
            self._keep(node.attributes, node.metadata_props, node.meta)
            for value in node.outputs:
                self._add_value(value)
            for inner in subgraphs_of(node):
                self._add(inner)

    def _add_value(self, value: ir.Value) -> None:
        if value not in self._values:
            self._values[value] = _Value(value)
            self._keep(value.metadata_props, value.meta)

    def restore(self) -> None:
        """Put everything back."""
        for value in self._values:
            for reader, index in tuple(value.uses()):
                if reader not in self._nodes:
                    reader.replace_input_with(index, None)
        for graph in self._graphs:
            graph.remove(list(graph))
            graph.inputs.clear()
            graph.outputs.clear()
            graph.initializers.clear()
        for name, field in self._fields.items():
            setattr(self._model, name, field)
        for dictionary, entries in self._dictionaries:
            dictionary.clear()
            dictionary.update(entries)
        for value, before in self._values.items():
            before.put_back(value)
        for node, as_it_was in self._nodes.items():
            as_it_was.put_back(node)
        for graph, contents in self._graphs.items():
            contents.put_back(graph)


class _Value:
    """The annotations of a value."""

    def __init__(self, value: ir.Value) -> None:
        self._fields = [getattr(value, name) for name in _OF_VALUE]
        self._dims = None if value.shape is None else tuple(value.shape)

    def put_back(self, value: ir.Value) -> None:
        for field, content in zip(_OF_VALUE, self._fields, strict=True):
            setattr(value, field, content)
        if value.shape is not None and self._dims is not None and tuple(value.shape) != self._dims:
            value.shape = ir.Shape(self._dims)


class _Node:
    """The properties, inputs and outputs of a node."""

    def __init__(self, node: ir.Node) -> None:
        self._fields = [getattr(node, name) for name in _OF_NODE]
        self._inputs, self._outputs = node.inputs, node.outputs

    def put_back(self, node: ir.Node) -> None:
        if node.graph is not None:
            node.graph.remove(node)
        for field, content in zip(_OF_NODE, self._fields, strict=True):
            setattr(node, field, content)
        node.resize_inputs(len(self._inputs))
        for index, value in enumerate(self._inputs):
            node.replace_input_with(index, value)
        names = [value.name for value in self._outputs]
        node.resize_outputs(len(names))
        # An output that nobody reads may have been dropped, and is made anew.
        for out, name in zip(node.outputs, names, strict=True):
            out.name = name


class _Contents:
    """The content of a graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self.nodes = list(graph)
        self.inputs, self.outputs = list(graph.inputs), list(graph.outputs)
        self.initializers = list(graph.initializers.values())

    def put_back(self, graph: ir.Graph) -> None:
        graph.extend(self.nodes)
        graph.inputs.extend(self.inputs)
        graph.outputs.extend(self.outputs)
        for value in self.initializers:
            graph.register_initializer(value)
