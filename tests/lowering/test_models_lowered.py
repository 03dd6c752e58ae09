"""Every model of the ``models`` folder through every strategy."""

from __future__ import annotations

from pathlib import Path

import generate
import numpy as np
import onnx
import pytest
from support.configs import Config
from support.judge import STRATEGIES, differences, interface, judge, recurrent_left, run

import rnnlower

MODELS = Path(generate.__file__).parent
TABLE, NETWORKS = generate.TABLE, generate.NETWORKS

_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "streaming_lstm_stack": {"features": (1, 7, 8), "h_in": (2, 1, 12), "c_in": (2, 1, 12)},
    "ocr_conv_bilstm_gemm": {"image": (2, 1, 8, 20)},
    "denoiser_gru": {"spectrum": (1, 6, 9)},
    "gru_two_layers_dynamic": {"tokens": (6, 3, 6), "lengths": (3,)},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", TABLE)
def test_small_model_agrees_with_the_oracle(name: str, strategy: str) -> None:
    """Each model has both semantics, and so has each strategy; what `spec` refuses, `ort` computes."""
    config = generate.small_config(name)
    is_spec = ([*TABLE].index(name) + STRATEGIES.index(strategy)) % 2
    for semantics in ("spec", "ort") if is_spec else ("ort",):
        factor = 2 if semantics == "spec" else 1
        outcome, details = judge(config, strategy, np.random.default_rng(0), semantics, factor)
        if semantics == "spec" and "no default alpha and beta" in outcome:
            continue
        if strategy == "unroll" and config.x_dims == "unknown_rank":
            assert "sequence length is unknown" in outcome
            return
        assert outcome == "right", details
        return


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_sizes_of_inputs_may_be_negative(op_type: str, strategy: str) -> None:
    """Old exporters leave a size open by -1."""
    config = Config(op_type=op_type, x_dims="negative", sequence_lens="input", initial_h="input")
    outcome, details = judge(config, strategy, np.random.default_rng(0), unroll_factor=2)
    assert outcome == "right", details


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_network_agrees_with_onnxruntime(name: str, strategy: str) -> None:
    model = onnx.load(MODELS / f"{name}.onnx")
    rng = np.random.default_rng(1)
    inputs = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in _SHAPES[name].items()}
    if "lengths" in inputs:
        inputs["lengths"] = np.array([6, 2, 4], np.int32)
    options = {"input_shapes": _SHAPES[name]} if strategy == "unroll" else {}
    lowered = getattr(rnnlower, strategy)(model, **options)
    onnx.checker.check_model(lowered, full_check=True)
    assert recurrent_left(lowered) == []
    assert interface(lowered) == interface(model)
    assert differences(run(model, inputs), run(lowered, inputs), "float32") == []


@pytest.mark.parametrize("strategy", ["scan", "loop"])
def test_dynamic_network_serves_several_lengths(strategy: str) -> None:
    model = onnx.load(MODELS / "gru_two_layers_dynamic.onnx")
    lowered = getattr(rnnlower, strategy)(model, unroll_factor=3)
    rng = np.random.default_rng(2)
    for time, batch in ((1, 1), (2, 4), (7, 3), (30, 2)):
        inputs = {
            "tokens": rng.standard_normal((time, batch, 6)).astype(np.float32),
            "lengths": rng.integers(0, time + 1, batch).astype(np.int32),
        }
        assert differences(run(model, inputs), run(lowered, inputs), "float32") == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lengths_out_of_range_count_as_the_nearest(strategy: str) -> None:
    lowered = getattr(rnnlower, strategy)(MODELS / "gru14_bidirectional_sequence_lens_states.onnx")
    rng = np.random.default_rng(0)
    feeds = {"X": rng.standard_normal((5, 3, 3), np.float32), "initial_h": np.ones((2, 3, 4), np.float32)}
    results = [
        run(lowered, feeds | {"sequence_lens": np.array(L, np.int32)}) for L in ([9, 3, -2], [5, 3, 0])
    ]
    for name in ("Y", "Y_h"):
        assert np.array_equal(results[0][name], results[1][name])
