"""Small models around one recurrent node, for the tests of evaluation and verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

import rnnlower
from rnnlower.graph.walk import walk

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FORMALS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


def info(name: str, array_or_type: Any, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    """Return a value's declaration; the type as a TensorProto number or taken from an array."""
    elem_type = array_or_type
    if isinstance(array_or_type, np.ndarray):
        elem_type = helper.np_dtype_to_tensor_dtype(array_or_type.dtype)
    return helper.make_tensor_value_info(name, elem_type, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    extra_domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Return a model of one graph."""
    initializers = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in extra_domains)]
    ir_version = 3 if opset < 7 else 8 if opset < 21 else 10
    if ir_version < 4:
        graph.input.extend(info(name, value, value.shape) for name, value in (constants or {}).items())
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=functions)


def weights(
    op_type: str,
    input_size: int = 3,
    hidden_size: int = 4,
    directions: int = 1,
    seed: int = 0,
    dtype: Any = np.float32,
) -> dict[str, np.ndarray]:
    """Return random W, R and B."""
    rng = np.random.default_rng(seed)
    rows = GATES[op_type] * hidden_size
    shapes = {
        "W": (directions, rows, input_size),
        "R": (directions, rows, hidden_size),
        "B": (directions, 2 * rows),
    }
    return {name: (0.4 * rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}


def recurrent_model(
    op_type: str = "LSTM",
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    inputs: Mapping[str, tuple[Any, Sequence[Any]]] | None = None,
    outputs: Sequence[str] = ("Y", "Y_h"),
    elem_type: int = onnx.TensorProto.FLOAT,
    opset: int = 17,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one node: ``constants`` are initializers, ``inputs`` graph inputs, by formal name."""
    constants = weights(op_type) if constants is None else dict(constants)
    given = {"X": (elem_type, ["T", "N", 3])} if inputs is None else dict(inputs)
    names = [name if name in constants or name in given else "" for name in FORMALS]
    while names and not names[-1]:
        names.pop()
    attributes.setdefault("hidden_size", 4)
    node = helper.make_node(op_type, names, list(outputs), name="cell", **attributes)
    ranks = {"Y": 4, "Y_h": 3, "Y_c": 3}
    return model_of(
        [node],
        [info(name, *declared) for name, declared in given.items()],
        [info(name, elem_type, [None] * ranks[name]) for name in outputs if name],
        constants,
        opset=opset,
    )


def lowered_by(model: onnx.ModelProto, strategy: str, **options: Any) -> onnx.ModelProto:
    """Return the model, lowered by a strategy."""
    result = getattr(rnnlower, strategy)(model, **options)
    assert isinstance(result, onnx.ModelProto)
    return result


def ops(own: ir.Model) -> list[str]:
    """Return the operators of all nodes of the main graph and its subgraphs, in order."""
    return [node.op_type for node, _ in walk(own.graph)]


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return all outputs by name, as onnxruntime computes them."""
    from support.sessions import session

    whole = session(model)
    names = [output.name for output in whole.get_outputs()]
    return dict(zip(names, whole.run(None, dict(feeds)), strict=True))
