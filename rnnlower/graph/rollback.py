"""Rollback of a model when a pass fails halfway."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from rnnlower.graph.walk import root_graphs, subgraphs_of

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
def rollback_on_failure(model: ir.Model) -> Iterator[None]:
    """Restore the model if the block raises: the same nodes and values, not copies."""
    snapshot = _Snapshot(model)
    try:
        yield
    except BaseException:
        snapshot.restore()
        raise


class _Snapshot:
    """The parts of a model with their fields, and their connections."""

    def __init__(self, model: ir.Model) -> None:
        self._fields: list[tuple[Any, dict[str, Any]]] = []
        self._dictionaries: list[tuple[Any, dict[Any, Any]]] = []
        self._graphs: dict[
            ir.Graph, tuple[list[ir.Node], list[ir.Value], list[ir.Value], list[ir.Value]]
        ] = {}
        self._nodes: dict[ir.Node, tuple[Sequence[ir.Value | None], Sequence[ir.Value]]] = {}
        self._dims: dict[ir.Value, tuple[int | ir.SymbolicDim, ...] | None] = {}
        self._keep(model, _OF_MODEL, model.functions, model.metadata_props, model.meta)
        for graph in root_graphs(model):
            self._add(graph)

    def _keep(self, owner: Any, names: Sequence[str], *dictionaries: Any) -> None:
        self._fields.append((owner, {name: getattr(owner, name) for name in names}))
        self._dictionaries += [(each, dict(each)) for each in dictionaries]

    def _add(self, graph: ir.Graph) -> None:
        values = list(graph.inputs), list(graph.outputs), list(graph.initializers.values())
        self._graphs[graph] = list(graph), *values
        self._keep(graph, (), graph.opset_imports, graph.metadata_props)
        self._add_values(itertools.chain(*values))
        for node in graph:
            self._nodes[node] = node.inputs, node.outputs
            self._keep(node, _OF_NODE, node.attributes, node.metadata_props, node.meta)
            self._add_values(node.outputs)
            for inner in subgraphs_of(node):
                self._add(inner)

    def _add_values(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            if value not in self._dims:
                self._dims[value] = None if value.shape is None else tuple(value.shape)
                self._keep(value, _OF_VALUE, value.metadata_props, value.meta)

    def restore(self) -> None:
        """Put everything back."""
        for value in self._dims:
            for reader, index in tuple(value.uses()):
                if reader not in self._nodes:
                    reader.replace_input_with(index, None)
        # A graph that is new may have taken them over.
        owners = {value.graph: None for value in self._dims if value.graph is not None}
        for graph in {**self._graphs, **owners}:
            graph.remove(list(graph))
            for contents in (graph.inputs, graph.outputs, graph.initializers):
                contents.clear()
        for owner, fields in self._fields:
            for name, content in fields.items():
                setattr(owner, name, content)
        for dictionary, entries in self._dictionaries:
            dictionary.clear()
            dictionary.update(entries)
        for value, dims in self._dims.items():
            if value.shape is not None and dims is not None and tuple(value.shape) != dims:
                value.shape = ir.Shape(dims)
        for node, ends in self._nodes.items():
            _connect(node, *ends)
        for graph, (nodes, inputs, outputs, initializers) in self._graphs.items():
            unnamed = [node for node in nodes if node.name is None]
            graph.extend(nodes)
            for node in unnamed:
                node.name = None  # The graph gave it one.
            graph.inputs.extend(inputs)
            graph.outputs.extend(outputs)
            for value in initializers:
                graph.register_initializer(value)


def _connect(node: ir.Node, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value]) -> None:
    """Give a node these inputs and outputs, outside of any graph."""
    if node.graph is not None:
        node.graph.remove(node)
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
    names = [value.name for value in outputs]
    node.resize_outputs(len(names))
    # An output that nobody reads may have been dropped, and is made anew.
    for out, name in zip(node.outputs, names, strict=True):
        out.name = name
