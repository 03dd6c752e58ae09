"""--assume-linear-before-reset: the attribute that some PyTorch exporters left out of a GRU."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save
from support.judge import STRATEGIES, run
from support.quantizing import Network

import rnnlower


def networks() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return as it was meant, and as it was exported."""
    meant = Network("GRU", steps=5, features=4, hidden_size=8).build()
    exported = onnx.ModelProto()
    exported.CopyFrom(meant)
    for node in exported.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != "linear_before_reset"]
        del node.attribute[:]
        node.attribute.extend(kept)
    exported.producer_name = "pytorch"
    return meant, exported


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_result_computes_what_the_module_computed(strategy: str) -> None:
    meant, exported = networks()
    inputs = Network(features=4).inputs(1, 5)
    mended = getattr(rnnlower, strategy)(exported, assume_linear_before_reset=True)
    right, wrong = run(meant, inputs)["scores"], run(exported, inputs)["scores"]
    np.testing.assert_allclose(run(mended, inputs)["scores"], right, atol=1e-6)
    assert np.abs(wrong - right).max() > 1e-3


def test_the_verification_assumes_the_attribute_in_the_source(tmp_path: pathlib.Path) -> None:
    _, exported = networks()
    model, out = save(exported, tmp_path), tmp_path / "out.onnx"
    run = command("scan", model, "-o", out, "--assume-linear-before-reset")
    assert "GRU nodes are read as linear_before_reset=1, as asked for: 2 had another form" in run.stderr
    assert "linear_before_reset is 0" not in run.stderr
    command("verify", model, out, code=1)
    command("verify", model, out, "--assume-linear-before-reset")
