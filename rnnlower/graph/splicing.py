"""Replacement of a node by the nodes of its subgraph."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.graph.cleanup import detach, remove_orphans
from rnnlower.graph.initializers import named
from rnnlower.graph.names import NameSource, names_in
from rnnlower.graph.walk import value_names


def splice(model: ir.Model, node: ir.Node, graph: ir.Graph) -> None:
    """Put the nodes of a node's subgraph without inputs in the place of the node.

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
    replace_outputs(node, results)


def replace_outputs(node: ir.Node, results: Sequence[ir.Value]) -> None:
    """Replace a node by values that exist before it; names and positions of graph outputs stay."""
    graph = node.graph
    assert graph is not None
    for old, result in zip(node.outputs, results, strict=True):
        replace_value(graph, node, old, result)
    inputs = [value for value in node.inputs if value is not None]
    graph.remove(node, safe=True)
    detach([node])
    remove_orphans(inputs)


def take_place(new: ir.Value, old: ir.Value) -> None:
    """Put a new value in the place of an old one, with its name, type, shape and readers."""
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name, old.name = old.name, None


def replace_value(
    graph: ir.Graph, node: ir.Node, old: ir.Value, result: ir.Value, *, is_new: bool = False
) -> None:
    """Replace a value by one that exists before a node and gets its name, if that is new.

    The name and position of a graph output stay in any case.
    """
    new, producer = result, result.producer()
    is_made_here = producer is not None and producer.graph is graph
    if old.is_graph_output() and (not is_made_here or result.is_graph_output()):
        identity = ir.node("Identity", [result], name=f"{old.name}/Identity")
        graph.insert_before(node, identity)
        new = identity.outputs[0]
        new.type, new.shape = old.type, old.shape
    is_output, is_new = old.is_graph_output(), is_new and not result.is_graph_output()
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if is_output:
        # A graph output has the declared type and shape.
        new.type, new.shape = old.type or new.type, old.shape or new.shape
    if is_output or is_new:
        new.name, old.name = old.name, None


def _make_names_unique(model: ir.Model, graph: ir.Graph) -> None:
    """Rename values whose name exists elsewhere: branches may share names, outer and inner graphs may not."""
    taken = value_names(model)
    names = NameSource(names_in(model))
    for value in (*graph.initializers.values(), *(out for node in graph for out in node.outputs)):
        if value.name and taken[value.name] > 1:
            fresh = names.fresh(value.name)
            if value.const_value is not None:
                value.const_value = named(value.const_value, fresh)
            value.name = fresh
