"""Names of a protobuf's values and functions: each is given once, and what is read is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx
from onnx import AttributeProto

from rnnlower.errors import InvalidModelError

__all__ = ["called", "check_calls", "check_function_scope", "check_graph_scope"]

_Nodes = Sequence[onnx.NodeProto]


def check_graph_scope(
    graph: onnx.GraphProto,
    label: str,
    *,
    outer: frozenset[str] = frozenset(),
    taken: frozenset[str] = frozenset(),
) -> None:
    """Refuses a graph, or the body of a node, in which a name is given twice, or read and not given.

    Args:
        graph: The graph; what is in its bodies counts too.
        label: What messages call the model.
        outer: The names around it that it may read.
        taken: Those of them that stand before it, and must not be given to anything else in it.

    Raises:
        InvalidModelError: There is such a name.
    """
    stored = [tensor.name for tensor in graph.initializer]
    stored += [sparse.values.name for sparse in graph.sparse_initializer]
    for name in stored:
        if name in taken:
            raise InvalidModelError(
                f"{label}: an initializer of a body has the name {name!r} of a value outside of it: runtimes "
                "differ in which of the two they read; rename one"
            )
    given = [*(value.name for value in graph.input), *stored]
    _check_scope(graph.node, given, [value.name for value in graph.output], label, outer=outer, taken=taken)


def check_function_scope(function: onnx.FunctionProto, label: str) -> None:
    """Refuses a function in which a name is given twice, or read and not given."""
    _check_scope(function.node, function.input, function.output, label)


def check_calls(model: onnx.ModelProto, label: str) -> None:
    """No function may call itself, nor one that does."""
    functions = {(each.domain, each.name): each for each in model.functions}
    calls = {
        key: {(node.domain, node.op_type) for node in _all_nodes(each.node)} & functions.keys()
        for key, each in functions.items()
    }
    while leaves := [key for key, called in calls.items() if not called & calls.keys()]:
        for key in leaves:
            del calls[key]
    if calls:
        domain, name = next(iter(calls))
        raise InvalidModelError(f"{label}: function {domain}::{name} calls itself, or one that does")


def called(node: onnx.NodeProto) -> str:
    """What messages call a node; one without a name goes by what it gives."""
    if node.name:
        return f"{node.op_type} node {node.name!r}"
    output = next(filter(None, node.output), "")
    return f"unnamed {node.op_type} node" + (f" (output {output!r})" if output else "")


def _check_scope(
    nodes: _Nodes,
    given: Iterable[str],
    outputs: Iterable[str],
    label: str,
    *,
    outer: frozenset[str] = frozenset(),
    taken: frozenset[str] = frozenset(),
) -> None:
    """Everything that is read must be there, once, in whatever order the nodes come.

    Around a body there are the names `outer`, of which those of `taken` stand before it and must not be given
    to anything else in it.
    """
    produced = {*given} - {""}
    for node in nodes:
        for name in filter(None, node.output):
            if name in produced or name in taken:
                raise InvalidModelError(
                    f"{label}: {called(node)} produces {name!r}, which exists already; rename one of the two"
                )
            produced.add(name)
    visible = outer | produced
    before = taken | {*given}
    for node in nodes:
        for name in node.input:
            if name and name not in visible:
                raise InvalidModelError(f"{label}: {called(node)} reads {name!r}, which nothing produces")
        for attribute in node.attribute:
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                for graph in (attribute.g, *attribute.graphs):
                    check_graph_scope(graph, label, outer=visible, taken=before)
        before |= {*node.output} - {""}
    for name in (each for each in outputs if each not in produced):
        if name in outer:
            raise InvalidModelError(
                f"{label}: a body returns {name!r}, which comes from outside of it; put an Identity between"
            )
        raise InvalidModelError(f"{label}: nothing produces the output {name!r}")


def _all_nodes(nodes: _Nodes) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)
