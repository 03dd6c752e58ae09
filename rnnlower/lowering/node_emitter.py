"""The basis of the `Emitter`: nodes, constants and names of one graph."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.evaluation import Shape
from rnnlower.graph.initializers import InitializerPool, constant_of
from rnnlower.graph.names import Scope
from rnnlower.lowering.dialect import ANY, Dialect

if TYPE_CHECKING:
    from typing_extensions import Self

Listener = Callable[["NodeEmitter", ir.Value, str, str], ir.Value]
"""``(emitter, value, role, direction) -> the value to be read instead``; may emit nodes."""

AttributeValue = int | float | str | list[int] | tuple[int, ...] | ir.Graph | ir.TensorProtocol


@dataclasses.dataclass(eq=False)
class NodeEmitter:
    """A builder of nodes, appended to a list that the caller inserts into a graph.

    Attributes:
        opset: Version of the default domain to emit for.
        dtype: The floating-point compute type.
        dialect: The operators that may be emitted.
        listener: Called with the role of each value in a step, which it may replace.
        namespace: The box in which viewers fold the nodes; empty for nodes without this metadata.
        everything: The emitted nodes, including those in bodies.
        notes: Messages to the user about the chosen forms.
    """

    opset: int
    names: Scope
    dtype: ir.DataType
    initializers: InitializerPool
    dialect: Dialect = ANY
    listener: Listener | None = None
    namespace: str = ""
    nodes: list[ir.Node] = dataclasses.field(init=False, default_factory=list)
    everything: list[ir.Node] = dataclasses.field(init=False, default_factory=list)
    notes: dict[str, None] = dataclasses.field(init=False, default_factory=dict)
    _transposed: dict[ir.Value, ir.Value] = dataclasses.field(init=False, default_factory=dict)
    _expressing: list[str] = dataclasses.field(init=False, default_factory=list)

    def body(self, name: str) -> Self:
        """Return an emitter for a subgraph of this name, which can use this emitter's values."""
        names = Scope(self.names.source, f"{self.names.prefix}{name}/")
        inner = self.namespace and f"{self.namespace}/{name}"
        other = dataclasses.replace(self, names=names, namespace=inner)
        other.notes, other.everything = self.notes, self.everything
        other._transposed = dict(self._transposed)
        return other

    def announce(self, value: ir.Value, role: str, direction: str = "") -> ir.Value:
        """Tell the listener the role of a value; return the value to be read instead."""
        return value if self.listener is None else self.listener(self, value, role, direction)

    def with_dtype(self, dtype: ir.DataType) -> Self:
        """Return an emitter into the same place with another compute type."""
        other = copy.copy(self)
        other.dtype = dtype
        return other

    def has(self, op_type: str) -> bool:
        """Return whether the operator may be emitted for the compute type."""
        return self.dialect.has(op_type, self.dtype)

    def missing(self, op_type: str) -> MissingOperatorError:
        """Return the error that the operator may not be emitted."""
        return MissingOperatorError(op_type, self.dialect.name)

    def type_of(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type of a value, if it is known."""
        return None if value is None else value.dtype

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the sizes of a value, ``None`` for an unknown one; ``None`` if its rank is unknown."""
        if value is None or value.shape is None:
            return None
        return tuple(dim if isinstance(dim, int) else None for dim in value.shape)

    def covers(self, lengths: ir.Value, tensor: ir.Value, axis: int) -> bool:
        """Return whether the lengths of all rows are known to be the size of an axis."""
        known, shape = self.content(lengths), self.shape(tensor)
        return known is not None and shape is not None and bool((known == shape[axis]).all())

    def content(self, value: ir.Value | None) -> np.ndarray | None:
        """Return the content of a constant, or ``None`` if the value is not one."""
        tensor = constant_of(value)
        return None if tensor is None else tensor.numpy()

    def result_shape(
        self, op_type: str, *inputs: ir.Value | None, **attributes: AttributeValue
    ) -> Shape | None:
        """Return the sizes of what an operator computes from these inputs, as `shape` does."""
        return None

    def ops(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        outputs: int,
        since: int = 1,
        **attributes: AttributeValue,
    ) -> Sequence[ir.Value]:
        """Emit a node with several outputs.

        Raises:
            OpsetError: The operator does not exist at this opset.
            MissingOperatorError: The operator may not be emitted.
        """
        if not self.dialect.has(op_type):
            raise self.missing(op_type)
        if self.opset < since:
            raise OpsetError(
                f"{op_type} needs opset {since}, but the result is to have opset {self.opset}",
                opset=since,
                operator=op_type,
            )
        roles = [self.names.result_name(op_type) for _ in range(outputs)]
        names = [self.names.fresh(role) for role in roles]
        node = ir.node(op_type, inputs, attributes, outputs=[ir.Value(name=name) for name in names])
        node.name = self.names.node_name(roles[0], names[0])
        self._fold(node)
        return self.add(node)

    def add(self, node: ir.Node) -> Sequence[ir.Value]:
        """Append a node; return its outputs."""
        self.nodes.append(node)
        self.everything.append(node)
        return node.outputs

    def insert_before(self, node: ir.Node) -> None:
        """Move the emitted nodes into a graph, before a node of it."""
        node.prepend(self.nodes)
        self.nodes.clear()

    def insert_after(self, node: ir.Node) -> None:
        """Move the emitted nodes into a graph, after a node of it."""
        node.append(self.nodes)
        self.nodes.clear()

    @contextlib.contextmanager
    def naming(self, names: Scope) -> Iterator[None]:
        """Take the names of emitted values from here, within the block."""
        outer, self.names = self.names, names
        try:
            yield
        finally:
            self.names = outer

    def label(self, value: ir.Value, what: str) -> ir.Value:
        """Name a value that was emitted in this scope after its meaning."""
        node = value.producer()
        if node is not None and self.names.holds(str(value.name)):
            value.name = self.names.fresh(what)
            if value is node.outputs[0]:
                node.name = self.names.node_name(what, value.name)
                self._fold(node, what)
        return value

    def _fold(self, node: ir.Node, what: str = "") -> None:
        """Put a node into the box of its step, and of the gate or state that it computes."""
        if self.namespace:
            parts = (self.namespace, self.names.step, what)
            node.metadata_props["namespace"] = "/".join(filter(None, parts))

    def constant(self, array: np.ndarray, name: str = "") -> ir.Value:
        """Return an initializer with this content, shared with equal ones."""
        return self.tensor_constant(ir.Tensor(array), name)

    def often_read(self, tensor: ir.TensorProtocol, letter: str) -> ir.Value:
        """Return an initializer with a name of a letter or two, as thousands of nodes may read it."""
        return self.initializers.intern(tensor, letter, short=True)

    def tensor_constant(self, tensor: ir.TensorProtocol, name: str = "") -> ir.Value:
        """Return an initializer that holds the tensor; external tensors stay external."""
        return self.initializers.intern(tensor, name)

    def scalar(self, number: float) -> ir.Value:
        """Return a constant of shape ``[]`` in the compute type."""
        return self.constant(np.array(number, dtype=self.dtype.numpy()))

    def integers(self, *numbers: int) -> ir.Value:
        """Return a constant of shape ``[len(numbers)]`` and type int64."""
        return self.initializers.integers(numbers)
