"""The models of the ``models`` folder: same bytes when generated again, and right for onnxruntime."""

from __future__ import annotations

from pathlib import Path

import generate
import numpy as np
import onnx
import pytest
from support.configs import is_native
from support.oracle import schema_version
from support.sessions import session

MODELS = Path(generate.__file__).parent
TABLE, NETWORKS = generate.TABLE, generate.NETWORKS


def test_generating_again_gives_the_same_bytes(tmp_path: Path) -> None:
    written = {path.name: path.read_bytes() for path in generate.write_all(tmp_path)}
    stored = {path.name: path.read_bytes() for path in MODELS.glob("*.onnx")}
    assert sorted(written) == sorted(stored)
    assert [name for name in written if written[name] != stored[name]] == []


def test_every_model_says_why_it_exists() -> None:
    for path in MODELS.glob("*.onnx"):
        model = onnx.load(path)
        assert model.doc_string.endswith("."), path.name
        assert model.graph.name == path.stem


def test_names_tell_operator_and_opset() -> None:
    for name, (_, config) in TABLE.items():
        opset = int(name.removeprefix(config.op_type.lower())[:2])
        assert schema_version(config.op_type, opset) == config.version, name


@pytest.mark.parametrize("name", [name for name in TABLE if is_native(generate.small_config(name))])
def test_onnxruntime_agrees_with_the_oracle(name: str) -> None:
    config = generate.small_config(name)
    whole = session(MODELS / f"{name}.onnx")
    for seed in range(3):
        feeds = config.make_inputs(np.random.default_rng(seed))
        expected = config.expected(feeds)
        tolerance = 1e-5 if config.dtype == "float32" else 4e-3
        for key, native in zip(expected, whole.run(None, feeds), strict=True):
            np.testing.assert_allclose(native, expected[key], rtol=tolerance, atol=tolerance, err_msg=key)


_FEEDS: dict[str, dict[str, tuple[int, ...]]] = {
    "streaming_lstm_stack": {"features": (1, 7, 8), "h_in": (2, 1, 12), "c_in": (2, 1, 12)},
    "denoiser_gru": {"spectrum": (1, 7, 9)},
    "ocr_conv_bilstm_gemm": {"image": (2, 1, 8, 20)},
    "gru_two_layers_dynamic": {"tokens": (6, 3, 6)},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_finite_and_varied_outputs(name: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in _FEEDS[name].items()}
    if name == "gru_two_layers_dynamic":
        feeds["lengths"] = np.array([6, 2, 4], np.int32)
    for value in session(MODELS / f"{name}.onnx").run(None, feeds):
        assert np.isfinite(value).all()
        assert value.std() > 0.01
