"""External weights: unused ones are not read, and unchanged ones stay in their file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from large import make_large
from typer.testing import CliRunner

from rnnlower.cli import app

COMMANDS = ["unroll", "scan", "loop", "convert"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the external tensors whose numbers anybody asks for."""
    names: list[str] = []

    def spied(method: str) -> Any:
        original = getattr(ir.ExternalTensor, method)

        def spy(self: ir.ExternalTensor, *arguments: Any, **options: Any) -> Any:
            names.append(f"{self.name}")
            return original(self, *arguments, **options)

        return spy

    for method in ("numpy", "tobytes", "tofile", "__array__"):
        if hasattr(ir.ExternalTensor, method):
            monkeypatch.setattr(ir.ExternalTensor, method, spied(method))
    return names


def _run(command: str, path: Path, output: Path, *options: str) -> None:
    line = [
        command,
        str(path),
        "-o",
        str(output),
        *(["--opset", "20"] if command == "convert" else []),
        *options,
    ]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_weights_that_fit_are_neither_read_nor_written(
    command: str, tmp_path: Path, reads: list[str]
) -> None:
    path = make_large(tmp_path, 1e-5)
    _run(command, path, tmp_path / "out.onnx", "--no-verify", "--external-data", "share")
    # The two halves of a bias are added, which takes its numbers.
    assert set(reads) <= {"gru_B"}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["large.data", "large.onnx", "out.onnx"]
    tensors = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
    external = [tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL]
    names = {tensor.name.rpartition("_")[0] or tensor.name for tensor in external}
    assert len(external) >= 5, names
    assert not [t.name for t in tensors if t not in external and t.ByteSize() > 1000]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_larger_than_protobuf_allows_is_lowered(command: str, tmp_path: Path) -> None:
    """A sparse file: none of its gigabytes is on the disk, nor gets there."""
    path = make_large(tmp_path, 2.5)
    _run(command, path, tmp_path / "out.onnx", "--no-verify", "--external-data", "share")
    assert (tmp_path / "out.onnx").stat().st_size < 50_000
    assert (tmp_path / "large.data").stat().st_blocks * 512 < 10_000_000
    assert os.listdir(tmp_path).count("out.onnx.data") == 0


def test_a_model_with_a_large_weight_file_is_verified(tmp_path: Path) -> None:
    path = make_large(tmp_path, 1e-4)
    for command in COMMANDS:
        _run(command, path, tmp_path / "out.onnx")


def test_more_than_2_gb_in_one_file_are_refused(tmp_path: Path) -> None:
    path = make_large(tmp_path, 2.5)
    line = ["scan", str(path), "-o", str(tmp_path / "out.onnx"), "--external-data", "never", "--no-verify"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 2
    assert "2 GB" in result.output
    assert not (tmp_path / "out.onnx").exists()
