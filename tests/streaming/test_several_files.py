"""Several files as one model: an encoder and two decoders, streamed together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.cli_helpers import rnnlower as command
from support.streamed import model

import rnnlower
from rnnlower.files.composing import compose_files

ENCODER = """(float[1, n, 4] feat) => (float[1, n, 6] emb, float[1, n, 1] level) {
    s = Transpose <perm = [1, 0, 2]> (feat)
    h = GRU <hidden_size = 6> (s, W, R)
    axis = Constant <value_ints = [1]> ()
    flat = Squeeze (h, axis)
    emb = Transpose <perm = [1, 0, 2]> (flat)
    level = MatMul (emb, P)
}"""
GAINS = "(float[1, n, 6] emb) => (float[1, n, 4] gains) { h = MatMul (emb, P) gains = Sigmoid (h) }"
FILTER = """(float[1, n, 6] code, float[1, n, 4] feat) => (float[1, n, 4] coefs) {
    t = Transpose <perm = [0, 2, 1]> (code)
    c = Conv <pads = [4, 0]> (t, K)
    back = Transpose <perm = [0, 2, 1]> (c)
    coefs = Add (back, feat)
}"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The paths of the three files, whose nodes and values have equal names."""
    parts = {
        "enc": model(ENCODER, W=(1, 18, 4), R=(1, 18, 6), P=(6, 1)),
        "gains": model(GAINS, P=(6, 4)),
        "filter": model(FILTER, K=(4, 6, 5)),
    }
    paths = []
    for name, part in parts.items():
        paths.append(str(tmp_path / f"{name}.onnx"))
        onnx.save(part, paths[-1])
    return paths


def whole(files: list[str], feat: np.ndarray) -> dict[str, np.ndarray]:
    """Run the files one after the other on a whole sequence."""
    values = {"feat": feat}
    for path in files:
        session = onnxruntime.InferenceSession(path)
        names = [out.name for out in session.get_outputs()]
        feeds = {value.name: values[value.name] for value in session.get_inputs()}
        values |= dict(zip(names, session.run(None, feeds), strict=True))
        values["code"] = values["emb"]
    return values


def test_three_files_become_one_step_model(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "step.onnx"
    command("stream", *files, "-o", out, "--connect", "emb=code")
    streamed = onnx.load(out)
    assert [value.name for value in streamed.graph.output[:3]] == ["level", "gains", "coefs"]
    said = {
        each.key: json.loads(each.value)
        for each in streamed.metadata_props
        if each.key.endswith(("state", "stream"))
    }
    states, stream = said["rnnlower.state"], said["rnnlower.stream"]
    session = onnxruntime.InferenceSession(streamed.SerializeToString())
    feat = np.random.default_rng(0).standard_normal((1, 20, 4)).astype(np.float32)
    expected = whole(files, feat)
    names = [value.name for value in session.get_outputs()]
    state = {
        value.name: np.full(value.shape, stream["start"][value.name], np.float32)
        for value in session.get_inputs()
        if value.name in stream["start"]
    }
    for step in range(20):
        found = dict(zip(names, session.run(None, {**state, "feat": feat[:, step : step + 1]}), strict=True))
        state = {name: found[output] for output, name in states.items()}
        for name in ("level", "gains", "coefs"):
            np.testing.assert_allclose(found[name], expected[name][:, step : step + 1], atol=1e-5)


def test_the_order_of_the_files_does_not_matter(files: list[str]) -> None:
    models = [onnx.load(path) for path in files]
    one, other = (rnnlower.stream(each, connect={"code": "emb"}) for each in (files, files[::-1]))
    third = rnnlower.stream(models, connect={"code": "emb"})
    assert {out.name for out in one.graph.output} == {out.name for out in other.graph.output}
    assert len(third.graph.output) == len(one.graph.output)


def small(folder: Path, name: str, body: str) -> Path:
    """Write a model of opset 17 with an entry in its metadata."""
    part = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {body}')
    onnx.helper.set_model_props(part, {"author": name})
    onnx.save(part, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def test_an_output_feeds_two_inputs_of_one_name(tmp_path: Path) -> None:
    enc = small(tmp_path, "enc", "(float[n, 2] a) => (float[n, 2] y) { y = Tanh (a) }")
    one = small(tmp_path, "one", "(float[n, 2] x) => (float[n, 2] b) { b = Relu (x) }")
    two = small(tmp_path, "two", "(float[n, 2] x) => (float[n, 2] c) { c = Neg (x) }")
    out = tmp_path / "out.onnx"
    command("stream", enc, one, two, "--connect", "y=x", "--time-axis", "a:0", "-o", out)
    b, c = onnxruntime.InferenceSession(out).run(None, {"a": np.ones((1, 2), np.float32)})
    np.testing.assert_allclose([b, c], [np.tanh(np.ones((1, 2))), -np.tanh(np.ones((1, 2)))], rtol=1e-6)
    entries = {each.key: each.value for each in onnx.load(out).metadata_props}
    assert [entries[key] for key in ("author", "one/author", "two/author")] == ["enc", "one", "two"]


def test_files_connected_by_other_names_are_a_valid_model(files: list[str]) -> None:
    onnx.checker.check_model(compose_files(files, {"code": "emb"}), full_check=True)


def test_connected_types_agree(tmp_path: Path) -> None:
    enc = small(tmp_path, "enc", "(float[n, 2] a) => (float[n, 2] y) { y = Tanh (a) }")
    dec = small(tmp_path, "dec", "(int64[n, 2] x) => (int64[n, 2] b) { b = Abs (x) }")
    line = ("stream", enc, dec, "--connect", "y=x", "--time-axis", "a:0", "-o", tmp_path / "out.onnx")
    assert "input 'x' has another type in dec" in command(*line, code=3).stderr


def test_no_files_are_refused() -> None:
    with pytest.raises(rnnlower.OptionError, match="nothing to connect"):
        rnnlower.stream([])


@pytest.mark.parametrize(
    ("chosen", "connect", "problem"),
    [
        ([0, 2], [], "is connected with no other file"),
        ([0, 1], ["--connect", "emb=nothing"], "none an input 'nothing'"),
        ([0], ["--connect", "emb=code"], "nothing to connect"),
        ([0, 0], [], "same name"),
        ([0, 1], ["--connect", "emb"], "is not OUT=IN"),
    ],
)
def test_invalid_connections_are_refused(
    files: list[str], tmp_path: Path, chosen: list[int], connect: list[str], problem: str
) -> None:
    out = tmp_path / "step.onnx"
    result = command("stream", *[files[number] for number in chosen], "-o", out, *connect, code=2)
    assert re.search(problem, result.stderr), result.stderr
    assert not out.exists()


def test_files_of_two_opsets_are_refused(files: list[str], tmp_path: Path) -> None:
    older = model(GAINS, opset=13, P=(6, 4))
    onnx.save(older, files[1])
    result = command("stream", *files, "-o", tmp_path / "out.onnx", "--connect", "emb=code", code=3)
    assert "gains of opset 13" in result.stderr
    assert "convert" in result.stderr
