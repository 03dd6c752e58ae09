"""Models in other float types, and the engines that evaluate them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.small_models import lowered_by, recurrent_model

from rnnlower.verification import runner, verify
from rnnlower.verification.engine_choice import NumpyEngine, OnnxRuntimeEngine
from rnnlower.verification.models import load_parsed
from rnnlower.verification.runner import Runner
from rnnlower.verification.verify_options import VerifyOptions

WIDE = np.dtype(np.float64)


@pytest.mark.parametrize(
    ("activations", "engine"),
    [(["Sigmoid", "Tanh"], OnnxRuntimeEngine), (["Softsign", "Tanh"], NumpyEngine)],
    ids=["kernels", "no kernel"],
)
def test_a_candidate_in_float64_runs_on_onnxruntime_if_that_has_kernels(
    activations: list[str], engine: type, tmp_path: Path
) -> None:
    source = recurrent_model("GRU", activations=activations)
    models = (
        load_parsed(source, "reference", tmp_path),
        load_parsed(lowered_by(source, "scan"), "candidate", tmp_path),
    )
    feeds = {"X": np.random.default_rng(0).standard_normal((7, 2, 3))}
    with closing(Runner(*models, VerifyOptions())) as runner:
        reference, candidate = (runner.run_in_type(WIDE, model, feeds) for model in models)
        kinds = {role: type(each) for (role, *_), each in runner._retyped.items()}
    assert kinds == {"reference": NumpyEngine, "candidate": engine}
    for name, values in reference.items():
        assert values.dtype == candidate[name].dtype == WIDE
        np.testing.assert_allclose(candidate[name], values, atol=1e-7)


def test_models_that_no_engine_runs_in_float64_have_no_outputs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "elsewhere" : 1]>
        main (float[2,3] X) => (float[2,3] Z) { Z = elsewhere.Other (X) }
    """)
    held = load_parsed(model, "reference", tmp_path)
    with closing(Runner(held, held, VerifyOptions())) as runner:
        assert runner.run_in_type(WIDE, held, {"X": np.ones((2, 3))}) is None


@pytest.mark.parametrize(("strategy", "told"), [("unroll", True), ("scan", False)])
def test_a_straight_line_that_takes_long_to_load_names_scan(
    strategy: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_LONG_LOAD", 0.0)
    source = recurrent_model("GRU", inputs={"X": (onnx.TensorProto.FLOAT, [60, 1, 3])})
    result = verify(source, lowered_by(source, strategy), trials=1)
    notes = [note for note in result.skipped if "to load the candidate" in note]
    assert [("rnnlower.scan(model)" in note, "nodes" in note) for note in notes] == [(True, True)] * told
