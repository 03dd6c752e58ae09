"""The copies of a model that analyses work on."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from rnnlower.graph.inference import guarded
from rnnlower.graph.quiet import quiet_libraries
from rnnlower.graph.walk import forget_negative_sizes, op_types

__all__ = ["bare_copy", "inferred_copy"]


def bare_copy(model: ir.Model) -> ir.Model:
    """A copy without the shapes that the model gives to what its nodes compute.

    Exporters write shapes that hold for the example they traced, in branches that the example did not take or
    under a name that two sizes share: what follows from the inputs is worth more.
    """
    copy = model.clone()
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _alias(value.const_value)
        for node in graph:
            for out in node.outputs:
                out.shape = None
    forget_negative_sizes(copy)
    return copy


def inferred_copy(model: ir.Model) -> ir.Model:
    """A copy with the types and shapes that follow from the model's inputs."""
    copy = bare_copy(model)
    with quiet_libraries():
        guarded(op_types(model), lambda: ShapeInferencePass(data_prop=True)(copy))
    return copy


def _alias(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """The tensor under a name of its own: clones share tensors, and renaming a value renames its tensor."""
    return ir.LazyTensor(lambda: tensor, tensor.dtype, tensor.shape, name=tensor.name)  # type: ignore[arg-type]
