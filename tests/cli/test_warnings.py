"""Warnings: recurrence in another form, and one-step models that forget; under -q, too."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.cli_helpers import rnnlower as run
from support.cli_helpers import save
from support.small_models import info, model_of, recurrent_model

import rnnlower

FLOAT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL


def cell_in_a_loop(product: str = "MatMul", activation: str = "Tanh") -> onnx.ModelProto:
    """Return h = tanh(h r + x[i]) in a Loop, as exporters write a cell that they have no operator for."""
    make = onnx.helper.make_node
    body = onnx.helper.make_graph(
        [
            make("Gather", ["x", "i"], ["x_i"]),
            make(product, ["h", "r"], ["hr"]),
            make("Add", ["hr", "x_i"], ["sum"]),
            make(activation, ["sum"], ["h_next"]),
            make("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [info("i", onnx.TensorProto.INT64, []), info("go", BOOL, []), info("h", FLOAT, [2, 2])],
        [info("go_on", BOOL, []), info("h_next", FLOAT, [2, 2])],
    )
    constants = {"r": np.eye(2, dtype=np.float32), "n": np.array(3), "h0": np.zeros((2, 2), np.float32)}
    node = make("Loop", ["n", "", "h0"], ["y"], name="cell_loop", body=body)
    return model_of([node], [info("x", FLOAT, [3, 2, 2])], [info("y", FLOAT, [2, 2])], constants)


def test_recurrence_in_another_form_is_named(tmp_path: Path) -> None:
    path = save(cell_in_a_loop(), tmp_path)
    result = run("unroll", path, "-o", tmp_path / "out.onnx", "-q", "--no-lift")
    assert result.stdout == ""
    for words in ("warning", "Loop node 'cell_loop'", "'h'", "xport the layer"):
        assert words in result.stderr
    line = ["unroll", path, "-o", tmp_path / "out.onnx", "--json"]
    (warning,) = run(*line, "--no-lift").json["warnings"]
    assert set(warning) == {"node", "what", "why", "remedy"}
    assert warning["node"] == "Loop node 'cell_loop'"
    assert run(*line).json["warnings"] == []


def test_all_states_of_a_scan_with_lengths_are_named() -> None:
    """A Scan of opset 8 takes the lengths of its sequences first, which may be left out."""
    model = onnx.parser.parse_model("""<ir_version: 3, opset_import: ["" : 8]>
        main (float[1, T, 2, 4] X, float[1, 2, 4] a0, float[1, 2, 4] b0, float[4, 4] R)
        => (float[1, T, 2, 4] Y) {
            a_end, b_end, Y = Scan <num_scan_inputs = 1,
            body = step (float[2, 4] a, float[2, 4] b, float[2, 4] x)
            => (float[2, 4] p, float[2, 4] q, float[2, 4] y) {
                ar = MatMul (a, R) br = MatMul (b, R) s = Add (ar, x) t = Add (br, s)
                p = Tanh (s) q = Tanh (t) y = Identity (q)
            }> (, a0, b0, X)
        }""")
    (warning,) = rnnlower.unroll.with_report(model, lift=False)[1].warnings
    assert "'a'" in str(warning)
    assert "'b'" in str(warning)


def test_inspect_warns_of_what_cannot_be_lifted(tmp_path: Path) -> None:
    inspected = run("inspect", save(cell_in_a_loop(), tmp_path), "--json").json
    assert [node["name"] for node in inspected["liftable"]] == ["cell_loop"]
    assert inspected["warnings"] == []
    path = save(cell_in_a_loop(activation="Erf"), tmp_path)
    inspected = run("inspect", path, "--json").json
    assert inspected["liftable"] == []
    assert [warning["node"] for warning in inspected["warnings"]] == ["Loop node 'cell_loop'"]
    assert "cell_loop" in run("inspect", path).stderr


def test_a_loop_that_is_unrolled_as_advised_is_not_warned_of(tmp_path: Path) -> None:
    path = save(cell_in_a_loop(), tmp_path)
    line = ["unroll", path, "-o", tmp_path / "out.onnx", "--control-flow", "unroll", "--json"]
    result = run(*line).json
    assert "Loop" not in result["ops_after"]
    assert result["warnings"] == []


def test_a_loop_that_counts_or_sums_is_no_recurrence(tmp_path: Path) -> None:
    path = save(cell_in_a_loop("Mul"), tmp_path)
    assert run("inspect", path, "--json").json["warnings"] == []


def test_what_a_lowering_emits_is_not_warned_of(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    for command in ("scan", "loop"):
        assert run(command, path, "-o", tmp_path / "out.onnx", "--json").json["warnings"] == []


@pytest.mark.parametrize("line", [["unroll"], ["scan"], ["lower", "--target", "onnxruntime"]])
def test_a_model_of_one_step_without_states_is_warned_of(line: list[str], tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    line = [*line, str(path), "-o", str(tmp_path / "out.onnx"), "--dim", "T=1", "-q"]
    words = run(*line).stderr
    for part in ("warning", "LSTM node 'cell'", "Y_h 'Y_h' and Y_c", "rnnlower stream"):
        assert part in words
    assert run(*line[:-3], "--dim", "T=2", "-q").stderr == ""


def test_a_model_of_one_step_with_states_is_not_warned_of(tmp_path: Path) -> None:
    model = recurrent_model(inputs={"X": (FLOAT, [1, 2, 3]), "initial_h": (FLOAT, [1, 2, 4])})
    assert run("scan", save(model, tmp_path), "-o", tmp_path / "out.onnx", "-q").stderr == ""


def test_warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="rnnlower"):
        rnnlower.unroll(recurrent_model(), dims={"T": 1})
    assert "`rnnlower.stream(model)`" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="rnnlower"):
        rnnlower.inspect(recurrent_model(inputs={"X": (FLOAT, [1, 2, 3])}))
    assert "`rnnlower.stream(model)`" in caplog.text
