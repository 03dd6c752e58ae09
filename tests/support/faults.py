"""Faults that a lowering could have, planted by lowering an altered node.

A dropped clip in the node is a dropped clip in the lowered graph. Each fault takes a model that is its own to
change and says whether it could be planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from support.judge import all_nodes
from support.small_models import GATES

Random = np.random.Generator
Fault = Callable[[onnx.ModelProto, Random], bool]

W, R, B, LENS, H, C, P = range(1, 8)


def graphs_of(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    def walk(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                for inner in (attribute.g, *attribute.graphs):
                    if inner.node:
                        yield from walk(inner)

    for graph in (model.graph, *model.functions):
        yield from walk(graph)


def _cell(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in all_nodes(model) if node.op_type in GATES)


def _home(model: onnx.ModelProto) -> onnx.GraphProto | onnx.FunctionProto:
    return next(graph for graph in graphs_of(model) if any(node.op_type in GATES for node in graph.node))


def _opset(model: onnx.ModelProto) -> int:
    return next((each.version for each in model.opset_import if each.domain == ""), 1)


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    return next((each for each in node.attribute if each.name == name), None)


def _remove_attribute(node: onnx.NodeProto, name: str) -> bool:
    kept = [each for each in node.attribute if each.name != name]
    found = len(kept) < len(node.attribute)
    del node.attribute[:]
    node.attribute.extend(kept)
    return found


def _has(node: onnx.NodeProto, position: int) -> bool:
    return position < len(node.input) and bool(node.input[position])


def _drop_input(position: int) -> Fault:
    def plant(model: onnx.ModelProto, random: Random) -> bool:
        cell = _cell(model)
        if not _has(cell, position):
            return False
        cell.input[position] = ""
        return True

    return plant


def _drop_attribute(name: str) -> Fault:
    return lambda model, random: _remove_attribute(_cell(model), name)


def _toggle(name: str, op_type: str) -> Fault:
    def plant(model: onnx.ModelProto, random: Random) -> bool:
        cell = _cell(model)
        if cell.op_type != op_type or _opset(model) < 3:
            return False
        attribute = _attribute(cell, name)
        if attribute is None:
            cell.attribute.append(helper.make_attribute(name, 1))
        elif attribute.ref_attr_name:
            return False
        else:
            attribute.i = 1 - attribute.i
        return True

    return plant


def _direction(model: onnx.ModelProto) -> str:
    attribute = _attribute(_cell(model), "direction")
    if attribute is None or attribute.ref_attr_name:
        return "forward" if attribute is None else ""
    return attribute.s.decode()


def _flip_direction(model: onnx.ModelProto, random: Random) -> bool:
    flipped = {"forward": "reverse", "foward": "reverse", "reverse": "forward"}.get(_direction(model))
    if flipped is None:
        return False
    cell = _cell(model)
    _remove_attribute(cell, "direction")
    cell.attribute.append(helper.make_attribute("direction", flipped))
    return True


def _change_number(name: str, factor: float) -> Fault:
    def plant(model: onnx.ModelProto, random: Random) -> bool:
        attribute = _attribute(_cell(model), name)
        if attribute is None or attribute.ref_attr_name:
            return False
        if attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f *= factor
        else:
            attribute.floats[:] = [factor * value for value in attribute.floats]
        return True

    return plant


def _tensor_of(model: onnx.ModelProto, position: int) -> onnx.TensorProto | None:
    """Return the constant behind an input of the cell."""
    cell = _cell(model)
    if not _has(cell, position):
        return None
    name = cell.input[position]
    for graph in graphs_of(model):
        for tensor in getattr(graph, "initializer", ()):
            if tensor.name == name:
                return tensor
        for node in graph.node:
            if node.op_type == "Constant" and list(node.output) == [name]:
                return node.attribute[0].t
    return None


def _edit(position: int, change: Callable[[np.ndarray, str, Random], np.ndarray | None]) -> Fault:
    """Change the constant behind an input, seen as directions x gates x the rest."""

    def plant(model: onnx.ModelProto, random: Random) -> bool:
        tensor = _tensor_of(model, position)
        if tensor is None or not tensor.dims or 0 in tensor.dims:
            return False
        array = numpy_helper.to_array(tensor)
        changed = change(array.astype(np.float64), _cell(model).op_type, random)
        if changed is None:
            return False
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(changed.reshape(array.shape).astype(array.dtype), name))
        return True

    return plant


def _swap_gates(blocks_a_gate: int = 1) -> Callable[[np.ndarray, str, Random], np.ndarray | None]:
    def change(array: np.ndarray, op_type: str, random: Random) -> np.ndarray | None:
        gates = 3 if blocks_a_gate == 0 else GATES[op_type]
        if gates < 2:
            return None
        first, second = random.choice(gates, 2, replace=False)
        blocks = array.reshape(array.shape[0], max(blocks_a_gate, 1), gates, -1).copy()
        blocks[:, 0, [first, second]] = blocks[:, 0, [second, first]]
        return blocks

    return change


def _transpose_recurrence(array: np.ndarray, op_type: str, random: Random) -> np.ndarray | None:
    hidden = array.shape[-1]
    return array.reshape(array.shape[0], -1, hidden, hidden).swapaxes(-1, -2) if hidden > 1 else None


def _nudge(array: np.ndarray, op_type: str, random: Random) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1)[int(np.argmax(np.abs(array)))] *= 1.05
    return changed


def _halve(array: np.ndarray, op_type: str, random: Random) -> np.ndarray:
    return array / 2


def _scale_by_5_percent(array: np.ndarray, op_type: str, random: Random) -> np.ndarray:
    return array * 1.05


def _drop_recurrent_bias(array: np.ndarray, op_type: str, random: Random) -> np.ndarray:
    halves = array.reshape(array.shape[0], 2, -1).copy()
    halves[:, 1] = 0
    return halves


def _swap_directions(array: np.ndarray, op_type: str, random: Random) -> np.ndarray | None:
    return array[::-1] if array.shape[0] == 2 else None


def _fold_recurrent_bias(model: onnx.ModelProto, random: Random) -> bool:
    """Return rbh of linear_before_reset outside of the reset product."""
    attribute = _attribute(_cell(model), "linear_before_reset")
    if attribute is None or not attribute.i:
        return False

    def change(array: np.ndarray, op_type: str, random: Random) -> np.ndarray:
        blocks = array.reshape(array.shape[0], 2, 3, -1).copy()
        blocks[:, 0, 2] += blocks[:, 1, 2]
        blocks[:, 1, 2] = 0
        return blocks

    return _edit(B, change)(model, random)


def _swap_states(model: onnx.ModelProto, random: Random) -> bool:
    cell = _cell(model)
    if not (_has(cell, H) and _has(cell, C)) or cell.input[H] == cell.input[C]:
        return False
    cell.input[H], cell.input[C] = cell.input[C], cell.input[H]
    return True


def _swap_final_states(model: onnx.ModelProto, random: Random) -> bool:
    cell = _cell(model)
    if len(cell.output) < 3 or not cell.output[1] or not cell.output[2]:
        return False
    cell.output[1], cell.output[2] = cell.output[2], cell.output[1]
    return True


def _without_lens(positions: tuple[int, ...]) -> Fault:
    """Return these outputs come from a twin of the cell that knows no sequence_lens."""

    def plant(model: onnx.ModelProto, random: Random) -> bool:
        cell, home = _cell(model), _home(model)
        taken = [i for i in positions if i < len(cell.output) and cell.output[i]]
        if not _has(cell, LENS) or not taken:
            return False
        twin = onnx.NodeProto.FromString(cell.SerializeToString())
        twin.name = f"{cell.name}_twin"
        twin.input[LENS] = ""
        for index in range(len(cell.output)):
            (cell if index in taken else twin).output[index] = ""
        if not any(cell.output):
            cell.CopyFrom(twin)
            return True
        home.node.insert(list(home.node).index(cell), twin)
        return True

    return plant


def _slice(
    model: onnx.ModelProto, x: str, axis: int, start: int, end: int, step: int, y: str
) -> list[onnx.NodeProto]:
    names = [f"{y}_{part}" for part in ("starts", "ends", "axes", "steps")]
    values = zip(names, ([start], [end], [axis], [step]), strict=True)
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.int64)))
        for name, value in values
    ]
    return [*nodes, helper.make_node("Slice", [x, *names], [y])]


_END = 2**31 - 1


def _insert_before(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    home, cell = _home(model), _cell(model)
    position = list(home.node).index(cell)
    for offset, node in enumerate(nodes):
        home.node.insert(position + offset, node)


def _time_axis(model: onnx.ModelProto) -> int:
    layout = _attribute(_cell(model), "layout")
    return layout.i if layout is not None else 0


def _shift_time(model: onnx.ModelProto, random: Random) -> bool:
    """Return off by one: every step sees the next one's X."""
    if _opset(model) < 10:
        return False
    cell, axis = _cell(model), _time_axis(model)
    x = cell.input[0]
    nodes = _slice(model, x, axis, 1, _END, 1, "fault_tail") + _slice(model, x, axis, 0, 1, 1, "fault_head")
    nodes.append(helper.make_node("Concat", ["fault_tail", "fault_head"], ["fault_X"], axis=axis))
    _insert_before(model, nodes)
    _cell(model).input[0] = "fault_X"
    return True


def _reverse_ignores_lens(model: onnx.ModelProto, random: Random) -> bool:
    """Return a reverse direction that turns all steps around, not the row's own."""
    cell = _cell(model)
    if _opset(model) < 10 or _direction(model) != "reverse" or not _has(cell, LENS):
        return False
    _insert_before(model, _slice(model, cell.input[0], _time_axis(model), -1, -_END, -1, "fault_X"))
    cell = _cell(model)
    cell.input[0] = "fault_X"
    _remove_attribute(cell, "direction")
    if cell.output[0]:
        y, home = cell.output[0], _home(model)
        cell.output[0] = "fault_Y"
        axis = 1 if _time_axis(model) else 0
        position = list(home.node).index(cell) + 1
        for offset, node in enumerate(_slice(model, "fault_Y", axis, -1, -_END, -1, y)):
            home.node.insert(position + offset, node)
    return True


def _shorten_lens(model: onnx.ModelProto, random: Random) -> bool:
    """Return every row ends a step early."""
    cell = _cell(model)
    if _opset(model) < 12 or not _has(cell, LENS):
        return False
    numbers = {"fault_one": 1, "fault_zero": 0}
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.int32)))
        for name, value in numbers.items()
    ]
    nodes.append(helper.make_node("Sub", [cell.input[LENS], "fault_one"], ["fault_less"]))
    nodes.append(helper.make_node("Max", ["fault_less", "fault_zero"], ["fault_lens"]))
    _insert_before(model, nodes)
    _cell(model).input[LENS] = "fault_lens"
    return True


SOURCE_FAULTS: dict[str, Fault] = {
    "B dropped": _drop_input(B),
    "sequence_lens dropped": _drop_input(LENS),
    "initial_h dropped": _drop_input(H),
    "initial_c dropped": _drop_input(C),
    "P dropped": _drop_input(P),
    "clip dropped": _drop_attribute("clip"),
    "clip half as large": _change_number("clip", 0.5),
    "activation_alpha dropped": _drop_attribute("activation_alpha"),
    "activation_beta dropped": _drop_attribute("activation_beta"),
    "activation_alpha off by 5%": _change_number("activation_alpha", 1.05),
    "activations are the defaults": _drop_attribute("activations"),
    "input_forget the other way": _toggle("input_forget", "LSTM"),
    "linear_before_reset the other way": _toggle("linear_before_reset", "GRU"),
    "direction flipped": _flip_direction,
    "two gates of W swapped": _edit(W, _swap_gates()),
    "two gates of R swapped": _edit(R, _swap_gates()),
    "two gates of B swapped": _edit(B, _swap_gates(2)),
    "two peepholes swapped": _edit(P, _swap_gates(0)),
    "R transposed": _edit(R, _transpose_recurrence),
    "directions of W swapped": _edit(W, _swap_directions),
    "directions of initial_h swapped": _edit(H, _swap_directions),
    "a weight of W off by 5%": _edit(W, _nudge),
    "a weight of R off by 5%": _edit(R, _nudge),
    "B halved": _edit(B, _halve),
    "B off by 5%": _edit(B, _scale_by_5_percent),
    "Rb dropped": _edit(B, _drop_recurrent_bias),
    "Rbh outside of the reset product": _fold_recurrent_bias,
    "initial_h and initial_c swapped": _swap_states,
    "Y_h and Y_c swapped": _swap_final_states,
    "final state at T instead of len": _without_lens((1, 2)),
    "Y not zero past the end": _without_lens((0,)),
    "off by one in time": _shift_time,
    "reverse ignores sequence_lens": _reverse_ignores_lens,
    "sequence_lens one less": _shorten_lens,
}
