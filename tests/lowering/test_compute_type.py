"""--compute-type float32: a float16 recurrence as exact as onnxruntime's own, which computes in float32."""

from __future__ import annotations

import pathlib
import shutil

import generate
import half_table
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save
from support.judge import STRATEGIES, all_nodes, interface, run

import rnnlower

MODELS = pathlib.Path(generate.__file__).parent
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, UNITS, FEATURES = 40, 32, 16


def network(op_type: str, element: int = TensorProto.FLOAT16) -> onnx.ModelProto:
    """Return a node of this type of elements, whose weights make its errors grow."""
    rng = np.random.default_rng(1)
    rows = GATES[op_type] * UNITS
    dtype = helper.tensor_dtype_to_np_dtype(element)
    shapes = {"W": (1, rows, FEATURES), "R": (1, rows, UNITS), "B": (1, 2 * rows)}
    node = helper.make_node(op_type, ["X", *shapes], ["Y", "Y_h"], name="cell", hidden_size=UNITS)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("X", element, [STEPS, 2, FEATURES])],
        [
            helper.make_tensor_value_info("Y", element, [STEPS, 1, 2, UNITS]),
            helper.make_tensor_value_info("Y_h", element, [1, 2, UNITS]),
        ],
        [
            numpy_helper.from_array(rng.uniform(-0.5, 0.5, shape).astype(dtype), name)
            for name, shape in shapes.items()
        ],
    )
    opset = 17 if element == TensorProto.FLOAT16 else 22
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def inputs() -> dict[str, np.ndarray]:
    return {"X": np.random.default_rng(2).standard_normal((STEPS, 2, FEATURES)).astype(np.float16)}


def error(model: onnx.ModelProto, lowered: onnx.ModelProto) -> float:
    expected, found = run(model, inputs()), run(lowered, inputs())
    return max(np.abs(found[name].astype(float) - expected[name].astype(float)).max() for name in expected)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_float32_steps_are_as_exact_as_the_kernel(op_type: str, strategy: str) -> None:
    model = network(op_type)
    narrow, wide = (getattr(rnnlower, strategy)(model, compute_type=each) for each in (None, "float32"))
    onnx.checker.check_model(wide, full_check=True)
    assert interface(wide) == interface(model)
    # A step of float16 below 1 is 2 ** -11; float32 rounds the other way where it stands in the middle.
    assert error(model, wide) <= 2**-11
    assert error(model, narrow) > error(model, wide)


@pytest.mark.parametrize(("target", "casts"), [("tvm-relax", True), ("onnx2torch", False)])
def test_a_target_that_sums_in_float16_gets_it_by_default(
    tmp_path: pathlib.Path, target: str, casts: bool
) -> None:
    out = tmp_path / "out.onnx"
    run = command("lower", save(network("GRU"), tmp_path), "-o", out, "--target", target, "--no-verify")
    assert ("Cast" in {node.op_type for node in all_nodes(onnx.load(out))}) is casts
    assert ("sums products of float16 in float16: 1 recurrent node" in run.stderr) is casts


def test_half_table_lists_errors_with_and_without_the_option(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors side by side, by the script that does the same for a folder of real models."""
    for name in ("gru14_float16", "lstm14_float16", "ocr_conv_bilstm_gemm"):
        shutil.copy(MODELS / f"{name}.onnx", tmp_path)
    monkeypatch.setattr("sys.argv", ["half_table.py", str(tmp_path)])
    assert half_table.main() == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 3
    for _, code, error, wide_code, wide_error in rows:
        assert (code, wide_code) == ("0", "0")
        assert float(wide_error) <= float(error)


def test_the_file_does_not_grow() -> None:
    model = network("LSTM")
    narrow, wide = (rnnlower.scan(model, compute_type=each) for each in (None, "float32"))
    assert wide.ByteSize() < 1.2 * narrow.ByteSize()


def test_models_of_another_type_get_no_casts() -> None:
    model = rnnlower.scan(network("GRU", TensorProto.DOUBLE), compute_type="float32")
    assert "Cast" not in {node.op_type for node in all_nodes(model)}


def test_another_compute_type_is_refused() -> None:
    with pytest.raises(rnnlower.OptionError, match="it must be 'float32'"):
        rnnlower.scan(network("RNN"), compute_type="float64")


def test_a_difference_in_float16_names_the_option(tmp_path: pathlib.Path) -> None:
    model = save(network("GRU"), tmp_path)
    refused = command("scan", model, "-o", tmp_path / "out.onnx", "--atol", "1e-6", "--trials", "2", code=1)
    assert "--compute-type float32 does the same" in refused.stderr
    assert "--compute-type" not in command("scan", model, "-o", tmp_path / "out.onnx", "--trials", "2").stderr
