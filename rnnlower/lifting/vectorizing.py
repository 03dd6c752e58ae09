"""The vectorization of a step: its values for all steps at once, with time as the first axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import onnx_ir as ir
from onnx_ir.convenience import convert_attributes

from rnnlower.graph.einsum import einsum_terms
from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import POINTWISE, RANDOM, reduced_axes
from rnnlower.graph.walk import node_label, operand, required_input, subgraphs_of, walk_values
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.frames import Frame, Series, count_steps
from rnnlower.lifting.product_sums import Size
from rnnlower.lifting.products import ProductReader
from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.recurrent.operators import FLOAT_TYPES

_REDUCTIONS = tuple(
    f"Reduce{name}" for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)

Values = Sequence[ir.Value | None]


class StepVectorizer:
    """An emitter of the values of a step, for all steps at once.

    Args:
        products: The reader of the step, which has the sizes of its values.
    """

    def __init__(self, e: Emitter, facts: Facts, frame: Frame, products: ProductReader) -> None:
        self.e, self._facts, self._frame, self.products = e, facts, frame, products
        self._inner = {*walk_values(products.body)}
        self._known: dict[ir.Value, tuple[ir.Value, bool]] = {}
        self._sizes: dict[str, RuntimeDim] = {}
        if not frame.inputs:
            raise NotLiftableError("the step reads no input")
        series, steps = frame.inputs[0], count_steps(facts, frame)
        self.steps: RuntimeDim = e.dim(series.outer, series.axis) if steps is None else steps

    def named_steps(self) -> int | ir.SymbolicDim | None:
        """Return the number of steps as a size of a shape."""
        series = self._frame.inputs[0]
        return (
            self.steps if isinstance(self.steps, int) else (self._facts.dims(series.outer) or ())[series.axis]
        )

    def scale(self, value: ir.Value, factor: float) -> ir.Value:
        """Emit the product with a constant, unless that is 1."""
        dtype = self._facts.dtype(value) or self.e.dtype
        return value if factor == 1 else self.e.op("Mul", value, self.e.with_dtype(dtype).scalar(factor))

    def size(self, size: Size) -> RuntimeDim:
        """Return the size of an axis, computed at run time if it is symbolic."""
        if isinstance(size, int):
            return size
        if size not in self._sizes:
            outer = [state.start for state in self._frame.states] + [
                each.outer for each in self._frame.inputs
            ]
            places = [
                (value, axis)
                for value in outer
                for axis, dim in enumerate(self._facts.dims(value) or ())
                if isinstance(dim, ir.SymbolicDim) and dim.value == size
            ]
            if not places:
                raise NotLiftableError(f"no input has the size {size}")
            self._sizes[size] = self.e.dim(*places[0])
        return self._sizes[size]

    def define(self, value: ir.Value, stacked: ir.Value) -> None:
        """Set the value for all steps that stands for a value of the step."""
        self._known[value] = stacked, True

    def emit(self, value: ir.Value) -> tuple[ir.Value, bool]:
        """Emit a value for all steps; return whether it has an axis of time, or is the same in each step.

        Raises:
            NotLiftableError: There is no rule for an operator.
        """
        if value not in self._known:
            self._known[value] = self._emit(value)
        return self._known[value]

    def _emit(self, value: ir.Value) -> tuple[ir.Value, bool]:
        constant = self._facts.constant(self._frame.aliases.get(value, value))
        if constant is not None and value in self._inner:
            return self.e.constant(constant), False
        if value in self._frame.aliases:
            return self._frame.aliases[value], False
        if value not in self._inner:
            return value, False
        for series in self._frame.inputs:
            if series.inner is value:
                return self.emit_series(series), True
        node = value.producer()
        if node is None or node.domain or node.op_type in RANDOM or any(True for _ in subgraphs_of(node)):
            raise NotLiftableError(f"{value.name!r} is not known for all steps")
        dims = [self._facts.dims(each) for each in (node.inputs[0], value)] if node.inputs else [None]
        if node.op_type in ("Expand", "Reshape") and dims[0] == dims[1] and None not in (dims[0] or (None,)):
            # The same elements, whatever the target is computed of.
            return self.emit(cast(ir.Value, node.inputs[0]))
        parts = [None if each is None else self.emit(each) for each in node.inputs]
        given = [None if part is None else part[0] for part in parts]
        has_time = [part is not None and part[1] for part in parts]
        if not any(has_time):
            results = self._copy_node(node, given)
        elif (node.op_type in POINTWISE and node.op_type != "Dropout") or node.op_type in _RULES:
            results = _RULES.get(node.op_type, _pointwise)(self, node, given, has_time)
        else:
            raise NotLiftableError(f"{node_label(node)} is not computed for all steps at once")
        self._known |= {
            out: (result, any(has_time)) for out, result in zip(node.outputs, results, strict=True)
        }
        return self._known[value]

    def emit_output(self, series: Series) -> ir.Value:
        """Emit a tensor that the steps write.

        Raises:
            NotLiftableError: It is the same in all steps, or there is no rule for an operator.
        """
        value, has_time = self.emit(series.inner)
        if not has_time:
            raise NotLiftableError(f"{series.outer.name!r} is the same in all steps")
        axis = series.axis
        if series.keeps_axis:
            value = self.e.with_axes("Squeeze", value, [axis + 1])
        if series.reverse:
            value = self.e.flip(value, 0)
        rank = len(self.products.dims(series.inner)) + (not series.keeps_axis)
        return self.e.transpose(value, [*range(1, axis + 1), 0, *range(axis + 1, rank)]) if axis else value

    def emit_inputs(self) -> list[Series]:
        """Emit what the steps compute of their inputs alone, or read in all steps; return it as series.

        Raises:
            NotLiftableError: There is no rule for an operator.
        """
        given = {series.inner for series in self._frame.inputs}
        found: dict[ir.Value, Series] = {}
        for node in self.products.body:
            for value in node.inputs if self.products.dependent & {*node.outputs} else ():
                if value is None or value in found or value in self.products.dependent | given:
                    continue
                value = self._frame.aliases.get(value, value)
                rank = len(self._facts.dims(value) or ())
                if self._facts.constant(value) is None and (value in self._inner or rank > 1):
                    outer, has_time = self.emit(value)
                    if has_time:
                        found[value] = Series(value, outer, 0, False)
                    elif self._facts.dtype(value) in FLOAT_TYPES and rank > 1:
                        found[value] = Series(value, self.repeat(outer, rank), 0, False)
        return [*found.values()]

    def repeat(self, value: ir.Value, rank: int) -> ir.Value:
        """Emit a value of a rank, which is the same in all steps, with an axis of time."""
        return self.e.op(
            "Expand", value, self.e.size_vector([self.steps, *(1 for _ in range(rank))]), since=8
        )

    def emit_series(self, series: Series) -> ir.Value:
        """Emit the elements of a series, one after another."""
        outer, axis = series.outer, series.axis
        if series.window is not None:
            outer = self.e.slice(outer, series.window[:1], series.window[1:], [axis])
        rank = len(self._facts.dims(series.outer) or ())
        if axis:
            outer = self.e.transpose(outer, [axis, *(each for each in range(rank) if each != axis)])
        if series.reverse:
            outer = self.e.flip(outer, 0)
        return self.e.with_axes("Unsqueeze", outer, [axis + 1]) if series.keeps_axis else outer

    def _copy_node(
        self, node: ir.Node, inputs: Values, **attributes: int | str | Sequence[int]
    ) -> list[ir.Value]:
        """Emit a node with other inputs and attributes."""
        own = {attribute.name: attribute for attribute in convert_attributes(attributes)}
        given = [each for each in node.attributes.values() if each.name not in own] + [*own.values()]
        outputs = [ir.Value(name=self.e.names.fresh(out.name or node.op_type)) for out in node.outputs]
        name = self.e.names.source.fresh(f"{self.e.names.prefix}{node.name or node.op_type}")
        return list(self.e.add(ir.Node("", node.op_type, inputs, given, outputs=outputs, name=name)))

    def align(
        self, node: ir.Node, given: Values, has_time: Sequence[bool], rank: int
    ) -> list[ir.Value | None]:
        """Insert axes of size 1 after time, so that the other axes stay aligned."""
        found = []
        for old, value, is_timed in zip(node.inputs, given, has_time, strict=True):
            own = rank if old is None else len(self.products.dims(old))
            if value is not None and is_timed and own < rank:
                value = self.e.with_axes("Unsqueeze", value, [*range(1, rank - own + 1)])
            found.append(value)
        return found


VectorRule = Callable[[StepVectorizer, ir.Node, Values, Sequence[bool]], list[ir.Value]]


def _pointwise(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    if node.op_type in ("Clip", "PRelu"):
        _require_fixed_operands(has_time, node)
    if t.e.opset < 8 and node.op_type in ("Max", "Mean", "Min", "Sum") and not all(has_time):
        raise NotLiftableError(f"{node_label(node)} does not broadcast before opset 8")
    rank = len(t.products.dims(node.outputs[0]))
    return t._copy_node(node, t.align(node, given, has_time, rank))


def _require_fixed_operands(has_time: Sequence[bool], node: ir.Node) -> None:
    if any(has_time[1:]):
        raise NotLiftableError(f"{node_label(node)} depends on the step")


def _shift_axes(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    """Emit a Squeeze, Unsqueeze or reduction with its axes shifted by one."""
    _require_fixed_operands(has_time, node)
    before, after = t.products.dims(required_input(node)), t.products.dims(node.outputs[0])
    rank = len(after if node.op_type == "Unsqueeze" else before)
    axes = t.products.ints(node, "axes", 1)
    if node.op_type in _REDUCTIONS:
        axes = reduced_axes(node, rank, axes)
        if not rank:
            raise NotLiftableError(f"{node_label(node)} reduces a scalar")
        if not axes:
            return t._copy_node(node, given)
    elif axes is None:
        axes = [axis for axis, size in enumerate(before) if size == 1]
    moved = [axis % rank + 1 for axis in axes]
    since = 13 if node.op_type in ("ReduceSum", "Squeeze", "Unsqueeze") else 18
    if "axes" in node.attributes or t.e.opset < since:
        return t._copy_node(node, given[:1], axes=moved)
    return t._copy_node(node, [given[0], t.e.integers(*moved)])


def _transpose(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    rank = len(t.products.dims(node.outputs[0]))
    perm = node.attributes.get_ints("perm", tuple(range(rank))[::-1])
    return t._copy_node(node, given, perm=[0, *(axis + 1 for axis in perm)])


def _reshape(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    _require_fixed_operands(has_time, node)
    assert given[0] is not None
    return [t.e.reshape(given[0], [t.steps, *(t.size(size) for size in t.products.dims(node.outputs[0]))])]


def _matmul(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    ranks = [len(t.products.dims(each)) for each in node.inputs]
    if has_time == [True, False] and ranks[1] == 2:
        return t._copy_node(node, given)
    if min(ranks) < 2:
        raise NotLiftableError(f"{node_label(node)} multiplies a vector")
    return t._copy_node(node, t.align(node, given, has_time, max(ranks)))


def _einsum(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    ranks = [len(t.products.dims(each)) for each in node.inputs]
    terms, result = einsum_terms(node.attributes.get_string("equation", ""), ranks)
    free = next((label for label in "tzyxw" if label not in "".join(terms)), None)
    if not terms or free is None:
        raise NotLiftableError(f"{node_label(node)} has an equation that is not supported")
    operands = [free * has + each for each, has in zip(terms, has_time, strict=True)]
    return t._copy_node(node, given, equation=f"{','.join(operands)}->{free}{result}")


def _shift_axis(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    """Emit an operator whose axis is an attribute, shifted by one."""
    _require_fixed_operands(has_time, node)
    if node.op_type in ("LogSoftmax", "Softmax") and t.e.opset < 13:
        raise NotLiftableError(f"{node_label(node)} takes several axes for one")
    rank = len(t.products.dims(node.inputs[0]))
    axis = node.attributes.get_int("axis", 0 if node.op_type in ("Gather", "Split") else -1)
    return t._copy_node(node, given, axis=axis % rank + 1)


def _gather(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    """Emit a Gather along an axis of each step, or of rows of a fixed table."""
    if has_time == [False, True] and node.attributes.get_int("axis", 0) == 0:
        return t._copy_node(node, given)
    return _shift_axis(t, node, given, has_time)


def _concat(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    """Emit a Concat for all steps; what is the same in all of them is repeated."""
    rank = len(t.products.dims(node.inputs[0]))
    parts = [
        value if is_timed or value is None else t.repeat(value, rank)
        for value, is_timed in zip(given, has_time, strict=True)
    ]
    return t._copy_node(node, parts, axis=node.attributes.get_int("axis", 0) % rank + 1)


def _pad(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    _require_fixed_operands(has_time, node)
    pads, rank = t.products.ints(node, "pads", 1), len(t.products.dims(node.inputs[0]))
    if pads is None or operand(node, 3) is not None:
        raise NotLiftableError(f"{node_label(node)} is not computed for all steps at once")
    moved = [0, *pads[:rank], 0, *pads[rank:]]
    if "pads" in node.attributes:
        return t._copy_node(node, given, pads=moved)
    return t._copy_node(node, [given[0], t.e.integers(*moved), *given[2:3]])


def _slice(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (t.products.ints(node, name, k) for k, name in enumerate(names, 1))
    assert starts is not None
    rank = len(t.products.dims(node.inputs[0]))
    moved = [axis % rank + 1 for axis in (range(len(starts)) if axes is None else axes)]
    if "starts" in node.attributes:
        return t._copy_node(node, given, axes=moved)
    bounds = [t.e.integers(*each) for each in (starts, ends, moved, steps) if each is not None]
    return t._copy_node(node, [given[0], *bounds])


def _gemm(t: StepVectorizer, node: ir.Node, given: Values, has_time: Sequence[bool]) -> list[ir.Value]:
    """Emit a Gemm with fixed weights as a product of all steps."""
    _require_fixed_operands(has_time, node)
    bias = () if operand(node, 2) is None else t.products.dims(node.inputs[2])
    if node.attributes.get_int("transA", 0) or (len(bias) == 2 and bias[0] != 1):
        raise NotLiftableError(f"{node_label(node)} is not computed for all steps at once")
    rows, weights, addend = (*given, None)[:3]
    assert rows is not None
    assert weights is not None
    weights = t.scale(weights, node.attributes.get_float("alpha", 1.0))
    weights = t.e.transpose_once(weights) if node.attributes.get_int("transB", 0) else weights
    # A Reshape to rows would make one axis of two that may be open.
    product = t.e.op("MatMul", rows, weights)
    if addend is not None:
        product = t.e.op("Add", product, t.scale(addend, node.attributes.get_float("beta", 1.0)))
    return [product]


_RULES: Mapping[str, VectorRule] = {
    **dict.fromkeys((*_REDUCTIONS, "Squeeze", "Unsqueeze"), _shift_axes),
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "LpNormalization", "Softmax", "Split"), _shift_axis),
    "Concat": _concat,
    "Einsum": _einsum,
    **dict.fromkeys(("Flatten", "Reshape"), _reshape),
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Pad": _pad,
    "Slice": _slice,
    "Transpose": _transpose,
}
