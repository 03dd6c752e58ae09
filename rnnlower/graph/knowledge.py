"""Values, types and shapes that are known before a model runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.constants import constant_of
from rnnlower.graph.evaluation import Array, evaluate, infer
from rnnlower.graph.suppression import quiet_libraries
from rnnlower.graph.walk import default_opset, subgraphs_of, walk

__all__ = ["Knowledge", "Shape"]

Shape = tuple[int | None, ...]

_LARGEST = 1 << 26
"""Largest total size in bytes of a node's inputs and outputs at which it is evaluated."""
_STATE_ROUNDS = 3
_MOST_ITERATIONS = 1000


class Knowledge:
    """An abstract run of the model: node by node, with the known data of each value.

    Declared shapes are trusted for graph inputs and initializers only: inside a graph they are what an
    exporter saw. Branches that are known not to be taken are skipped.

    Args:
        model: The model; it is not changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.opset = default_opset(model)
        self._computed: dict[ir.Value, Array] = {}
        self._types: dict[ir.Value, ir.TypeProtocol] = {}
        self._shapes: dict[ir.Value, Shape] = {}
        with quiet_libraries():
            self._visit_graph(model.graph)

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return the constant content of a value, or ``None`` if it is not known."""
        if value is None:
            return None
        if value in self._computed:
            return self._computed[value]
        tensor = constant_of(value)
        if tensor is None or tensor.nbytes > _LARGEST or tensor.dtype == ir.DataType.STRING:
            return None
        return np.asarray(tensor.numpy())

    def computed(self) -> dict[ir.Value, Array]:
        """Return the values that nodes compute and that are always the same."""
        return self._computed

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the shape of a value, with ``None`` for an unknown size, or ``None`` for an unknown rank."""
        if value is None:
            return None
        if value in self._shapes:
            return self._shapes[value]
        if value.producer() is None and value.shape is not None:
            return tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in value.shape)
        return None

    def type(self, value: ir.Value | None) -> ir.TypeProtocol | None:
        """Return the type of a value: the declared one, or else the inferred one."""
        return None if value is None else value.type or self._types.get(value)

    def inherit(self, value: ir.Value, old: ir.Value) -> None:
        """Copy what is known of a value to its replacement."""
        self._learn(value, self.type(old), self.shape(old))

    def condition(self, node: ir.Node) -> bool | None:
        """Return whether an If takes its then_branch, or ``None`` if that is not known."""
        array = self.constant(node.inputs[0])
        return bool(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def count_iterations(self, node: ir.Node, limit: int | None) -> int | None:
        """Count the iterations of a Loop whose condition follows from constants, by running it.

        Args:
            node: The Loop.
            limit: The number of iterations after which the Loop ends in any case.
        """
        body = node.attributes["body"].as_graph()
        number, condition, *states = body.inputs
        values = [self.constant(source) for source in node.inputs[2:]]
        count: int | None = None
        for step in range(min(_MOST_ITERATIONS if limit is None else limit, _MOST_ITERATIONS)):
            self._forget_body(body)
            self._computed |= {number: np.array(step, np.int64), condition: np.array(True)}
            self._computed |= {
                state: value for state, value in zip(states, values, strict=True) if value is not None
            }
            self._visit_graph(body)
            goes_on = self.constant(body.outputs[0])
            if goes_on is None:
                break
            if not goes_on.reshape(-1)[0] or step + 1 == limit:
                count = step + 1
                break
            values = [self.constant(out) for out in body.outputs[1 : 1 + len(states)]]
        self._forget_body(body)
        self.visit(node)
        return count

    def _forget_body(self, body: ir.Graph) -> None:
        """Forget the data of one iteration."""
        for graph in (body, *body.subgraphs()):
            for value in (*graph.inputs, *(out for node in graph for out in node.outputs)):
                self._forget(value)

    def _visit_graph(self, graph: ir.Graph) -> None:
        for node in graph:
            self.visit(node)

    def visit(self, node: ir.Node) -> None:
        """Learn what a node computes, from what is known of its inputs."""
        kind = "" if node.domain else node.op_type
        if kind == "If":
            self._visit_if(node)
        elif kind == "Loop":
            self._visit_loop(node)
        elif kind == "Scan" and self.opset >= 9:
            self._visit_scan(node)
        elif not self._evaluate(node):
            for graph in subgraphs_of(node):
                self._visit_graph(graph)
            for value, (type_, shape) in zip(node.outputs, self.infer(node), strict=True):
                self._learn(value, type_, shape)

    def _evaluate(self, node: ir.Node) -> bool:
        """Compute a node whose inputs are constants, or of whose input only the shape matters."""
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            shape = self.shape(node.inputs[0])
            arrays: list[Array | None] = [None]
            if shape is not None and None not in shape:
                # An array that takes no memory stands for the shape.
                arrays = [np.broadcast_to(np.int8(0), shape)]  # type: ignore[arg-type]
        else:
            arrays = [self.constant(value) for value in node.inputs]
        for value, array in zip(node.inputs, arrays, strict=True):
            if value is not None and array is None:
                return False
        if self._result_bytes(node, arrays) > _LARGEST:
            return False
        outputs = evaluate(node, arrays, self.opset)
        if outputs is None or sum(array.nbytes for array in outputs) > _LARGEST:
            return False
        for value, array in zip(node.outputs, outputs, strict=True):
            self._computed[value] = array
            self._shapes[value] = array.shape
            self._types[value] = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        return True

    def _result_bytes(self, node: ir.Node, arrays: Sequence[Array | None]) -> int:
        """Return an upper bound of the result of an operator that makes large outputs from small inputs."""
        place = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "EyeLike": 0}.get(node.op_type)
        if place is None or arrays[place] is None:
            return 0
        sizes = np.abs(np.asarray(arrays[place], np.float64))
        count = float(np.prod(sizes))
        first = arrays[0]
        return int(min(count * 8 * (first.size if place and first is not None else 1), 2**62))

    def infer(self, node: ir.Node) -> list[tuple[ir.TypeProtocol | None, Shape | None]]:
        """Return type and shape of each output of a node."""
        return infer(
            node,
            [self.type(value) for value in node.inputs],
            [self.shape(value) for value in node.inputs],
            [self.constant(value) for value in node.inputs],
            self.model.opset_imports,
            self.model.ir_version,
        )

    def _learn(self, value: ir.Value, type_: ir.TypeProtocol | None, shape: Shape | None) -> None:
        if type_ is not None:
            self._types[value] = type_
        if shape is not None:
            self._shapes[value] = shape

    def _visit_if(self, node: ir.Node) -> None:
        taken = self.condition(node)
        branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        if taken is not None:
            branches = [branches[0 if taken else 1]]
        for branch in branches:
            self._visit_graph(branch)
        for value, *results in zip(node.outputs, *(branch.outputs for branch in branches), strict=True):
            if len(results) == 1 and (array := self.constant(results[0])) is not None:
                self._computed[value] = array
            self._learn(value, self.type(results[0]), _common([self.shape(result) for result in results]))

    def _visit_loop(self, node: ir.Node) -> None:
        body = node.attributes["body"].as_graph()
        number, condition, *states = body.inputs
        self._learn(number, ir.TensorType(ir.DataType.INT64), ())
        self._learn(condition, ir.TensorType(ir.DataType.BOOL), ())
        results = body.outputs[1:]
        shapes = self._visit_body(body, states, node.inputs[2:], results[: len(states)])
        shapes += [
            None if (each := self.shape(out)) is None else (None, *each) for out in results[len(states) :]
        ]
        self._learn_outputs(node, results, shapes)

    def _visit_scan(self, node: ir.Node) -> None:
        body = node.attributes["body"].as_graph()
        scanned = node.attributes.get_int("num_scan_inputs", 1)
        count = len(body.inputs) - scanned
        axes = node.attributes.get_ints("scan_input_axes", [0] * scanned)
        steps: int | None = None
        for value, source, axis in zip(body.inputs[count:], node.inputs[count:], axes, strict=True):
            shape = self.shape(source)
            type_ = self.type(source)
            if shape is not None and -len(shape) <= axis < len(shape):
                axis %= len(shape)
                steps = shape[axis] if steps is None else steps
                shape = (*shape[:axis], *shape[axis + 1 :])
            self._learn(value, type_, shape)
        shapes = self._visit_body(body, body.inputs[:count], node.inputs[:count], body.outputs[:count])
        axes = node.attributes.get_ints("scan_output_axes", [0] * (len(body.outputs) - count))
        for out, axis in zip(body.outputs[count:], axes, strict=True):
            shape = self.shape(out)
            if shape is not None:
                axis %= len(shape) + 1
                shape = (*shape[:axis], steps, *shape[axis:])
            shapes.append(shape)
        self._learn_outputs(node, body.outputs, shapes)

    def _visit_body(
        self,
        body: ir.Graph,
        states: Sequence[ir.Value],
        sources: Sequence[ir.Value | None],
        results: Sequence[ir.Value],
    ) -> list[Shape | None]:
        """Run a body with shapes of its states that hold in every iteration, and return these shapes."""
        shapes = [self.shape(source) for source in sources]
        for number in range(_STATE_ROUNDS):
            for state, source, shape in zip(states, sources, shapes, strict=True):
                self._forget(state)
                self._learn(state, self.type(source), shape)
            self._visit_graph(body)
            merged = [_common([old, self.shape(out)]) for old, out in zip(shapes, results, strict=True)]
            if merged == shapes:
                break
            # Knowledge derived from sizes that change is wrong.
            for out in (out for inner, _ in walk(body) for out in inner.outputs):
                self._forget(out)
            shapes = merged if number + 2 < _STATE_ROUNDS else [None] * len(shapes)
        return list(shapes)

    def _learn_outputs(
        self, node: ir.Node, results: Sequence[ir.Value], shapes: Sequence[Shape | None]
    ) -> None:
        for value, result, shape in zip(node.outputs, results, shapes, strict=False):
            self._learn(value, self.type(result), shape)

    def _forget(self, value: ir.Value) -> None:
        self._computed.pop(value, None)
        self._types.pop(value, None)
        self._shapes.pop(value, None)


def _common(shapes: Sequence[Shape | None]) -> Shape | None:
    """Return the sizes that all shapes share."""
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) != 1 or None in ranks:
        return None
    return tuple(
        sizes[0] if len(set(sizes)) == 1 else None
        for sizes in zip(*(shape for shape in shapes if shape is not None), strict=True)
    )
