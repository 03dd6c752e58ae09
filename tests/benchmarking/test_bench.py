"""`rnnlower bench`: what it reports. No test looks at a time itself."""

from __future__ import annotations

import json
import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.cli_helpers import rnnlower as cli
from support.cli_helpers import save
from support.places import MODELS
from support.small_models import info, model_of, recurrent_model

import rnnlower
from rnnlower.benchmarking import benchmark, worker

pytestmark = pytest.mark.usefixtures("forks")

FEW = {"runs": 2, "warmup": 0}
STATIC = {"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}


@pytest.fixture(scope="module")
def result() -> rnnlower.BenchResult:
    return rnnlower.bench(recurrent_model("LSTM", inputs=STATIC), unroll_factors=[1, 2], **FEW)


def by_name(result: rnnlower.BenchResult) -> dict[str, rnnlower.BenchVariant]:
    return {variant.name: variant for variant in result.variants}


def test_every_form_is_reported_with_its_times_and_ops(result):
    assert list(by_name(result)) == ["native", "unroll", "scan", "loop", "scan x2", "loop x2"]
    for variant in result.variants:
        assert (variant.status, variant.reason) == ("timed", "")
        for timing in (variant.latency, variant.session):
            assert 0 < timing.min <= timing.p10 <= timing.median <= timing.p90
        assert min(variant.ratio, variant.file_bytes, variant.ops, variant.ops_run, variant.ops_per_step) > 0
    assert by_name(result)["native"].ratio == 1
    assert result.inputs == {"X": "float32[5, 2, 3]"}
    assert (result.steps, result.threads, result.runs, result.notes) == (5, 1, 2, [])


def test_ops_are_counted_in_the_file_and_once_for_each_run(result):
    forms = by_name(result)
    assert (forms["native"].ops, forms["native"].ops_run) == (1, 1)
    lowered = ir.from_proto(rnnlower.scan(recurrent_model("LSTM", inputs=STATIC)))
    body = next(node for node in lowered.graph if node.op_type == "Scan").attributes["body"].as_graph()
    assert forms["scan"].ops == len(lowered.graph) + len(body)
    # A body runs at each of five steps; the optimizations may fuse a node or two of it.
    assert 5 * (len(body) - 2) <= forms["scan"].ops_run <= len(lowered.graph) + 5 * len(body)
    assert forms["scan"].ops_per_step == pytest.approx(forms["scan"].ops_run / 5)


def test_the_result_is_json(result):
    data = json.loads(json.dumps(result.to_dict()))
    assert list(data) == ["variants", "inputs", "steps", "threads", "runs", "environment", "notes"]
    assert set(data["variants"][0]) == {
        *("name", "strategy", "unroll_factor", "status", "reason", "latency_ms", "session_ms", "ratio"),
        *("file_bytes", "ops", "ops_run", "ops_per_step", "taken"),
    }
    assert set(data["variants"][0]["latency_ms"]) == {"median", "p10", "p90", "min"}


def strided(layers: int, steps: int = 12) -> onnx.ModelProto:
    """A convolution that moves by two frames, and GRUs on its output."""
    hidden = "".join(
        f"y{n} = GRU <hidden_size = 4> (x{n}, W, R) x{n + 1} = Squeeze (y{n}, one) " for n in range(layers)
    )
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[1, 4, {steps}] X) => (float[{steps // 2}, 1, 4] x{layers}) <int64[1] one = {{1}}>
        {{
            half = Conv <pads = [2, 0], strides = [2]> (X, kernel)
            x0 = Transpose <perm = [2, 0, 1]> (half)
            {hidden}
        }}
    """)
    rng = np.random.default_rng(0)
    for name, shape in (("W", (1, 12, 4)), ("R", (1, 12, 4)), ("kernel", (4, 4, 3))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("layers", [1, 3])
def test_the_time_of_a_step_is_that_of_a_step_of_the_recurrence(layers: int, tmp_path: Path) -> None:
    """Neither a frame of the input nor a step of one layer: all layers take each of them."""
    result = rnnlower.bench(strided(layers), strategies=["scan"], **FEW)
    assert result.steps == 6
    for variant in result.variants:
        assert variant.ops_per_step == pytest.approx(variant.ops_run / 6, abs=1e-3)
    table = cli("bench", save(strided(layers), tmp_path), "--strategy", "scan", "--runs", 2).stdout
    assert "6 time steps in " + ("the recurrent node" if layers == 1 else "each recurrent node") in table


def test_recurrences_of_different_lengths_are_noted() -> None:
    """A step is one of the longest."""
    model = strided(1)
    more = onnx.parser.parse_graph(
        "main (float[4, 1, 4] Z) => (float[4, 1, 1, 4] z) { z = GRU <hidden_size = 4> (Z, W, R) }"
    )
    for field in ("node", "input", "output"):
        getattr(model.graph, field).extend(getattr(more, field))
    result = rnnlower.bench(model, strategies=["scan"], **FEW)
    assert (result.steps, result.length) == (6, "up to 6 time steps in a recurrent node")


def test_the_command_prints_a_table_and_json(tmp_path):
    path = save(recurrent_model("GRU", inputs=STATIC), tmp_path)
    options = ("--runs", 2, "--warmup", 0, "--unroll-factor", 3, "--strategy", "scan")
    table = cli("bench", path, *options).stdout
    assert [line.split()[0] for line in table.splitlines()[1:4]] == ["native", "scan", "scan"]
    assert "inputs X float32[5, 2, 3], 5 time steps" in table
    data = cli("bench", path, *options, "--json", "--threads", 2).json
    assert [variant["name"] for variant in data["variants"]] == ["native", "scan", "scan x3"]
    assert data["threads"] == 2


def test_a_model_that_onnxruntime_cannot_run_is_listed_with_the_reason():
    result = rnnlower.bench(recurrent_model("LSTM", inputs=STATIC, layout=1), strategies=["unroll"], **FEW)
    native, unroll = result.variants
    assert (native.status, native.latency, native.ratio) == ("does not run", None, None)
    assert "layout=1 has no kernel" in native.reason
    assert (unroll.status, unroll.ratio) == ("timed", None)
    assert result.steps == 2


def test_an_opset_without_kernels_is_listed_with_the_reason():
    result = rnnlower.bench("models/lstm01_last_state_only.onnx", strategies=["scan"], **FEW)
    native, scan = result.variants
    assert (native.status, scan.status) == ("does not run", "timed")
    assert "opset 1 has no kernel" in native.reason


def test_a_form_that_cannot_be_made_is_listed_with_the_reason(tmp_path):
    model = recurrent_model("LSTM")
    result = rnnlower.bench(model, strategies=["unroll", "scan"], **FEW)
    forms = by_name(result)
    assert [variant.status for variant in result.variants] == ["timed", "not made", "timed"]
    assert "its sequence length is 'T'" in forms["unroll"].reason
    assert "input 'X'" in result.notes[0]
    run = cli("bench", save(model, tmp_path), "--strategy", "unroll", "--runs", 2, code=3)
    assert "unroll is not made" in run.stdout


def test_dims_and_shapes_fix_the_inputs():
    model = recurrent_model("LSTM")
    dims = rnnlower.bench(model, dims={"T": 7, "N": 1}, strategies=["unroll"], **FEW)
    shapes = rnnlower.bench(model, input_shapes={"X": [7, 1, 3]}, strategies=["unroll"], **FEW)
    for result in (dims, shapes):
        assert (result.inputs, result.steps) == ({"X": "float32[7, 1, 3]"}, 7)
        assert [variant.status for variant in result.variants] == ["timed", "timed"]


def test_given_inputs_are_used(tmp_path):
    np.savez(tmp_path / "inputs.npz", X=np.ones((9, 1, 3), np.float32))
    path = save(recurrent_model("RNN"), tmp_path)
    options = ("--inputs", tmp_path / "inputs.npz", "--strategy", "loop", "--runs", 2)
    assert cli("bench", path, *options, "--json").json["inputs"] == {"X": "float32[9, 1, 3]"}


def test_a_form_with_different_outputs_is_not_timed(tmp_path, monkeypatch):
    lower = benchmark.lower_model

    def wrong(model: ir.Model, options: object) -> object:
        report = lower(model, options)
        node = next(node for node in model.graph if node.op_type == "Tanh")
        node.op_type = "Sigmoid"
        return report

    monkeypatch.setattr(benchmark, "lower_model", wrong)
    path = save(recurrent_model("LSTM", inputs=STATIC), tmp_path)
    result = rnnlower.bench(path, strategies=["unroll"], **FEW)
    native, unroll = result.variants
    assert native.status == "timed"
    assert (unroll.status, unroll.latency, unroll.session) == ("different", None, None)
    assert "Y: DIFFERENT" in unroll.reason
    assert result.wrong == [unroll]
    run = cli("bench", path, "--strategy", "unroll", "--runs", 2, code=1)
    assert "unroll is DIFFERENT, not timed" in run.stdout


def test_an_abort_of_onnxruntime_ends_only_its_own_process():
    # The native GRU kernel aborts on a batch of no rows.
    result = rnnlower.bench(recurrent_model("GRU"), dims={"T": 4, "N": 0}, strategies=["unroll"], **FEW)
    native, unroll = result.variants
    assert native.status == "does not run"
    assert "aborts on zero-length time or batch" in native.reason
    assert unroll.status == "timed"


def test_a_check_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("RNNLOWER_ENGINE_SECONDS", "0.5")
    steps = [onnx.helper.make_node("Identity", [name], [f"{name}_out"]) for name in ("go", "state")]
    x, y, *flags = (
        info(name, onnx.TensorProto.BOOL, []) for name in ("x", "y", "go", "state", "go_out", "state_out")
    )
    body = onnx.helper.make_graph(
        steps, "body", [info("i", onnx.TensorProto.INT64, []), *flags[:2]], flags[2:]
    )
    endless = onnx.helper.make_node("Loop", ["", "x", "x"], ["y"], body=body)
    path = save(model_of([endless], [x], [y]), tmp_path)
    own = worker.Worker(1)
    with pytest.raises(worker.WorkerError, match="took longer than"):
        own.check(str(path), {"x": np.array(True)})
    own.close()


def test_a_model_without_recurrent_nodes_says_so(tmp_path):
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    model = model_of([node], [info("x", 1, [2, 3])], [info("y", 1, [2, 3])])
    run = cli("bench", save(model, tmp_path), "--runs", 2)
    assert "no recurrent node" in run.stderr
    assert "time steps" not in run.stdout
    assert [line.split()[0] for line in run.stdout.splitlines()[1:2]] == ["native"]


def test_bfloat16_and_an_ir_model_are_measured():
    model = ir.load("models/lstm22_bfloat16.onnx")
    result = rnnlower.bench(model, strategies=["scan"], **FEW)
    assert [variant.status for variant in result.variants] == ["does not run", "timed"]
    assert model.graph.num_nodes() == 1


def test_spec_semantics_apply_to_the_lowering_and_the_check():
    # Left out, ThresholdedRelu's threshold is 1 in the text and 0 in onnxruntime.
    model = recurrent_model("RNN", inputs=STATIC, activations=["ThresholdedRelu"])
    result = rnnlower.bench(model, strategies=["unroll"], semantics="spec", **FEW)
    native, unroll = result.variants
    assert (native.status, unroll.status) == ("different", "timed")
    assert result.wrong == []


def test_the_chart_is_a_png(tmp_path):
    path = save(recurrent_model("LSTM", inputs=STATIC), tmp_path, "no $_$ formula.onnx")
    chart = tmp_path / "chart.png"
    cli("bench", path, "--runs", 2, "--plot", chart)
    data = chart.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert min(width, height) > 100


def test_the_chart_is_an_svg_that_names_the_forms(tmp_path):
    path = save(recurrent_model("LSTM", inputs=STATIC, layout=1), tmp_path)
    chart = tmp_path / "chart.SVG"
    cli("bench", path, "--runs", 2, "--plot", chart)
    texts = {element.text for element in ElementTree.parse(chart).iter() if element.tag.endswith("}text")}
    assert {"unroll", "scan", "loop", "model.onnx"} <= texts
    assert "native" not in texts


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--plot", "chart.pdf"], ".png or an .svg"),
        (["--plot", "absent/chart.png"], "no folder absent"),
        (["--plot", "folder.png"], "folder.png cannot be written: it is a directory"),
        (["--strategy", "fast"], "'fast' is not one of adapt, unroll, scan, loop, lower"),
        (["--dim", "Q=3"], "no dimension named 'Q'"),
        (["--semantics", "both"], "must be 'ort' or 'spec'"),
        (["--node", "other*"], "no recurrent node matches"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(tmp_path, options, complaint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    run = cli("bench", save(recurrent_model("LSTM"), tmp_path), *options, code=2)
    assert complaint in run.stderr
    assert run.stdout == ""


def test_a_chart_that_cannot_be_written_is_named(tmp_path):
    chart = tmp_path / "chart.png"
    chart.symlink_to(tmp_path / "absent" / "chart.png")
    run = cli("bench", save(recurrent_model("LSTM"), tmp_path), "--runs", 2, "--plot", chart, code=2)
    assert f"cannot read or write {chart}: No such file" in run.stderr


@pytest.mark.parametrize("option", [{"runs": 0}, {"warmup": -1}, {"threads": -1}, {"unroll_factors": [0]}])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(rnnlower.OptionError, match="must be at least"):
        rnnlower.bench(recurrent_model("LSTM"), **option)


def test_without_matplotlib_the_error_tells_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = save(recurrent_model("LSTM"), tmp_path)
    run = cli("bench", path, "--plot", tmp_path / "chart.svg", code=2)
    assert "pip install 'rnnlower[plot]'" in run.stderr


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path: Path = tmp_path / "model.onnx"
    path.write_bytes(b"nothing")
    cli("bench", path, code=3)


def test_a_model_that_no_engine_runs_is_unverifiable(tmp_path):
    node = onnx.helper.make_node("Frob", ["x"], ["y"], domain="custom")
    model = model_of([node], [info("x", 1, [2])], [info("y", 1, [2])], extra_domains=["custom"])
    run = cli("bench", save(model, tmp_path), code=4)
    assert "no engine runs the model" in run.stderr


def test_bench_on_a_runtime_adds_the_forms_of_its_target(tmp_path):
    path = save(recurrent_model("LSTM", inputs=STATIC), tmp_path)
    result = rnnlower.bench(path, on="onnxruntime", **FEW)
    forms = by_name(result)
    assert list(forms) == ["native", "adapt", "unroll", "scan", "loop", "lower"]
    assert (forms["adapt"].status, forms["lower"].taken) == ("not made", ("keep",))
    assert {form.status for name, form in forms.items() if name != "adapt"} == {"timed"}
    table = cli("bench", path, "--on", "onnxruntime", "--strategy", "lower", "--runs", 2).stdout
    assert "lower takes keep" in table
    run = cli("bench", path, "--strategy", "lower", "--runs", 2, code=2)
    assert "'lower' is for a runtime that a target describes" in run.stderr


def test_the_time_of_a_chunk_is_divided_by_its_steps(tmp_path: Path) -> None:
    model = save(rnnlower.stream(onnx.load(MODELS / "denoiser_gru.onnx"), chunk=4), tmp_path)
    options = ("--strategy", "unroll", "--runs", "2")
    result = cli("bench", model, *options, "--json").json
    assert {*result["step_ms"]} == {"native", "unroll"}
    times = {variant["name"]: variant["latency_ms"]["median"] for variant in result["variants"]}
    assert result["step_ms"]["unroll"] == pytest.approx(times["unroll"] / 4)
    assert "a time step of the stream's inputs: native" in cli("bench", model, *options).stdout
