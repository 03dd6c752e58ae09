"""A lowered node in the body of a Scan, for whose outputs onnxruntime requires a rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.judge import differences, run
from support.small_models import weights

import rnnlower

FLOAT = onnx.TensorProto.FLOAT


def scan_source(dims: list[Any] | None, outputs: tuple[str, ...]) -> onnx.ModelProto:
    """Return a GRU over each X of a stack; the body declares no shapes of its outputs."""
    node = helper.make_node("GRU", ["x", "W", "R", "B"], list(outputs), hidden_size=4, name="gru")
    outputs = tuple(filter(None, outputs))
    body = helper.make_graph(
        [node],
        "body",
        [helper.make_tensor_value_info("x", FLOAT, dims)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
    )
    names = [f"all_{name}" for name in outputs]
    scan = helper.make_node("Scan", ["X"], names, name="scan", body=body, num_scan_inputs=1)
    graph = helper.make_graph(
        [scan],
        "graph",
        [helper.make_tensor_value_info("X", FLOAT, None if dims is None else [2, *dims])],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in names],
        [numpy_helper.from_array(value, name) for name, value in weights("GRU").items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("unroll_factor", [1, 2])
@pytest.mark.parametrize("strategy", ["scan", "loop"])
@pytest.mark.parametrize("outputs", [("Y", "Y_h"), ("", "Y_h"), ("Y",)])
@pytest.mark.parametrize("dims", [["T", "N", 3], ["T", 2, 3], [5, "N", 3], [None, None, 3], None], ids=str)
def test_the_rank_of_outputs_is_known(
    dims: list[Any] | None, outputs: tuple[str, ...], strategy: str, unroll_factor: int
) -> None:
    source = scan_source(dims, outputs)
    result = getattr(rnnlower, strategy)(source, unroll_factor=unroll_factor)
    X = {"X": np.random.default_rng(0).standard_normal((2, 5, 2, 3)).astype(np.float32)}
    assert differences(run(source, X), run(result, X), "float32") == []
