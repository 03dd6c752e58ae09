"""Removal of values that have lost their readers in a rewrite."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from rnnlower.graph.constants import is_trained
from rnnlower.graph.walk import read_by, subgraphs_of


def remove_orphans(values: Iterable[ir.Value]) -> None:
    """Remove the values that nothing reads, and those that nothing reads as a consequence.

    Only the given values and their ancestors: dead code that the model had before stays. Graph inputs stay,
    with their initializers, and so do graph outputs and values that the model's training reads or sets.
    """
    pending = list(dict.fromkeys(values))
    while pending:
        value = pending.pop()
        if value.uses() or value.is_graph_output() or value.is_graph_input() or is_trained(value):
            continue
        producer = value.producer()
        if producer is None:
            if value.is_initializer():
                assert value.graph is not None
                assert value.name is not None
                value.graph.initializers.pop(value.name)
            continue
        if producer.graph is None or any(out.uses() or out.is_graph_output() for out in producer.outputs):
            continue
        inputs = [used for used in read_by(producer) if used is not None]
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
