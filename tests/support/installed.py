"""The onnxruntime that is installed here: Python 3.10 has an old one."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import onnxruntime
from onnx import TensorProto, defs, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from support.sessions import session

_WITHOUT_PARAMETERS = {"Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"}


@functools.cache
def newest_opset() -> int:
    """Return the newest opset of which onnxruntime takes a model."""
    return next(opset for opset in range(defs.onnx_opset_version(), 0, -1) if _takes(opset))


def _takes(opset: int) -> bool:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "XY"]
    graph = helper.make_graph([helper.make_node("Identity", ["X"], ["Y"])], "one", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        session(model)
    except Fail:
        return False
    return True


def rnn_is_sound(direction: str | None, activations: Sequence[str] | None, has_lengths: bool) -> bool:
    """Return whether onnxruntime's RNN kernel may judge such a node, whatever its other attributes.

    That of 1.23 ends the process over some lists of activation_alpha, and gives wrong numbers for functions
    with parameters, reverse directions and sequence_lens. What is left to it are plain forward nodes.
    """
    major, minor = map(int, onnxruntime.__version__.split(".")[:2])
    if (major, minor) > (1, 23):
        return True
    plain = direction in (None, "forward") and set(activations or ()) <= _WITHOUT_PARAMETERS
    return plain and not has_lengths
