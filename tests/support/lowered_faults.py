"""Faults planted into the lowered graph; those of `faults.py` are planted into the source."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from support.faults import Fault, Random, graphs_of
from support.judge import all_nodes


def _pick_node(model: onnx.ModelProto, random: Random, ops: tuple[str, ...]) -> onnx.NodeProto | None:
    nodes = [node for node in all_nodes(model) if node.op_type in ops and node.domain == ""]
    return nodes[int(random.integers(len(nodes)))] if nodes else None


def _other_op(old: tuple[str, ...], new: str) -> Fault:
    def plant(model: onnx.ModelProto, random: Random) -> bool:
        node = _pick_node(model, random, old)
        if node is None:
            return False
        node.op_type = new
        del node.attribute[:]
        return True

    return plant


def _swap_operands(ops: tuple[str, ...], first: int, second: int) -> Fault:
    def plant(model: onnx.ModelProto, random: Random) -> bool:
        node = _pick_node(model, random, ops)
        if node is None or node.input[first] == node.input[second]:
            return False
        node.input[first], node.input[second] = node.input[second], node.input[first]
        return True

    return plant


def _change_constant(model: onnx.ModelProto, random: Random) -> bool:
    """Return a constant that the lowering wrote, by 5%."""
    read = {name for node in all_nodes(model) for name in node.input}
    tensors = [
        tensor
        for graph in graphs_of(model)
        for tensor in getattr(graph, "initializer", ())
        if tensor.name in read and tensor.data_type == onnx.TensorProto.FLOAT and 0 not in tensor.dims
    ]
    if not tensors:
        return False
    tensor = tensors[int(random.integers(len(tensors)))]
    array = numpy_helper.to_array(tensor) * np.float32(1.05)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return True


def _swap_states_of_body(model: onnx.ModelProto, random: Random) -> bool:
    """Return two states of a Scan or Loop change places on their way to the next step."""
    node = _pick_node(model, random, ("Scan", "Loop"))
    body = None if node is None else next((each.g for each in node.attribute if each.name == "body"), None)
    first = 0 if node is None or node.op_type == "Scan" else 1
    if body is None or len(body.output) < first + 2:
        return False
    names = body.output[first].name, body.output[first + 1].name
    body.output[first].name, body.output[first + 1].name = names[1], names[0]
    return names[0] != names[1]


LOWERED_FAULTS: dict[str, Fault] = {
    "Tanh becomes Sigmoid": _other_op(("Tanh",), "Sigmoid"),
    "Sigmoid becomes Tanh": _other_op(("Sigmoid",), "Tanh"),
    "Mul becomes Add": _other_op(("Mul",), "Add"),
    "Sub becomes Add": _other_op(("Sub",), "Add"),
    "Add becomes Sub": _other_op(("Add",), "Sub"),
    "operands of Sub swapped": _swap_operands(("Sub",), 0, 1),
    "branches of Where swapped": _swap_operands(("Where",), 1, 2),
    "a constant off by 5%": _change_constant,
    "two carried states swapped": _swap_states_of_body,
}
