"""`--json` of every command, at every exit code that its help lists: one object, with what went wrong."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.cli_helpers import Run, save
from support.cli_helpers import rnnlower as run
from support.commands import runtime_command
from support.forking import python
from support.places import MODELS
from support.small_models import info, model_of, recurrent_model, weights

from rnnlower.cli.app import app

pytestmark = pytest.mark.usefixtures("forks")

KEPT = {
    "FIXED": MODELS / "lstm14_defaults.onnx",
    "DYNAMIC": MODELS / "lstm14_dynamic_time.onnx",
    "BFLOAT16": MODELS / "lstm22_bfloat16.onnx",
}
COMMANDS = [command.name or "" for command in app.registered_commands]
LOWERING = {
    1: ["FIXED", "-o", "OUT", "--trials=1", "--on", "OTHER NUMBERS"],
    2: ["FIXED", "-o", "OUT", "--dim", "Q=3"],
    3: ["absent.onnx", "-o", "OUT"],
    4: ["FIXED", "-o", "OUT", "--trials=1", "--on", "NO RUN"],
}
CASES = {
    "unroll": LOWERING | {3: ["DYNAMIC", "-o", "OUT"]},
    "scan": LOWERING,
    "loop": LOWERING,
    "lower": {code: [*line, "--target", "primitive"] for code, line in LOWERING.items()},
    "stream": LOWERING,
    "lift": LOWERING,
    "pad": {
        code: [word.replace("FIXED", "DYNAMIC") for word in line] + ["--max", "T=3"]
        for code, line in LOWERING.items()
    },
    "calibrate": {
        2: ["FIXED", "EMPTY", "-o", "OUT"],
        3: ["absent.onnx", "EMPTY", "-o", "OUT"],
        4: ["FIXED", "OTHER SIZES", "-o", "OUT"],
    },
    "quantize": {
        1: ["FIXED", "-o", "OUT", "--calibration", "RECORDINGS", "--min-sqnr=500"],
        2: ["FIXED", "-o", "OUT", "--calibration", "RECORDINGS", "--scheme=fixed"],
        3: ["absent.onnx", "-o", "OUT", "--calibration", "RECORDINGS"],
        4: ["FIXED", "-o", "OUT", "--calibration", "OTHER SIZES"],
    },
    "convert": {
        1: ["GELU", "-o", "OUT", "--opset", "19", "--atol=0", "--rtol=0"],
        2: ["MODEL", "-o", "OUT", "--opset", "many"],
        3: ["BFLOAT16", "-o", "OUT", "--opset", "13"],
        4: ["CUSTOM", "-o", "OUT", "--opset", "18"],
    },
    "verify": {
        1: ["MODEL", "OTHER"],
        2: ["MODEL"],
        3: ["MODEL", "absent.onnx"],
        4: ["CUSTOM", "CUSTOM"],
    },
    "inspect": {2: [], 3: ["absent.onnx"]},
    "check": {
        1: ["MODEL", "--target", "tinygrad"],
        2: ["MODEL", "--target", "abacus"],
        3: ["absent.onnx", "--target", "tinygrad"],
    },
    "bench": {
        1: ["MODEL", "--strategy=scan", "--runs=1", "--on", "OTHER NUMBERS"],
        2: ["MODEL", "--runs=0"],
        3: ["DYNAMIC", "--strategy=unroll"],
        4: ["MODEL", "--strategy=scan", "--runs=1", "--on", "NO RUN"],
    },
    "targets": {2: ["--all"]},
    "engines": {2: ["--all"]},
    "probe": {2: ["rnnlower-reference"], 4: ["openvino", "-o", "TARGET"]},
}
RECORDED: dict[str, Callable[[list[int]], list[int]]] = {
    "RECORDINGS": lambda shape: [4, *shape],
    "OTHER SIZES": lambda shape: [*shape[:-1], shape[-1] + 1],
    "EMPTY": lambda shape: [0, *shape],
}
"""Shapes of recordings, from that of the input."""
ELSEWHERE = {("probe", 1)}
"""In tests/probing, as it asks the runtime hundreds of questions."""
KINDS = {
    1: {"VerificationError", "UnsupportedModelError"},
    2: {"OptionError"},
    3: {"InvalidModelError", "OpsetError", "UnsupportedModelError"},
    4: {"UnverifiableError"},
}
EVERY = [(command, code) for command, lines in CASES.items() for code in lines]


def test_every_exit_code_in_the_help_of_a_command_has_a_case() -> None:
    listed = {
        (command, int(code))
        for command in COMMANDS
        for code in re.findall(r"^ +(\d)  ", run(command, "--help").stdout.split("Exit codes:")[1], re.M)
    }
    assert {(command, code) for command, code in listed if code} == {*EVERY} | ELSEWHERE


@pytest.mark.parametrize(("command", "code"), EVERY)
def test_the_json_object_holds_the_error(
    command: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNLOWER_PYTHON_OPENVINO", str(tmp_path / "nowhere"))
    places = [place(word, tmp_path) for word in CASES[command][code]]
    result = run(command, *places, "--json", code=code)
    error = result.json["error"]
    assert set(error) == {"kind", "message", "node", "remedy"}
    assert error["kind"] in KINDS[code]
    assert error["message"]
    assert not {"out.onnx", "target.toml"} & {path.name for path in tmp_path.iterdir()}


def place(word: str, folder: Path) -> object:
    """Return the value of a placeholder in a case."""
    if word == "MODEL":
        return save(recurrent_model(), folder)
    if word == "OTHER":
        return save(recurrent_model(constants=weights("LSTM", seed=1)), folder, "other.onnx")
    if word == "OTHER NUMBERS":
        return runtime_command(folder, outputs="outputs['Y'] = outputs['Y'] + 1")
    if word == "NO RUN":
        return runtime_command(folder, model="sys.exit('not here')")
    if word in RECORDED:
        shape = [
            value.dim_value for value in onnx.load(KEPT["FIXED"]).graph.input[0].type.tensor_type.shape.dim
        ]
        draw, path = np.random.default_rng(0), folder / "recordings.npz"
        np.savez(path, X=draw.normal(size=RECORDED[word](shape)).astype(np.float32))
        return path
    if word == "GELU":
        return save(one_node("Gelu", opset=20), folder)
    if word == "CUSTOM":
        return save(one_node("Nothing", domain="com.example"), folder)
    return {"OUT": folder / "out.onnx", "TARGET": folder / "target.toml"}.get(word, KEPT.get(word, word))


def one_node(op_type: str, domain: str = "", opset: int = 17) -> onnx.ModelProto:
    node = onnx.helper.make_node(op_type, ["X"], ["Y"], domain=domain)
    float_ = onnx.TensorProto.FLOAT
    x, y = info("X", float_, [64]), info("Y", float_, [64])
    return model_of([node], [x], [y], opset=opset, extra_domains=[domain] if domain else [])


def test_an_internal_error_is_not_reported_as_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("rnnlower.files.model_io.read_model", fail)
    result = Run("inspect", KEPT["FIXED"], "--json")
    assert result.code == 3
    assert "Traceback" in result.stderr
    assert result.json["error"]["message"].startswith("unexpected ZeroDivisionError: planted")


def test_infinity_is_null_in_json(tmp_path: Path) -> None:
    model = recurrent_model("RNN", activations=["LeakyRelu"], activation_alpha=[float("inf")])
    (node,) = run("inspect", save(model, tmp_path), "--json").json["recurrent"]
    assert node["attributes"]["activation_alpha"] == [None]


def test_a_missing_file_is_reported_as_a_json_object(tmp_path: Path) -> None:
    words = ["quantize", KEPT["FIXED"], "-o", "out.onnx", "--calibration", "absent.npz", "--json"]
    line = [python(), "-m", "rnnlower", *words]
    # A process of its own: what is tested is its stdout itself.
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "absent.npz" in json.loads(result.stdout)["error"]["message"]
