"""Random configs: legal models of every kind, correct for onnxruntime where it has a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import Config, configs, is_native, random_config
from support.judge import differences
from support.sessions import session


def _run_native(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    # The kernel is asked, not the optimizer, which ends the process over float16 models (onnxruntime 1.23).
    return session(model, optimized=False).run(None, feeds)


def _check(config: Config, rng: np.random.Generator) -> None:
    model = config.build()
    onnx.checker.check_model(model, full_check=True)
    feeds = config.make_inputs(rng)
    assert set(feeds) <= {info.name for info in model.graph.input}
    expected = config.expected(feeds)
    assert list(expected) == [info.name for info in model.graph.output]
    if not is_native(config):
        return
    native = dict(zip(expected, _run_native(model, feeds), strict=True))
    assert not differences(expected, native, config.dtype), f"{config}"


@pytest.mark.parametrize("block", range(6))
def test_random_configs_agree_with_onnxruntime(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        rng = np.random.default_rng(seed)
        _check(random_config(rng), rng)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=configs(), seed=st.integers(0, 3))
def test_drawn_configs_agree_with_onnxruntime(config: Config, seed: int) -> None:
    _check(config, np.random.default_rng(seed))


def test_the_same_seed_gives_the_same_bytes() -> None:
    for seed in range(20):
        first, second = (random_config(np.random.default_rng(seed)) for _ in range(2))
        assert first == second
        assert first.build().SerializeToString(deterministic=True) == second.build().SerializeToString(
            deterministic=True
        )


_EVERY: dict[str, list[Any]] = {
    "op_type": ["LSTM", "GRU", "RNN"],
    "opset": list(range(1, 25)),
    "ir_version": [3, 4, 7, 8, 10],
    "dtype": ["float16", "float32", "float64", "bfloat16"],
    "seq_length": [0, 1, 2],
    "batch_size": [0, 1, 2],
    "hidden_size_given": [True, False],
    "direction": [None, "forward", "foward", "reverse", "bidirectional"],
    "layout": [None, 0, 1],
    "linear_before_reset": [None, 0, 1],
    "input_forget": [None, 0, 1],
    "output_sequence": [None, 0, 1],
    "W": ["initializer", "initializer_input", "constant", "computed", "dequantized", "input"],
    "sequence_lens": ["initializer", "constant", "input", "empty", "omitted"],
    "initial_c": ["initializer", "computed", "expanded", "same", "input", "empty", "omitted"],
    "Y": ["graph", "consumed", "both", "unused", "empty", "omitted"],
    "x_dims": ["static", "batch", "time", "symbolic", "unknown", "negative", "unknown_rank"],
    "place": ["main", "if", "if_in_if", "loop", "if_in_loop", "scan", "function"],
    "captured": [True, False],
    "all_refs": [True, False],
}


def test_every_kind_of_config_is_drawn() -> None:
    drawn = [random_config(np.random.default_rng(seed)) for seed in range(3000)]
    for name, values in _EVERY.items():
        missing = set(values) - {getattr(config, name) for config in drawn}
        assert not missing, f"{name} is never {missing}"
    assert any(config.carries_state for config in drawn)
    for op_type, least in {"LSTM": 0.3, "GRU": 0.3, "RNN": 0.05}.items():
        assert np.mean([is_native(config) for config in drawn if config.op_type == op_type]) > least


def test_text_of_a_config_makes_it_again() -> None:
    config = random_config(np.random.default_rng(7))
    assert eval(str(config)) == config
    assert str(Config()) == "Config()"


def test_branch_that_is_not_taken_gives_zeros() -> None:
    config = Config(place="if", Y_h="consumed")
    feeds = config.make_inputs(np.random.default_rng(0)) | {"cond": np.array(False)}
    assert all(not value.any() for value in config.expected(feeds).values())


def test_a_carried_state_is_passed_to_the_next_iteration() -> None:
    config = Config(place="scan", initial_h="input", Y_h="graph")
    feeds = config.make_inputs(np.random.default_rng(0))
    once = Config(initial_h="input", Y_h="graph")
    first = once.expected({"X": feeds["X"][0], "initial_h": feeds["initial_h"]})
    second = once.expected({"X": feeds["X"][1], "initial_h": first["Y_h"]})
    np.testing.assert_array_equal(config.expected(feeds)["Y"], np.stack([first["Y"], second["Y"]]))
