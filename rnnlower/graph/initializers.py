"""Constants: a test for them, and a pool of new ones in the main graph, which subgraphs can read."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable

import numpy as np
import onnx_ir as ir

from rnnlower.errors import InvalidModelError
from rnnlower.graph.names import NameSource
from rnnlower.graph.walk import subgraphs_of

_TRAINED = "rnnlower.trained"
"""Key in the `meta` of the initializers that the model's training reads or sets."""


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor that a value always holds.

    ``None`` for a computed value, a graph input (a caller may override its default), and a value that the
    model's training updates.

    Raises:
        InvalidModelError: A Constant has none of the attributes that hold a value.
    """
    if value is None or value.is_graph_input() or is_trained(value):
        return None
    try:
        return ir.convenience.get_const_tensor(value)
    except ValueError as error:
        raise InvalidModelError(
            f"the Constant node that makes {value.name!r} has none of the value attributes of ONNX",
            remedy="give it a tensor as the attribute value",
        ) from error


FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})
"""The types that Constant-1 holds; below opset 9, tensors of others are initializers."""


def constant_holds(dtype: ir.DataType, opset: int) -> bool:
    """Return whether a Constant node may hold a tensor of this type."""
    return opset >= 9 or dtype in FLOATS


def mark_trained(value: ir.Value) -> None:
    """Mark an initializer that training reads or sets: it must stay, and is not a constant."""
    value.meta[_TRAINED] = True


def is_trained(value: ir.Value) -> bool:
    """Return whether the model's training reads or sets the initializer."""
    return _TRAINED in value.meta


FREE_INITIALIZERS_IR = 4
"""The first IR version in which an initializer need not be a graph input; an input with one has a default."""

_FEW = 4


class InitializerPool:
    """New initializers of a model's main graph, shared between equal contents."""

    def __init__(self, model: ir.Model, names: NameSource) -> None:
        self._graph = model.graph
        self._names = names
        self._values: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
        self._integers: dict[tuple[int, ...], ir.Value] = {}

    def intern(self, tensor: ir.TensorProtocol, name: str = "", *, short: bool = False) -> ir.Value:
        """Return an initializer that holds the tensor, named like `name`; external tensors stay external.

        With `short`, the name consists of letters only, and begins with `name` if that is free.
        """
        key = self._key(tensor)
        if key not in self._values:
            fresh = (
                self._names.short_name(name) if short else self._names.fresh(name or _constant_name(tensor))
            )
            self._values[key] = new_initializer(self._graph, fresh, tensor)
        return self._kept(self._values[key])

    def _kept(self, value: ir.Value) -> ir.Value:
        """Return an initializer; one whose readers were all removed is in the graph again."""
        if value.graph is None:
            self._graph.register_initializer(value)
        return value

    def holds(self, tensor: ir.TensorProtocol) -> bool:
        """Return whether an initializer with the content of this tensor was made already."""
        return self._key(tensor) in self._values

    def integers(self, numbers: tuple[int, ...], letter: str = "") -> ir.Value:
        """Return an int64 vector; with a letter, it gets a short name, as thousands of nodes may read it."""
        if numbers not in self._integers:
            tensor = ir.Tensor(np.array(numbers, dtype=np.int64))
            self._integers[numbers] = self.intern(tensor, letter, short=bool(letter))
        return self._kept(self._integers[numbers])

    def _key(self, tensor: ir.TensorProtocol) -> tuple[ir.DataType, tuple[int, ...], bytes]:
        return tensor.dtype, tuple(tensor.shape.numpy()), self._content(tensor)

    def _content(self, tensor: ir.TensorProtocol) -> bytes:
        """Return a key that is equal for tensors of the same content."""
        if isinstance(tensor, ir.ExternalTensor):
            return f"{tensor.path}:{tensor.offset}:{tensor.length}".encode()
        return hashlib.sha256(tensor.tobytes()).digest()

    def values(self) -> Collection[ir.Value]:
        """Return all initializers that were made."""
        return self._values.values()


class ScratchPool(InitializerPool):
    """A pool outside of any model, for trial emission; large tensors are not compared."""

    def __init__(self, names: NameSource) -> None:
        super().__init__(ir.Model(ir.Graph([], [], nodes=[]), ir_version=8), names)

    def _content(self, tensor: ir.TensorProtocol) -> bytes:
        return super()._content(tensor) if tensor.size <= _FEW else str(len(self.values())).encode()


def new_initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Add an initializer of this name to a graph; its tensor is the given one `with_name`."""
    value = ir.Value(
        name=name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=with_name(tensor, name),
    )
    graph.register_initializer(value)
    return value


def with_name(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return a tensor of this name with the same content.

    What has a name already is left as it is: a copy of the model, or the proto that it came from, may hold
    the same tensor, and is written with the tensor's name.
    """
    if not tensor.name:
        tensor.name = name
        return tensor
    return copy_with_name(tensor, name)


def copy_with_name(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return another tensor with the same content; an external one stays external."""
    if isinstance(tensor, ir.ExternalTensor):
        twin = copy.copy(tensor)
        twin.name = name
        return twin
    if isinstance(tensor, ir.StringTensor) or tensor.dtype.is_string():
        return ir.StringTensor(tensor.numpy(), shape=ir.Shape(tensor.shape.numpy()), name=name)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def sink_initializers(graph: ir.Graph, initializers: Iterable[ir.Value], least_depth: int = 2) -> None:
    """Move initializers of the main graph into the one body that reads them, at this depth or below.

    onnxruntime packs the constant weights of a product only where they lie in the graph of the product or in
    the graph around it. A Scan in a branch of an If is one level too deep.
    """
    depths = dict(_bodies_with_depth(graph))
    for value in initializers:
        readers = {node.graph for node, _ in value.uses()}
        if len(readers) != 1 or value.is_graph_output() or value.graph is not graph:
            continue
        (reader,) = readers
        if isinstance(reader, ir.Graph) and depths.get(reader, 0) >= least_depth:
            graph.initializers.pop(str(value.name))
            reader.register_initializer(value)


def _bodies_with_depth(graph: ir.Graph, depth: int = 1) -> Iterable[tuple[ir.Graph, int]]:
    """Return the bodies in a graph, each with the number of graphs around it."""
    for node in graph:
        for body in subgraphs_of(node):
            yield body, depth
            yield from _bodies_with_depth(body, depth + 1)


def _constant_name(tensor: ir.TensorProtocol) -> str:
    """Return a name for a constant that does not derive from the model: a few numbers are spelled out."""
    if tensor.dtype.is_string() or tensor.size > _FEW:
        return "constant"
    return "_".join(["c", *(f"{number:g}" for number in tensor.numpy().astype(np.float64).flat)])
