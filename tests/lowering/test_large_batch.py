"""Large batches: a step that multiplies X and H together, with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.external_data_helper import convert_model_to_external_data
from support.grids import pairs_of
from support.judge import all_initializers, all_nodes, differences, run
from support.small_models import lowered_by, recurrent_model, weights

import rnnlower
from rnnlower.lowering import sketching
from rnnlower.targets import find_target

FLOAT = onnx.TensorProto.FLOAT
LARGE_BATCH = int(find_target("onnxruntime").prices.thresholds["large_batch"])
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "lstm": ("LSTM", LARGE_BATCH, {}),
    "lstm_reverse": ("LSTM", LARGE_BATCH, {"direction": "reverse"}),
    "lstm_bidirectional": ("LSTM", LARGE_BATCH, {"direction": "bidirectional"}),
    "lstm_clip": ("LSTM", LARGE_BATCH, {"clip": 0.4}),
    "lstm_coupled": ("LSTM", LARGE_BATCH, {"input_forget": 1}),
    "lstm_peepholes": ("LSTM", LARGE_BATCH, {"P": True}),
    "lstm_without_bias": ("LSTM", LARGE_BATCH, {"B": False}),
    "gru": ("GRU", 1024, {}),
    "gru_linear": ("GRU", 1024, {"linear_before_reset": 1}),
    "gru_linear_without_bias": ("GRU", 1024, {"linear_before_reset": 1, "B": False}),
    "rnn": ("RNN", 512, {}),
}
"""Operator, a batch from which the product is one, attributes."""


def batch_source(op_type: str, batch: Any, options: dict[str, Any], steps: Any = 5) -> onnx.ModelProto:
    attributes = dict(options)
    constants = weights(op_type, directions=2 if attributes.get("direction") == "bidirectional" else 1)
    if attributes.pop("P", False):
        constants["P"] = constants["B"][:, :12]
    if not attributes.pop("B", True):
        del constants["B"]
    return recurrent_model(
        op_type, constants=constants, inputs={"X": (FLOAT, [steps, batch, 3])}, **attributes
    )


def widths(model: onnx.ModelProto) -> set[int]:
    """Return the number of features that the Gemms' weights multiply."""
    stored = {tensor.name: tensor.dims[1] for tensor in all_initializers(model) if len(tensor.dims) == 2}
    return {stored[node.input[1]] for node in all_nodes(model) if node.op_type == "Gemm"}


@pytest.fixture(autouse=True)
def first_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first form that is allowed, whatever it costs."""
    monkeypatch.setattr(sketching, "_ERROR_OF_PRICES", 1e9)


@pytest.mark.parametrize(
    ("case", "strategy", "factor", "steps"), pairs_of(CASES, ["scan", "loop"], [1, 2], [5, "T"])
)
def test_input_and_state_share_one_product(case: str, strategy: str, factor: int, steps: Any) -> None:
    op_type, batch, options = CASES[case]
    source = batch_source(op_type, batch, options, steps)
    result = lowered_by(source, strategy, unroll_factor=factor)
    # The candidate's products stay apart where the reset gate stands between bias and product.
    assert widths(result) == ({3, 4, 7} if "linear_before_reset" in options else {7})
    X = {"X": np.random.default_rng(0).standard_normal((5, batch, 3)).astype(np.float32)}
    assert differences(run(source, X), run(result, X), "float32") == []


@pytest.mark.parametrize("strategy", ["scan", "loop"])
@pytest.mark.parametrize(
    ("op_type", "batch"), [("LSTM", LARGE_BATCH - 1), ("LSTM", "N"), ("GRU", 1023), ("RNN", 511)]
)
def test_inputs_of_all_steps_share_a_product_where_that_is_faster(
    op_type: str, batch: Any, strategy: str
) -> None:
    assert widths(lowered_by(batch_source(op_type, batch, {}), strategy)) == {3, 4}


def test_large_weights_stay_apart() -> None:
    """A step that reads both would wait for memory: 4 x 257 x 513 elements are just over 2 MiB."""
    for hidden_size, apart in ((256, {512}), (257, {256, 257})):
        constants = weights("LSTM", input_size=256, hidden_size=hidden_size)
        inputs = {"X": (FLOAT, [2, LARGE_BATCH, 256])}
        source = recurrent_model("LSTM", constants=constants, inputs=inputs, hidden_size=hidden_size)
        assert widths(lowered_by(source, "scan")) == apart


def test_weights_that_are_no_constants_stay_apart() -> None:
    constants = weights("LSTM")
    W = constants.pop("W")
    inputs = {"X": (FLOAT, [5, LARGE_BATCH, 3]), "W": (FLOAT, list(W.shape))}
    source = recurrent_model("LSTM", constants=constants, inputs=inputs)
    result = lowered_by(source, "scan")
    assert not any(node.op_type == "Concat" for node in all_nodes(result))
    feeds = {"X": np.random.default_rng(0).standard_normal((5, LARGE_BATCH, 3)).astype(np.float32), "W": W}
    assert differences(run(source, feeds), run(result, feeds), "float32") == []


def test_external_weights_stay_apart(tmp_path: Path) -> None:
    source = batch_source("LSTM", LARGE_BATCH, {})
    convert_model_to_external_data(source, location="weights.bin", size_threshold=0)
    onnx.save(source, tmp_path / "source.onnx")
    result = rnnlower.scan(ir.load(tmp_path / "source.onnx"))
    assert isinstance(result, ir.Model)
    assert widths(ir.to_proto(result)) == {3, 4}


@pytest.mark.parametrize("target", ["openvino", "tract"])
def test_other_runtimes_get_the_plain_form(target: str) -> None:
    result = rnnlower.lower(batch_source("LSTM", LARGE_BATCH, {"clip": 0.4}, "T"), target=target)
    assert isinstance(result, onnx.ModelProto)
    assert widths(result) == {3, 4}
