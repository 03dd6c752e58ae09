"""Ways to break an ONNX file: in its bytes, in any field of the protobuf, and in the graph it describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

Random = np.random.Generator

ODD_NAMES = (
    "",
    " ",
    "\n",
    "a/b",
    "../x",
    "{}",
    "%s",
    "[bold]",
    "[/]",
    "*",
    "ü\u202e\U0001f600",
    "\0",
    "x" * 5000,
)
ODD_INTEGERS = (0, 1, -1, 2, 3, 7, 16, 255, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
ODD_FLOATS = (0.0, -1.0, 1e-40, 1e38, float("inf"), float("-inf"), float("nan"))


def break_file(data: bytes, random: Random) -> bytes:
    """Return the file with one to three faults in it; the same state of ``random`` gives the same ones."""
    for _ in range(int(random.choice([1, 1, 1, 2, 3]))):
        kind = random.random()
        if kind < 0.2:
            data = _pick(random, BYTE_FAULTS)(data, random)
            continue
        model = onnx.ModelProto()
        try:
            model.ParseFromString(data)
        except DecodeError:
            return data
        fault = _break_field if kind < 0.6 else _pick(random, GRAPH_FAULTS)
        fault(model, random)
        data = model.SerializeToString()
    return data


def _pick(random: Random, options: Any) -> Any:
    return options[int(random.integers(len(options)))]


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: int(random.integers(len(data) + 1))]


def _flip_bits(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 9)) if data else 0):
        changed[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
    return bytes(changed)


def _insert(data: bytes, random: Random) -> bytes:
    position = int(random.integers(len(data) + 1))
    return data[:position] + random.bytes(int(random.integers(1, 20))) + data[position:]


def _cut_out(data: bytes, random: Random) -> bytes:
    position = int(random.integers(len(data) + 1))
    return data[:position] + data[position + int(random.integers(1, 50)) :]


def _repeat(data: bytes, random: Random) -> bytes:
    position = int(random.integers(len(data) + 1))
    return data[:position] + data[position : position + int(random.integers(1, 200))] + data[position:]


def _noise(data: bytes, random: Random) -> bytes:
    return random.bytes(int(random.integers(0, 300)))


BYTE_FAULTS: list[Callable[[bytes, Random], bytes]] = [
    _truncate,
    _flip_bits,
    _flip_bits,
    _insert,
    _cut_out,
    _repeat,
    _noise,
]


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _messages(inner)


def _break_field(model: onnx.ModelProto, random: Random) -> None:
    """Change any field of any message; mostly one that is set."""
    message = _pick(random, list(_messages(model)))
    present = [field for field, _ in message.ListFields()]
    fields = present if present and random.random() < 0.85 else list(message.DESCRIPTOR.fields)
    field = _pick(random, fields)
    value = getattr(message, field.name)
    if isinstance(value, Message):
        message.ClearField(field.name)
    elif isinstance(value, str | bytes | int | float):
        setattr(message, field.name, _odd(model, field, value, random))
    else:
        _break_list(model, value, field, random)


def _break_list(model: onnx.ModelProto, values: Any, field: FieldDescriptor, random: Random) -> None:
    kind = int(random.integers(5))
    elements = list(values)
    if kind == 0 and elements:
        del values[int(random.integers(len(elements)))]
        return
    if kind == 1 and elements:
        values.append(_pick(random, elements))
        return
    if kind == 2 and elements:
        del values[:]
        values.extend(elements[i] for i in random.permutation(len(elements)))
        return
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        values.add()
    elif elements and random.random() < 0.7:
        index = int(random.integers(len(elements)))
        values[index] = _odd(model, field, elements[index], random)
    else:
        values.append(_odd(model, field, b"" if field.type == FieldDescriptor.TYPE_BYTES else "", random))


def _odd(model: onnx.ModelProto, field: FieldDescriptor, value: Any, random: Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return _pick(random, ODD_NAMES) if random.random() < 0.4 else _pick(random, [*_names(model), ""])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _pick(random, BYTE_FAULTS)(value, random)
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return _pick(random, ODD_FLOATS)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return _pick(random, [each.number for each in field.enum_type.values])
    number = _pick(random, ODD_INTEGERS) if random.random() < 0.7 else int(random.integers(-3, 30))
    if field.type == FieldDescriptor.TYPE_INT32:
        return max(-(2**31), min(2**31 - 1, number))
    return abs(number) if field.type == FieldDescriptor.TYPE_UINT64 else number


def _names(model: onnx.ModelProto) -> list[str]:
    names = [value.name for value in (*model.graph.input, *model.graph.initializer)]
    return names + [name for node in _nodes(model) for name in node.output]


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [message for message in _messages(model) if isinstance(message, onnx.NodeProto)]


def _break_inputs(model: onnx.ModelProto, random: Random) -> None:
    """Drop, repeats, exchanges or renames an input of a node; a later value's name makes a cycle."""
    nodes = [node for node in _nodes(model) if node.input]
    if not nodes:
        return
    inputs = _pick(random, nodes).input
    kind, index = int(random.integers(5)), int(random.integers(len(inputs)))
    if kind == 0:
        del inputs[index]
    elif kind == 1:
        inputs.insert(index, inputs[index])
    elif kind == 2:
        other = int(random.integers(len(inputs)))
        inputs[index], inputs[other] = inputs[other], inputs[index]
    elif kind == 3:
        inputs[index] = ""
    else:
        inputs[index] = _pick(random, [*_names(model), "nowhere"])


def _break_outputs(model: onnx.ModelProto, random: Random) -> None:
    nodes = [node for node in _nodes(model) if node.output]
    if not nodes:
        return
    outputs = _pick(random, nodes).output
    index = int(random.integers(len(outputs)))
    if random.random() < 0.3:
        del outputs[index]
    else:
        outputs[index] = _pick(random, [*_names(model), "", "new"])


def _break_order(model: onnx.ModelProto, random: Random) -> None:
    graphs = [message for message in _messages(model) if isinstance(message, onnx.GraphProto)]
    graph = _pick(random, graphs or [model.graph])
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes[i] for i in random.permutation(len(nodes)))


def _break_attribute(model: onnx.ModelProto, random: Random) -> None:
    attributes = [m for m in _messages(model) if isinstance(m, onnx.AttributeProto)]
    if not attributes:
        return
    attribute = _pick(random, attributes)
    kind = int(random.integers(4))
    if kind == 0:
        attribute.type = _pick(random, list(onnx.AttributeProto.AttributeType.values()))
    elif kind == 1:
        attribute.name = _pick(
            random, ["hidden_size", "direction", "clip", "activations", "layout", "axis", ""]
        )
    elif kind == 2:
        name = attribute.name
        odd = [
            _pick(random, ODD_INTEGERS),
            _pick(random, ODD_FLOATS),
            _pick(random, ODD_NAMES),
            [],
            [1],
            ["Tanh"],
        ]
        value = _pick(random, odd)
        attribute.CopyFrom(onnx.helper.make_attribute(name, value, attr_type=None if value != [] else 7))
    else:
        attribute.i = _pick(random, ODD_INTEGERS)


def _break_types(model: onnx.ModelProto, random: Random) -> None:
    """Change a type, rank or size of an input, output or recorded value."""
    values = [m for m in _messages(model) if isinstance(m, onnx.ValueInfoProto)]
    if not values:
        return
    tensor = _pick(random, values).type.tensor_type
    kind = int(random.integers(4))
    if kind == 0:
        tensor.elem_type = int(random.integers(0, 26))
    elif kind == 1 and tensor.shape.dim:
        _pick(random, tensor.shape.dim).dim_value = _pick(random, ODD_INTEGERS)
    elif kind == 2 and tensor.shape.dim:
        _pick(random, tensor.shape.dim).dim_param = _pick(random, ODD_NAMES)
    else:
        tensor.shape.dim.add(dim_value=int(random.integers(-2, 9)))


def _break_tensor(model: onnx.ModelProto, random: Random) -> None:
    """Add a tensor whose sizes, type, data or place do not fit."""
    tensors = [m for m in _messages(model) if isinstance(m, onnx.TensorProto)]
    if not tensors:
        return
    tensor = _pick(random, tensors)
    kind = int(random.integers(6))
    if kind == 0 and tensor.dims:
        tensor.dims[int(random.integers(len(tensor.dims)))] = _pick(random, ODD_INTEGERS)
    elif kind == 1:
        tensor.data_type = int(random.integers(0, 26))
    elif kind == 2:
        tensor.raw_data = tensor.raw_data[: int(random.integers(len(tensor.raw_data) + 1))]
    elif kind == 3:
        tensor.float_data.append(1.0)
    elif kind == 4:
        tensor.dims.append(int(random.integers(0, 4)))
    else:
        location = _pick(random, ["missing", "../model.onnx", "/dev/zero", "model.onnx", "", "."])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(key="offset", value=_pick(random, ["0", "-1", "x", str(2**62)]))


def _break_versions(model: onnx.ModelProto, random: Random) -> None:
    if model.opset_import and random.random() < 0.7:
        _pick(random, model.opset_import).version = int(random.integers(-1, 40))
    else:
        model.ir_version = int(random.integers(0, 20))


def _break_operator(model: onnx.ModelProto, random: Random) -> None:
    nodes = _nodes(model)
    if nodes:
        ops = ["LSTM", "GRU", "RNN", "Identity", "If", "Loop", "Scan", "Constant", "Slice", "Nonesuch", ""]
        _pick(random, nodes).op_type = _pick(random, ops)


GRAPH_FAULTS: list[Callable[[onnx.ModelProto, Random], None]] = [
    _break_inputs,
    _break_inputs,
    _break_outputs,
    _break_order,
    _break_attribute,
    _break_types,
    _break_tensor,
    _break_versions,
    _break_operator,
]
