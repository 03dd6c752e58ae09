"""Shape inference that cannot crash the process.

onnx's shape inference aborts the process at a Slice or GatherND of a value with a size below 0. Sizes
fall below 0 where a pooling, a Split or the like takes more than there is, often because of a size given by
the user. It is therefore tried in another process first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import TypeVar

import onnx
import onnx_ir as ir

from rnnlower.errors import InvalidModelError
from rnnlower.graph.node_inference import negative_size_error
from rnnlower.graph.walk import root_graphs, walk_values
from rnnlower.processes import Child, ChildDiedError

T = TypeVar("T")

_ABORTING = {"Slice", "GatherND"}
_SHRINKING = {
    *("AveragePool", "CenterCropPad", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool"),
    *("MaxUnpool", "OneHot", "Pad", "QLinearConv", "Resize", "STFT", "Split", "Tile", "TopK", "Upsample"),
}
_CHILD = Child()


def infer_guarded(ops: Collection[str], infer: Callable[[onnx.ModelProto], T], model: onnx.ModelProto) -> T:
    """Run `infer`, shape inference over a model of these operators, after a trial in another process.

    Args:
        ops: The operators of the model.
        infer: A function that can be imported by its module and name.

    Raises:
        InvalidModelError: It would abort the process, or takes too long.
    """
    if not (_ABORTING.isdisjoint(ops) or _SHRINKING.isdisjoint(ops)):
        try:
            _CHILD.call(_infer_in_child, infer, model.SerializeToString())
        except ChildDiedError as error:
            if error.late:
                raise InvalidModelError(
                    "shape inference aborts or takes too long",
                    remedy="give it more time with the environment variable RNNLOWER_ENGINE_SECONDS",
                ) from error
            raise negative_size_error() from error
    return infer(model)


def _infer_in_child(infer: Callable[[onnx.ModelProto], object], serialized: bytes) -> None:
    """Infer in the child process: it only matters whether that survives."""
    proto = onnx.ModelProto.FromString(serialized)
    # The caller's own run raises the same error again.
    with contextlib.suppress(Exception):
        infer(proto)


def forget_negative_sizes(model: ir.Model) -> None:
    """Remove the size -1, which some exporters declare for unknown sizes, from all declared shapes.

    onnx's shape inference takes it for a size: at a Slice or a GatherND it aborts the process.
    """
    for value in (value for root in root_graphs(model) for value in walk_values(root)):
        dims = () if value.shape is None else tuple(value.shape)
        if any(isinstance(dim, int) and dim < 0 for dim in dims):
            value.shape = ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in dims])


def forget_inner_shapes(graph: ir.Graph) -> None:
    """Remove the declared shapes of what nodes compute, except for graph outputs, and names of bodies' sizes.

    TorchScript names the sizes of several states alike, even if they differ. onnxruntime trusts such names.
    """
    for out in (out for node in graph for out in node.outputs if not out.is_graph_output()):
        out.shape = None
    for value in (value for body in graph.subgraphs() for value in (*body.inputs, *body.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else None for dim in value.shape])
