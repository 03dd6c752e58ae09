"""The placement of quantizers of what a body or branch reads, of what is only moved, and of states outside.

onnxruntime (1.31) moves a DequantizeLinear after the Reshape that follows it, and aborts its process if an
If captures the result: QDQPropagationTransformer takes what a branch captures for an input of the If.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.files.metadata import StreamMetadata
from rnnlower.graph.initializers import constant_of, new_initializer
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.operator_kinds import RESHAPING
from rnnlower.graph.rewiring import prepend, remove_orphans, take_place_of
from rnnlower.graph.walk import producer_of, qualified_op_type, required_input, walk

_COMMUTING = RESHAPING | {"Slice", "Transpose"}
"""Operators that commute with DequantizeLinear."""

_LOOKED_FOR = frozenset({"DequantizeLinear", "Where"})


def capture_integers(model: ir.Model) -> None:
    """Make branches capture integers and dequantize them inside."""
    names = NameSource(all_names(model))
    made: dict[tuple[ir.Graph, ir.Value], ir.Value] = {}
    for graph in list(model.graph.subgraphs()):
        for node in list(graph):
            for index, value in enumerate(node.inputs):
                if value is None or value.producer() is None or value.graph is graph:
                    continue
                chain = _trace_to_dequantize(value)
                if chain is None:
                    continue
                if (graph, value) not in made:
                    made[graph, value] = _dequantize_inside(graph, chain, names)
                node.replace_input_with(index, made[graph, value])
    remove_orphans(value for _, value in made)


def quantize_moved(model: ir.Model) -> None:
    """Quantize int8 again after an operator that moves it, which changes no number.

    onnxruntime inserts these quantizers otherwise. From version 1.32 on it then refuses its own graph: it
    makes uint8 of int8, and leaves the attribute output_dtype.
    """
    names = NameSource(all_names(model))
    for node in [node for node, _ in walk(model.graph) if node.op_type in _COMMUTING]:
        first = producer_of(node.inputs[0], "DequantizeLinear")
        if first is None or first.graph is not node.graph:
            continue
        constants = [None if value is None else value.const_value for value in first.inputs]
        scale, zero = (*constants, None)[1:3]
        if scale is None or scale.size != 1 or zero is None or zero.dtype != ir.DataType.INT8:
            continue
        moved = node.outputs[0]
        if not moved.is_graph_output() and all(each.op_type == "QuantizeLinear" for each, _ in moved.uses()):
            continue
        result, integers = ir.Value(), ir.Value(name=names.fresh(f"{moved.name}/integers"))
        take_place_of(result, moved, names.fresh(f"{moved.name}/moved"))
        pair = [
            ir.node("QuantizeLinear", [moved, *first.inputs[1:]], outputs=[integers]),
            ir.node("DequantizeLinear", [integers, *first.inputs[1:]], outputs=[result]),
        ]
        for each in pair:
            each.name = names.fresh(f"{result.name}/{each.op_type}")
        node.append(pair)


def localize_constants(model: ir.Model) -> None:
    """Give each body its own copy of a constant that several graphs read.

    onnxruntime looks for the integers of a product, and for the constant branch of a Where (it aborts if that
    is further out: WhereDummyDq), in the body that reads them.
    """
    names = NameSource(all_names(model))
    for graph in model.graph.subgraphs():
        read = [value for node in graph if node.op_type in _LOOKED_FOR for value in node.inputs]
        for value in dict.fromkeys(read):
            tensor = None if value is None or value.graph is graph else value.const_value
            if value is None or tensor is None or len({reader.graph for reader, _ in value.uses()}) < 2:
                continue
            own = new_initializer(graph, names.fresh(str(value.name)), tensor)
            for reader, index in list(value.uses()):
                if reader.graph is graph:
                    reader.replace_input_with(index, own)


def _trace_to_dequantize(value: ir.Value) -> list[ir.Node] | None:
    """Return the nodes from a DequantizeLinear to the value, the last one first.

    A move changes the axis of several scales, and onnxruntime wants weights that are constants in front of a
    MatMul: there it stays after the DequantizeLinear.
    """
    nodes: list[ir.Node] = []
    while (node := value.producer()) is not None:
        nodes.append(node)
        if qualified_op_type(node) == "DequantizeLinear":
            scale = constant_of(node.inputs[1])
            can_move = constant_of(node.inputs[0]) is None and scale is not None and scale.size == 1
            return nodes if can_move or len(nodes) == 1 else None
        if qualified_op_type(node) not in _COMMUTING or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    return None


def _dequantize_inside(graph: ir.Graph, chain: list[ir.Node], names: NameSource) -> ir.Value:
    """Return the value at the end of the chain, dequantized in the graph instead of before the chain."""
    *moves, first = chain
    integers = required_input(first)
    for move in reversed(moves):
        name = names.fresh(f"{move.outputs[0].name}/integers")
        inputs = [integers, *move.inputs[1:]]
        copy = ir.node(move.op_type, inputs, move.attributes, outputs=[ir.Value(name=name)], name=name)
        move.append(copy)
        integers = copy.outputs[0]
    end = chain[0].outputs[0]
    name = names.fresh(f"{end.name}/inside")
    value = ir.Value(name=name, shape=end.shape, type=end.type)
    operands = [integers, *first.inputs[1:]]
    node = ir.node("DequantizeLinear", operands, first.attributes, outputs=[value], name=name)
    prepend(graph, [node])
    return value


def carry_integers(model: ir.Model) -> list[str]:
    """Make the state inputs and outputs in float int16; return notes with the scales.

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
        if into is None or (into.dtype is not None and into.dtype.is_integer()):
            continue  # A counter of steps is an integer already.
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
        if node.op_type in _COMMUTING:
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
