"""Traversal of nodes (main graph, subgraphs at any depth, functions) and of the sources of their inputs."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower.graph.operator_kinds import RANDOM, VIEWS

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class LocatedNode:
    """A node with its address.

    Attributes:
        name: Its name. An unnamed node gets a unique one made of its operator and position.
        path: `""` for the main graph, `If_12/then_branch` for a subgraph, `function:domain::name` for a
            function.
        opset: The version of the default domain at the node.
        inner: Whether it is in a body or branch now, as functions are inlined and branches taken; by default,
            as the path says.
    """

    node: ir.Node
    name: str
    path: str
    opset: int
    inner: bool | None = None

    def __str__(self) -> str:
        return place_name(self.path, self.name)

    @property
    def origin(self) -> tuple[str, str, str]:
        """The name, the operator and the path, as reports begin."""
        return self.name, self.node.op_type, self.path

    @property
    def is_nested(self) -> bool:
        """True if it is not in the main graph."""
        return bool(self.path) if self.inner is None else self.inner

    @property
    def label(self) -> str:
        """The node as messages refer to it."""
        return f"{self.node.op_type} node {str(self)!r}"


def default_opset(model: ir.Model) -> int:
    """Return the version of the default domain; a model that imports none means version 1."""
    return model.opset_imports.get("", 1)


def walk(
    graph: ir.Graph | ir.Function, path: str = "", names: Mapping[ir.Node, str] | None = None
) -> Iterator[tuple[ir.Node, str]]:
    """Yield all nodes of a graph and of its subgraphs with their paths, in the order of the graph.

    Args:
        names: The names of nodes in paths, where nodes have been added since; `node_name` gives the others'.
    """
    for index, node in enumerate(graph):
        yield node, path
        if not node.attributes:
            continue
        for attribute in node.attributes.values():
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                continue
            subgraphs = [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value
            for number, subgraph in enumerate(subgraphs):
                name = (names or {}).get(node) or node_name(node, index)
                suffix = f"{attribute.name}_{number}" if len(subgraphs) > 1 else attribute.name
                yield from walk(subgraph, place_name(path, f"{name}/{suffix}"), names)


def place_name(path: str, name: str) -> str:
    """Return the name of a node after its path."""
    return f"{path}/{name}" if path else name


def node_name(node: ir.Node, index: int) -> str:
    """Return the name of a node; an unnamed one goes by its operator and its position in its graph."""
    return node.name or f"{node.op_type}_{index}"


def display_name(node: ir.Node) -> str:
    """Return the node's name; an unnamed node goes by its first output, or else by its operator."""
    return node.name or next((out.name for out in node.outputs if out.name), node.op_type)


def node_label(node: ir.Node | onnx.NodeProto) -> str:
    """Return how messages refer to a node: by its name, or by its first output if it has none."""
    if node.name:
        return f"{node.op_type} node {node.name!r}"
    outputs = [value.name for value in node.outputs] if isinstance(node, ir.Node) else node.output
    output = next(filter(None, outputs), "")
    return f"unnamed {node.op_type} node" + (f" (output {output!r})" if output else "")


def node_names(model: ir.Model) -> dict[ir.Node, str]:
    """Return the names of all nodes, functions included, as paths have them."""
    graphs = (graph for root in root_graphs(model) for graph in (root, *root.subgraphs()))
    return {node: node_name(node, index) for graph in graphs for index, node in enumerate(graph)}


def walk_all(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    """Yield the nodes of the main graph and of the functions, as `walk` does."""
    yield from walk(model.graph)
    for function in model.functions.values():
        yield from walk(function, f"function:{function.domain}::{function.name}")


def root_graphs(model: ir.Model) -> list[ir.Graph]:
    """Return the main graph and those of the functions."""
    return [model.graph, *(function.graph for function in model.functions.values())]


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph and its subgraphs, and those of functions; not the functions' own graphs."""
    yield from model.graphs()
    for function in model.functions.values():
        yield from function.subgraphs()


def subgraphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the bodies and branches of a node."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def subgraph_owners(graph: ir.Graph) -> dict[ir.Graph | None, ir.Node]:
    """Return the nodes whose bodies and branches lie below a graph, by body or branch."""
    return {inner: node for node, _ in walk(graph) for inner in subgraphs_of(node)}


def qualified_op_type(node: ir.Node) -> str:
    """Return the operator, after its domain if that is not the default one: ``com.microsoft.Gelu``."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def count_ops(model: ir.Model) -> dict[str, int]:
    """Count the nodes by operator, including subgraphs and functions."""
    counter = collections.Counter(qualified_op_type(node) for node, _ in walk_all(model))
    return dict(sorted(counter.items()))


def walk_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield inputs, initializers and node outputs of a graph and every graph below it, in a fixed order."""
    yield from graph.inputs
    yield from (value for value in graph.initializers.values() if not value.is_graph_input())
    for node in graph:
        yield from node.outputs
        for inner in subgraphs_of(node):
            yield from walk_values(inner)


def op_types(model: ir.Model) -> set[str]:
    """Return the operators of all graphs and functions."""
    return {node.op_type for node, _ in walk_all(model)}


def origin(value: ir.Value) -> str:
    """Return ``constant``, ``computed`` (from constants) or ``runtime``; so is an overridable initializer."""
    if not all(map(_is_fixed_source, ancestors(value))):
        return "runtime"
    producer = value.producer()
    return "constant" if producer is None or producer.op_type == "Constant" else "computed"


def _is_fixed_source(value: ir.Value) -> bool:
    producer = value.producer()
    if producer is None:
        return value.const_value is not None and not value.is_graph_input()
    inner = (node for graph in subgraphs_of(producer) for node, _ in walk(graph))
    return not any(node.op_type in RANDOM for node in (producer, *inner))


def reachable(start: Iterable[T], following: Callable[[T], Iterable[T | None]]) -> list[T]:
    """Return the given values and all that follow from them, each once."""
    found = dict.fromkeys(start)
    pending = list(found)
    for each in pending:
        for other in following(each):
            if other is not None and other not in found:
                found[other] = None
                pending.append(other)
    return pending


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that computes a value, if it is one of these operators of the ONNX standard."""
    node = None if value is None else value.producer()
    return node if node is not None and not node.domain and node.op_type in op_types else None


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, ``None`` if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def required_input(node: ir.Node, index: int = 0) -> ir.Value:
    """Return an input that the operator of a node requires."""
    value = node.inputs[index]
    assert value is not None
    return value


def trim_omitted(values: Iterable[ir.Value | None]) -> list[ir.Value | None]:
    """Return `values` with omitted ones (absent or nameless) as ``None``, without omitted ones at the end."""
    kept = [None if value is None or value.name == "" else value for value in values]
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def ints_of_attribute_or_input(
    node: ir.Node, name: str, index: int, content: Callable[[ir.Value], np.ndarray | None], unknown: Exception
) -> list[int] | None:
    """Return integers that are an attribute or, in newer versions, an input; raise if that is not known."""
    given, value = node.attributes.get_ints(name), operand(node, index)
    if given is not None or value is None:
        return None if given is None else [*given]
    array = content(value)
    if array is None:
        raise unknown
    return [int(each) for each in array.reshape(-1)]


def is_read(value: ir.Value) -> bool:
    """Return whether a node reads the value, or a graph returns it."""
    return bool(value.uses()) or value.is_graph_output()


def look_through(value: ir.Value, views: Collection[str] = VIEWS) -> ir.Value:
    """Return the value at the start of a chain of views such as Reshape."""
    producer = value.producer()
    while producer is not None and producer.op_type in views and not producer.domain:
        source = producer.inputs[0]
        if source is None:
            break
        value, producer = source, source.producer()
    return value


def look_through_identities(value: ir.Value) -> ir.Value:
    """Return the value at the start of a chain of Identity nodes."""
    return look_through(value, ("Identity",))


def ancestors(*values: ir.Value) -> set[ir.Value]:
    """Return the values that values depend on, including themselves, in their own and in outer graphs."""
    return {*reachable(values, lambda this: values_read_by(this.producer()))}


def values_read_by(node: ir.Node | None) -> list[ir.Value | None]:
    """Return the values that a node reads, those in its bodies and branches included."""
    return [] if node is None else [*node.inputs, *captured_values(node)]


def captured_values(node: ir.Node) -> set[ir.Value]:
    """Return the values of outer graphs that the bodies and branches of a node read.

    `onnx_ir.analysis.analyze_implicit_usage` leaves out those that a body only returns.
    """
    made: set[ir.Value] = set()
    read: set[ir.Value] = set()
    for graph in subgraphs_of(node):
        made |= {*walk_values(graph)}
        for inner in (graph, *graph.subgraphs()):
            read |= {used for each in inner for used in each.inputs if used is not None} | {*inner.outputs}
    return read - made
