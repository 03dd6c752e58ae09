"""Output files of the command line: written whole or not at all, with external data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data
from support.cli_helpers import rnnlower, save
from support.judge import STRATEGIES, recurrent_left
from support.places import MODELS
from support.small_models import recurrent_model, weights

FLOAT = onnx.TensorProto.FLOAT


def model_with_data(folder: Path, location: str = "weights.bin", hidden_size: int = 16) -> Path:
    """Return a model whose weights lie in a file of their own."""
    model = recurrent_model(
        constants=weights("LSTM", hidden_size=hidden_size),
        inputs={"X": (FLOAT, [5, 2, 3])},
        hidden_size=hidden_size,
    )
    convert_model_to_external_data(model, location=location, size_threshold=0)
    return save(model, folder)


def set_entry(path: Path, key: str, value: str) -> None:
    """Change where the first initializer's data is said to lie."""
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(model.SerializeToString())


def externals(path: Path) -> dict[str, str]:
    """Return the file of each initializer that has one."""
    return {
        tensor.name: next(entry.value for entry in tensor.external_data if entry.key == "location")
        for tensor in onnx.load(path, load_external_data=False).graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


@pytest.mark.parametrize("strategy", [*STRATEGIES, "convert"])
def test_the_output_may_replace_the_model(strategy: str, tmp_path: Path) -> None:
    path = save(recurrent_model(inputs={"X": (FLOAT, [5, 2, 3])}), tmp_path)
    rnnlower(strategy, path, "-o", path, "--opset", 18)
    assert list(tmp_path.iterdir()) == [path]
    model = onnx.load(path)
    assert model.opset_import[0].version == 18
    assert recurrent_left(model) == (["LSTM"] if strategy == "convert" else [])


@pytest.mark.parametrize(
    "line",
    [
        "unroll model.onnx --inputs data.npz -o data.npz",
        "unroll model.onnx --set X=@data.npz:X -o data.npz",
        "lower model.onnx --target own.toml -o own.toml",
        "stream model.onnx -o weights.bin",
        "stream model.onnx other.onnx -o weights.bin",
        "quantize model.onnx --calibration data.npz -o data.npz",
        "quantize model.onnx --calibration data.npz -o weights.bin",
        "calibrate model.onnx data.npz -o data.npz",
        "calibrate model.onnx data.npz -o model.onnx",
        "calibrate model.onnx data.npz -o weights.bin",
        "calibrate model.onnx data.npz -o data.py --format python",
    ],
)
def test_the_output_replaces_no_other_file_that_is_read(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model_with_data(tmp_path)
    save(recurrent_model(), tmp_path, "other.onnx")
    for name in ("data.npz", "own.toml"):
        Path(name).write_bytes(name.encode())
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    run = rnnlower(*line.split(), code=2)
    assert "which the command reads; give the result another name" in run.stderr
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("command", ["scan model.onnx", "calibrate model.onnx data.npz --format python"])
@pytest.mark.parametrize("output", [".", "/"])
def test_the_output_is_no_folder_without_a_name(
    command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(recurrent_model(), tmp_path)
    np.savez("data.npz", X=np.zeros((5, 2, 3), np.float32))
    rnnlower(*command.split(), "-o", output, code=2)


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path: Path) -> None:
    path, name = save(recurrent_model(inputs={"X": (FLOAT, [5, 2, 3])}), tmp_path), "a" * 250
    report = tmp_path / f"{name}.html"
    rnnlower("unroll", path, "-o", tmp_path / f"{name}.onnx", "--report", report)
    assert report.exists()


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("data", ["auto", "always"])
def test_failed_verification_writes_nothing(data: str, existing: bool, tmp_path: Path) -> None:
    path, out = save(recurrent_model(), tmp_path), tmp_path / "out.onnx"
    if existing:
        out.write_bytes(b"older")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    run = rnnlower("scan", path, "-o", out, "--atol", 0, "--rtol", 0, "--external-data", data, code=1)
    assert "was not written" in run.stderr
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_failed_verification_json(tmp_path: Path) -> None:
    path, out = save(recurrent_model(), tmp_path), tmp_path / "out.onnx"
    result = rnnlower("scan", path, "-o", out, "--atol", 0, "--rtol", 0, "--json", code=1).json
    assert result["verification"]["equal"] is False
    assert result["output"] is None


def test_output_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(recurrent_model(), tmp_path)
    monkeypatch.chdir(tmp_path)
    rnnlower("scan", "model.onnx", "-o", "out.onnx")
    rnnlower("scan", "model.onnx", "-o", "model.onnx", "--external-data", "always")
    assert sorted(os.listdir()) == ["model.onnx", "model.onnx.data", "out.onnx"]


@pytest.mark.parametrize("command", [*STRATEGIES, "convert"])
def test_external_data_is_copied_to_the_results_own_file(command: str, tmp_path: Path) -> None:
    path = model_with_data(tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    run = rnnlower(command, path, "-o", tmp_path / "out.onnx", "--opset", 17)
    assert set(externals(tmp_path / "out.onnx").values()) == {"out.onnx.data"}
    assert (tmp_path / "weights.bin").read_bytes() == data
    written = sum((tmp_path / name).stat().st_size for name in ("out.onnx", "out.onnx.data"))
    assert f"wrote {tmp_path / 'out.onnx'} ({written:,} bytes" in run.stderr
    (tmp_path / "weights.bin").rename(tmp_path / "gone")
    onnx.checker.check_model(str(tmp_path / "out.onnx"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_external_data_is_shared_if_asked_for(strategy: str, tmp_path: Path) -> None:
    path = model_with_data(tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    run = rnnlower(strategy, path, "-o", tmp_path / "out.onnx", "--external-data", "share")
    assert set(externals(tmp_path / "out.onnx").values()) == {"weights.bin"}
    assert (tmp_path / "weights.bin").read_bytes() == data
    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", "weights.bin", "out.onnx"}
    own = (tmp_path / "out.onnx").stat().st_size
    said = f"({own:,} bytes, which refer to {len(data):,} in the source's weights.bin; the source has"
    assert said in run.stderr


def test_external_data_that_cannot_be_shared(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    path = model_with_data(tmp_path / "source")
    elsewhere = ["scan", path, "-o", tmp_path / "out.onnx", "--external-data", "share"]
    assert f"the result must be in {tmp_path / 'source'}, too" in rnnlower(*elsewhere, code=2).stderr
    alone = save(onnx.load(path), tmp_path, "alone.onnx")
    run = rnnlower("scan", alone, "-o", tmp_path / "out.onnx", "--external-data", "share", code=2)
    assert "no tensor of the result is in a data file of the source" in run.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_external_data_moves_with_the_result(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    rnnlower("scan", model_with_data(source), "-o", target / "out.onnx")
    assert sorted(file.name for file in target.iterdir()) == ["out.onnx", "out.onnx.data"]
    source.rename(tmp_path / "gone")
    onnx.checker.check_model(str(target / "out.onnx"))
    rnnlower("verify", tmp_path / "gone" / "model.onnx", target / "out.onnx")


def test_external_data_with_output_equal_to_the_model(tmp_path: Path) -> None:
    path = model_with_data(tmp_path)
    reference = save(onnx.load(path), tmp_path, "reference.onnx")
    for mode in ("auto", "always", "always", "never"):
        rnnlower("scan", path, "-o", path, "--external-data", mode)
        rnnlower("verify", reference, path)
    assert externals(path) == {}


def test_external_data_always_and_never(tmp_path: Path, out: Path) -> None:
    rnnlower("scan", MODELS / "streaming_lstm_stack.onnx", "-o", out, "--external-data", "always")
    assert set(externals(out).values()) == {"out.onnx.data"}
    (tmp_path / "out.onnx.data").unlink()
    rnnlower("scan", model_with_data(tmp_path), "-o", out, "--external-data", "never")
    assert externals(out) == {}
    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", "weights.bin", "out.onnx"}


def refused_output(path: Path, *words: str) -> None:
    for command in ("scan", "convert"):
        run = rnnlower(command, path, "-o", path.parent / "out.onnx", "--opset", 17, code=3)
        for word in words:
            assert word in run.stderr
        assert not (path.parent / "out.onnx").exists()
    rnnlower("inspect", path, code=3)


def test_missing_external_data(tmp_path: Path) -> None:
    path = model_with_data(tmp_path)
    (tmp_path / "weights.bin").unlink()
    refused_output(path, "'W'", "weights.bin", "missing")


def test_short_external_data(tmp_path: Path) -> None:
    path = model_with_data(tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-8])
    refused_output(path, "weights.bin", "too short")


def test_external_data_of_another_length(tmp_path: Path) -> None:
    path = model_with_data(tmp_path)
    set_entry(path, "length", "12")
    refused_output(path, "'W'", "12 bytes")


@pytest.mark.parametrize("offset", ["-4", "1000000"])
def test_external_data_at_an_impossible_offset(offset: str, tmp_path: Path) -> None:
    path = model_with_data(tmp_path)
    set_entry(path, "offset", offset)
    refused_output(path, "'W'")


@pytest.mark.parametrize("absolute", [False, True])
def test_external_data_outside_of_the_folder(absolute: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = model_with_data(folder)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    set_entry(path, "location", str(tmp_path / "weights.bin") if absolute else "../weights.bin")
    refused_output(path, "'W'", "outside")


def test_symlink_to_external_data_outside_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = model_with_data(folder)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")
    refused_output(path, "'W'", "outside")


def test_external_data_of_a_constant_node(tmp_path: Path) -> None:
    # Only W is large enough to be moved out.
    model = recurrent_model(
        constants=weights("LSTM", input_size=64), inputs={"X": (FLOAT, [5, 2, 64])}, outputs=["Y"]
    )
    node = onnx.helper.make_node("Constant", [], ["W"], value=model.graph.initializer[0])
    del model.graph.initializer[0]
    model.graph.node.insert(0, node)
    convert_model_to_external_data(model, location="weights.bin", size_threshold=1024, convert_attribute=True)
    path = save(model, tmp_path)
    rnnlower("scan", path, "-o", tmp_path / "out.onnx")
    assert externals(tmp_path / "out.onnx") == {}
    (tmp_path / "out.onnx").unlink()
    (tmp_path / "weights.bin").write_bytes(b"")
    refused_output(path, "attribute 'value' of Constant node", "weights.bin")


def test_unreadable_output_folder(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    assert "out.onnx" in rnnlower("scan", path, "-o", tmp_path / "absent" / "out.onnx", code=2).stderr
    rnnlower("scan", path, "-o", tmp_path, code=2)
    assert list(tmp_path.iterdir()) == [path]


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    for name in ("first.onnx", "second.onnx"):
        rnnlower("loop", path, "-o", tmp_path / name)
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()


def test_permissions_are_those_of_a_new_file(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    rnnlower("scan", path, "-o", tmp_path / "out.onnx", "--external-data", "always")
    plain = (tmp_path / "plain").open("wb")
    plain.close()
    for name in ("out.onnx", "out.onnx.data"):
        assert (tmp_path / name).stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_reported_size_includes_the_data_file(tmp_path: Path) -> None:
    path, out = model_with_data(tmp_path), tmp_path / "out.onnx"
    told = rnnlower("scan", path, "-o", out, "--trials", 1).stderr
    sizes = []
    for model in (out, path):
        files = {model, *(tmp_path / location for location in externals(model).values())}
        assert len(files) == 2
        sizes.append(sum(file.stat().st_size for file in files))
    assert f"({sizes[0]:,} bytes; the source has {sizes[1]:,})" in told
