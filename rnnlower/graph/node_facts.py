"""Types, shapes and contents of values, derived from a node and what is known of its inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import (
    FOLDABLE,
    Array,
    Dims,
    Shape,
    evaluate,
    max_output_bytes,
)
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR, constant_of
from rnnlower.graph.node_inference import infer_outputs, may_be_sizes
from rnnlower.graph.operator_kinds import VIEWS
from rnnlower.graph.symbols import (
    FLOAT_SIZE_TYPES,
    MAX_SIZES,
    SIZE_TYPES,
    UNKNOWN,
    compute_sizes,
    dim_name,
    infer_symbolic_shape,
    is_known,
)
from rnnlower.graph.walk import default_opset

_MAX_ELEMENTS = 1 << 26
"""Largest total size in bytes of a node's inputs and outputs at which it is evaluated."""
_KEEPS_ZEROS = VIEWS | {"Expand", "ReduceSum", "Slice", "Tile", "Transpose"}


class NodeFacts:
    """The facts about values, and their derivation for single nodes; `Facts` visits the nodes in order.

    Args:
        model, weights, declared, largest: As in `Facts`.
    """

    def __init__(
        self, model: ir.Model, *, weights: bool = False, declared: bool = False, largest: int = _MAX_ELEMENTS
    ) -> None:
        self.model, self._largest = model, largest
        self._weights, self._declared = weights, declared
        self.forget()

    def forget(self) -> None:
        """Forget everything: the model's inputs, its opset or the meaning of its values have changed."""
        self.opset = default_opset(self.model)
        self._imports: Mapping[str, int] = {"": self.opset, **self.model.opset_imports}
        self._unknown_sizes = 0
        self._visited: set[ir.Node] = set()
        self._contents: dict[ir.Value, Array] = {}
        self._sizes: dict[ir.Value, Array] = {}
        self._types: dict[ir.Value, ir.TypeProtocol] = {}
        self._dims: dict[ir.Value, Dims] = {}
        self.failures: dict[ir.Node, Exception] = {}

    def _ensure_visited(self, value: ir.Value) -> None:
        """Visit the nodes that determine the value."""
        raise NotImplementedError

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return the constant content of a value, or ``None`` if it is not known."""
        content = None if value is None else self._content(value)
        return content if content is None or isinstance(content, np.ndarray) else np.asarray(content.numpy())

    def _content(self, value: ir.Value) -> Array | ir.TensorProtocol | None:
        """Return the content of a value without reading a file that holds it."""
        self._ensure_visited(value)
        if value in self._contents:
            return self._contents[value]
        is_default = self._declared and self.model.ir_version < FREE_INITIALIZERS_IR
        tensor = value.const_value if is_default and value.is_initializer() else constant_of(value)
        if tensor is None or tensor.nbytes > self._largest or tensor.dtype == ir.DataType.STRING:
            return None
        return tensor

    def is_constant(self, value: ir.Value | None) -> bool:
        """Return whether a value always has the same content; no file that holds it is read."""
        return value is not None and (constant_of(value) is not None or self._content(value) is not None)

    def computed_constant(self, value: ir.Value) -> Array | None:
        """Return the content of a value that nodes compute from constants and static sizes."""
        self._ensure_visited(value)
        return self._contents.get(value)

    def dims(self, value: ir.Value | None) -> Dims | None:
        """Return the shape of a value, or ``None`` for an unknown rank.

        A size is a number, a symbol of the model or an expression of symbols, or a symbol of its own: two
        unknown sizes are equal where their symbols are.
        """
        if value is None:
            return None
        self._ensure_visited(value)
        if value not in self._dims:
            self._learn(value, None, None)
        return self._dims.get(value)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the shape of a value: ``None`` for a size that is not a number, or for an unknown rank."""
        dims = self.dims(value)
        if dims is None or any(isinstance(dim, int) and dim < 0 for dim in dims):
            return None
        return tuple(dim if isinstance(dim, int) else None for dim in dims)

    def sizes(self, value: ir.Value | None) -> Array | None:
        """Return the content of a value as sizes: numbers, symbols, and ``None`` for an unknown size."""
        if value is not None:
            self._ensure_visited(value)
        return self._sizes_in(value)

    def type(self, value: ir.Value | None) -> ir.TypeProtocol | None:
        """Return the type of a value: the declared one, or else the inferred one."""
        if value is None or value.type is not None:
            return None if value is None else value.type
        self._ensure_visited(value)
        return self._types.get(value)

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type of a tensor, or ``None`` if it is not known."""
        type_ = self.type(value)
        return type_.dtype if isinstance(type_, ir.TensorType) else None

    def is_zero(self, value: ir.Value | None) -> bool:
        """Return whether a value consists of zeros, however large it is."""
        while value is not None:
            constant, producer = self.constant(value), value.producer()
            if constant is not None:
                return not constant.any()
            if producer is None or producer.domain:
                return False
            if producer.op_type == "ConstantOfShape":
                fill = producer.attributes.get("value")
                return fill is None or not fill.as_tensor().numpy().any()
            if producer.op_type not in _KEEPS_ZEROS:
                return False
            value = producer.inputs[0]
        return False

    def transfer(self, old: ir.Value, new: ir.Value) -> None:
        """Copy what is known about a value to the one that replaces it."""
        self._learn(new, self.type(old), self.dims(old))
        if (content := self.constant(old)) is not None:
            self._contents[new] = content
        elif (sizes := self._sizes.get(old)) is not None:
            self._sizes[new] = sizes

    def assume(self, value: ir.Value, dims: Dims, dtype: ir.DataType | None = None) -> None:
        """Set the shape, and the type if given, which the caller knows by other means."""
        self._dims[value] = dims
        if value in self._contents and self._contents[value].shape != dims:
            del self._contents[value]
        if dtype is not None:
            self._types[value] = ir.TensorType(dtype)
        if (node := value.producer()) is not None:
            self._visited.add(node)

    def _evaluate(self, node: ir.Node) -> bool:
        """Compute a node whose inputs are constants, or of which only the shape or the type matters."""
        is_weight = self._weights and node.op_type == "DequantizeLinear"
        if node.domain or not (is_weight or node.op_type in FOLDABLE):
            return False
        if node.op_type in ("Shape", "Size"):
            shape = self.shape(node.inputs[0])
            arrays: list[Array | None] = [None]
            if shape is not None and None not in shape:
                # An array that takes no memory stands for the shape.
                arrays = [np.broadcast_to(np.int8(0), shape)]  # type: ignore[arg-type]
        elif node.op_type == "CastLike":
            dtype = self.dtype(node.inputs[1])
            arrays = [self.constant(node.inputs[0]), None if dtype is None else np.zeros((), dtype.numpy())]
        elif any(value is not None and self._content(value) is None for value in node.inputs):
            return False
        else:
            arrays = [self.constant(value) for value in node.inputs]
        for value, array in zip(node.inputs, arrays, strict=True):
            if value is not None and array is None:
                return False
        if max_output_bytes(node, arrays) > self._largest:
            return False
        outputs = evaluate(node, arrays, self._imports[""], self.failures, all_types=self._weights)
        if outputs is None or sum(array.nbytes for array in outputs) > self._largest:
            return False
        self._learn_contents(dict(zip(node.outputs, outputs, strict=True)))
        return True

    def _learn_contents(self, contents: Mapping[ir.Value, Array]) -> None:
        for value, array in contents.items():
            self._contents[value] = array
            self._learn(value, ir.TensorType(ir.DataType.from_numpy(array.dtype)), array.shape)

    def _infer(self, node: ir.Node) -> None:
        dims = [self.dims(value) for value in node.inputs]
        types = [self.type(value) for value in node.inputs]
        contents = [self._sizes_for_inference(value) for value in node.inputs]
        found = infer_outputs(node, types, dims, contents, self._imports, self.model.ir_version)
        for value, (type_, inferred) in zip(node.outputs, found, strict=True):
            self._learn(value, type_, inferred)
        sizes = [self._sizes_in(value) for value in node.inputs]
        first = dims[0] if dims else None
        if (shape := infer_symbolic_shape(node, sizes, dims)) is not None:
            for value in node.outputs if node.op_type == "Split" else node.outputs[:1]:
                self._learn(value, None, shape)
        out = node.outputs[0]
        dtype = self.dtype(out)
        made = compute_sizes(node, sizes, first, dtype, self._imports[""])
        if made is not None and made.size <= MAX_SIZES:
            self._sizes[out] = made
            if dtype is not None and all(isinstance(size, int) for size in made.flat):
                self._contents[out] = made.astype(dtype.numpy())

    def _sizes_for_inference(self, value: ir.Value | None) -> Array | None:
        content = None if value is None else self._content(value)
        return self.constant(value) if content is not None and may_be_sizes(content) else None

    def _sizes_in(self, value: ir.Value | None) -> Array | None:
        """Return the content of a value as sizes, if it may be one."""
        shape = self.shape(value)
        if value in self._sizes:
            return self._sizes[value]
        dtype = self.dtype(value)
        if shape is None or len(shape) > 1 or None in shape or shape > (MAX_SIZES,):
            return None
        if dtype in FLOAT_SIZE_TYPES and shape in ((), (1,)):
            number = self.constant(value)
            is_exact = number is not None and abs(number.item()) < 1 << 24 and number.item().is_integer()
            return number.astype(np.int64).astype(object) if number is not None and is_exact else None
        if dtype not in SIZE_TYPES:
            return None
        content = self.constant(value)
        return np.full(shape, None) if content is None else content.astype(object)  # type: ignore[arg-type]

    def _learn(self, value: ir.Value, type_: ir.TypeProtocol | None, dims: Dims | None) -> None:
        if type_ is not None:
            self._types[value] = type_
        if value.shape is not None and (self._declared or (dims is None and value.producer() is None)):
            # Some exporters declare -1 for an unknown size.
            said = [
                dim if dim_name(dim) or (isinstance(dim, int) and dim >= 0) else None for dim in value.shape
            ]
            if dims is None or len(dims) == len(said):
                pairs = zip(dims or said, said, strict=True)
                dims = tuple(b if b is not None and not is_known(a) else a for a, b in pairs)
        if dims is not None:
            self._dims[value] = tuple(self._unknown_size() if dim is None else dim for dim in dims)

    def _unknown_size(self) -> ir.SymbolicDim:
        self._unknown_sizes += 1
        return ir.SymbolicDim(f"{UNKNOWN}{self._unknown_sizes}")

    def _forget(self, value: ir.Value) -> None:
        for known in (self._contents, self._sizes, self._types, self._dims):
            known.pop(value, None)
