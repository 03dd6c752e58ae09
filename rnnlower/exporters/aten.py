"""PyTorch's recurrent layers, layer by layer, as nodes of an onnxscript trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import evaluator, opset18

from rnnlower import api
from rnnlower.errors import OptionError
from rnnlower.graph.initializers import constant_of
from rnnlower.passes.options import LoopOptions, ScanOptions, UnrollOptions

# The operators take and return values of the trace, which the hints of onnxscript do not know.
op: Any = opset18

STRATEGIES: dict[str, tuple[Any, Any]] = {
    "unroll": (api.unroll, UnrollOptions),
    "scan": (api.scan, ScanOptions),
    "loop": (api.loop, LoopOptions),
}
# PyTorch has the gates in the order i f g o and r z n, ONNX in i o f c and z r h.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    # The reset gate of PyTorch's GRU is always applied after the product.
    "gru": ("GRU", {"linear_before_reset": 1}),
    "rnn_tanh": ("RNN", {}),
    "rnn_relu": ("RNN", {"activations": ["Relu"]}),
}


@dataclasses.dataclass(frozen=True)
class _Direction:
    """The parameters of one direction of a layer."""

    w: ir.Value
    r: ir.Value
    biases: Sequence[ir.Value]
    projection: ir.Value | None


class Translation:
    """The translation of one of PyTorch's operators.

    Args:
        name: ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``.
        strategy: ``unroll``, ``scan`` or ``loop``; ``None``: ONNX's own operator.
        numbers: The source of the numbers in the names of the emitted nodes.
    """

    def __init__(self, name: str, strategy: str | None, numbers: Iterator[int]) -> None:
        self._op_type, self._attributes = _FORMS[name]
        self._strategy, self._numbers = strategy, numbers

    def emit(
        self,
        input: Any,  # noqa: A002
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        """Emit all layers; return the sequence and the final states. PyTorch reads names and types."""
        if train and dropout and num_layers > 1:
            raise OptionError("the module is in training mode, with dropout", remedy="call module.eval()")
        x, states = input, hx if isinstance(hx, Sequence) else [hx]
        time, batch, width = x.shape[1], x.shape[0], x.shape[2]
        if batch_first:
            x = op.Transpose(x, perm=[1, 0, 2])
        else:
            time, batch = batch, time
        directions = 2 if bidirectional else 1
        initial = [None if _is_zero(state) else state for state in states]
        layers = list(_group_parameters(params, num_layers, directions, has_biases))
        final: list[list[ir.Value]] = []
        for number, layer in enumerate(layers):
            own = [None if state is None else _layer_state(state, number, directions) for state in initial]
            x, *ends = self._layer(x, [time, batch, width], own, layer)
            final.append(ends)
            width = _static_size(layer[0].r, 1) * directions
        joined = [
            ends[0] if len(ends) == 1 else op.Concat(*ends, axis=0) for ends in zip(*final, strict=True)
        ]
        return (op.Transpose(x, perm=[1, 0, 2]) if batch_first else x, *joined)

    def _layer(
        self, x: ir.Value, sizes: list[Any], initial: list[ir.Value | None], layer: Sequence[_Direction]
    ) -> list[ir.Value]:
        """Emit a layer of one or two directions; return ``[time, batch, features]`` and the final states."""
        count, units = len(layer), _static_size(layer[0].r, 0) // len(_GATES[self._op_type])
        w = [self._reorder_gates(each.w, units) for each in layer]
        r = [self._reorder_gates(each.r, units) for each in layer]
        if layer[0].projection is not None:
            x, sizes, w = self._feed_initial_state(x, sizes, initial, w, r)
            # The product of R and the projection reads the state before the projection.
            r = [op.MatMul(matrix, each.projection) for matrix, each in zip(r, layer, strict=True)]
            initial = [None, *initial[1:]]
        b = [op.Concat(*(self._reorder_gates(bias, units) for bias in each.biases), axis=0)
             for each in layer if each.biases]  # fmt: skip
        inputs = [x, _stack(w), _stack(r), _stack(b) if b else None, None, *initial]
        gates = len(_GATES[self._op_type]) * units
        shapes = [
            sizes, [count, gates, sizes[2]], [count, gates, units], [count, 2 * gates], None,
            *[[count, sizes[1], units]] * len(initial),
        ]  # fmt: skip
        y, *ends = self._emit_node(inputs, shapes, units, layer[0].w.dtype)
        if layer[0].projection is not None:
            matrix = _stack([op.Transpose(each.projection, perm=[1, 0]) for each in layer])
            y, ends[0] = op.MatMul(y, matrix), op.MatMul(ends[0], matrix)
        if count == 1:
            return [op.Squeeze(y, op.Constant(value_ints=[1])), *ends]
        joined = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
        return [joined, *ends]

    def _feed_initial_state(
        self, x: ir.Value, sizes: list[Any], initial: Sequence[ir.Value | None], w: list[Any], r: list[Any]
    ) -> tuple[ir.Value, list[Any], list[Any]]:
        """Feed the initial H, already projected, as features of the first step, with R as their weights."""
        if initial[0] is None:
            return x, sizes, w
        width = _static_size(initial[0], 2)
        before = op.Sub(op.Shape(x, start=0, end=1), op.Constant(value_ints=[1]))
        none, parts, weights = op.Constant(value_ints=[0]), [x], []
        for number, matrix in enumerate(r):
            rows = initial[0] if len(r) == 1 else _layer_state(initial[0], number, 1)
            ends = (none, before) if number == 0 else (before, none)
            pads = op.Concat(ends[0], none, none, ends[1], none, none, axis=0)
            parts.append(op.Pad(rows, pads))
            zeros = op.Sub(matrix, matrix)
            weights.append([matrix if each == number else zeros for each in range(len(r))])
        wider = [op.Concat(own, *more, axis=1) for own, more in zip(w, weights, strict=True)]
        return op.Concat(*parts, axis=2), [*sizes[:2], sizes[2] + width * len(r)], wider

    def _reorder_gates(self, tensor: ir.Value, units: int) -> ir.Value:
        order = _GATES[self._op_type]
        return (
            tensor if len(order) == 1 else op.Concat(*(_cut(tensor, i * units, units) for i in order), axis=0)
        )

    def _emit_node(self, inputs: list[Any], shapes: list[Any], units: int, dtype: Any) -> Sequence[ir.Value]:
        attributes = {"hidden_size": units, **self._attributes}
        if shapes[1][0] == 2:
            attributes["direction"] = "bidirectional"
            if "activations" in attributes:
                attributes["activations"] = attributes["activations"] * 2
        if self._strategy is None:
            outputs: Sequence[ir.Value] = getattr(op, self._op_type)(*inputs, **attributes)
            return outputs
        return _splice(self._lower_node(inputs, shapes, attributes, dtype), inputs)

    def _lower_node(
        self, inputs: list[Any], shapes: list[Any], attributes: dict[str, Any], dtype: Any
    ) -> ir.Graph:
        """Return a graph that computes the node in primitive ops; it lacks the absent inputs."""
        function, kind = STRATEGIES[str(self._strategy)]
        prefix = f"{self._op_type.lower()}_{next(self._numbers)}"
        own = [
            None if value is None else ir.Value(
                name=f"{prefix}_in{index}", type=ir.TensorType(dtype), shape=ir.Shape(shape)
            )
            for index, (value, shape) in enumerate(zip(inputs, shapes, strict=True))
        ]  # fmt: skip
        node = ir.node(
            self._op_type, own, attributes, num_outputs=3 if self._op_type == "LSTM" else 2, name=prefix
        )
        for index, output in enumerate(node.outputs):
            output.name, output.type = f"{prefix}_out{index}", ir.TensorType(dtype)
        recorder: Any = evaluator.default()
        version = recorder.opset.version
        graph = ir.Graph(
            [each for each in own if each is not None], node.outputs, nodes=[node], name=prefix,
            opset_imports={"": version},
        )  # fmt: skip
        function.run(ir.Model(graph, ir_version=10), kind(opset=version))
        return graph


def _splice(graph: ir.Graph, inputs: Sequence[Any]) -> Sequence[ir.Value]:
    """Record the nodes of a graph on these inputs; return its outputs."""
    recorder: Any = evaluator.default()
    outputs = list(graph.outputs)
    nodes = list(graph)
    for value in list(graph.initializers.values()):
        constant = ir.node("Constant", [], {"value": value.const_value}, name=f"{value.name}_constant")
        constant.outputs[0].name = value.name
        value.replace_all_uses_with(constant.outputs[0])
        nodes.insert(0, constant)
    graph.outputs.clear()
    for own, value in zip(list(graph.inputs), [each for each in inputs if each is not None], strict=True):
        own.replace_all_uses_with(value)
    graph.remove([node for node in nodes if node.graph is graph])
    for node in nodes:
        node.version = recorder.opset.version
    recorder.nodes.extend(nodes)
    return outputs


def _group_parameters(
    params: Sequence[ir.Value], layers: int, directions: int, has_biases: bool
) -> Iterator[list[_Direction]]:
    each = len(params) // (layers * directions)
    biases = 2 if has_biases else 0
    groups = [params[i : i + each] for i in range(0, len(params), each)]
    made = [
        _Direction(w, r, rest[:biases], rest[biases] if len(rest) > biases else None)
        for w, r, *rest in groups
    ]
    yield from (made[i : i + directions] for i in range(0, len(made), directions))


def _is_zero(state: ir.Value) -> bool:
    """Return whether a state is one of zeros, as PyTorch makes where none is given."""
    node = state.producer()
    tensor = constant_of(node.inputs[0] if node is not None and node.op_type == "Expand" else state)
    return tensor is not None and not tensor.numpy().any()


def _layer_state(state: ir.Value, layer: int, directions: int) -> Any:
    rows = _cut(state, layer * directions, directions)
    assert state.shape is not None
    rows.shape = ir.Shape([directions, *state.shape.dims[1:]])
    return rows


def _cut(tensor: ir.Value, start: int, size: int) -> Any:
    starts, ends, axes = (op.Constant(value_ints=[number]) for number in (start, start + size, 0))
    return op.Slice(tensor, starts, ends, axes)


def _stack(matrices: Sequence[ir.Value]) -> Any:
    stacked = [op.Unsqueeze(matrix, op.Constant(value_ints=[0])) for matrix in matrices]
    return stacked[0] if len(stacked) == 1 else op.Concat(*stacked, axis=0)


def _static_size(value: ir.Value, axis: int) -> int:
    assert value.shape is not None
    size = value.shape[axis]
    assert isinstance(size, int)
    return size
