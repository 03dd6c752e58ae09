"""StripPass: metadata and names of nodes and doc strings go, and the model computes the same."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from support.cli_helpers import rnnlower, save
from support.judge import all_nodes

from rnnlower.errors import OptionError
from rnnlower.passes import PadLengthsPass, StripPass

MODELS = Path(__file__).parents[2] / "models"
COMMANDS = {
    "unroll": ("--dim", "frames=4"),
    "scan": (),
    "loop": (),
    "lower": ("--target", "primitive", "--dim", "frames=4"),
    "convert": ("--opset", "18"),
    "stream": (),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_strip_if_asked(command: str, tmp_path: Path) -> None:
    model = onnx.load(MODELS / "denoiser_gru.onnx")
    model.doc_string = model.graph.doc_string = model.graph.input[0].doc_string = "why"
    model.metadata_props.add(key="license", value="none")
    for node in model.graph.node:
        node.doc_string = "File model.py, line 12"
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="def forward(self)")
    source = save(model, tmp_path)
    line = [command, source, *COMMANDS[command], "-o"]
    rnnlower(*line, tmp_path / "plain.onnx")
    rnnlower(*line, tmp_path / "stripped.onnx", "--strip")
    result = onnx.load(tmp_path / "stripped.onnx")
    assert not any(node.name or node.doc_string or node.metadata_props for node in all_nodes(result))
    assert {result.doc_string, result.graph.doc_string, result.graph.input[0].doc_string} == {""}
    assert "license" in {entry.key for entry in result.metadata_props}
    assert (tmp_path / "stripped.onnx").stat().st_size < (tmp_path / "plain.onnx").stat().st_size


def test_nodes_stay_without_names_when_a_later_pass_fails() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "main (float[T] x) => (float[T] y) { [scope_relu] y = Relu (x) }"
    )
    StripPass()(model)
    with pytest.raises(OptionError):
        PadLengthsPass({"S": 4})(model)
    assert [node.name for node in model.graph] == [None]
