"""Passes that write what is computed from open sizes in simpler ways: rows where they are, sizes in int64."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.files import beyond_ir
from rnnlower.graph.evaluation import Dims
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool, constant_of
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.operator_kinds import POINTWISE, axes_along
from rnnlower.graph.rewiring import insert_before, remove_orphans, replace_with_values
from rnnlower.graph.symbols import is_known
from rnnlower.graph.walk import ancestors, look_through_identities, required_input, walk
from rnnlower.passes.base import Pass

_FIRST_OPSET = 7
"""The first version of ONNX in which all pointwise operators broadcast."""
_SOFTMAXES = ("LogSoftmax", "Softmax")
_OF_ROWS = POINTWISE | {"BatchNormalization", "Gemm", "MatMul", "Reshape", *_SOFTMAXES}
_FIRST_OF_INPUTS = frozenset(["Gather", "Identity", "ReduceProd", "Reshape", "Slice", "Squeeze", "Unsqueeze"])
"""Operators of which the first input has the type of the result; the others are indices and axes."""
_ALL_INPUTS = frozenset(["Add", "Concat", "Mul", "Sub"])
_NARROW, _WIDE = ir.DataType.INT32, ir.DataType.INT64


class UnfoldRowsPass(Pass):
    """Computes layers of rows on all axes, where a model folds open sizes into one and unfolds them again.

    Keras writes a Dense layer over time so, and PyTorch code a Linear one. Without the two Reshapes, neither
    the batch size nor the length is computed, and time stays an axis of its own.

    Before::

        (float[N, T, 4] x, float[4, 2] w) => (float[N, T, 2] y)
        <int64[2] rows = {-1, 4}, int64[1] start = {0}, int64[1] end = {2}, int64[1] last = {2}> {
            sizes = Shape (x)
            first = Slice (sizes, start, end)
            shape = Concat <axis = 0> (first, last)
            folded = Reshape (x, rows)
            product = MatMul (folded, w)
            y = Reshape (product, shape)
        }

    After ``UnfoldRowsPass()``::

        (float[N, T, 4] x, float[4, 2] w) => (float[N, T, 2] y) {
            y = MatMul (x, w)
        }
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [_find_layers(self.facts, node) for node, _ in walk(model.graph) if node.op_type == "Reshape"]
        layers = [each for each in found if each is not None]
        # Training may read any value by its name.
        if layers and not beyond_ir.names_in_training(model):
            names = NameSource(all_names(model))
            pool = InitializerPool(model, names)
            for each in layers:
                each.unfold(names, pool)
            return ir.passes.PassResult(model, modified=True)
        return ir.passes.PassResult(model, modified=False)


@dataclasses.dataclass
class _Layers:
    """Layers of folded rows.

    Attributes:
        ends: The Reshapes that unfold the results.
    """

    fold: ir.Node
    rank: int
    nodes: list[ir.Node]
    ends: list[ir.Node]

    def unfold(self, names: NameSource, pool: InitializerPool) -> None:
        """Compute the nodes on the rows as they were."""
        source, folded = required_input(self.fold), self.fold.outputs[0]
        folded.replace_all_uses_with(source)
        remove_orphans([folded])
        for node in self.nodes:
            for out in node.outputs:
                out.shape = None
            if node.op_type in _SOFTMAXES:
                node.attributes.add(ir.AttrInt64("axis", self.rank - 1))
            elif node.op_type == "Gemm":
                _write_product(node, names, pool)
            elif node.op_type == "BatchNormalization":
                _write_scale(node, names, pool)
        for end in self.ends:
            replace_with_values(end, [required_input(end)])


def _write_product(gemm: ir.Node, names: NameSource, pool: InitializerPool) -> None:
    """Write a Gemm as the MatMul and the Add that take more axes."""
    rows, weight, *bias = gemm.inputs
    if gemm.attributes.get_int("transB", 0):
        tensor = constant_of(weight)
        assert tensor is not None
        assert weight is not None
        if len(weight.uses()) > 1:  # Others would keep the weight, so the file would hold it twice.
            order = ir.AttrInt64s("perm", [1, 0])
            weight = insert_before(gemm, "Transpose", [weight], names, [order])
        else:
            weight = pool.intern(ir.Tensor(tensor.numpy().T.copy(), dtype=tensor.dtype), str(tensor.name))
    result = insert_before(gemm, "MatMul", [rows, weight], names)
    for each in filter(None, bias):
        result = insert_before(gemm, "Add", [result, each], names)
    replace_with_values(gemm, [result])


def _write_scale(norm: ir.Node, names: NameSource, pool: InitializerPool) -> None:
    """Write a BatchNormalization of constants as the Mul and the Add of its features, the last axis."""
    scale, shift, mean, variance = _constant_parameters(norm)
    deviation = np.sqrt(variance.numpy().astype(np.float64) + norm.attributes.get_float("epsilon", 1e-5))
    factor = scale.numpy() / deviation
    numbers = (factor, shift.numpy() - mean.numpy() * factor)
    result = required_input(norm)
    for op_type, number, tensor in zip(("Mul", "Add"), numbers, (scale, shift), strict=True):
        constant = pool.intern(ir.Tensor(number.astype(tensor.dtype.numpy())), str(tensor.name))
        result = insert_before(norm, op_type, [result, constant], names)
    replace_with_values(norm, [result])


def _constant_parameters(norm: ir.Node) -> list[ir.TensorProtocol]:
    """Return the parameters of a BatchNormalization that are constants: four if all of them are."""
    # PyTorch writes equal parameters once, and Identity nodes.
    found = (constant_of(value and look_through_identities(value)) for value in norm.inputs[1:])
    return [tensor for tensor in found if tensor is not None]


def _find_layers(facts: Facts, fold: ir.Node) -> _Layers | None:
    """Return what is computed from the rows that a Reshape folds, if all of it can do without."""
    source, folded = facts.dims(fold.inputs[0]), facts.dims(fold.outputs[0])
    if fold.domain or facts.opset < _FIRST_OPSET or source is None or folded is None:
        return None
    outer = source[:-1]
    is_fold = len(outer) > 1 and len(folded) == 2 and isinstance(folded[1], int) and source[-1] == folded[1]
    if not is_fold or all(isinstance(dim, int) for dim in outer):
        return None
    layers = _Layers(fold, len(source), [], [])
    inside = [fold.outputs[0]]
    for value in inside:
        if value.is_graph_output():
            return None
        for node, _ in value.uses():
            if node in layers.nodes or node in layers.ends:
                continue
            if node.domain or node.op_type not in _OF_ROWS or node.graph is not fold.graph:
                return None
            if node.op_type == "Reshape":
                layers.ends.append(node)
            else:
                layers.nodes.append(node)
                inside += node.outputs
    are_ends = all(_unfolds(facts, end, outer) for end in layers.ends)
    is_whole = are_ends and all(_is_of_rows(facts, node, inside) for node in layers.nodes)
    return layers if is_whole and layers.ends else None


def _unfolds(facts: Facts, end: ir.Node, outer: Dims) -> bool:
    """Return whether a Reshape unfolds rows to these sizes, of which the last elements stay together."""
    rows, dims = facts.dims(end.inputs[0]), facts.dims(end.outputs[0])
    if rows is None or dims is None or len(dims) != len(outer) + 1:
        return False
    is_same = isinstance(dims[-1], int) and rows[-1] == dims[-1]
    different = [dim for dim, wanted in zip(dims, outer, strict=False) if dim != wanted]
    # If the others are equal, so is one that is not known.
    return is_same and (not different or (len(different) == 1 and not is_known(different[0])))


def _is_of_rows(facts: Facts, node: ir.Node, inside: Sequence[ir.Value]) -> bool:
    """Return whether a node computes each row by itself, whatever the number of axes before the last."""
    if node.op_type in _SOFTMAXES:
        return axes_along(node, 2, facts.opset) == range(1, 2)
    if node.op_type == "BatchNormalization":
        is_fixed = len(_constant_parameters(node)) == 4
        return is_fixed and len(node.outputs) == 1 and not node.attributes.get_int("training_mode", 0)
    shapes = [facts.dims(value) for value in node.inputs if value is not None and value not in inside]
    if node.op_type in POINTWISE:
        return all(shape is not None and shape[:-1] in ((), (1,)) for shape in shapes)
    numbers = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    is_plain = node.op_type == "MatMul" or (
        all(number == 1 for number in numbers)
        and not node.attributes.get_int("transA", 0)
        and (not node.attributes.get_int("transB", 0) or constant_of(node.inputs[1]) is not None)
        and all(shape is not None and shape[:-1] in ((), (1,)) for shape in shapes[1:])
    )
    is_product = node.inputs[0] in inside and not any(value in inside for value in node.inputs[1:])
    return is_plain and is_product and shapes[0] is not None and len(shapes[0]) == 2


class WidenSizesPass(Pass):
    """Computes sizes in int64 where a model casts them to int32 and back, as converters from TensorFlow do.

    Some runtimes follow a size that is not a number as long as it stays in the type that Shape returns.

    Before::

        (float[N, T, 4] x) => (float[rows, 4] y) <int64[1] at = {0}, int32[1] last = {4}> {
            sizes = Shape (x)
            narrow = Cast <to = 6> (sizes)
            first = Gather (narrow, at)
            shape = Concat <axis = 0> (first, last)
            wide = Cast <to = 7> (shape)
            y = Reshape (x, wide)
        }

    After ``WidenSizesPass()``::

        (float[N, T, 4] x) => (float[rows, 4] y) <int64[1] at = {0}, int64[1] last_1 = {4}> {
            sizes = Shape (x)
            first_wide = Gather (sizes, at)
            shape_wide = Concat <axis = 0> (first_wide, last_1)
            y = Reshape (x, shape_wide)
        }
    """

    KEEPS_FACTS = True

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = [node for node, _ in walk(model.graph)]
        casts = {node: node.inputs[0] for node in nodes if self._casts(node, _NARROW, _WIDE)}
        needed = {value for cast in casts.values() if cast is not None for value in ancestors(cast)}
        self._names = NameSource(all_names(model))
        self._pool = InitializerPool(model, self._names)
        wide: dict[ir.Value | None, ir.Value] = {}
        modified = False
        # Training may read any value by its name.
        for node in nodes if casts and not beyond_ir.names_in_training(model) else ():
            if casts.get(node) in wide and not node.outputs[0].is_graph_output():
                replace_with_values(node, [wide[casts[node]]])
                modified = True
            elif not needed.isdisjoint(node.outputs) and (value := self._widened(node, wide)) is not None:
                wide[node.outputs[0]] = value
        remove_orphans(wide.values())
        return ir.passes.PassResult(model, modified)

    def _widened(self, node: ir.Node, wide: Mapping[ir.Value | None, ir.Value]) -> ir.Value | None:
        """Return the result of a node as int64, if it follows from sizes in int64."""
        if self._casts(node, _WIDE, _NARROW):
            sizes = self.facts.sizes(node.outputs[0])
            return None if sizes is None or None in sizes.flat else node.inputs[0]
        count = (
            1 if node.op_type in _FIRST_OF_INPUTS else len(node.inputs) if node.op_type in _ALL_INPUTS else 0
        )
        given = node.inputs[:count]
        if node.domain or not any(value in wide for value in given):
            return None
        inputs = [wide.get(value) or self._constant(value) for value in given]
        if None in inputs:
            return None
        attributes = list(node.attributes.values())
        copied = insert_before(node, node.op_type, [*inputs, *node.inputs[count:]], self._names, attributes)
        copied.type, copied.shape = ir.TensorType(_WIDE), node.outputs[0].shape
        return copied

    def _constant(self, value: ir.Value | None) -> ir.Value | None:
        content = self.facts.constant(value)
        if value is None or content is None:
            return None
        return self._pool.intern(ir.Tensor(content.astype(_WIDE.numpy())), str(value.name))

    def _casts(self, node: ir.Node, source: ir.DataType, target: ir.DataType) -> bool:
        is_cast = node.op_type == "Cast" and not node.domain and node.attributes.get_int("to", 0) == target
        return is_cast and self.facts.dtype(node.inputs[0]) == source
