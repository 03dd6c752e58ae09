"""Initial states of zeros that exporters compute from the shape of X are left out, whatever the shape."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import STRATEGIES, all_nodes, differences, run
from support.small_models import weights

import rnnlower


@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_computed_zeros_are_left_out(strategy: str, batch: int | str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[5, {batch}, 3] X) => (float[5, 1, {batch}, 4] Y)
        <int64[1] one = {{1}}, int64[1] four = {{4}}, float zero = {{0}}>
        {{
            sizes = Shape (X)
            batch = Gather (sizes, one)
            dims = Concat <axis = 0> (one, batch, four)
            h = Expand (zero, dims)
            Y = RNN <hidden_size = 4> (X, W, R, B, , h)
        }}
    """)
    for name, values in weights("RNN").items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.node[:4], bare.graph.node[0].input[4:]
    result = getattr(rnnlower, strategy)(model)
    assert batch == "N" or {node.op_type for node in all_nodes(result)}.isdisjoint({"Shape", "Expand"})
    assert len(result.graph.node) == len(getattr(rnnlower, strategy)(bare).graph.node)
    X = {"X": np.random.default_rng(1).standard_normal((5, 2, 3)).astype(np.float32)}
    assert differences(run(model, X), run(result, X), "float32") == []
