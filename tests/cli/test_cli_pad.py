"""The command `rnnlower pad`."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from support.cli_helpers import rnnlower, save
from support.judge import recurrent_left
from support.padded_models import padded_case, with_weights


@pytest.fixture
def tagger(tmp_path: Path) -> Path:
    return save(padded_case("tagger"), tmp_path)


def test_pad_writes_a_verified_model_and_reports_it_in_json(tagger: Path, out: Path) -> None:
    run = rnnlower("pad", tagger, "-o", out, "--max", "T=20", "--json")
    assert run.json["max"] == {"T": 20}
    assert run.json["inputs"] == {"x": 0}
    assert run.json["outputs"] == {"z": {"axis": 0, "size": "T"}}
    assert run.json["verification"]["equal"]
    inputs = {value.name: value.type.tensor_type for value in onnx.load(out).graph.input}
    assert [dim.dim_value for dim in inputs["x"].shape.dim] == [20, 1, 3]
    assert inputs["length"].elem_type == onnx.TensorProto.INT64


def test_the_table_gives_the_valid_length_of_each_output(tmp_path: Path) -> None:
    source = save(padded_case("strided convolution"), tmp_path)
    run = rnnlower("pad", source, "-o", tmp_path / "out.onnx", "--max", "T=20", "--mask")
    assert "(T + 1) // 2" in run.stdout
    assert "Verified" in run.stdout


@pytest.mark.parametrize(
    "command", [("unroll",), ("scan",), ("lower", "--target", "tinygrad", "--on", "none")]
)
def test_a_padded_model_can_be_lowered(tagger: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    padded, lowered = tmp_path / "padded.onnx", tmp_path / "lowered.onnx"
    rnnlower("pad", tagger, "-o", padded, "--max", "T=12")
    rnnlower(command[0], padded, "-o", lowered, *command[1:])
    assert recurrent_left(onnx.load(lowered)) == []
    assert rnnlower("verify", tagger, lowered, "--json").json["equal"]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (["--max", "T"], 2),
        (["--max", "T=1"], 2),
        (["--max", "Q=9"], 2),
        (["--max", "T=9", "--max", "T=8"], 2),
    ],
)
def test_wrong_usage(tagger: Path, tmp_path: Path, wrong: list[str], code: int) -> None:
    rnnlower("pad", tagger, "-o", tmp_path / "out.onnx", *wrong, code=code)
    assert not (tmp_path / "out.onnx").exists()


def test_a_refused_model_is_not_written(tmp_path: Path) -> None:
    source = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T, 2] x) => (int64[2, N] z) '
        "{ [found] z = NonZero (x) }"
    )
    run = rnnlower("pad", save(source, tmp_path), "-o", tmp_path / "out.onnx", "--max", "T=9", code=3)
    assert "'found'" in run.stderr
    assert "NonZero" in run.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_an_input_that_decides_a_branch_is_named(out: Path, tmp_path: Path) -> None:
    source = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> main (float[T, 2] x, bool c) => (float[T, 2] z) {
            z = If (c) <then_branch = a () => (float[T, 2] p) { p = Neg (x) },
                        else_branch = b () => (float[T, 2] q) { q = Abs (x) }>
        }"""
    )
    line = ("pad", save(source, tmp_path), "-o", out, "--max", "T=9")
    assert "input 'c' decides it: --set c=VALUE" in rnnlower(*line, code=3).stderr
    rnnlower(*line, "--set", "c=true")


def test_lower_pads_first(tagger: Path, out: Path) -> None:
    target = ("--target", "tinygrad", "--on", "none")
    run = rnnlower("lower", tagger, "-o", out, *target, "--max", "T=12", "--json")
    assert run.json["verification"]["equal"]
    assert recurrent_left(onnx.load(out)) == []
    assert "length" in {value.name for value in onnx.load(out).graph.input}
    assert "rnnlower.pad" in {entry.key for entry in onnx.load(out).metadata_props}


def test_several_maxima_write_a_file_each(tagger: Path, tmp_path: Path) -> None:
    run = rnnlower("pad", tagger, "-o", tmp_path / "out.onnx", "--max", "T=8,16", "--json")
    assert [each["max"] for each in run.json["buckets"]] == [{"T": 8}, {"T": 16}]
    for size in (8, 16):
        (x, _) = onnx.load(tmp_path / f"out-{size}.onnx").graph.input
        assert x.type.tensor_type.shape.dim[0].dim_value == size
    assert not (tmp_path / "out.onnx").exists()


def test_of_several_maxima_none_is_written_if_one_is_refused(tmp_path: Path) -> None:
    source = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> main (float[T, 2] x) => (float[T, 2] y) <
            float[4, 2] positions = {1, 2, 3, 4, 5, 6, 7, 8},
            int64[1] zero = {0}
        > {
            T = Shape <end = 1> (x)
            first = Slice (positions, zero, T)
            y = Add (x, first)
        }"""
    )
    line = ("pad", save(source, tmp_path), "-o", tmp_path / "out.onnx", "--max")
    rnnlower(*line, "T=3,5", code=3)
    assert [*tmp_path.glob("out*")] == []
    rnnlower(*line, "T=3,4")
    assert len([*tmp_path.glob("out*")]) == 2


def test_each_row_has_a_length(tmp_path: Path) -> None:
    source = save(padded_case("softmax", batch="B"), tmp_path)
    out = tmp_path / "out.onnx"
    run = rnnlower("pad", source, "-o", out, "--max", "T=20", "--per-row", "--json")
    assert run.json["rows"] == {"x": 1, "z": 1}
    assert run.json["verification"]["equal"]
    (_, length) = onnx.load(out).graph.input
    assert length.type.tensor_type.shape.dim[0].dim_param == "B"


def test_check_and_inspect_know_padding(tagger: Path, tmp_path: Path) -> None:
    run = rnnlower("check", tagger, "--target", "ort-qnn", code=1)
    assert "pad sequences of any length to a maximum (`rnnlower pad`)" in run.stderr
    rnnlower("pad", tagger, "-o", tmp_path / "out.onnx", "--max", "T=20")
    assert rnnlower("inspect", tmp_path / "out.onnx", "--json").json["pad"]["max"] == {"T": 20}
    assert "the length is given in length (T)" in rnnlower("inspect", tmp_path / "out.onnx").stdout


def test_the_result_in_the_place_of_the_source_comes_last(tagger: Path, tmp_path: Path) -> None:
    source = tmp_path / "out-8.onnx"
    source.write_bytes(tagger.read_bytes())
    rnnlower("pad", source, "-o", tmp_path / "out.onnx", "--max", "T=8,12")
    for size in (8, 12):
        assert rnnlower("verify", tagger, tmp_path / f"out-{size}.onnx", "--json").json["equal"]


def test_a_length_that_must_be_a_multiple_is_shown(tmp_path: Path, out: Path) -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T] x) => (float[F, 4] y) '
        "{ n = Constant <value_ints = [-1, 4]> () y = Reshape (x, n) }"
    )
    run = rnnlower("pad", save(source, tmp_path), "-o", out, "--max", "T=16")
    assert "the length is given in length (T); T is a multiple of 4" in run.stdout
    run = rnnlower("pad", save(source, tmp_path), "-o", out, "--max", "T=18", code=2)
    assert "choose 16 or 20" in run.stderr
