"""Rewriting of the reference to the meaning that the user asks for, if it differs from the spec.

`dequantize`: DynamicQuantizeLSTM is LSTM with the dequantized weights.
`assume_linear_before_reset`: every GRU has linear_before_reset=1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from onnx import NodeProto, TensorProto, helper

from rnnlower.verification.inputs.uses import QUANTIZED_LSTM
from rnnlower.verification.models import Graph, HeldModel, copy_of, graphs_in

_OF_LSTM = 8
_INTEGER_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def as_read(
    model: HeldModel, *, dequantize: bool | Collection[str], assume_linear_before_reset: bool
) -> HeldModel:
    """Return the model with these meanings written down, or itself if there are none.

    `dequantize` may be outputs of the nodes that it applies to.
    """
    if not (dequantize or assume_linear_before_reset):
        return model

    def read(node: NodeProto) -> Iterable[NodeProto]:
        if node.op_type == QUANTIZED_LSTM and (
            any(name in dequantize for name in node.output if name)
            if isinstance(dequantize, Collection)
            else dequantize
        ):
            return _dequantized(node)
        if assume_linear_before_reset and node.op_type == "GRU" and node.domain in ("", "ai.onnx"):
            kept = [attribute for attribute in node.attribute if attribute.name != "linear_before_reset"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("linear_before_reset", 1)])
        return [node]

    proto = copy_of(model.with_data())
    _rewrite([proto.graph, *proto.functions], read)
    return model.changed(proto)


def _rewrite(graphs: Iterable[Graph], read: Callable[[NodeProto], Iterable[NodeProto]]) -> None:
    """Replace each node of the graphs, and of their subgraphs first, by those that it is read as."""
    for graph in reversed([*graphs_in(*graphs)]):
        nodes = [copy for node in graph.node for copy in read(node)]
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _dequantized(node: NodeProto) -> Iterable[NodeProto]:
    """Yield an LSTM, and the nodes that dequantize its W and R."""
    inputs = list(node.input)
    scales = {"W": inputs[8:10], "R": inputs[10:12]}
    label = node.name or next(filter(None, node.output))
    for index, (name, (scale, zero_point)) in enumerate(scales.items(), 1):
        start = f"{label}/{name}"
        shape = helper.make_tensor("shape", TensorProto.INT64, [3], [0, 1, -1])
        yield helper.make_node("Constant", [], [f"{start}/shape"], value=shape)
        yield helper.make_node("Cast", [inputs[index]], [f"{start}/values"], to=TensorProto.FLOAT)
        yield helper.make_node("Cast", [zero_point], [f"{start}/zero"], to=TensorProto.FLOAT)
        yield helper.make_node("Reshape", [f"{start}/zero", f"{start}/shape"], [f"{start}/zeros"])
        yield helper.make_node("Reshape", [scale, f"{start}/shape"], [f"{start}/scales"])
        yield helper.make_node("Sub", [f"{start}/values", f"{start}/zeros"], [f"{start}/centered"])
        yield helper.make_node("Mul", [f"{start}/centered", f"{start}/scales"], [f"{start}/columns"])
        yield helper.make_node("Transpose", [f"{start}/columns"], [f"{start}/float"], perm=[0, 2, 1])
        inputs[index] = f"{start}/float"
    lstm = NodeProto(name=node.name, op_type="LSTM", input=inputs[:_OF_LSTM], output=node.output)
    lstm.attribute.extend(node.attribute)
    yield lstm


def with_float_activations(model: HeldModel) -> HeldModel:
    """Return the model with its weights rounded as they are, but its activations in float32.

    Products of integers become products of floats: what remains is the error of the weights.
    """
    proto = copy_of(model.with_data())
    _rewrite([proto.graph], lambda node: _dequantized(node) if node.op_type == QUANTIZED_LSTM else [node])
    for graph in [*graphs_in(proto.graph)]:
        del graph.value_info[:]
    rounded = {
        node.output[0]: node.input[0]
        for graph in graphs_in(proto.graph)
        for node in graph.node
        if node.op_type == "QuantizeLinear"
    }
    _rewrite([proto.graph], lambda node: _in_floats(node, rounded))
    return model.changed(proto)


def _in_floats(node: NodeProto, rounded: Mapping[str, str]) -> Iterable[NodeProto]:
    if node.op_type == "DynamicQuantizeLinear":
        yield helper.make_node("Identity", node.input, node.output[:1])
        for name, value in zip(node.output[1:], (1.0, 0.0), strict=False):
            yield helper.make_node(
                "Constant", [], [name], value=helper.make_tensor("", TensorProto.FLOAT, [], [value])
            )
    elif node.op_type == "DequantizeLinear" and node.input[0] in rounded:
        yield helper.make_node("Identity", [rounded[node.input[0]]], node.output)
    elif node.op_type in _INTEGER_PRODUCTS:
        factors = []
        for index, own in enumerate(node.input[:2]):
            factors.append(f"{node.output[0]}/float{index}")
            yield helper.make_node("Cast", [own], [factors[-1]], to=TensorProto.FLOAT)
            if len(node.input) > index + 2 and node.input[index + 2]:
                zero = f"{factors[-1]}/zero"
                yield helper.make_node("Cast", [node.input[index + 2]], [zero], to=TensorProto.FLOAT)
                yield helper.make_node("Sub", [factors[-1], zero], [f"{factors[-1]}/centered"])
                factors[-1] += "/centered"
        product = helper.make_node(_INTEGER_PRODUCTS[node.op_type], factors, node.output)
        product.attribute.extend(node.attribute)
        yield product
    else:
        yield node
