"""Branches that inputs of the given shapes cannot take, and that are invalid for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import all_nodes, run
from support.target_files import MINIMAL, write

import rnnlower
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.targets import find_target

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[] x) => (float[] Y)
    <float[1, 2, 2] W = {0.1, 0.2, 0.3, 0.4}, float[1, 2, 2] R = {0.4, 0.3, 0.2, 0.1},
     int64[1] zero = {0}, int64[1] three = {3}>
    {
        sizes = Shape (x)
        rank = Shape (sizes)
        same = Equal (rank, three)
        has_batch = Squeeze (same, zero)
        Y = If (has_batch) <
            then_branch = p () => (a) {
                n = Neg (x)
                b, h = RNN <hidden_size = 2> (n, W, R)
                a = Squeeze (h, zero)
            },
            else_branch = q () => (c) {
                X = Unsqueeze (x, zero)
                d, i = RNN <hidden_size = 2> (X, W, R)
                c = Squeeze (i, zero)
            }
        >
    }
"""


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop", "target"])
@pytest.mark.parametrize("shape", [(4, 2), (5, 4, 2)])
def test_the_branch_that_runs_is_right_and_the_model_loads(strategy: str, shape: tuple[int, ...]) -> None:
    source = onnx.parser.parse_model(MODEL)
    target = find_target("onnxruntime") if strategy == "target" else None
    options = LoweringOptions(strategy, input_shapes={"x": shape}, fold=False, target=target, native="keep")
    model = ir.from_proto(source)
    report = lower_model(model, options)
    lowered = ir.to_proto(model)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(run(lowered, {"x": x})["Y"], run(source, {"x": x})["Y"], atol=1e-6)
    assert len([node for node in all_nodes(lowered) if node.op_type == "RNN"]) == len(report.kept)
    assert len(report.kept) == (strategy == "target")


def test_the_remedy_tells_what_decides_the_branch(tmp_path: Path) -> None:
    head, rest = MODEL.replace("float[] x)", "float[] x, bool has_batch)").split("        sizes = Shape", 1)
    source = onnx.parser.parse_model(head + rest[rest.index("        Y = If") :])
    target = write(tmp_path, MINIMAL | {"control_flow": 'ops = ["If"]', "ops": 'absent = ["NonZero"]'})
    options = {"target": target, "input_shapes": {"x": (4, 2)}}
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"'has_batch' decides it: sets=\{\"has_batch\""):
        rnnlower.lower(source, **options)
    rnnlower.lower(source, **options, sets={"has_batch": False})
