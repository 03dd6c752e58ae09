"""A workbench for parts of the lowering: an emitter into a graph of its own, which onnxruntime then runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, Scope
from rnnlower.lowering.dialect import ANY, AnyOperator
from rnnlower.lowering.emitter import Emitter
from support.small_models import run_onnxruntime


@dataclasses.dataclass(frozen=True)
class Only(AnyOperator):
    """The dialect of some operators."""

    ops: frozenset[str]
    name: str = "own"

    def has(self, op_type: str, dtype: ir.DataType | None = None) -> bool:
        return op_type in self.ops


class Workbench:
    """An emitter and the graph that it writes into.

    Args:
        opset: Version of the default domain.
        ops: The operators that may be emitted; ``None``: all.

    Attributes:
        e: The emitter.
        model: The model of the graph.
    """

    def __init__(self, opset: int = 17, ops: Iterable[str] | None = None) -> None:
        graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="workbench")
        self.model = ir.Model(graph, ir_version=8)
        self._names = names = NameSource()
        dialect = ANY if ops is None else Only(frozenset(ops))
        pool = InitializerPool(self.model, names)
        self.e = Emitter(opset, Scope(names, ""), ir.DataType.FLOAT, pool, dialect)

    def input(
        self, name: str, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.FLOAT
    ) -> ir.Value:
        """Add a graph input."""
        value = ir.Value(name=self._names.fresh(name), shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.model.graph.inputs.append(value)
        return value

    def weight(self, name: str, array: np.ndarray) -> ir.Value:
        """Add an initializer."""
        tensor = ir.Tensor(array, name=self._names.fresh(name))
        value = ir.Value(name=tensor.name, shape=ir.Shape(array.shape), const_value=tensor)
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        self.model.graph.register_initializer(value)
        return value

    @property
    def emitted(self) -> list[str]:
        """The operators that were emitted, in order."""
        return [node.op_type for node in self.e.nodes]

    def compute(self, values: Sequence[ir.Value], **feeds: np.ndarray) -> list[np.ndarray]:
        """Run the emitted nodes on onnxruntime and return the values."""
        outputs = [self.e.ops("Identity", value, outputs=1)[0] for value in values]
        for value, origin in zip(outputs, values, strict=True):
            value.type = origin.type or ir.TensorType(ir.DataType.FLOAT)
        self.model.graph.extend(self.e.nodes)
        self.model.graph.outputs.extend(outputs)
        proto = ir.to_proto(self.model)
        found = run_onnxruntime(proto, feeds)
        return [found[str(value.name)] for value in outputs]
