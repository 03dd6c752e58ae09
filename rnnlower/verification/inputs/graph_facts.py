"""Collection of facts about a graph: the values that its inputs need, and its recurrent nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import onnx
from onnx.shape_inference import InferenceError, infer_shapes

from rnnlower.errors import InvalidModelError
from rnnlower.graph.inference import guarded
from rnnlower.verification.inputs.facts import RECURRENT, Facts, dims_of, unnamed_dim
from rnnlower.verification.inputs.thresholds import largest_threshold
from rnnlower.verification.inputs.tracing import trace
from rnnlower.verification.models import op_types, slim
from rnnlower.verification.verdict.randomness import random_outputs


def gather_facts(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int] | Sequence[str]] | None = None
) -> Facts:
    """Collect facts about ``model``; with ``shapes``, under these sizes, or names of sizes, of its inputs."""
    inferred = _for_inference(model)
    for value in inferred.graph.input:
        if shapes and value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            for size in shapes[value.name]:
                named = isinstance(size, str)
                value.type.tensor_type.shape.dim.add(**{"dim_param" if named else "dim_value": size})
        _name_dims(value)
    if shapes:
        _forget_shapes(inferred.graph)
    # Shape inference is only a help here: without it fewer limits are known.
    # An abort counts against the model, but not against sizes that are only tried.
    help_only = (InferenceError, ValueError, RuntimeError, *((InvalidModelError,) if shapes else ()))
    with suppress(*help_only):
        inferred = guarded(op_types(model), _infer, inferred)
    facts = trace(inferred)
    facts.random_outputs = random_outputs(model)
    facts.threshold = largest_threshold(model)
    return facts


def _infer(model: onnx.ModelProto) -> onnx.ModelProto:
    return infer_shapes(model, data_prop=True)


def facts_of_candidate(model: onnx.ModelProto) -> Facts:
    """Collect facts about recurrent nodes only; at no cost for a graph without any, however large it is."""
    nodes = [model.graph.node, *(function.node for function in model.functions)]
    return gather_facts(model) if any(map(_holds_recurrent, nodes)) else Facts()


def _holds_recurrent(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(
        node.op_type in RECURRENT or any(_holds_recurrent(a.g.node) for a in node.attribute) for node in nodes
    )


def _name_dims(value: onnx.ValueInfoProto) -> None:
    """Name the nameless dimensions of an input, so that shape inference shows where they reappear."""
    dims = dims_of(value) or ()
    for axis, (dim, proto) in enumerate(zip(dims, value.type.tensor_type.shape.dim, strict=False)):
        if dim is None:
            proto.dim_param = unnamed_dim(value.name, axis)


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Drop recorded shapes: they may have been recorded for other inputs."""
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _forget_shapes(attribute.g)


def _for_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = slim(model)
    for each in (copy.graph, *copy.functions):
        _forget_negative_sizes(each)
    return copy


def _forget_negative_sizes(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Replace the size -1 by unknown: onnx's shape inference aborts the process on it."""
    ends = () if isinstance(graph, onnx.FunctionProto) else (*graph.input, *graph.output)
    for value in (*graph.value_info, *ends):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    for node in graph.node:
        for attribute in node.attribute:
            _forget_negative_sizes(attribute.g)
