"""The emitter of primitive operators, in the form that the model's opset and the target require.

An `Emitter` writes into one graph. Its methods take the operators' newest signature; each picks the form of
the opset (attributes or inputs) and raises if the opset has none: the lowering is
then emitted again at the opset that the error names. If a `Dialect` lacks an
operator, a method that has an alternative form uses that; `FALLBACKS` replaces single operators.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.initializers import InitializerPool, constant_of
from rnnlower.graph.names import NameSource, Scope, all_names
from rnnlower.graph.rewiring import detach
from rnnlower.graph.walk import default_opset, display_name
from rnnlower.lowering.dialect import ANY, Dialect
from rnnlower.lowering.fallbacks import FALLBACKS, Fallback
from rnnlower.lowering.node_emitter import AttributeValue, Listener, NodeEmitter

FAN_OUT = 128
"""Maximum fan-out of a Split and fan-in of a Concat: runtimes take quadratic time for wider ones."""

_FEW_PARTS = 4
_BFLOAT16 = 13
"""The first opset with the type."""

RuntimeDim = int | ir.Value
"""A size: a number, or an int64 value of shape ``[1]`` if it is only known at run time."""


def _accepts(
    form: Fallback, e: Emitter, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
) -> bool:
    """Return whether a fallback accepts all inputs and attributes of a node."""
    try:
        inspect.signature(form).bind(e, *inputs, **attributes)
    except TypeError:
        return False
    return True


class Emitter(NodeEmitter):
    """An emitter of operators in the form that the opset and the dialect require."""

    def op(
        self, op_type: str, *inputs: ir.Value | None, since: int = 1, **attributes: AttributeValue
    ) -> ir.Value:
        """Emit a node with one output, or its fallback if the dialect lacks the operator.

        Raises:
            OpsetError: The operator does not exist at this opset.
            MissingOperatorError: Neither the operator nor a fallback may be emitted.
        """
        if self.has(op_type) or op_type not in FALLBACKS:
            try:
                return self.ops(op_type, *inputs, outputs=1, since=since, **attributes)[0]
            except MissingOperatorError:
                if op_type not in FALLBACKS:
                    raise
        return self.express(op_type, inputs, attributes)[0]

    def express(
        self, name: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
    ) -> Sequence[ir.Value]:
        """Emit the first form of `FALLBACKS` that takes all inputs and attributes and may be emitted.

        Raises:
            MissingOperatorError: There is none.
        """
        error = self.missing(name)
        # Some operators are each other's fallback.
        for form in () if name in self._expressing else FALLBACKS[name]:
            if not _accepts(form, self, inputs, attributes):
                continue
            marks = len(self.nodes), len(self.everything)
            self._expressing.append(name)
            try:
                made = form(self, *inputs, **attributes)
                if made is not None:
                    return [made] if isinstance(made, ir.Value) else made
            except MissingOperatorError as lacking:
                error = self.missing(name) if lacking.op_type in self._expressing else lacking.needed_by(name)
            finally:
                self._expressing.pop()
            self._drop(*marks)
        raise error

    def _drop(self, first: int, first_of_all: int) -> None:
        """Remove the nodes of a form that could not be completed."""
        detach(self.nodes[first:])
        dropped = {out for node in self.nodes[first:] for out in node.outputs}
        for key in [key for key, value in self._transposed.items() if value in dropped]:
            del self._transposed[key]
        del self.nodes[first:], self.everything[first_of_all:]

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self.op("Cast", value, since=_BFLOAT16 if dtype == ir.DataType.BFLOAT16 else 6, to=dtype.value)

    def reshape(self, value: ir.Value, dims: Sequence[RuntimeDim]) -> ir.Value:
        """Emit a Reshape to the given sizes; if only one is dynamic, it becomes -1."""
        unknown = [dim for dim in dims if not isinstance(dim, int)]
        if len(unknown) == 1 and all(dim > 0 for dim in dims if isinstance(dim, int)):
            dims = [dim if isinstance(dim, int) else -1 for dim in dims]
        # Without allowzero, a size of 0 means "as the input's", which callers below opset 14 have to accept.
        exact = {"allowzero": 1} if len(unknown) > 1 and self.opset >= 14 else {}
        return self.op("Reshape", value, self.size_vector(dims), since=5, **exact)

    def size_vector(self, dims: Sequence[RuntimeDim]) -> ir.Value:
        """Emit an int64 vector of the sizes, each of them exact."""
        pieces: list[ir.Value] = []
        for known, group in itertools.groupby(dims, lambda dim: isinstance(dim, int)):
            if known:
                pieces.append(self.integers(*(dim for dim in group if isinstance(dim, int))))
            else:
                pieces.extend(dim for dim in group if isinstance(dim, ir.Value))
        return self.concat(pieces, 0)

    def dim(self, value: ir.Value, axis: int) -> ir.Value:
        """Emit the size of an axis at run time, int64 of shape ``[1]``."""
        return self.slice(self.op("Shape", value), [axis], [axis + 1], [0])

    def dim_arithmetic(self, op_type: str, dim: RuntimeDim, other: RuntimeDim) -> RuntimeDim:
        """Return ``dim`` Add, Sub, Mul or Div ``other``; it is a number if both operands are."""
        if isinstance(dim, int) and isinstance(other, int):
            return {"Add": dim + other, "Sub": dim - other, "Mul": dim * other, "Div": dim // max(other, 1)}[
                op_type
            ]
        operands = [self.integers(size) if isinstance(size, int) else size for size in (dim, other)]
        return self.with_dtype(ir.DataType.INT64).op(op_type, *operands)

    def slice(
        self, value: ir.Value, starts: Sequence[RuntimeDim], ends: Sequence[RuntimeDim], axes: Sequence[int]
    ) -> ir.Value:
        """Emit ``value[start:end]`` on each of the axes."""
        if self.opset < 10:
            if not all(isinstance(bound, int) for bound in (*starts, *ends)):
                raise OpsetError(
                    f"Slice at run-time positions needs opset 10, not {self.opset}",
                    opset=10,
                    operator="Slice",
                )
            first, last = ([bound for bound in bounds if isinstance(bound, int)] for bounds in (starts, ends))
            return self.op("Slice", value, starts=first, ends=last, axes=list(axes))
        return self.op("Slice", value, self.size_vector(starts), self.size_vector(ends), self.integers(*axes))

    def flip(self, value: ir.Value, axis: int) -> ir.Value:
        """Emit ops that reverse an axis."""
        start, end, step = -1, np.iinfo(np.int64).min, -1
        return self.op("Slice", value, *map(self.integers, (start, end, axis, step)), since=10)

    def split(self, value: ir.Value, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
        """Emit a Split of an axis into parts of the given sizes."""
        if len(sizes) < 2:
            return [value] * len(sizes)
        if not self._can_split(len(sizes)):
            bounds = [0, *itertools.accumulate(sizes)]
            return [self.slice(value, [a], [b], [axis]) for a, b in itertools.pairwise(bounds)]
        if len(set(sizes)) == 1:
            return self.split_evenly(value, len(sizes), axis, sizes[0])
        return self._split_by(value, sizes, axis)

    def _can_split(self, parts: int) -> bool:
        return self.has("Split") and parts <= (self.dialect.split_outputs or parts)

    def _split_by(self, value: ir.Value, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
        if self.opset < 13:
            return self.ops("Split", value, outputs=len(sizes), axis=axis, split=list(sizes))
        often_read = self.initializers.integers(tuple(sizes), "s")
        return self.ops("Split", value, often_read, outputs=len(sizes), axis=axis)

    def split_evenly(self, value: ir.Value, parts: int, axis: int, size: RuntimeDim) -> Sequence[ir.Value]:
        """Emit a Split of an axis into equal parts of the given size."""
        if parts == 1:
            return [value]
        if not self._can_split(parts):
            bounds = [self.dim_arithmetic("Mul", size, part) for part in range(parts + 1)]
            return [self.slice(value, [a], [b], [axis]) for a, b in itertools.pairwise(bounds)]
        # The axis is written even if it is the default: OpenCV's dnn module takes 1 as the default.
        if self.opset < 18:
            return self.ops("Split", value, outputs=parts, axis=axis)
        if isinstance(size, int) and parts <= _FEW_PARTS:
            # Shorter than num_outputs, which every step of a straight line would repeat.
            return self._split_by(value, [size] * parts, axis)
        if isinstance(size, int):
            return self.ops("Split", value, outputs=parts, axis=axis, num_outputs=parts)
        # num_outputs of Split-18 refuses an empty axis, explicit sizes do not.
        sizes = self.op("Expand", size, self.integers(parts))
        return self.ops("Split", value, sizes, outputs=parts, axis=axis)

    def concat(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def concat_tree(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        """Emit a tree of Concats."""
        while len(values) > 1:
            values = [self.concat(values[i : i + FAN_OUT], axis) for i in range(0, len(values), FAN_OUT)]
        return values[0]

    def unstack(self, value: ir.Value, count: int, axis: int) -> list[ir.Value]:
        """Emit the slices of a value along an axis of a known size, without the axis."""
        return [self.with_axes("Squeeze", part, [axis]) for part in self.split(value, [1] * count, axis)]

    def stack(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        """Emit the values along a new axis."""
        return self.concat_tree([self.with_axes("Unsqueeze", value, [axis]) for value in values], axis)

    def squeeze(self, value: ir.Value, axis: int, dims: Sequence[RuntimeDim]) -> ir.Value:
        """Emit ops that remove an axis of size 1 and leave the given sizes."""
        if not self.has("Squeeze"):
            return self.reshape(value, dims)
        return self.with_axes("Squeeze", value, [axis])

    def unsqueeze(self, value: ir.Value, axis: int, dims: Sequence[RuntimeDim]) -> ir.Value:
        """Emit ops that add an axis of size 1, with the given sizes as the result."""
        if not self.has("Unsqueeze"):
            return self.reshape(value, dims)
        return self.with_axes("Unsqueeze", value, [axis])

    def with_axes(
        self, op_type: str, value: ir.Value, axes: Sequence[int], since: int = 13, **attributes: Any
    ) -> ir.Value:
        """Emit an operator whose axes are an input since an opset, and an attribute before."""
        if self.opset < since:
            return self.op(op_type, value, axes=list(axes), **attributes)
        return self.op(op_type, value, self.integers(*axes), **attributes)

    def transpose(self, value: ir.Value, perm: Sequence[int]) -> ir.Value:
        return self.op("Transpose", value, perm=list(perm))

    def gemm(
        self,
        a: ir.Value,
        b: ir.Value,
        c: ir.Value | None,
        *,
        transposed: bool = True,
        role: str = "",
        direction: str = "",
    ) -> ir.Value:
        """Emit ``a @ b.T + c`` with a of shape ``[m, k]``, b ``[n, k]``, c ``[m, n]`` or ``[n]``.

        Without `transposed`: ``a @ b + c`` with b ``[k, n]``. A listener is told the operands and the product
        under the role of a, which no Gemm would leave apart from the sum.
        """
        if self.listener is not None:
            factor = self.announce(self.transpose_once(b) if transposed else b, f"{role} weight", direction)
            product = self.op("MatMul", self.announce(a, f"{role} factor", direction), factor)
            product = self.announce(product, f"{role} product", direction)
            if c is None:
                return product
            return self.op("Add", product, self.announce(c, f"{role} addend", direction))
        if not self._gemm_takes(1, b):
            product = self.op("MatMul", a, self.transpose_once(b) if transposed else b)
            return product if c is None else self.op("Add", product, c)
        if c is not None and not self._gemm_takes(2, c):
            return self.op("Add", self.gemm(a, b, None, transposed=transposed), c)
        if c is None and self.opset < 11:
            c = self.scalar(0.0)
        operands = [a, b] if c is None else [a, b, c]
        return self.op("Gemm", *operands, transB=1) if transposed else self.op("Gemm", *operands)

    def _gemm_takes(self, index: int, value: ir.Value) -> bool:
        """Return whether there is a Gemm that takes the value as this input."""
        is_constant = constant_of(value) is not None
        return self.has("Gemm") and (is_constant or not self.dialect.needs_constant("Gemm", index))

    def transpose_once(self, value: ir.Value) -> ir.Value:
        """Return the transposed matrix, emitted once; that of a constant is a constant."""
        if value not in self._transposed:
            tensor = constant_of(value)
            self._transposed[value] = (
                self.transpose(value, [1, 0])
                if tensor is None
                else self.constant(np.ascontiguousarray(tensor.numpy().T), name=value.name or "")
            )
        return self._transposed[value]

    def clip(self, value: ir.Value, low: float, high: float) -> ir.Value:
        if self.dtype == ir.DataType.DOUBLE and self.opset < 12 and self.has("Max") and self.has("Min"):
            # Clip-12 is the first version with a float64 kernel in onnxruntime.
            return self.express("Clip", [value, self.scalar(low), self.scalar(high)], {})[0]
        if self.opset < 11:
            return self.op("Clip", value, min=low, max=high)
        return self.op("Clip", value, self.scalar(low), self.scalar(high))

    def arange(self, count: RuntimeDim) -> ir.Value:
        """Emit ``0, 1, ..., count - 1`` as int32 of shape ``[count]``.

        Raises:
            OpsetError: The dialect is not `ANY`, and the opset is below 11: compilers do not know that the
                output of NonZero has the size ``count``.
        """
        if isinstance(count, int):
            return self.constant(np.arange(count, dtype=np.int32))
        if self.opset < 11 and self.dialect is ANY:
            ones = self.op("ConstantOfShape", count, since=9, value=ir.Tensor(np.ones(1, np.int64)))
            numbers = self.squeeze(self.op("NonZero", ones, since=9), 0, [count])
            return self.cast(numbers, ir.DataType.INT32)
        scalars = [self.constant(np.array(bound, np.int64)) for bound in (0, 1)]
        numbers = self.op("Range", scalars[0], self.squeeze(count, 0, []), scalars[1], since=11)
        return self.cast(numbers, ir.DataType.INT32)

    def zeros(self, dims: Sequence[RuntimeDim]) -> ir.Value:
        """Emit a tensor of zeros in the compute type."""
        static = [dim for dim in dims if isinstance(dim, int)]
        if len(static) == len(dims):
            return self.constant(np.zeros(static, self.dtype.numpy()))
        zero = ir.Tensor(np.zeros(1, self.dtype.numpy()))
        return self.op("ConstantOfShape", self.size_vector(dims), since=9, value=zero)


class Emitters:
    """The emitters of what replaces nodes of a model, which share its names and its new constants.

    Args:
        dialect: The operators that may be emitted.
        names: Source of fresh names, by default a new one.
        namespaces: Whether the nodes carry the metadata by which viewers fold them.
    """

    def __init__(
        self,
        model: ir.Model,
        dialect: Dialect = ANY,
        names: NameSource | None = None,
        *,
        namespaces: bool = False,
    ) -> None:
        self._opset, self._dialect, self._namespaces = default_opset(model), dialect, namespaces
        self.names = names or NameSource(all_names(model))
        self.constants = InitializerPool(model, self.names)

    def at(self, name: str, dtype: ir.DataType, listener: Listener | None = None, outer: str = "") -> Emitter:
        """Return an emitter with a compute type, whose values are named after a node.

        Args:
            listener: Told the role of the values of a step.
            outer: The namespace of the node itself, as its exporter wrote it.
        """
        scope = Scope(self.names, f"{name}/")
        namespace = (outer or name.strip("/")) if self._namespaces else ""
        return Emitter(self._opset, scope, dtype, self.constants, self._dialect, listener, namespace)

    @contextlib.contextmanager
    def before(self, node: ir.Node) -> Iterator[Emitter]:
        """Yield an emitter of what moves data; its nodes are then inserted before a node."""
        e = self.at(display_name(node), ir.DataType.FLOAT)
        yield e
        e.insert_before(node)
