"""Weights of a recurrent node, direction by direction and gate by gate.

A constant weight that only recurrent nodes read becomes new constants: rows of the stored tensor, without a
copy and, for external data, without reading it, unless a step wants them transposed or joined. Integers are
cut before their DequantizeLinear. Any other weight is cut by Slice and Squeeze,
so that a shared weight is not stored twice and a weight computed at run time works as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import constant_of
from rnnlower.graph.walk import qualified_op_type
from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.recurrent.operators import WEIGHT_INPUTS

_RANK = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a node.

    Attributes:
        private: The values that may be replaced by constants cut from them: initializers that nothing else
            reads.
        dtype: The type the weights are stored in.
    """

    private: Container[ir.Value]
    dtype: ir.DataType

    def of(self, e: Emitter, direction: int | None) -> DirectionWeights:
        """Return the weights of a direction, or of all for ``None``, as its steps need them."""
        return DirectionWeights(self.private, self.dtype, e, direction)

    def constant(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the content of a constant that may be cut."""
        return value.const_value if value in self.private else None

    def in_memory(self, *values: ir.Value) -> bool:
        """Return whether all weights are constants that may be cut and are not stored externally."""
        tensors = [self.constant(value) for value in values]
        return not any(tensor is None or isinstance(tensor, ir.ExternalTensor) for tensor in tensors)


@dataclasses.dataclass(frozen=True, eq=False)
class DirectionWeights(Weights):
    """The weights of a direction, or of all directions, cut into the pieces that the steps need.

    The pieces come in the type of the emitter's arithmetic.
    """

    e: Emitter
    direction: int | None

    def matrix(self, value: ir.Value, first: int, last: int) -> ir.Value:
        """Return rows of a W or R ``[num_directions, rows, columns]``: ``[last - first, columns]``."""
        made: ir.Value | None
        assert self.direction is not None
        if (tensor := self.constant(value)) is not None:
            rows = _slice_rows(tensor, self.direction, first, last)
            made = self.e.tensor_constant(rows, name=value.name or "")
        elif (made := _dequantized_rows(self.e, value, self.direction, first, last)) is None:
            made = self._sliced(value, self.direction, first, last, -1)
        return self._in_dtype(made)

    def matrices(self, value: ir.Value, first: int, last: int, dims: Sequence[int]) -> ir.Value:
        """Return the rows of all directions' W or R, in the given sizes."""
        tensor, e = self.constant(value), self.e
        if tensor is None:
            return e.reshape(self._in_dtype(e.slice(value, [first], [last], [1])), dims)
        rows = ir.Tensor(tensor.numpy()[:, first:last].reshape(dims), dtype=tensor.dtype)
        return self._in_dtype(e.tensor_constant(rows, name=value.name or ""))

    def transposed(self, value: ir.Value, first: int, last: int) -> ir.Value:
        """Return rows of an R `in_memory`, ``[hidden_size, last - first]``."""
        tensor = self.constant(value)
        assert tensor is not None
        rows = tensor.numpy() if self.direction is None else tensor.numpy()[self.direction]
        columns = np.ascontiguousarray(rows[..., first:last, :].swapaxes(-1, -2))
        return self._in_dtype(self.e.often_read(ir.Tensor(columns, dtype=tensor.dtype), "R"))

    def joined(self, W: ir.Value, R: ir.Value, first: int, last: int) -> ir.Value:
        """Return rows of ``[W R]``, both `in_memory`: ``[last - first, input_size + hidden_size]``."""
        tensors = [self.constant(value) for value in (W, R)]
        halves = [tensor.numpy()[self.direction, first:last] for tensor in tensors if tensor is not None]
        both = ir.Tensor(np.concatenate(halves, axis=1), dtype=self.dtype)
        return self._in_dtype(self.e.tensor_constant(both, name=R.name or ""))

    def vector(self, value: ir.Value, first: int, last: int, dims: Sequence[RuntimeDim]) -> ir.Value:
        """Return elements `first` to `last` of a P or B ``[num_directions, elements]``, in the given sizes.

        Those of all directions come one after the other.
        """
        array, e, direction = self._array(value), self.e, self.direction
        if array is not None:
            elements = array[:, first:last] if direction is None else array[direction, first:last]
            return e.constant(elements.reshape(dims), name=value.name or "")
        if direction is None:
            return e.reshape(self._in_dtype(e.slice(value, [first], [last], [1])), dims)
        vector = self._in_dtype(self._sliced(value, direction, first, last))
        return vector if len(dims) == 1 else e.reshape(vector, dims)

    def bias_sum(self, value: ir.Value, first: int, last: int, offset: int) -> ir.Value:
        """Return ``Wb + Rb`` as a vector, where Rb starts `offset` after Wb; see `vector`."""
        array, e, direction = self._array(value), self.e, self.direction
        if array is not None:
            wide = array if direction is None else array[[direction]]
            wide = wide.astype(np.promote_types(np.float32, e.dtype.numpy()))
            total = wide[:, first:last] + wide[:, offset + first : offset + last]
            return e.constant(total.astype(e.dtype.numpy()).reshape(-1), name=value.name or "")
        # A row is taken of the sum: where two Slices take the second row, QNN adds wrong numbers.
        halves = [e.slice(value, [shift + first], [shift + last], [1]) for shift in (0, offset)]
        both = e.op("Add", *map(self._in_dtype, halves))
        if direction is None:
            return e.reshape(both, [-1])
        return e.squeeze(e.slice(both, [direction], [direction + 1], [0]), 0, [last - first])

    def _array(self, value: ir.Value) -> np.ndarray | None:
        tensor = self.constant(value)
        return None if tensor is None else tensor.numpy().astype(self.e.dtype.numpy())

    def _sliced(self, value: ir.Value, direction: int, first: int, last: int, *columns: int) -> ir.Value:
        cut = self.e.slice(value, [direction, first], [direction + 1, last], [0, 1])
        return self.e.squeeze(cut, 0, [last - first, *columns])

    def _in_dtype(self, value: ir.Value) -> ir.Value:
        return value if self.dtype == self.e.dtype else self.e.cast(value, self.e.dtype)


def private_weights(nodes: Sequence[ir.Node]) -> set[ir.Value]:
    """Return the constant weights that only the given nodes read, and only as weights."""
    lowered = set(nodes)
    weights = {node.inputs[i] for node in nodes for i in WEIGHT_INPUTS if i < len(node.inputs)}
    return {
        value
        for value in weights
        if value is not None
        and value.is_initializer()
        and constant_of(value) is not None
        and not value.is_graph_output()
        and all(user in lowered and index in WEIGHT_INPUTS for user, index in value.uses())
    }


def compute_type_of(dtype: ir.DataType, wanted: ir.DataType | None = None) -> ir.DataType:
    """Return the type to compute in: the wanted one if it is wider. Few runtimes compute with bfloat16."""
    if dtype == ir.DataType.BFLOAT16:
        wanted = ir.DataType.FLOAT
    return dtype if wanted is None or wanted.itemsize <= dtype.itemsize else wanted


def _slice_rows(tensor: ir.TensorProtocol, direction: int, first: int, last: int) -> ir.TensorProtocol:
    _, rows, columns = tensor.shape.numpy()
    shape = ir.Shape([last - first, columns])
    if not isinstance(tensor, ir.ExternalTensor):
        return ir.Tensor(tensor.numpy()[direction, first:last], dtype=tensor.dtype, shape=shape)
    row_size = columns * tensor.dtype.itemsize
    return ir.ExternalTensor(
        tensor.location,
        (tensor.offset or 0) + int((direction * rows + first) * row_size),
        int((last - first) * row_size),
        tensor.dtype,
        shape=shape,
        name=tensor.name or "",
        base_dir=tensor.base_dir,
    )


def _dequantized_rows(e: Emitter, value: ir.Value, direction: int, first: int, last: int) -> ir.Value | None:
    """Emit rows of a W or R ``[num_directions, rows, columns]`` that nothing else reads as a matrix.

    Quantizers and NPUs then find a DequantizeLinear in front of each product, and the file does not grow.

    Before::

        W = DequantizeLinear<axis=1>(int8[1, 32, 4], scale[32])
        Y = LSTM(X, W, R)

    After, for one group of gates::

        w = DequantizeLinear<axis=0>(int8[24, 4], scale[24])
        product = Gemm<transB=1>(x, w)

    Returns ``None`` if the weight does not come from constant integers, or its scales cannot be cut by rows.
    """
    if not e.has("DequantizeLinear"):
        return None
    node, one_each = _read_once(value), False
    if node is not None and qualified_op_type(node) == "Concat" and node.attributes.get_int("axis", -1) == 0:
        if len(node.inputs) != 2:
            return None
        # A part of one direction is that of its place.
        node, direction, one_each = _read_once(node.inputs[direction]), 0, True
    if node is None or qualified_op_type(node) != "DequantizeLinear" or "output_dtype" in node.attributes:
        return None
    operands = [operand for operand in node.inputs if operand is not None]
    tensors = [constant_of(operand) for operand in operands]
    integers = tensors[0]
    if integers is None or None in tensors or len(integers.shape) != _RANK or len(operands[0].uses()) > 1:
        return None
    if direction >= (directions := integers.shape.numpy()[0]) or (one_each and directions > 1):
        return None
    arrays = [tensor.numpy() for tensor in tensors[1:] if tensor is not None]
    axis = node.attributes.get_int("axis", 1) % _RANK
    found = _slice_scales(arrays, axis, node.attributes.get_int("block_size", 0), direction, first, last)
    if found is None:
        return None
    scales, attributes = found
    rows = ir.Tensor(integers.numpy()[direction, first:last], dtype=integers.dtype)
    made = [e.tensor_constant(rows, name=operands[0].name or "")]
    made += [
        e.tensor_constant(ir.Tensor(array, dtype=tensor.dtype))
        for array, tensor in zip(scales, tensors[1:], strict=True)
        if tensor is not None
    ]
    return e.op("DequantizeLinear", *made, since=10, **attributes)


def _slice_scales(
    arrays: list[np.ndarray], axis: int, block_size: int, direction: int, first: int, last: int
) -> tuple[list[np.ndarray], dict[str, int]] | None:
    """Return scale and zero point of the rows `first` to `last` of a direction, and the attributes."""
    if all(array.size == 1 for array in arrays):
        return [array.reshape(()) for array in arrays], {}
    if arrays[0].ndim == 1 and axis == 0:
        return [array[direction] for array in arrays], {}
    if arrays[0].ndim == 1:
        rows = slice(first, last) if axis == 1 else slice(None)
        return [array[rows] for array in arrays], {"axis": axis - 1}
    if axis == 0 or not block_size or (axis == 1 and (first % block_size or last % block_size)):
        return None
    step = block_size if axis == 1 else 1
    rows = slice(first // step, last // step)
    return [array[direction, rows] for array in arrays], {"axis": axis - 1, "block_size": block_size}


def _read_once(value: ir.Value | None) -> ir.Node | None:
    """Return the producer of a value that has only one reader."""
    if value is None or len(value.uses()) > 1 or value.is_graph_output():
        return None
    return value.producer()
