"""Primitive operators in the form that the model's opset wants, with constants and names.

An `Emitter` writes into one graph. Methods are the operators in their newest spelling; each picks the form of
the opset (attributes or inputs) and refuses an opset that has none: `opset_needs` says beforehand which
opset a lowering needs, so that such a refusal is a bug and not a user's mistake. Where a `Dialect` lacks an
operator, a method that knows another form writes that, and `FORMS` has those of single operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.dialect import Dialect
from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.forms import FORMS, NO_DOUBLE_KERNEL
from rnnlower.initializers import InitializerPool
from rnnlower.names import NameSource

__all__ = ["Dim", "Emitter"]

Dim = int | ir.Value
"""A size: a number, or an int64 value of shape ``[1]`` that holds it at run time."""

AttributeValue = int | float | list[int] | tuple[int, ...] | ir.Graph | ir.TensorProtocol


class Emitter:
    """Appends nodes to a list that the caller inserts into a graph.

    Args:
        opset: Version of the default domain whose forms are emitted.
        names: Source of fresh names.
        dtype: Floating-point type of the arithmetic.
        initializers: Holds the constants.
        dialect: The operators that may be emitted; ``None``: all.

    Attributes:
        nodes: What was emitted.
        notes: What a user should know about the forms that were chosen.
    """

    def __init__(
        self,
        opset: int,
        names: NameSource,
        dtype: ir.DataType,
        initializers: InitializerPool,
        dialect: Dialect | None = None,
    ) -> None:
        self.opset = opset
        self.names = names
        self.dtype = dtype
        self.dialect = dialect
        self.nodes: list[ir.Node] = []
        self.notes: dict[str, None] = {}
        self._initializers = initializers
        self._transposed: dict[ir.Value, ir.Value] = {}
        self._conditions: dict[ir.Value, np.ndarray] = {}

    def body(self) -> Emitter:
        """An emitter for a subgraph, which sees this one's values."""
        other = Emitter(self.opset, self.names, self.dtype, self._initializers, self.dialect)
        other.notes, other._conditions = self.notes, self._conditions
        other._transposed = dict(self._transposed)
        return other

    def with_dtype(self, dtype: ir.DataType) -> Emitter:
        """An emitter into the same place with another type of arithmetic."""
        other = self.body()
        other.dtype = dtype
        other.nodes, other._transposed = self.nodes, self._transposed
        return other

    @property
    def for_onnxruntime(self) -> bool:
        """Whether the forms that onnxruntime runs fastest are wanted: no other runtime is named."""
        return self.dialect is None or self.dialect.onnxruntime

    def has(self, op_type: str) -> bool:
        """Whether the operator may be emitted for the type of the arithmetic."""
        if self.dtype == ir.DataType.DOUBLE and op_type in NO_DOUBLE_KERNEL:
            return False
        return self.dialect is None or op_type in self.dialect.ops

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        since: int = 1,
        **attributes: AttributeValue,
    ) -> ir.Value:
        """Emits a node with one output, or what says the same where the operator is not to be emitted.

        Raises:
            OpsetError: The operator does not exist at this opset.
            MissingOperatorError: Nothing that may be emitted says the same.
        """
        if not self.has(op_type) and op_type in FORMS:
            try:
                return FORMS[op_type](self, *inputs, **attributes)
            except MissingOperatorError as error:
                raise error.behind(op_type) from None
        if op_type == "Reshape" and inputs[0] in self._conditions:
            known = self._conditions[inputs[0]]
            assert inputs[1] is not None
            assert inputs[1].const_value is not None
            return self.condition(known.reshape(inputs[1].const_value.numpy()))
        return self.ops(op_type, *inputs, outputs=1, since=since, **attributes)[0]

    def ops(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        outputs: int,
        since: int = 1,
        **attributes: AttributeValue,
    ) -> Sequence[ir.Value]:
        """Emits a node with several outputs.

        Raises:
            OpsetError: The operator does not exist at this opset.
            MissingOperatorError: The operator may not be emitted.
        """
        if self.dialect is not None and op_type not in self.dialect.ops:
            raise MissingOperatorError(op_type, self.dialect.name)
        if self.opset < since:
            raise OpsetError(f"{op_type} needs opset {since}, but the result is to have opset {self.opset}")
        node = ir.Node(
            "",
            op_type,
            inputs,
            [_attribute(name, value) for name, value in attributes.items()] if attributes else (),
            outputs=[ir.Value(name=self.names.short()) for _ in range(outputs)],
            name="",
        )
        self.nodes.append(node)
        return node.outputs

    def constant(self, array: np.ndarray, name: str = "") -> ir.Value:
        """An initializer with this content, shared with equal ones."""
        return self.tensor_constant(ir.Tensor(array), name)

    def tensor_constant(self, tensor: ir.TensorProtocol, name: str = "") -> ir.Value:
        """An initializer that holds the tensor; external tensors stay external."""
        return self._initializers.of(tensor, name)

    def scalar(self, number: float) -> ir.Value:
        """A constant of shape ``[]`` in the type of the arithmetic."""
        return self.constant(np.array(number, dtype=self.dtype.numpy()))

    def integers(self, *numbers: int) -> ir.Value:
        """A constant of shape ``[len(numbers)]`` and type int64."""
        return self._initializers.integers(numbers)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self.op("Cast", value, to=dtype.value)

    def reshape(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Reshape to the given sizes, of which one may be left to inference: that is decided here."""
        unknown = [dim for dim in dims if not isinstance(dim, int)]
        if len(unknown) == 1 and all(dim > 0 for dim in dims if isinstance(dim, int)):
            dims = [dim if isinstance(dim, int) else -1 for dim in dims]
        # Without it a size of 0 means "as the input's", which below opset 14 the callers have to live with.
        exact = {"allowzero": 1} if len(unknown) > 1 and self.opset >= 14 else {}
        return self.op("Reshape", value, self.size_vector(dims), since=5, **exact)

    def size_vector(self, dims: Sequence[Dim]) -> ir.Value:
        """An int64 value that holds the sizes, each of them exactly."""
        pieces: list[ir.Value] = []
        for known, group in itertools.groupby(dims, lambda dim: isinstance(dim, int)):
            if known:
                pieces.append(self.integers(*(dim for dim in group if isinstance(dim, int))))
            else:
                pieces.extend(dim for dim in group if isinstance(dim, ir.Value))
        return self.concat(pieces, 0)

    def dim(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of an axis at run time, int64 of shape ``[1]``."""
        return self.slice(self.op("Shape", value), [axis], [axis + 1], [0])

    def dim_arithmetic(self, op_type: str, dim: Dim, other: Dim) -> Dim:
        """``dim`` Add, Sub, Mul or Div ``other``; a number where both are."""
        if isinstance(dim, int) and isinstance(other, int):
            return {"Add": dim + other, "Sub": dim - other, "Mul": dim * other, "Div": dim // max(other, 1)}[
                op_type
            ]
        operands = [self.integers(size) if isinstance(size, int) else size for size in (dim, other)]
        return self.op(op_type, *operands)

    def slice(
        self, value: ir.Value, starts: Sequence[Dim], ends: Sequence[Dim], axes: Sequence[int]
    ) -> ir.Value:
        """``value[start:end]`` on each of the axes."""
        if self.opset < 10:
            if not all(isinstance(bound, int) for bound in (*starts, *ends)):
                raise OpsetError(f"Slice at run-time positions needs opset 10, not {self.opset}")
            first, last = ([bound for bound in bounds if isinstance(bound, int)] for bounds in (starts, ends))
            return self.op("Slice", value, starts=first, ends=last, axes=list(axes))
        return self.op("Slice", value, self.size_vector(starts), self.size_vector(ends), self.integers(*axes))

    def flip(self, value: ir.Value, axis: int) -> ir.Value:
        """Reverses an axis."""
        lowest = np.iinfo(np.int64).min
        return self.op(
            "Slice",
            value,
            self.integers(-1),
            self.integers(lowest),
            self.integers(axis),
            self.integers(-1),
            since=10,
        )

    def split(self, value: ir.Value, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
        """Splits an axis into parts of the given sizes."""
        if len(sizes) == 1:
            return [value]
        if value in self._conditions:
            pieces = np.split(self._conditions[value], np.cumsum(sizes[:-1]), axis)
            return [self.condition(piece) for piece in pieces]
        if not self.has("Split"):
            ends = np.cumsum(sizes).tolist()
            return [
                self.slice(value, [end - size], [end], [axis]) for end, size in zip(ends, sizes, strict=True)
            ]
        if len(set(sizes)) == 1:
            return self.split_evenly(value, len(sizes), axis, sizes[0])
        if self.opset < 13:
            return self.ops("Split", value, outputs=len(sizes), axis=axis, split=list(sizes))
        return self.ops("Split", value, self.integers(*sizes), outputs=len(sizes), axis=axis)

    def split_evenly(self, value: ir.Value, parts: int, axis: int, size: Dim) -> Sequence[ir.Value]:
        """Splits an axis into equal parts, each of the given size."""
        if parts == 1:
            return [value]
        if isinstance(size, int) and (value in self._conditions or not self.has("Split")):
            return self.split(value, [size] * parts, axis)
        if not self.has("Split"):
            bounds = [self.dim_arithmetic("Mul", size, part) for part in range(parts + 1)]
            return [self.slice(value, [a], [b], [axis]) for a, b in itertools.pairwise(bounds)]
        # The axis also where it is the default: OpenCV's dnn module takes 1 for it.
        if self.opset < 18:
            return self.ops("Split", value, outputs=parts, axis=axis)
        if isinstance(size, int):
            return self.ops("Split", value, outputs=parts, axis=axis, num_outputs=parts)
        # Split-18's num_outputs refuses an empty axis, explicit sizes do not.
        sizes = self.op("Expand", size, self.integers(parts))
        return self.ops("Split", value, sizes, outputs=parts, axis=axis)

    def concat(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def squeeze(self, value: ir.Value, axis: int, dims: Sequence[Dim]) -> ir.Value:
        """Removes an axis of size 1, which leaves the given sizes."""
        if not self.has("Squeeze"):
            return self.reshape(value, dims)
        if self.opset < 13:
            return self.op("Squeeze", value, axes=[axis])
        return self.op("Squeeze", value, self.integers(axis))

    def unsqueeze(self, value: ir.Value, axis: int, dims: Sequence[Dim]) -> ir.Value:
        """Adds an axis of size 1, which gives the given sizes."""
        if not self.has("Unsqueeze"):
            return self.reshape(value, dims)
        if self.opset < 13:
            return self.op("Unsqueeze", value, axes=[axis])
        return self.op("Unsqueeze", value, self.integers(axis))

    def transpose(self, value: ir.Value, perm: Sequence[int]) -> ir.Value:
        return self.op("Transpose", value, perm=list(perm))

    def gemm(self, a: ir.Value, b: ir.Value, c: ir.Value | None, *, transposed: bool = True) -> ir.Value:
        """``a @ b.T + c`` with a of shape ``[m, k]``, b ``[n, k]``, c ``[m, n]`` or ``[n]``.

        Not `transposed`: ``a @ b + c`` with b ``[k, n]``.
        """
        if not self._has_gemm(b):
            product = self.op("MatMul", a, self._transpose_once(b) if transposed else b)
            return product if c is None else self.op("Add", product, c)
        if c is None and self.opset < 11:
            c = self.scalar(0.0)
        operands = [a, b] if c is None else [a, b, c]
        product = self.op("Gemm", *operands, transB=1) if transposed else self.op("Gemm", *operands)
        # onnxruntime names what it fuses after the product, and searches long for a name that is not taken.
        self.nodes[-1].name = self.names.short()
        return product

    def _has_gemm(self, b: ir.Value) -> bool:
        wants_constant = self.dialect is not None and 1 in self.dialect.constant.get("Gemm", ())
        return self.has("Gemm") and (not wants_constant or _is_constant(b))

    def _transpose_once(self, value: ir.Value) -> ir.Value:
        """The transposed matrix; a constant's is a constant."""
        if value not in self._transposed:
            tensor = value.const_value if _is_constant(value) else None
            self._transposed[value] = (
                self.transpose(value, [1, 0])
                if tensor is None
                else self.constant(np.ascontiguousarray(tensor.numpy().T), name=value.name or "")
            )
        return self._transposed[value]

    def clip(self, value: ir.Value, low: float, high: float) -> ir.Value:
        has_both = self.has("Max") and self.has("Min")
        if not self.has("Clip") or (self.dtype == ir.DataType.DOUBLE and self.opset < 12 and has_both):
            # Clip-12 is the first with a float64 kernel in onnxruntime.
            above = self.op("Max", value, self.scalar(low), since=8)
            return self.op("Min", above, self.scalar(high), since=8)
        if self.opset < 11:
            return self.op("Clip", value, min=low, max=high)
        return self.op("Clip", value, self.scalar(low), self.scalar(high))

    @property
    def condition_type(self) -> ir.DataType:
        """The type of conditions: bool, or that of the arithmetic (0 and 1) where nothing works on bools."""
        has_bool = self.has("Where") and (self.has("Less") or self.has("Greater"))
        return ir.DataType.BOOL if has_bool else self.dtype

    def condition(self, array: np.ndarray) -> ir.Value:
        """A condition known beforehand."""
        value = self.constant(array.astype(self.condition_type.numpy()))
        self._conditions[value] = array.astype(bool)
        return value

    def less(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """``a < b`` of integers as a condition."""
        if self.condition_type == ir.DataType.BOOL:
            return self.op("Less", a, b, since=9)
        wide = self.with_dtype(ir.DataType.FLOAT)
        difference = wide.op("Sub", *(self.cast(value, wide.dtype) for value in (b, a)))
        condition = wide.clip(difference, 0.0, 1.0)
        return condition if self.dtype == wide.dtype else self.cast(condition, self.dtype)

    def is_never(self, condition: ir.Value) -> bool:
        """Whether a condition is known to be false everywhere."""
        return condition in self._conditions and not self._conditions[condition].any()

    def where(self, condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
        """Rows of one matrix where the condition holds and of the other where it does not."""
        known = self._conditions.get(condition)
        if known is not None and known.all():
            return then
        if known is not None and not known.any():
            return otherwise
        if self.condition_type == ir.DataType.BOOL:
            return self.op("Where", condition, then, otherwise, since=9)
        if known is not None:
            return self._rows_of(known[:, 0], then, otherwise)
        opposite = self.op("Sub", self.scalar(1.0), condition)
        return self.op("Add", self._times(then, condition), self._times(otherwise, opposite))

    def where_else_zero(self, condition: ir.Value, then: ir.Value) -> ir.Value:
        """The value where the condition holds, and 0 where it does not."""
        known = self._conditions.get(condition)
        if known is not None and known.all():
            return then
        if self.condition_type == ir.DataType.BOOL:
            return self.op("Where", condition, then, self.scalar(0.0), since=9)
        return self._times(then, condition)

    def _times(self, value: ir.Value, condition: ir.Value) -> ir.Value:
        assert self.dialect is not None
        self.notes[
            f"{self.dialect.name} has no Where, so values are multiplied by 0 and 1 instead: "
            "NaN or infinity past the end of a sequence reaches the results"
        ] = None
        return self.op("Mul", value, condition)

    def _rows_of(self, condition: np.ndarray, then: ir.Value, otherwise: ir.Value) -> ir.Value:
        """Row by row one matrix or the other, in as few slices as that takes."""
        bounds = [0, *(np.flatnonzero(np.diff(condition)) + 1).tolist(), len(condition)]
        pieces = [
            self.slice(then if condition[start] else otherwise, [start], [end], [0])
            for start, end in itertools.pairwise(bounds)
        ]
        return self.concat(pieces, 0)

    def arange(self, count: Dim) -> ir.Value:
        """``0, 1, ..., count - 1`` as int32 of shape ``[count]``."""
        if isinstance(count, int):
            return self.constant(np.arange(count, dtype=np.int32))
        if self.opset < 11:
            ones = self.op("ConstantOfShape", count, since=9, value=ir.Tensor(np.ones(1, np.int64)))
            numbers = self.squeeze(self.op("NonZero", ones, since=9), 0, [count])
            return self.cast(numbers, ir.DataType.INT32)
        scalars = [self.constant(np.array(bound, np.int64)) for bound in (0, 1)]
        numbers = self.op("Range", scalars[0], self.squeeze(count, 0, []), scalars[1])
        return self.cast(numbers, ir.DataType.INT32)

    def zeros(self, dims: Sequence[Dim]) -> ir.Value:
        """A tensor of zeros in the type of the arithmetic."""
        static = [dim for dim in dims if isinstance(dim, int)]
        if len(static) == len(dims):
            return self.constant(np.zeros(static, self.dtype.numpy()))
        zero = ir.Tensor(np.zeros(1, self.dtype.numpy()))
        return self.op("ConstantOfShape", self.size_vector(dims), since=9, value=zero)


def _attribute(name: str, value: AttributeValue) -> ir.Attr:
    """The attribute; onnx_ir's own conversion takes more time than all the rest of a node."""
    if isinstance(value, int):
        return ir.AttrInt64(name, value)
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if isinstance(value, ir.Graph):
        return ir.AttrGraph(name, value)
    if isinstance(value, list | tuple):
        return ir.AttrInt64s(name, value)
    assert isinstance(value, ir.TensorProtocol)
    return ir.AttrTensor(name, value)


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None
