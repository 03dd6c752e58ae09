"""--set and --fold on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.cli_helpers import rnnlower, save
from support.places import MODELS

import rnnlower as library

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[T, 1, 3] X, int64 sr) => (float[T, 1, 1, 4] Y)
    <float[1, 4, 3] W = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2},
     float[1, 4, 4] R = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6},
     int64 high = {16000}>
    {
        c = Equal (sr, high)
        x = If (c) <then_branch = p () => (float[T, 1, 3] a) { a = Neg (X) },
                    else_branch = q () => (float[T, 1, 3] b) { b = Abs (X) }>
        Y = RNN <hidden_size = 4> (x, W, R)
    }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(onnx.parser.parse_model(MODEL), tmp_path)


def ops_in_file(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("command", ["unroll --dim T=3", "scan", "loop", "lower --target openvino"])
def test_an_input_that_is_set_removes_the_if_that_it_decides(model: Path, out: Path, command: str) -> None:
    name, *options = command.split()
    run = rnnlower(name, model, "-o", out, *options, "--set", "sr=8000", "--json")
    assert run.json["verification"]["equal"]
    assert run.json["sets"] == {"sr": 8000}
    assert "input 'sr' is set: the reference was fed 8000" in run.json["verification"]["skipped"]
    assert [value.name for value in onnx.load(out).graph.input] == ["X"]
    assert "Abs" in ops_in_file(out)
    assert "If" not in ops_in_file(out) or name != "unroll"


def test_a_wrong_branch_is_noticed(model: Path) -> None:
    candidate = library.unroll(str(model), dims={"T": 3}, sets={"sr": 16000})
    assert library.verify(model, candidate, sets={"sr": 16000})
    assert not library.verify(model, candidate, sets={"sr": 8000})
    (problem,) = library.verify(model, candidate).problems
    assert "no input 'sr'; if it was set there, set it here, too (sets={\"sr\": VALUE})" in problem


def test_without_folding_the_if_stays(model: Path, out: Path) -> None:
    rnnlower("scan", model, "-o", out, "--set", "sr=8000", "--no-fold")
    assert "If" in ops_in_file(out)
    rnnlower("scan", model, "-o", out)
    assert "If" in ops_in_file(out)


def test_what_decides_an_if_is_told(model: Path, tmp_path: Path) -> None:
    run = rnnlower("lower", model, "-o", tmp_path / "out.onnx", "--target", "openvino")
    assert "If 'x' stays: input 'sr' decides it: --set sr=VALUE" in run.stderr


def test_ifs_with_one_remedy_are_one_note(tmp_path: Path) -> None:
    """A voice detector has dozens of Ifs, which one option takes away."""
    branches = ", ".join(
        f"{kind}_branch = b () => (float[N] u) {{ u = {op} (x) }}"
        for kind, op in (("then", "Neg"), ("else", "Abs"))
    )
    nodes = " ".join(f"[if{number}] y{number} = If <{branches}> (flag)" for number in range(5))
    text = f"""<ir_version: 8, opset_import: ["" : 17]> main (float[N] x, bool flag) => (float[N] y) {{
        {nodes} y = Sum (y0, y1, y2, y3, y4) }}"""
    run = rnnlower(
        "lower",
        save(onnx.parser.parse_model(text), tmp_path),
        "-o",
        tmp_path / "out.onnx",
        "--target",
        "openvino",
    )
    (note,) = [line for line in run.stderr.splitlines() if "If " in line]
    assert "If 'if0', 'if1', 'if2' and 2 more stay: input 'flag' decides it: --set flag=VALUE" in note


def test_values_from_a_file(model: Path, tmp_path: Path, out: Path) -> None:
    np.savez(tmp_path / "v.npz", rate=np.int64(16000), X=np.ones((2, 1, 3), np.float32))
    rnnlower("scan", model, "-o", out, "--set", f"sr=@{tmp_path / 'v.npz'}:rate")
    assert "Neg" in ops_in_file(out)
    rnnlower("scan", model, "-o", out, "--set", f"X=@{tmp_path / 'v.npz'}:X")
    assert [value.name for value in onnx.load(out).graph.input] == ["sr"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sr", "not NAME=VALUE"),
        ("sr=", "not NAME=VALUE"),
        ("sr=high", "is not a number"),
        ("sr=[1", "is not a number"),
        ('sr="16000"', "is not a number"),
        ("sr=null", "is not a number"),
        ("sr=1.5", "takes integers"),
        ("sr=true", "takes integers"),
        ("sr=99999999999999999999", "takes integers"),
        ("sr=[16000]", "shape []"),
        ("rate=16000", "no input named 'rate'"),
        ("sr=@no.npz:a", "cannot read no.npz"),
        ("sr=@no.npz", "not NAME=@FILE.npz:KEY"),
    ],
)
def test_bad_values_are_refused_and_nothing_is_written(
    model: Path, out: Path, value: str, message: str
) -> None:
    run = rnnlower("scan", model, "-o", out, "--set", value, code=2)
    assert message in run.stderr
    assert not out.exists()


def test_a_condition_that_is_itself_an_input(tmp_path: Path) -> None:
    text = MODEL.replace("int64 sr)", "bool c)").replace("c = Equal (sr, high)", "")
    model = save(onnx.parser.parse_model(text), tmp_path, "condition.onnx")
    run = rnnlower("scan", model, "-o", tmp_path / "out.onnx", "--set", "c=false", "--json")
    assert run.json["verification"]["equal"]


def test_convert_and_bench_take_it_too(model: Path, out: Path) -> None:
    run = rnnlower("convert", model, "-o", out, "--opset", "13", "--set", "sr=8000", "--json")
    assert run.json["verification"]["equal"]
    assert ops_in_file(out) == {"Abs", "RNN"}
    run = rnnlower(
        "bench", model, "--set", "sr=8000", "--dim", "T=3", "--runs", "1", "--strategy", "scan", "--json"
    )
    assert [variant["status"] for variant in run.json["variants"]] == ["timed", "timed"]
    converted = library.convert(str(model), opset=13, sets={"sr": 16000})
    assert [value.name for value in converted.graph.input] == ["X"]


@pytest.mark.parametrize(
    "line", ["convert --opset 13", "stream --chunk 1", "check --target openvino", "bench --runs 1"]
)
@pytest.mark.parametrize(("value", "message"), [("rate=1", "no input named 'rate'"), ("sr=1.5", "integers")])
def test_the_other_commands_refuse_bad_values(
    model: Path, out: Path, line: str, value: str, message: str
) -> None:
    name, *options = line.split()
    written = ["-o", out] if name in ("convert", "stream") else []
    assert message in rnnlower(name, model, *written, *options, "--set", value, code=2).stderr
    assert not out.exists()


def test_check_and_stream_take_it_too(model: Path, out: Path) -> None:
    misfits = rnnlower(
        "check", model, "--target", "primitive", "--set", "sr=8000", "--dim", "T=3", "--json", code=1
    )
    assert {each["op_type"] for each in misfits.json["misfits"]} == {"Abs", "RNN"}
    run = rnnlower("stream", model, "-o", out, "--set", "sr=8000", "--json")
    assert run.json["verification"]["equal"]
    names = [value.name for value in onnx.load(out).graph.input]
    assert names[0] == "X"
    assert "sr" not in names


def test_verify_feeds_a_value_to_the_reference(model: Path, out: Path) -> None:
    rnnlower("scan", model, "-o", out, "--set", "sr=16000", "--no-verify")
    rnnlower("verify", model, out, code=1)
    assert "input 'sr' is set" in rnnlower("verify", model, out, "--set", "sr=16000").stdout
    rnnlower("verify", model, out, "--set", "sr=8000", code=1)
    assert "'nothing'" in rnnlower("verify", model, out, "--set", "nothing=1", code=2).stderr


def test_a_state_that_is_set_is_not_fed_back(tmp_path: Path, out: Path) -> None:
    path = MODELS / "lstm14_states.onnx"
    run = rnnlower("scan", path, "-o", out, "--set", "initial_h=0.5", "--json")
    assert run.json["verification"]["states"] == {"Y_c": "initial_c"}
    rnnlower("scan", path, "-o", out, "--set", "initial_h=0.5", "--state", "Y_h=initial_h", code=2)


def test_verify_takes_a_size_of_minus_one_as_dynamic(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2, N] X) => (float[2, N] Y) { Y = Neg (X) }'
    )
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1
    path = save(proto, tmp_path)
    refused = rnnlower("verify", path, path, "--set", "X=1", code=2)
    assert "'X' has rank 0, the model needs 2" in refused.stderr
