"""Modules of PyTorch, exported in primitive ops and compared with themselves. Needs torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.recipes import ROOT

import rnnlower

torch = pytest.importorskip("torch")

from rnnlower.exporters.torch import custom_translation_table, export  # noqa: E402

LAYERS = {
    "lstm": lambda **more: torch.nn.LSTM(4, 6, **more),
    "gru": lambda **more: torch.nn.GRU(4, 6, **more),
    "tanh": lambda **more: torch.nn.RNN(4, 6, **more),
    "relu": lambda **more: torch.nn.RNN(4, 6, nonlinearity="relu", **more),
    "projected": lambda **more: torch.nn.LSTM(4, 6, proj_size=3, **more),
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
    "no bias, batch first": {"bias": False, "batch_first": True},
}
RECURRENT = {"LSTM", "GRU", "RNN"}


class WithStates(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, states: Any) -> Any:
        return self.layer(x, states)


def made(layer: str, **form: Any) -> Any:
    torch.manual_seed(0)
    return LAYERS[layer](**form).eval()


def op_types(path: Path) -> set[str]:
    model = onnx.load(path)
    assert not model.functions
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_exported_unrolled(layer: str, form: str, tmp_path: Path) -> None:
    result = export(made(layer, **FORMS[form]), (torch.randn(5, 2, 4),), tmp_path / "m.onnx")
    assert result.trials == 4
    assert result.engines == {"reference": "torch", "candidate": "onnxruntime"}
    assert not op_types(tmp_path / "m.onnx") & {*RECURRENT, "Scan", "Loop"}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_initial_states_given_as_inputs_are_used(layer: str, both: bool, tmp_path: Path) -> None:
    module = made(layer, bidirectional=both, num_layers=2)
    count, features = 4 if both else 2, 3 if layer == "projected" else 6
    h = torch.randn(count, 2, features)
    states = (h, torch.randn(count, 2, 6)) if layer in ("lstm", "projected") else h
    assert export(WithStates(module).eval(), (torch.randn(5, 2, 4), states), tmp_path / "m.onnx")


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop"])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_translation_table_exports_layers_lowered_by_the_strategy(
    layer: str, strategy: str, tmp_path: Path
) -> None:
    module, x, path = made(layer, num_layers=2, bidirectional=True), torch.randn(5, 2, 4), tmp_path / "m.onnx"
    table = custom_translation_table(strategy)
    torch.onnx.export(module, (x,), path, dynamo=True, custom_translation_table=table, verbose=False)
    ops = op_types(path)
    assert not ops & RECURRENT
    assert ops & {"Scan", "Loop"} == ({strategy.title()} if strategy != "unroll" else set())
    session = onnxruntime.InferenceSession(path)
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    y, states = module(x)
    for ours, theirs in zip(got, [y, *(states if isinstance(states, tuple) else [states])], strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_dynamic_length_stays_dynamic(layer: str, tmp_path: Path) -> None:
    module, path = made(layer), tmp_path / "m.onnx"
    exporter = {"dynamic_shapes": ({0: torch.export.Dim("steps", min=2)},)}
    export(module, (torch.randn(5, 2, 4),), path, "scan", exporter=exporter)
    model = onnx.load(path)
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param
    x = torch.randn(9, 2, 4)
    session = onnxruntime.InferenceSession(path)
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    np.testing.assert_allclose(got, module(x)[0].detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_length_that_cannot_be_dynamic_is_not_fixed_to_the_examples(tmp_path: Path) -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.ones(5, 1, 1)

    exporter = {"dynamic_shapes": ({0: torch.export.Dim("steps", min=2)},)}
    with pytest.raises(torch._dynamo.exc.UserError, match="steps"):
        export(Fixed().eval(), (torch.randn(5, 2, 4),), tmp_path / "m.onnx", "scan", exporter=exporter)
    with pytest.raises(rnnlower.OptionError, match="dynamic_shapes"):
        export(made("gru"), (torch.randn(5, 2, 4),), tmp_path / "m.onnx", exporter={"dynamic_axes": {}})
    assert not list(tmp_path.iterdir())


def test_a_dynamic_length_is_not_unrolled(tmp_path: Path) -> None:
    exporter = {"dynamic_shapes": ({0: torch.export.Dim("steps", min=2)},)}
    with pytest.raises(rnnlower.UnsupportedModelError, match="sequence length"):
        export(made("gru"), (torch.randn(5, 2, 4),), tmp_path / "m.onnx", exporter=exporter)
    assert not list(tmp_path.iterdir())


def test_a_target_decides(tmp_path: Path) -> None:
    x = (torch.randn(5, 2, 4),)
    export(made("gru"), x, tmp_path / "m.onnx", "lower", target="tidl")
    assert not rnnlower.check(tmp_path / "m.onnx", target="tidl")


def test_the_reference_is_the_module_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rnnlower.exporters import aten

    monkeypatch.setitem(aten._GATES, "GRU", (0, 1, 2))
    with pytest.raises(rnnlower.VerificationError, match="differs from the module"):
        export(made("gru"), (torch.randn(5, 2, 4),), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_bfloat16_and_arguments_with_gradients_are_compared(tmp_path: Path) -> None:
    x = torch.randn(3, 1, 4).requires_grad_()
    assert export(made("gru"), (x,), tmp_path / "m.onnx")
    module = made("gru").bfloat16()
    assert export(module, (x.bfloat16(),), tmp_path / "b.onnx", exporter={"opset_version": 22})


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    x, path = (torch.randn(5, 2, 4),), tmp_path / "m.onnx"
    with pytest.raises(rnnlower.OptionError, match=r"module\.eval\(\)"):
        export(made("gru").train(), x, path)
    with pytest.raises(rnnlower.OptionError, match="strategy"):
        export(made("gru"), x, path, "fold")
    with pytest.raises(rnnlower.OptionError, match="strategy"):
        custom_translation_table("fold")
    with pytest.raises(rnnlower.OptionError, match="dimms"):
        export(made("gru"), x, path, dimms={"T": 3})
    with pytest.raises(rnnlower.OptionError, match="set by rnnlower"):
        export(made("gru"), x, path, exporter={"dynamo": False})
    assert not path.exists()


def test_rnnlower_does_not_import_torch() -> None:
    code = "import rnnlower, sys; rnnlower.unroll, rnnlower.verify; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/exporters.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^## PyTorch.*?^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert not op_types(tmp_path / "model.onnx") & {*RECURRENT, "Scan", "Loop"}
