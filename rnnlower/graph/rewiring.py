"""Replacement of nodes and values, and removal of what has lost its readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from rnnlower.graph.initializers import is_trained, with_name
from rnnlower.graph.names import NameSource, all_names, count_value_names
from rnnlower.graph.walk import is_read, subgraphs_of, values_read_by


def remove_orphans(values: Iterable[ir.Value]) -> None:
    """Remove the values that nothing reads, and those that nothing reads as a consequence.

    Only the given values and their ancestors: dead code that the model had before stays. Graph inputs stay,
    with their initializers, and so do graph outputs and values that the model's training reads or sets.
    """
    pending = list(dict.fromkeys(values))
    while pending:
        value = pending.pop()
        if is_read(value) or value.is_graph_input() or is_trained(value):
            continue
        producer = value.producer()
        if producer is None:
            if value.is_initializer():
                assert value.graph is not None
                assert value.name is not None
                value.graph.initializers.pop(value.name)
            continue
        if producer.graph is None or any(is_read(out) for out in producer.outputs):
            continue
        inputs = [used for used in values_read_by(producer) if used is not None]
        producer.graph.remove(producer, safe=True)
        # The removed node's subgraphs would still count as readers of what they capture.
        detach(_inner_nodes(producer))
        pending += inputs


def detach(nodes: Iterable[ir.Node]) -> None:
    """Disconnect nodes that are no longer in a graph, and those in their subgraphs, from their inputs."""
    for node in nodes:
        for reader in (node, *_inner_nodes(node)):
            for index in range(len(reader.inputs)):
                reader.replace_input_with(index, None)


def _inner_nodes(node: ir.Node) -> list[ir.Node]:
    return [inner for graph in subgraphs_of(node) for inner in graph.all_nodes()]


def splice(model: ir.Model, node: ir.Node, graph: ir.Graph) -> None:
    """Replace a node by the nodes of one of its subgraphs, which has no inputs.

    The node's outputs keep their names if they are graph outputs.
    """
    outer = node.graph
    assert outer is not None
    _make_names_unique(model, graph)
    inner, results = list(graph), list(graph.outputs)
    for name, value in list(graph.initializers.items()):
        graph.initializers.pop(name)
        outer.register_initializer(value)
    graph.outputs.clear()
    graph.remove(inner)
    outer.insert_before(node, inner)
    replace_with_values(node, results)


def replace_with_values(node: ir.Node, results: Sequence[ir.Value]) -> None:
    """Replace a node by values that exist before it; names and positions of graph outputs stay."""
    for old, result in zip(node.outputs, results, strict=True):
        replace_value(node, old, result)
    remove_orphans(node.outputs)


def insert_before(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    names: NameSource,
    attributes: Iterable[ir.Attr] = (),
) -> ir.Value:
    """Insert another node of the domain before a node; return its output, of the same type as the node's."""
    (old,) = node.outputs
    other = ir.Node(node.domain, op_type, inputs, attributes, name=names.fresh(f"{node.name}/{op_type}"))
    other.outputs[0].name = names.fresh(f"{old.name}/{op_type}")
    other.outputs[0].type = old.type
    node.prepend(other)
    return other.outputs[0]


def take_place_of(
    new: ir.Value,
    old: ir.Value,
    old_name: str | None = None,
    readers: Iterable[tuple[ir.Node, int]] | None = None,
) -> None:
    """Let a new value take over the name, type, shape, readers and graph output of an old one.

    With `readers`, only these change over; the old value then gets the name `old_name`.
    """
    new.type, new.shape = old.type, old.shape
    for node, index in old.uses() if readers is None else readers:
        node.replace_input_with(index, new)
    if old.is_graph_output() and old.graph is not None:
        old.graph.outputs[:] = [new if each is old else each for each in old.graph.outputs]
    new.name, old.name = old.name, old_name


def prepend(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Insert nodes at the beginning of a graph, which may be empty."""
    if len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)


def set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    """Set an input of a node, adding omitted ones before it if there are too few."""
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def replace_value(node: ir.Node, old: ir.Value, result: ir.Value, *, is_new: bool = False) -> None:
    """Replace a value by one that exists before a node; with `is_new`, the result takes over the old name.

    The name and position of a graph output stay in any case. The old value may be in a subgraph of the graph.
    """
    new, producer, maker = result, result.producer(), old.producer()
    if maker is not None and isinstance(maker.graph, ir.Graph) and maker.graph is not node.graph:
        node, is_new = maker, False
    is_made_here = producer is not None and producer.graph is node.graph
    if old.is_graph_output() and (not is_made_here or result.is_graph_output()):
        identity = ir.node("Identity", [result], name=f"{old.name}/Identity")
        node.prepend(identity)
        new = identity.outputs[0]
        new.type, new.shape = old.type, old.shape
    is_output, is_new = old.is_graph_output(), is_new and not result.is_graph_output()
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if is_output:
        # A graph output has the declared type and shape.
        new.type = old.type or new.type
        new.shape = new.shape if old.shape is None else old.shape
    if is_output or is_new:
        new.name, old.name = old.name, None


def _make_names_unique(model: ir.Model, graph: ir.Graph) -> None:
    """Rename values whose name exists elsewhere: branches may share names, outer and inner graphs may not."""
    taken = count_value_names(model)
    names = NameSource(all_names(model))
    for value in (*graph.initializers.values(), *(out for node in graph for out in node.outputs)):
        if value.name and taken[value.name] > 1:
            fresh = names.fresh(value.name)
            if value.const_value is not None:
                value.const_value = with_name(value.const_value, fresh)
            value.name = fresh
