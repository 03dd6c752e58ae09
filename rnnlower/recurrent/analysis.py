"""Copies of a model for analysis."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from rnnlower.graph.inference import guarded
from rnnlower.graph.suppression import quiet_libraries
from rnnlower.graph.walk import forget_negative_sizes, op_types
from rnnlower.recurrent.operators import MOST_INPUTS, SIGNATURES

__all__ = ["bare_copy", "infer_in_place", "inferred_copy"]


def bare_copy(model: ir.Model) -> ir.Model:
    """Return a copy without the declared shapes of computed values.

    Exporters write shapes that hold for the example they traced, even in branches that the example did not
    take or for a symbol that two sizes share. Shapes inferred from the inputs are more reliable.
    """
    copy = model.clone()
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _alias(value.const_value)
        for node in graph:
            _make_known(node)
            for out in node.outputs:
                out.shape = None
    forget_negative_sizes(copy)
    return copy


def _make_known(node: ir.Node) -> None:
    """Turn an operator that shape inference does not know into an LSTM, which has the same outputs.

    Inference reads X and the attributes, and requires weights of the type of X.
    """
    signature = SIGNATURES.get((node.domain, node.op_type))
    if signature is None or not node.domain or len(node.inputs) < MOST_INPUTS:
        return
    node.domain, node.op_type = "", signature.cell
    for index in (1, 2):
        node.replace_input_with(index, node.inputs[0])
    node.resize_inputs(MOST_INPUTS)


def inferred_copy(model: ir.Model) -> ir.Model:
    """Return a copy with the types and shapes that follow from the model's inputs."""
    copy = bare_copy(model)
    with quiet_libraries():
        guarded(op_types(model), infer_in_place, copy)
    return copy


def infer_in_place(model: ir.Model) -> None:
    """Annotate the model with the types and shapes that follow from its inputs; see `guarded`."""
    ShapeInferencePass(data_prop=True)(model)


def _alias(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """Give the tensor a name of its own: clones share tensors, and renaming a value renames its tensor."""
    return ir.LazyTensor(lambda: tensor, tensor.dtype, tensor.shape, name=tensor.name)  # type: ignore[arg-type]
