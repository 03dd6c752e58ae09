"""Sizes below 0, on which onnx's shape inference aborts the process."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.cli_helpers import rnnlower, save
from support.small_models import info, model_of, weights

import rnnlower as api
from rnnlower.graph import inference

pytestmark = pytest.mark.usefixtures("forks")

FLOAT = onnx.TensorProto.FLOAT
# Each takes more than the three features that there are.
TOO_MUCH = {
    "Split": {"inputs": ["X", "sizes"], "outputs": ["rest", "cut"], "axis": 2},
    "TopK": {"inputs": ["X", "below"], "outputs": ["rest", "where"], "axis": 2},
    "MaxPool": {"inputs": ["X"], "outputs": ["rest"], "kernel_shape": [9]},
}
COMMANDS = {
    "inspect": [],
    "check": ["--target", "tract"],
    "scan": ["-o", "out.onnx"],
    "unroll": ["-o", "out.onnx", "--no-verify"],
    "lower": ["-o", "out.onnx", "--target", "onnxruntime"],
    "convert": ["-o", "out.onnx", "--opset", 21],
}


def sliced(op_type: str, dims: list[int | str]) -> onnx.ModelProto:
    """Return a model in which an LSTM reads the operator's result, cut by a Slice."""
    constants = {
        "sizes": np.array([-2, 5]),
        "below": np.array([-2]),
        "first": np.array([0]),
        "last": np.array([2]),
        "axis": np.array([2]),
    }
    nodes = [
        helper.make_node(op_type, **TOO_MUCH[op_type]),
        helper.make_node("Slice", ["rest", "first", "last", "axis"], ["part"]),
        helper.make_node("LSTM", ["part", "W", "R", "B"], ["Y"], hidden_size=4),
    ]
    outputs = [info("Y", FLOAT, [None, 1, None, 4])]
    return model_of(nodes, [info("X", FLOAT, dims)], outputs, weights("LSTM", input_size=2) | constants)


@pytest.mark.parametrize("op_type", TOO_MUCH)
@pytest.mark.parametrize("command", COMMANDS)
def test_sizes_below_0_are_refused(
    op_type: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save(sliced(op_type, [5, 1, 3]), tmp_path)
    assert "falls below 0" in rnnlower(command, path, *COMMANDS[command], code=3).stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("op_type", TOO_MUCH)
def test_sizes_below_0_are_refused_by_verify(op_type: str, tmp_path: Path) -> None:
    wrong, right = sliced(op_type, [5, 1, 3]), sliced("MaxPool", [5, 1, 12])
    for pair in ((wrong, wrong), (right, wrong), (wrong, right)):
        with pytest.raises(api.InvalidModelError, match="falls below 0"):
            api.verify(*pair)
    assert "falls below 0" in rnnlower("verify", *[save(wrong, tmp_path)] * 2, code=3).stderr


def test_a_given_size_that_leads_below_0_is_refused(tmp_path: Path) -> None:
    path, out = save(sliced("MaxPool", ["T", 1, "F"]), tmp_path), tmp_path / "out.onnx"
    said = rnnlower("unroll", path, "-o", out, "--dim", "T=5", "--dim", "F=3", code=3).stderr
    assert "--dim" in said
    rnnlower("unroll", path, "-o", out, "--dim", "T=5", "--dim", "F=12")


def test_verify_tries_larger_sizes_if_small_ones_do_not_fit(tmp_path: Path) -> None:
    """Small ones do not suit a pooling: others are tried."""
    path, out = save(sliced("MaxPool", ["T", "N", "F"]), tmp_path), tmp_path / "out.onnx"
    assert "equal" in rnnlower("scan", path, "-o", out).stdout


def double_first(proto: onnx.ModelProto) -> list[int]:
    """End its process over a constant that begins with 7, as shape inference does over some sizes."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    if arrays["sizes"][0] == 7:
        os.abort()
    return [int(2 * arrays["sizes"][0]), *arrays["weight"].shape]


def test_inference_is_guarded_in_every_thread() -> None:
    def model(first: int) -> onnx.ModelProto:
        constants = {"sizes": np.array([first, 5]), "weight": np.zeros((50, 60), np.float32)}
        node = helper.make_node("Reshape", ["weight", "sizes"], ["Y"])
        return model_of([node], [], [info("Y", FLOAT, [None, None])], constants)

    ops = {"Slice", "Conv"}
    with ThreadPoolExecutor(4) as pool:
        futures = [
            pool.submit(inference.infer_guarded, ops, double_first, model(first)) for first in range(6)
        ]
        assert [future.result() for future in futures] == [[2 * first, 50, 60] for first in range(6)]
    with pytest.raises(api.InvalidModelError, match="falls below 0"):
        inference.infer_guarded(ops, double_first, model(7))


def test_inference_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNLOWER_ENGINE_SECONDS", "3")
    with pytest.raises(api.InvalidModelError, match=r"aborts or takes too long.*RNNLOWER_ENGINE_SECONDS"):
        inference.infer_guarded({"Slice", "Conv"}, sleep, model_of([], [], [], {}))


def sleep(model: onnx.ModelProto) -> None:
    time.sleep(1000)
