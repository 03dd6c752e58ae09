"""The pass that computes rows where they are, in place of folding all axes but the last into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.files import beyond_ir
from rnnlower.graph.evaluation import Dims
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool, constant_of
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.operator_kinds import POINTWISE, axes_along
from rnnlower.graph.rewiring import insert_before, remove_orphans, replace_with_values
from rnnlower.graph.symbols import is_known
from rnnlower.graph.walk import walk
from rnnlower.passes.base import Pass

_FIRST_OPSET = 7
"""The first version of ONNX in which all pointwise operators broadcast."""
_SOFTMAXES = ("LogSoftmax", "Softmax")
_OF_ROWS = POINTWISE | {"Gemm", "MatMul", "Reshape", *_SOFTMAXES}


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
        fold: The Reshape that folds the rows.
        rank: The rank before.
        nodes: The nodes that compute with them.
        ends: The Reshapes that unfold the results.
    """

    fold: ir.Node
    rank: int
    nodes: list[ir.Node]
    ends: list[ir.Node]

    def unfold(self, names: NameSource, pool: InitializerPool) -> None:
        """Compute the nodes on the rows as they were."""
        source, folded = self.fold.inputs[0], self.fold.outputs[0]
        assert source is not None
        folded.replace_all_uses_with(source)
        remove_orphans([folded])
        for node in self.nodes:
            for out in node.outputs:
                out.shape = None
            if node.op_type in _SOFTMAXES:
                node.attributes.add(ir.AttrInt64("axis", self.rank - 1))
            elif node.op_type == "Gemm":
                _write_product(node, names, pool)
        for end in self.ends:
            result = end.inputs[0]
            assert result is not None
            replace_with_values(end, [result])


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
