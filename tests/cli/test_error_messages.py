"""Errors as data, and as messages for their reader: command-line options or Python arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.cli_helpers import rnnlower as run
from support.cli_helpers import save
from support.forking import python
from support.places import MODELS
from support.small_models import info, model_of, recurrent_model, weights

import rnnlower

FLOAT = onnx.TensorProto.FLOAT


def test_an_error_names_node_and_remedy() -> None:
    with pytest.raises(rnnlower.UnsupportedModelError) as caught:
        rnnlower.unroll(recurrent_model())
    error = caught.value
    assert error.node == "cell"
    assert (
        error.remedy
        == 'give it one (dims={"T": 16}), or keep it dynamic with `rnnlower.scan(model)` or strategy="scan"'
    )
    assert str(error).startswith("LSTM node 'cell': its sequence length is 'T'")
    assert str(error).endswith(error.remedy)


def test_messages_of_the_command_line_name_its_options(tmp_path: Path) -> None:
    words = run("unroll", save(recurrent_model(), tmp_path), "-o", tmp_path / "out.onnx", code=3).stderr
    assert "give it one (--dim T=16), or keep it dynamic with `rnnlower scan` or --strategy scan" in words


def two_sizes() -> onnx.ModelProto:
    """Return a model whose length follows from two of its three dimensions."""
    nodes = [
        onnx.helper.make_node("Reshape", ["image", "shape"], ["X"]),
        onnx.helper.make_node("LSTM", ["X", "W", "R"], ["Y"], name="cell", hidden_size=4),
    ]
    constants: dict[str, Any] = {"shape": np.array([-1, 2, 3]), **weights("LSTM")}
    return model_of(
        nodes,
        [info("image", FLOAT, ["height", "width", 6]), info("other", FLOAT, ["batch"])],
        [info("Y", FLOAT, None)],
        constants,
    )


def test_every_size_that_is_needed_is_named_and_no_other(tmp_path: Path) -> None:
    path = save(two_sizes(), tmp_path)
    words = run("unroll", path, "-o", tmp_path / "out.onnx", code=3).stderr
    assert "give it one (--dim height=16 --dim width=16), or" in words
    line = ["--dim", "height=16", "--dim", "width=16", "--no-verify"]
    run("unroll", path, "-o", tmp_path / "out.onnx", *line)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: rnnlower.unroll(m, opset="17"), "the opset is '17'; it must be an integer"),
        (lambda m: rnnlower.convert(m, opset="17"), "the opset is '17'; it must be an integer"),
        (lambda m: rnnlower.scan(m, unroll_factor="4"), "the unroll factor is '4'; it must be an integer"),
        (lambda m: rnnlower.lower(m, target=None), "the target is None"),
        (lambda m: rnnlower.inspect(42), "the model is of type int; it must be a path"),
        (lambda m: rnnlower.verify(m, 42), "the candidate is of type int; it must be a path"),
        (lambda m: rnnlower.verify(m, m, trials="3"), "the number of trials is '3'; it must be an integer"),
        (lambda m: rnnlower.verify(m, m, atol="1"), "atol must be a number from 0, not '1'"),
        (lambda m: rnnlower.bench(m, strategies="scan"), r"write strategies=\['scan'\], a list"),
        (lambda m: rnnlower.scan(m, input_shapes={"X": "16,1,3"}), "'X' cannot have the shape '16,1,3'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_of_another_type(call: Any, message: str) -> None:
    with pytest.raises(rnnlower.OptionError, match=message):
        call(recurrent_model())


@pytest.mark.skipif(os.name != "posix", reason="pipes of another kind")
@pytest.mark.parametrize(("other", "code"), [("model.onnx", 0), ("other.onnx", 1)])
def test_a_closed_reader_does_not_change_the_exit_code(other: str, code: int, tmp_path: Path) -> None:
    save(recurrent_model(), tmp_path)
    save(recurrent_model(constants=weights("LSTM", seed=1)), tmp_path, "other.onnx")
    line = [python(), "-m", "rnnlower", "verify", "model.onnx", other, "--trials", "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        line, stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, env=environment, text=True
    )
    os.close(write)
    assert ended.returncode == code
    assert "pipe" not in ended.stderr.lower()
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "hints"),
    [
        ([], ("-v shows", "--inputs FILE.npz", "--atol and --rtol")),
        (["-v"], ("--inputs FILE.npz", "--atol and --rtol")),
        (["--inputs", "inputs.npz"], ("-v shows", "--atol and --rtol")),
        (["--atol", "1e-9", "-v"], ("--inputs FILE.npz",)),
        (["--rtol", "0", "--inputs", "inputs.npz", "-v"], ()),
    ],
)
def test_advice_that_was_followed_is_not_given_again(
    options: list[str], hints: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("inputs.npz", X=np.ones((5, 2, 3), np.float32))
    said = run(
        "verify", MODELS / "lstm14_defaults.onnx", MODELS / "lstm14_clip.onnx", *options, code=1
    ).stderr
    given = [hint for hint in ("-v shows", "--inputs FILE.npz", "--atol and --rtol") if hint in said]
    assert {*given} == {*hints}


def test_no_advice_on_numbers_where_none_were_compared(tmp_path: Path) -> None:
    model = onnx.load(MODELS / "lstm14_defaults.onnx")
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for value in (*model.graph.initializer, *model.graph.output):
        if isinstance(value, onnx.TensorProto):
            array = onnx.numpy_helper.to_array(value).astype(np.float64)
            value.CopyFrom(onnx.numpy_helper.from_array(array, value.name))
        else:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    said = run("verify", MODELS / "lstm14_defaults.onnx", save(model, tmp_path), code=1)
    assert "0 sets of inputs" in said.stdout
    for hint in ("-v shows", "--inputs", "--atol"):
        assert hint not in said.stderr
