"""Checks of graphs: each name is defined once, every name that is read is defined, and nodes fit a version.

Any version of the operator will do: exporters declare an older opset than they write, and their models run. A
node that fits none is refused here, so that later code can rely on required inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from rnnlower.errors import InvalidModelError
from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH
from rnnlower.graph.versions import NodeForm, history, misfit_of
from rnnlower.graph.walk import node_label
from rnnlower.wording import counted

_Nodes = Sequence[onnx.NodeProto]
_DEFAULT = ("", "ai.onnx")

_WINDOW = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 2}
"""The attributes of convolutions and pools, and how many elements they have for each axis."""


def check_function_scope(function: onnx.FunctionProto, label: str) -> None:
    """Refuse a function in which a name is defined twice, or read and never defined."""
    _check_scope(function.node, _Scope(function.input, None), function.output, label)


def check_calls(model: onnx.ModelProto, label: str) -> None:
    """Refuse functions that call themselves, directly or indirectly."""
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    calls = {
        key: {
            (node.domain, node.op_type, node.overload)
            for nodes in (each.node, *(graph.node for graph in subgraphs(each.node)))
            for node in nodes
        }
        & functions.keys()
        for key, each in functions.items()
    }
    while leaves := [key for key, called in calls.items() if not called & calls.keys()]:
        for key in leaves:
            del calls[key]
    if calls:
        domain, name, _ = next(iter(calls))
        raise InvalidModelError(f"{label}: function {domain}::{name} calls itself, directly or indirectly")


def check_loops(model: onnx.ModelProto, label: str) -> None:
    """Refuse Loops and Scans that do not fit their bodies: later code pairs the values of the two.

    Raises:
        InvalidModelError: There is such a node.
    """
    for owner, nodes in (model, model.graph.node), *((each, each.node) for each in model.functions):
        version = max((each.version for each in owner.opset_import if each.domain in _DEFAULT), default=0)
        for node in (*nodes, *(node for graph in subgraphs(nodes) for node in graph.node)):
            if node.domain not in _DEFAULT or node.op_type not in ("Loop", "Scan"):
                continue
            misfit = _misfit_of_body(node, version)
            if misfit:
                raise InvalidModelError(f"{label}: {node_label(node)}: {misfit}")


def _misfit_of_body(node: onnx.NodeProto, version: int) -> str:
    """Describe the misfit between a Loop or Scan and its body; empty if they fit."""
    given = {each.name: each for each in node.attribute}
    if any(each.ref_attr_name for each in node.attribute):
        return ""
    body = given["body"].g
    is_loop = node.op_type == "Loop"
    # A Loop takes two inputs that are no states, as its body does; Scan-8 takes one that its body does not.
    before = 2 if is_loop else int(version == FIRST_SCAN_WITHOUT_BATCH - 1)
    scanned = 0 if is_loop else given["num_scan_inputs"].i
    states = len(body.input) - (before if is_loop else scanned)
    if not is_loop and not 1 <= scanned <= len(body.input):
        return f"attribute 'num_scan_inputs' is {scanned}, but its body has {len(body.input)} inputs"
    if max(len(node.input), before) != before + states + scanned:
        return f"has {len(node.input)} inputs, which do not fit the {len(body.input)} of its body"
    stacked = len(body.output) - is_loop - states
    results = states + stacked
    # A Scan may leave out its last results.
    if stacked < 0 or len(node.output) > results or (is_loop and len(node.output) < results):
        return f"has {len(node.output)} outputs, which do not fit the {len(body.output)} of its body"
    if is_loop:
        return ""
    for name, count in (
        ("directions", scanned),
        ("scan_input_axes", scanned),
        ("scan_input_directions", scanned),
        ("scan_output_axes", stacked),
        ("scan_output_directions", stacked),
    ):
        values = list(given[name].ints) if name in given else [0] * count
        if len(values) != count:
            return f"attribute {name!r} has {len(values)} elements, but needs {count}"
        if name.endswith("directions") and not {0, 1}.issuperset(values):
            return f"attribute {name!r} is {values}; a direction is 0 or 1"
    return ""


class _Scope:
    """The names of one graph, and the enclosing scopes.

    Attributes:
        given: The names that the graph defines anywhere.
        before: The names defined before the current node.
        constants: The initializers that no caller can override.

    The first two grow in place, and bodies see the enclosing scopes through `outer`. With a copy for every
    node, a graph of n nodes would take quadratic time.
    """

    def __init__(
        self, given: Iterable[str], outer: _Scope | None, constants: Mapping[str, TensorProto] | None = None
    ) -> None:
        self.given = {*given} - {""}
        self.before = set(self.given)
        self.outer = outer
        self.constants = constants or {}

    def may_be_read(self, name: str) -> bool:
        """Return whether the graph, or an enclosing one, defines the name."""
        return name in self.given or (self.outer is not None and self.outer.may_be_read(name))

    def is_taken(self, name: str) -> bool:
        """Return whether the name is defined before this point, as seen from a body."""
        return name in self.before or (self.outer is not None and self.outer.is_taken(name))

    def constant(self, name: str) -> TensorProto | None:
        """Return the initializer that the name stands for here, as seen from a body."""
        if name in self.given or self.outer is None:
            return self.constants.get(name)
        return self.outer.constant(name)


def check_graph_scope(graph: onnx.GraphProto, label: str, outer: _Scope | None = None) -> None:
    """Refuse a graph in which a name is defined twice, or read and never defined, including its bodies.

    Args:
        label: What messages call the model.
        outer: The scope around the graph, if it is a body.

    Raises:
        InvalidModelError: There is such a name.
    """
    dense = {tensor.name: tensor for tensor in graph.initializer}
    stored = [*dense, *(sparse.values.name for sparse in graph.sparse_initializer)]
    for name in stored:
        if (
            outer is not None
            and outer.is_taken(name)
            and not _are_equal(dense.get(name), outer.constant(name))
        ):
            raise InvalidModelError(
                f"{label}: an initializer of a body has the name {name!r} of a value outside of it: runtimes "
                "differ in which of the two they read; rename one"
            )
    inputs = [value.name for value in graph.input]
    constants = {name: tensor for name, tensor in dense.items() if name not in inputs}
    scope = _Scope([*inputs, *stored], outer, constants)
    _check_scope(graph.node, scope, [value.name for value in graph.output], label)


def _are_equal(inner: TensorProto | None, outer: TensorProto | None) -> bool:
    """Return whether two tensors have the same content, so that either can be read."""
    if inner is None or outer is None:
        return False
    if inner.data_location == TensorProto.EXTERNAL or inner.data_type == TensorProto.STRING:
        return inner == outer
    if inner.data_type != outer.data_type or inner.dims != outer.dims or outer.data_location:
        return False
    return numpy_helper.to_array(inner).tobytes() == numpy_helper.to_array(outer).tobytes()


def _check_scope(nodes: _Nodes, scope: _Scope, outputs: Iterable[str], label: str) -> None:
    """Refuse names that are read and never defined, or defined twice, for nodes in any order."""
    outer = scope.outer
    for node in nodes:
        for name in filter(None, node.output):
            if name in scope.given or (outer is not None and outer.is_taken(name)):
                raise InvalidModelError(
                    f"{label}: {node_label(node)} produces {name!r}, which exists already; "
                    "rename one of the two"
                )
            scope.given.add(name)
    for node in nodes:
        for name in node.input:
            if name and not scope.may_be_read(name):
                raise InvalidModelError(f"{label}: {node_label(node)} reads {name!r}, which nothing produces")
        for attribute in node.attribute:
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                for graph in (attribute.g, *attribute.graphs):
                    check_graph_scope(graph, label, scope)
        scope.before.update(filter(None, node.output))
    for name in (each for each in outputs if each not in scope.given):
        if outer is not None and outer.may_be_read(name):
            raise InvalidModelError(
                f"{label}: a body returns {name!r}, which comes from outside of it; put an Identity between"
            )
        raise InvalidModelError(f"{label}: nothing produces the output {name!r}")


def subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside of nodes, each before those inside of it."""
    for node in nodes:
        for attribute in node.attribute:
            # The field of an empty graph may be unset.
            graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
            for graph in () if attribute.ref_attr_name else graphs:
                yield graph
                yield from subgraphs(graph.node)


def misfit_of_every_version(node: onnx.NodeProto) -> str:
    """Describe why no version of the operator takes the node, in terms of the newest; empty if one does.

    Nodes of other domains, and operators that onnx does not know, are not checked.
    """
    if node.domain not in _DEFAULT:
        return ""
    attributes = tuple((each.name, each.type) for each in node.attribute)
    form = NodeForm(tuple(map(bool, node.input)), (True,) * len(node.output), attributes)
    return _misfit(node.op_type, form) or _misfit_of_windows(node)


def _misfit_of_windows(node: onnx.NodeProto) -> str:
    """Describe attributes of a window that no signal has; empty if there are none."""
    given = {each.name: [*each.ints] for each in node.attribute if each.name in _WINDOW and each.ints}
    axes = {name: len(values) / _WINDOW[name] for name, values in given.items()}
    for name, values in given.items():
        if name != "pads" and min(values) < 1:
            return f"attribute {name!r} is {values}; each element must be at least 1"
        if not axes[name].is_integer() or axes[name] != max(axes.values()):
            found = counted(len(values), "element")
            return f"attribute {name!r} has {found}, but needs {_WINDOW[name]} for each axis"
    return ""


@functools.lru_cache(maxsize=4096)
def _misfit(op_type: str, form: NodeForm) -> str:
    misfits = [misfit_of(form, version) for version in reversed(history(op_type))]
    if misfits and all(misfits):
        return misfits[0]
    if op_type == "Constant" and len(form.attributes) != 1:
        return f"has {len(form.attributes)} attributes, but needs 1 that holds its value"
    return ""
