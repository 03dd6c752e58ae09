"""Folding of recurrent nodes' weights that are computed from constants.

Before::

    (float[3, 1, 1] X, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) <float[1, 1] w = {2}, int64[1] axes = {0}> {
        W = Unsqueeze (w, axes)
        Y = RNN <hidden_size = 1> (X, W, R)
    }

After ``FoldWeightsPass()``::

    (float[3, 1, 1] X, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) <float[1, 1, 1] W = {2}> {
        Y = RNN <hidden_size = 1> (X, W, R)
    }
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.errors import InvalidModelError
from rnnlower.files import beyond_ir
from rnnlower.graph.cleanup import remove_orphans
from rnnlower.graph.names import NameSource
from rnnlower.graph.walk import value_names, walk
from rnnlower.passes.base import Pass
from rnnlower.recurrent.analysis import inferred_copy
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.recurrent.operators import WEIGHT_INPUTS

__all__ = ["FoldWeightsPass"]

_FOLDABLE = frozenset(
    [
        "Add",
        "Cast",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "DequantizeLinear",
        "Div",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Mul",
        "Neg",
        "Pad",
        "Reshape",
        "Shape",
        "Slice",
        "Split",
        "Squeeze",
        "Sub",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ]
)

_SLACK_BYTES = 1024


class FoldWeightsPass(Pass):
    """Replaces computed weights of the given nodes by initializers of the main graph.

    A weight whose constant is larger than its sources (DequantizeLinear of an int8 tensor), or
    whose sources have other readers, stays computed: folding it would store it twice.

    Args:
        nodes: The recurrent nodes whose weights are folded; ``None``: all of the model.
        positions: Which inputs count as weights.
        may_grow: Fold even if that makes the model larger.
        static_shapes: Treat a shape that follows from the model's inputs as a constant: exporters compute
            zeros for the states from it.
    """

    def __init__(
        self,
        nodes: Iterable[ir.Node] | None = None,
        *,
        positions: Collection[int] = WEIGHT_INPUTS,
        may_grow: bool = False,
        static_shapes: bool = False,
    ) -> None:
        super().__init__()
        self._nodes = None if nodes is None else list(nodes)
        self._positions = positions
        self._may_grow = may_grow
        self._static_shapes = static_shapes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Fold the weights.

        Raises:
            InvalidModelError: A constant weight cannot be computed.
        """
        trained = beyond_ir.names_in_training(model)
        nodes = self._nodes
        if nodes is None:
            nodes = [node for node, _ in walk(model.graph) if is_recurrent(node)]
        values = [node.inputs[i] for node in nodes for i in self._positions if i < len(node.inputs)]
        computed = any(value is not None and value.producer() is not None for value in values)
        shapes = _read_shapes(model) if self._static_shapes and computed else {}
        cones = {
            value: cone
            for value in values
            if value is not None
            and (cone := _cone(value, shapes))
            and not any(source.name in trained for source in cone.sources)
        }
        if not self._may_grow:
            cones = _closed(cones)
        folded: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        modified = False
        taken = value_names(model)
        # A weight that cannot be computed leaves the model as it was.
        arrays = {value: _evaluate(model, value, cone) for value, cone in cones.items()}
        for value, cone in cones.items():
            array = arrays[value]
            # Zeros are left out again: they are what a state is without an initial value.
            if not self._may_grow and array.any() and array.nbytes > cone.source_bytes() + _SLACK_BYTES:
                continue
            key = (array.dtype.str, array.shape, array.tobytes())
            if key not in folded:
                folded[key] = _new_initializer(model, value, array, taken)
            for node, index in tuple(value.uses()):
                node.replace_input_with(index, folded[key])
            remove_orphans([value])
            modified = True
        return ir.passes.PassResult(model, modified)


@dataclasses.dataclass(frozen=True)
class _Cone:
    """The nodes that compute a value, in order, and the initializers and shapes that they read."""

    nodes: Sequence[ir.Node]
    sources: Sequence[ir.Value]
    shaped: Mapping[ir.Value, Sequence[int]]

    def source_bytes(self) -> int:
        tensors = [value.const_value for value in self.sources]
        tensors += [
            attribute.as_tensor()
            for node in self.nodes
            for attribute in node.attributes.values()
            if attribute.type == ir.AttributeType.TENSOR
        ]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _read_shapes(model: ir.Model) -> dict[ir.Value, Sequence[int]]:
    """Return the values whose shape the model reads and the shapes of its inputs determine."""
    found: dict[ir.Value, Sequence[int]] = {}
    twins = walk(inferred_copy(model).graph)
    for (node, _), (twin, _) in zip(walk(model.graph), twins, strict=True):
        value = node.inputs[0] if node.op_type == "Shape" and node.domain == "" else None
        known = None if value is None else twin.inputs[0]
        if value is not None and known is not None and known.shape is not None and known.shape.is_static():
            found[value] = known.shape.numpy()
    return found


def _cone(value: ir.Value, shapes: Mapping[ir.Value, Sequence[int]]) -> _Cone | None:
    """Return the nodes that compute the value, if constants and these shapes alone determine it."""
    nodes: dict[ir.Node, None] = {}
    sources: dict[ir.Value, None] = {}
    shaped: dict[ir.Value, Sequence[int]] = {}
    pending: list[ir.Value | ir.Node] = [value]
    met: set[ir.Node] = set()
    while pending:
        this = pending.pop()
        if isinstance(this, ir.Node):
            nodes[this] = None
            continue
        producer = this.producer()
        if producer is None:
            if this.const_value is None or this.is_graph_input():
                return None
            sources[this] = None
        elif producer not in met:
            if producer.domain != "" or producer.op_type not in _FOLDABLE:
                return None
            met.add(producer)
            read = producer.inputs[0] if producer.op_type == "Shape" else None
            if read is not None and read in shapes:
                shaped[read] = shapes[read]
                nodes[producer] = None
                continue
            # A node is added after everything that it reads.
            pending.append(producer)
            pending += [used for used in reversed(producer.inputs) if used is not None]
    return _Cone(list(nodes), list(sources), shaped) if nodes else None


def _closed(cones: dict[ir.Value, _Cone]) -> dict[ir.Value, _Cone]:
    """Return the cones that nothing outside of them reads, so that folding them frees their sources."""
    while True:
        inside = {node for cone in cones.values() for node in cone.nodes}
        leaking = [
            value
            for value, cone in cones.items()
            for inner in (*cone.sources, *(out for node in cone.nodes for out in node.outputs))
            if inner not in cones
            and (inner.is_graph_output() or any(user not in inside for user, _ in inner.uses()))
        ]
        leaking += [value for value in cones if value.is_graph_output()]
        if not leaking:
            return cones
        cones = {value: cone for value, cone in cones.items() if value not in leaking}


def _evaluate(model: ir.Model, value: ir.Value, cone: _Cone) -> np.ndarray:
    """Evaluate the value with onnx's reference implementation of the operators."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    names = {used: f"v{number}" for number, used in enumerate(dict.fromkeys(_values(cone)))}
    nodes = []
    for node in cone.nodes:
        proto = ir.serde.serialize_node(node)
        del proto.input[:], proto.output[:]
        proto.input.extend("" if used is None else names[used] for used in node.inputs)
        proto.output.extend(names[out] for out in node.outputs)
        nodes.append(proto)
    # An array that takes no memory stands for the shape.
    feeds = {names[read]: np.broadcast_to(np.int8(0), shape) for read, shape in cone.shaped.items()}
    feeds |= {
        names[source]: source.const_value.numpy() for source in cone.sources if source.const_value is not None
    }
    graph = onnx.helper.make_graph(
        nodes,
        "constant_weight",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds],
        [onnx.helper.make_value_info(names[value], onnx.TypeProto())],
    )
    opset = onnx.helper.make_opsetid("", model.opset_imports.get("", 1))
    computation = onnx.helper.make_model(graph, opset_imports=[opset])
    try:
        evaluator = ReferenceEvaluator(
            computation, new_ops=[_dequantize_linear()] if opset.version < 19 else None
        )
        (array,) = evaluator.run(None, feeds)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, MemoryError) as error:
        user = next(node for node, _ in value.uses() if is_recurrent(node))
        raise InvalidModelError(
            f"{user.op_type} node {user.name or '(unnamed)'!r}: its constant weight {value.name!r} cannot be "
            f"computed: {error}"
        ) from error
    return np.asarray(array)


def _dequantize_linear() -> type:
    """Return DequantizeLinear 10 and 13, which onnx's evaluator lacks."""
    from onnx.defs import get_schema
    from onnx.reference.op_run import OpRun

    class DequantizeLinear(OpRun):
        op_domain = ""
        # Otherwise the evaluator passes the attributes of the newest version.
        op_schema = get_schema("DequantizeLinear", 13, "")

        def _run(self, x, scale, zero_point=None, axis=1):  # type: ignore[no-untyped-def]
            if scale.ndim == 1:
                shape = [-1 if index == axis % x.ndim else 1 for index in range(x.ndim)]
                scale = scale.reshape(shape)
                zero_point = None if zero_point is None else zero_point.reshape(shape)
            shifted = x.astype(np.int64) - (0 if zero_point is None else zero_point.astype(np.int64))
            return (shifted.astype(scale.dtype) * scale,)

    return DequantizeLinear


def _values(cone: _Cone) -> Sequence[ir.Value]:
    values = [used for node in cone.nodes for used in (*node.inputs, *node.outputs)]
    return [value for value in values if value is not None]


def _new_initializer(
    model: ir.Model, value: ir.Value, array: np.ndarray, taken: collections.Counter[str]
) -> ir.Value:
    """Return an initializer of the main graph with the value's name, or a similar one if that is taken."""
    name = value.name or "weight"
    if taken[name] > 1:
        name = NameSource(taken).fresh(name)
    taken[name] += 1
    tensor = ir.Tensor(array, name=name)
    initializer = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    model.graph.register_initializer(initializer)
    return initializer
