"""`--on`: the result runs on another runtime before it is written."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from support.cli_helpers import rnnlower, save
from support.commands import runtime_command
from support.configs import Config
from support.places import MODELS
from support.target_files import MINIMAL, write

pytestmark = pytest.mark.usefixtures("forks")

MODEL = Config(Y_h="graph", Y_c="graph").build()
NUDGED = """
import onnx
model = onnx.load(model)
for tensor in model.graph.initializer:
    array = onnx.numpy_helper.to_array(tensor).copy()
    if array.ndim > 1 and array.dtype == np.float32:
        array.flat[np.abs(array).argmax()] *= 1.05
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
model = model.SerializeToString()
"""
HALF = "outputs = {name: array.astype(np.float16).astype(np.float32) for name, array in outputs.items()}"
OTHER_NAME = "outputs['Z'] = outputs.pop('Y')"
FAULTS = {
    "a wrong weight": {"model": NUDGED},
    "a flipped direction": {"outputs": "outputs['Y'] = outputs['Y'][::-1]"},
    "another shape": {"outputs": "outputs['Y'] = outputs['Y'][:, 0]"},
    "another dtype": {"outputs": "outputs['Y'] = outputs['Y'].astype(np.float64)"},
    "another name": {"outputs": OTHER_NAME},
    "an output missing": {"outputs": "del outputs['Y_h']"},
}
WORDS = {
    "another shape": "shape [",
    "another dtype": "dtype float32 against float64",
    "another name": "there is no output 'Y'; there is an output 'Z' that the model lacks",
    "an output missing": "there is no output 'Y_h'",
}


def lowering(folder: Path, strategy: str, on: str, *more: object) -> list[object]:
    return [strategy, save(MODEL, folder), "-o", folder / "out.onnx", "--trials=1", "--on", on, *more]


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop"])
def test_a_result_that_is_equal_on_the_runtime_is_written(tmp_path: Path, strategy: str) -> None:
    on = runtime_command(tmp_path)
    result = rnnlower(*lowering(tmp_path, strategy, on, "--json")).json
    assert (tmp_path / "out.onnx").exists()
    assert result["on"] == result["verification"]["on"]
    outputs = result["on"].pop("outputs")
    assert result["on"] == {"engine": on, "version": None, "ran": True, "equal": True, "problem": None}
    assert [output["name"] for output in outputs] == ["Y", "Y_h", "Y_c"]
    assert result["verification"]["engines"]["candidate"] == "onnxruntime"


def test_a_command_that_computes_in_float16(tmp_path: Path) -> None:
    on = runtime_command(tmp_path, outputs=HALF)
    rnnlower(*lowering(tmp_path, "unroll", on), code=1)
    half = on.replace("cmd:", "cmd:float16:", 1)
    result = rnnlower(*lowering(tmp_path, "unroll", half, "--json")).json
    assert (result["on"]["engine"], result["on"]["equal"]) == (half, True)
    pair = tmp_path / "model.onnx", tmp_path / "out.onnx"
    verified = rnnlower("verify", *pair, "--on", half, "--trials=1")
    assert "onnxruntime" in verified.stdout
    assert f"tried on the command {sys.executable}: equal" in verified.stdout
    runtime_command(tmp_path, outputs=f"{HALF}; {FAULTS['a flipped direction']['outputs']}")
    run = rnnlower("verify", *pair, "--on", half, "--trials=1", code=1)
    assert f"1 of 3 outputs differ on the command {sys.executable}" in run.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_a_result_that_differs_on_the_runtime_is_not_written(tmp_path: Path, fault: str) -> None:
    run = rnnlower(*lowering(tmp_path, "unroll", runtime_command(tmp_path, **FAULTS[fault])), code=1)
    assert not (tmp_path / "out.onnx").exists()
    assert "onnxruntime" in run.stdout
    assert f"tried on the command {sys.executable}: DIFFERENT" in run.stdout
    assert "out.onnx was not written" in run.stderr
    assert WORDS.get(fault, "DIFFERENT at [") in run.stdout


@pytest.mark.parametrize("fault", ["another shape", "another name"])
def test_a_stream_that_differs_on_the_runtime_is_not_written(tmp_path: Path, fault: str) -> None:
    on = runtime_command(tmp_path, **FAULTS[fault])
    out = tmp_path / "out.onnx"
    # One call for 50 steps, as each is a process of its own.
    line = ["stream", MODELS / "lstm14_dynamic.onnx", "-o", out, "--chunk=50", "--trials=1"]
    run = rnnlower(*line, "--on", on, "--json", code=1)
    assert (run.json["on"]["ran"], run.json["on"]["equal"]) == (True, False)
    assert not out.exists()


def test_a_runtime_that_cannot_run_it(tmp_path: Path) -> None:
    arguments = lowering(
        tmp_path, "scan", runtime_command(tmp_path, model="sys.exit('no Scan here')"), "--json"
    )
    run = rnnlower(*arguments, code=4)
    assert f"the command {sys.executable} ended with exit status 1: no Scan here" in run.stderr
    assert not run.json["on"]["ran"]
    assert "no Scan here" in run.json["on"]["problem"]
    assert run.json["error"]["remedy"] == "--on none writes the result without a run there"
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(("dims", "remedy"), [("symbolic", "--dim T=N --dim N=N fixes"), ("static", "")])
def test_the_message_suggests_fixed_sizes_if_the_runtime_fails(
    tmp_path: Path, dims: str, remedy: str
) -> None:
    on = runtime_command(tmp_path, model="raise SystemExit('a size is not known')")
    model = save(Config(x_dims=dims).build(), tmp_path)
    run = rnnlower("scan", model, "-o", tmp_path / "out.onnx", "--trials=1", "--on", on, code=4)
    assert remedy in run.stderr
    assert ("--dim" in run.stderr) == bool(remedy)


@pytest.mark.parametrize(
    ("fault", "code"), [(FAULTS["a wrong weight"], 1), ({"model": "raise SystemExit('no')"}, 4)]
)
def test_the_message_suggests_unrolling_the_models_loops_if_the_runtime_fails(
    tmp_path: Path, fault: dict[str, str], code: int
) -> None:
    on = runtime_command(tmp_path, **fault)
    model = save(Config(place="loop").build(), tmp_path)
    result = rnnlower("unroll", model, "-o", tmp_path / "out.onnx", "--trials=1", "--on", on, code=code)
    assert "--control-flow unroll makes straight lines of the model's own Loop and Scan" in result.stderr
    plain = rnnlower(*lowering(tmp_path, "unroll", on), code=code)
    assert "--control-flow" not in plain.stderr


def test_the_message_suggests_the_float_model_if_a_quantized_model_differs(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[3, 1, 2] X) => (float[3, 1, 2] Z)
        <float s = {0.1}, uint8 z = {3}, float[2, 2] W = {1, 2, 3, 4}> {
            Q = QuantizeLinear (X, s, z) D = DequantizeLinear (Q, s, z) Z = MatMul (D, W)
        }
    """
    on = runtime_command(tmp_path, **FAULTS["a wrong weight"])
    model = save(onnx.parser.parse_model(text), tmp_path)
    result = rnnlower("unroll", model, "-o", tmp_path / "out.onnx", "--trials=1", "--on", on, code=1)
    assert "the model is quantized" in result.stderr
    assert "lower the float model instead" in result.stderr


def test_a_runtime_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNLOWER_PYTHON_OPENVINO", str(tmp_path / "nowhere"))
    run = rnnlower(*lowering(tmp_path, "unroll", "openvino"), code=4)
    assert "OpenVINO is not installed" in run.stderr
    assert "pip install openvino" in run.stderr
    arguments = ["lower", save(MODEL, tmp_path), "-o", tmp_path / "out.onnx", "--target=openvino"]
    run = rnnlower(*arguments, "--trials=1")
    assert "OpenVINO is not installed: not tried" in run.stdout
    assert rnnlower(*arguments, "--json").json["on"]["ran"] is False
    assert "on" not in rnnlower(*arguments, "--json", "--on=none").json
    assert "on" not in rnnlower(*arguments, "--json", "--no-verify").json


def test_lower_tries_the_targets_own_runtime(tmp_path: Path) -> None:
    arguments = ["lower", save(MODEL, tmp_path), "-o", tmp_path / "out.onnx", "--json", "--trials=1"]
    assert rnnlower(*arguments, "--target=onnxruntime").json["on"]["engine"] == "onnxruntime"
    target = write(tmp_path, {**MINIMAL, "ops": "absent = []"})
    target.write_text(f'engine = """{runtime_command(tmp_path)}"""\n{target.read_text()}')
    assert rnnlower(*arguments, "--target", target).json["on"]["equal"]
    runtime_command(tmp_path, model=NUDGED)
    assert rnnlower(*arguments, "--target", target, code=1).json["output"] is None
    assert "on" not in rnnlower(*arguments, "--target", target, "--on=none").json


def test_verify_runs_the_candidate_there(tmp_path: Path) -> None:
    files = save(MODEL, tmp_path, "a.onnx"), save(MODEL, tmp_path, "b.onnx")
    on = runtime_command(tmp_path)
    result = rnnlower("verify", *files, "--trials=1", "--on", on, "--json").json
    assert result["equal"]
    assert result["engines"] == {"reference": "onnxruntime", "candidate": on}
    assert result["on"]["ran"]
    runtime_command(tmp_path, model=NUDGED)
    run = rnnlower("verify", *files, "--trials=1", "--on", on, code=1)
    assert "DIFFERENT: 1 set of inputs" in run.stdout
    assert "on" not in rnnlower("verify", *files, "--trials=1", "--on=none", "--json").json
    run = rnnlower("verify", *files, "--on", on, "--engine=onnxruntime", code=2)
    assert "leave out one" in run.stderr


def test_a_given_tolerance_applies_to_the_runtime(tmp_path: Path) -> None:
    on = runtime_command(tmp_path, outputs="outputs['Y'] = outputs['Y'] + np.float32(1e-3)")
    rnnlower(*lowering(tmp_path, "unroll", on), code=1)
    rnnlower(*lowering(tmp_path, "unroll", on, "--atol=2e-3"))


def test_inputs_with_a_default_are_not_fed_to_the_runtime(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 14]> g (float[2] x, float[2] scale = {1, 2}) => (float[2] y) '
        "{ y = Mul (x, scale) }"
    )
    files = save(model, tmp_path, "a.onnx"), save(model, tmp_path, "b.onnx")
    result = rnnlower("verify", *files, "--trials=2", "--on", runtime_command(tmp_path), "--json").json
    assert result["equal"]
    assert any("feed inputs that have a default value: not tried on" in text for text in result["skipped"])


def test_no_verification_and_a_runtime_contradict(tmp_path: Path) -> None:
    arguments = ["unroll", save(MODEL, tmp_path), "-o", tmp_path / "out.onnx", "--no-verify"]
    run = rnnlower(*arguments, "--on=tract", code=2)
    assert "--on says how to verify" in run.stderr


def test_engines_lists_what_is_installed_and_how_to_install_the_rest(tmp_path: Path) -> None:
    assert "onnxruntime" in rnnlower("engines").stdout
    listed = {engine["name"]: engine for engine in rnnlower("engines", "--json").json["engines"]}
    assert listed["onnxruntime"]["installed"]
    assert listed["rknn"]["install"] == "pip install rknn-toolkit2"


def test_bench_times_the_forms_on_the_runtime(tmp_path: Path) -> None:
    arguments = ["bench", save(MODEL, tmp_path), "--strategy=unroll", "--runs=2", "--warmup=0", "--on"]
    run = rnnlower(*arguments, runtime_command(tmp_path), "--json")
    assert [variant["status"] for variant in run.json["variants"]] == ["timed", "timed"]
    assert (run.json["on"]["ran"], run.json["on"]["equal"], run.json["threads"]) == (True, True, 0)
    assert "has no option for the number of threads" in run.stderr
    assert (
        f"the command {sys.executable}, all threads" in rnnlower(*arguments, runtime_command(tmp_path)).stdout
    )
    run = rnnlower(*arguments, runtime_command(tmp_path, model=NUDGED), "--json", code=1)
    assert not run.json["on"]["equal"]
    run = rnnlower(*arguments, runtime_command(tmp_path, model="sys.exit('off')"), code=4)
    assert f"the command {sys.executable} runs the model correctly in none of these forms" in run.stderr
    assert "is not installed" in rnnlower(*arguments, "rknn", code=4).stderr
