"""docs/quantization.md, executed from top to bottom."""

from __future__ import annotations

import pathlib
import re
import shlex

import numpy as np
import onnx
import pytest
from support.cli_helpers import rnnlower
from support.quantizing import Network, products

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "quantization.md"
STEPS = 6


@pytest.mark.parametrize("steps", [STEPS, "T"], ids=["a straight line", "a Scan"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_the_recipes_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, op_type: str, steps: int | str
) -> None:
    network = Network(op_type, steps=steps, features=8, hidden_size=16, layers=1)
    monkeypatch.chdir(tmp_path)
    onnx.save(network.build(), "model.onnx")
    samples = [network.inputs(seed, STEPS)["X"] for seed in range(33)]
    np.savez("samples.npz", X=np.stack(samples[:32]))
    np.savez("sample.npz", X=samples[32])
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "sh", "python", "python", "sh"]
    for language, text in blocks:
        if language == "python":
            exec(compile(text, "docs/quantization.md", "exec"), {})
            continue
        for line in text.splitlines():
            rnnlower(*shlex.split(line)[1:])
    assert {"quantized.onnx", "wide.onnx", "again.onnx"} <= {path.name for path in tmp_path.iterdir()}
    integers, total = products(onnx.load("dynamic.onnx"))
    assert integers == total
    integers, total = products(onnx.load("static.onnx"))
    assert integers == total if steps == STEPS else 0 < integers < total
