"""The states of a step model as integer inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.files.metadata import StreamMetadata
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import prepend, take_place_of
from rnnlower.quantizing.placement import COMMUTING


def carry_integers(model: ir.Model) -> list[str]:
    """Make the state inputs and outputs int16; return notes with the scales.

    The recurrence quantizes a state to the same integers again.

    Raises:
        UnsupportedModelError: The model has no states, or one of them is not quantized by one scale.
    """
    stream = StreamMetadata.read(model.metadata_props)
    if stream is None or not stream.states:
        raise UnsupportedModelError(
            "the model has no states outside", remedy="make a step model of it first (`rnnlower stream`)"
        )
    graph, names, notes = model.graph, NameSource(all_names(model)), []
    inputs = {value.name: value for value in graph.inputs}
    for output in list(graph.outputs):
        into = inputs.get(stream.states.get(output.name or ""))
        if into is None:
            continue
        parameters = {_int16_parameters(node) for node in _readers(into)}
        found = parameters.pop() if len(parameters) == 1 else None
        if found is None or stream.start.get(into.name or "", 0):
            raise UnsupportedModelError(
                f"the state {into.name!r} is not one of a recurrence that begins with 0 and has 16 bits",
                remedy="choose other activations, or leave out the integer states",
            )
        scale = constant_of(found[0])
        assert scale is not None
        inside = _make("DequantizeLinear", into, found, names)
        into.replace_all_uses_with(inside.outputs[0])
        inside.replace_input_with(0, into)
        inside.outputs[0].shape, inside.outputs[0].type = into.shape, into.type
        prepend(graph, [inside])
        outside = _make("QuantizeLinear", output, found, names)
        graph.append(outside)
        outer = outside.outputs[0]
        take_place_of(outer, output, old_name=outer.name, readers=())
        into.type = outer.type = ir.TensorType(ir.DataType.INT16)
        notes.append(f"{into.name!r} and {outer.name!r} are int16 with scale {float(scale.numpy()):g}")
    return notes


def _make(op_type: str, value: ir.Value, parameters: tuple[ir.Value, ir.Value], names: NameSource) -> ir.Node:
    name = names.fresh(f"{value.name}/{op_type}")
    return ir.node(op_type, [value, *parameters], outputs=[ir.Value(name=name)], name=name)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the readers of a value, looking through operators that only move it."""
    for node, _ in value.uses():
        if node.op_type in COMMUTING:
            yield from _readers(node.outputs[0])
        else:
            yield node


def _int16_parameters(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return the scale and zero point of a symmetric int16 quantizer; ``None`` for other nodes."""
    if node.op_type != "QuantizeLinear" or len(node.inputs) != 3:
        return None
    _, scale, zero = node.inputs
    integers = constant_of(zero)
    if scale is None or zero is None or integers is None or integers.dtype != ir.DataType.INT16:
        return None
    return None if integers.numpy().any() else (scale, zero)
