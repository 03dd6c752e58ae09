"""`quantize`: integers inside the recurrence, one scale for each role, measured in dB."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from long_memory import LongMemory, recordings
from onnx import numpy_helper
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save
from support.commands import runtime_command
from support.judge import run
from support.streamed import model as model_of

import rnnlower
from rnnlower.errors import OptionError, UnsupportedModelError, UnverifiableError
from rnnlower.quantizing import quantizers

STEPS, SHORT = 200, 12


def nodes_of(graph: onnx.GraphProto) -> Iterator[tuple[onnx.GraphProto, onnx.NodeProto]]:
    for node in graph.node:
        yield graph, node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes_of(attribute.g)


def decibels(source: onnx.ModelProto, result: onnx.ModelProto, sequences: np.ndarray) -> float:
    """The ratio of signal to noise, with the file run as it is written."""
    literal = SessionOptions()
    literal.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted, got = (
        np.stack(
            [InferenceSession(each.SerializeToString(), literal).run(None, {"X": x})[0] for x in sequences]
        )
        for each in (source, result)
    )
    return float(10 * np.log10(np.sum(wanted.astype(float) ** 2) / np.sum((got - wanted.astype(float)) ** 2)))


@pytest.mark.parametrize(
    ("shape", "fused"),
    [
        (LongMemory("LSTM"), 3),
        (LongMemory("GRU"), 3),
        (LongMemory("GRU", linear_before_reset=False), 3),
        # Its one product is all that onnxruntime's own rounding is compared with.
        (LongMemory("RNN"), 5),
    ],
)
@pytest.mark.parametrize(("activations", "least"), [("int8", 30), ("int16", 35), ("uint16", 35)])
def test_a_long_memory_keeps_its_accuracy(
    shape: LongMemory, fused: float, activations: str, least: float
) -> None:
    source, data = shape.build(), recordings()
    result, report = rnnlower.quantize.with_report(
        source, calibration={"X": data}, activations=activations, verify=True
    )
    (output,) = report.outputs
    assert output.sqnr >= least
    assert output.sqnr_default >= output.sqnr - fused
    assert output.quarters is not None
    assert output.quarters[-1] >= output.quarters[0] - 5
    # The last of each four recordings was set aside.
    assert (report.calibrated, report.measured) == (6, 2)
    assert abs(decibels(source, result, data[[3, 7]]) - output.sqnr) < 0.1


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_scales_do_not_depend_on_the_number_of_steps(op_type: str, direction: str) -> None:
    shape = LongMemory(op_type, 8, direction=direction)
    counts = []
    for steps in (3, 9):
        source = dataclasses.replace(shape, steps=steps).build()
        data = {"X": recordings(16, steps)}
        _, report = rnnlower.quantize.with_report(source, calibration=data, strategy="unroll", verify=True)
        assert report.sqnr is not None
        assert report.sqnr > 20
        counts.append(len(report.scales))
    assert counts[0] == counts[1] <= 24 * (1 + (direction == "bidirectional"))


@pytest.mark.parametrize("strategy", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_every_product_reads_integers(op_type: str, strategy: str) -> None:
    source = LongMemory(op_type, 8, SHORT).build()
    result = rnnlower.quantize(source, calibration={"X": recordings(4, SHORT)}, strategy=strategy)
    makers = {out: node for _, node in nodes_of(result.graph) for out in node.output}
    stored = {each.name: each for graph, _ in nodes_of(result.graph) for each in graph.initializer}
    products = [node for _, node in nodes_of(result.graph) if node.op_type in ("MatMul", "Gemm")]
    assert products
    assert {node.op_type for node in products} == {"MatMul"}
    for node in products:
        factor, weight = (makers[name] for name in node.input)
        while factor.op_type == "Reshape":
            factor = makers[factor.input[0]]
        assert factor.op_type == weight.op_type == "DequantizeLinear"
        assert stored[weight.input[0]].data_type == onnx.TensorProto.INT8
        assert stored[weight.input[1]].dims == stored[weight.input[0]].dims[1:]
        readers = [each for _, each in nodes_of(result.graph) if node.output[0] in each.input]
        assert {each.op_type for each in readers} == {"QuantizeLinear"}


def test_integers_of_a_product_are_in_the_body_that_reads_them() -> None:
    source = LongMemory("LSTM", 8).build()
    result = rnnlower.quantize(source, calibration={"X": recordings(4, SHORT)})
    inner = [
        (graph, node.input[0])
        for graph, node in nodes_of(result.graph)
        if node.op_type == "DequantizeLinear" and graph is not result.graph
    ]
    main = {each.name for each in result.graph.initializer}
    assert [name for graph, name in inner if name in {each.name for each in graph.initializer}]
    assert not [name for _, name in inner if name in main]


def test_a_quantized_scan_has_less_than_half_the_bytes() -> None:
    source = LongMemory("LSTM", 128).build()
    result = rnnlower.quantize(source, calibration={"X": recordings(4, SHORT)})
    assert result.ByteSize() < 0.45 * source.ByteSize()


def test_a_quantized_straight_line_has_about_half_the_bytes() -> None:
    for op_type, share in (("LSTM", 0.5), ("GRU", 0.55)):
        source = LongMemory(op_type, 128, 30).build()
        result = rnnlower.quantize(source, calibration={"X": recordings(4, 30)})
        assert result.ByteSize() < share * source.ByteSize()
        assert not any(node.op_type == "Scan" for node in result.graph.node)


def test_the_rest_is_quantized_by_the_runtimes_tool() -> None:
    source = LongMemory("GRU", 8, layers=2).build()
    data = {"X": recordings(8, 40)}
    whole = rnnlower.quantize(source, calibration=data)
    kept = rnnlower.quantize(source, calibration=data, recurrent_only=True)
    for model, stays_float in ((whole, False), (kept, True)):
        floats = {each.name for each in model.graph.initializer if each.data_type == onnx.TensorProto.FLOAT}
        assert ("head" in floats) == stays_float


def test_a_step_model_is_looped_with_its_states() -> None:
    step = rnnlower.stream(LongMemory("LSTM").build(), chunk=1)
    _, report = rnnlower.quantize.with_report(step, calibration={"X": recordings(4, 100)}, verify=True)
    assert report.sqnr is not None
    assert report.sqnr >= 24.5
    assert [output.name for output in report.outputs] == ["Y"]
    assert report.outputs[0].quarters is not None


def test_one_scale_serves_a_state_that_comes_in_and_goes_out() -> None:
    step = rnnlower.stream(LongMemory("LSTM", 8).build(), chunk=1)
    result = rnnlower.quantize(step, calibration={"X": recordings(4, 20)})
    readers = {name: node for _, node in nodes_of(result.graph) for name in node.input}
    makers = {out: node for _, node in nodes_of(result.graph) for out in node.output}
    for old, new in (("first_h_in", "first_h_out"), ("first_c_in", "first_c_out")):
        into, out = readers[old], makers[new]
        while into.op_type != "QuantizeLinear":
            into = readers[into.output[0]]
        while out.op_type != "DequantizeLinear":
            out = makers[out.input[0]]
        assert into.input[1:] == out.input[1:]


@pytest.mark.parametrize("fault", ["value", "order", "missing"])
def test_a_quantizer_in_the_wrong_place_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    announce = quantizers.Quantizers.__call__

    def wrong(self, e, value, role, direction):  # type: ignore[no-untyped-def]
        made = announce(self, e, value, role, direction)
        if fault == "value" and role == "f*c":
            return e.op("Neg", made)
        if fault == "order" and role == "h Tanh":
            return announce(self, e, value.producer().inputs[0], "c", direction)
        return e.op("Mul", made, e.scalar(0.5)) if fault == "missing" and role == "c" else made

    monkeypatch.setattr(quantizers.Quantizers, "__call__", wrong)
    with pytest.raises(rnnlower.VerificationError, match="misplaced"):
        rnnlower.quantize(LongMemory("LSTM", 8).build(), calibration={"X": recordings(4, SHORT)}, verify=True)


def test_tight_ranges_are_seen_as_clipped(tmp_path: Path) -> None:
    source = LongMemory("LSTM", 16).build()
    found = rnnlower.calibrate(source, {"X": recordings(4, 60)}, ranges=True)
    assert found.ranges is not None
    for role, seen in found.ranges.items():
        if role.name == "c":
            found.ranges[role] = type(seen)(seen.least / 8, seen.largest / 8)
    found.save_ranges(tmp_path / "r.json")
    given = {"inputs": {"X": recordings(4, 60)}, "verify": True, "calibration": tmp_path / "r.json"}
    _, report = rnnlower.quantize.with_report(source, **given)
    clipped = {entry["role"]: entry["clipped"] for entry in report.scales}
    assert clipped["c"] > 0.01
    assert clipped["sum iofc"] == 0
    assert report.sqnr is not None
    assert report.sqnr < 20


def test_below_the_least_ratio_nothing_is_written(tmp_path: Path) -> None:
    source = save(LongMemory("LSTM").build(), tmp_path)
    np.savez(tmp_path / "rec.npz", X=recordings())
    out = tmp_path / "out.onnx"
    arguments = ("quantize", source, "-o", out, "--calibration", tmp_path / "rec.npz", "--json")
    failed = command(*arguments, "--activations", "int8-only", "--min-sqnr", "30", code=1)
    assert not out.exists()
    assert failed.json["output"] is None
    assert failed.json["sqnr"][0]["sqnr"] < 30
    assert failed.json["error"]["kind"] == "VerificationError"
    done = command(*arguments)
    assert out.exists()
    assert done.json["output"] == str(out)
    assert {entry["role"] for entry in done.json["scales"]} >= {"x", "h", "c", "f*c", "sum iofc"}
    assert done.json["sqnr"][0]["quarters"] is not None
    assert "dB" in command(*(each for each in arguments if each != "--json")).stdout


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ([], "give more recordings, --activations int16, or --recurrent-only: the rest in float32"),
        (["--scheme", "tflite"], "give more recordings, or --recurrent-only: the rest in float32"),
        (["--activations", "int16", "--recurrent-only"], "give more recordings, or keep the float model"),
    ],
)
def test_the_remedy_for_a_low_ratio_names_no_option_that_is_given(
    tmp_path: Path, options: list[str], remedy: str
) -> None:
    np.savez(tmp_path / "rec.npz", X=recordings())
    arguments = ("quantize", save(LongMemory("LSTM").build(), tmp_path), "--min-sqnr", "500", *options)
    run = command(*arguments, "--calibration", tmp_path / "rec.npz", "-o", tmp_path / "out.onnx", code=1)
    assert remedy in run.stderr


def test_no_ratio_reaches_a_least_one_that_is_no_number(tmp_path: Path) -> None:
    np.savez(tmp_path / "rec.npz", X=recordings())
    arguments = ("--calibration", tmp_path / "rec.npz", "--min-sqnr", "nan", "-o", tmp_path / "out.onnx")
    command("quantize", save(LongMemory("LSTM").build(), tmp_path), *arguments, code=1)
    assert not (tmp_path / "out.onnx").exists()


def test_the_remedy_for_clipping_by_a_fixed_range_is_another_scheme(tmp_path: Path) -> None:
    model = LongMemory("LSTM").build()
    # Products beyond 8, and a state that inputs do not move.
    weights = {weight.name: weight for weight in model.graph.initializer}
    for name, factor in zip(model.graph.node[0].input[1:3], (0, 1), strict=True):
        array = np.full(weights[name].dims, factor, np.float32)
        weights[name].CopyFrom(numpy_helper.from_array(array, name))
    np.savez(tmp_path / "rec.npz", X=recordings())
    arguments = ("quantize", save(model, tmp_path), "--min-sqnr", "500", "--scheme", "tflite")
    run = command(*arguments, "--calibration", tmp_path / "rec.npz", "-o", tmp_path / "out.onnx", code=1)
    assert "choose another scheme (--scheme qdq)" in run.stderr
    assert "beyond the fixed range of --scheme tflite" in run.stderr


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options", [{}, {"per_tensor": True}, {"activations": "int8-only"}, {"scheme": "pow2"}]
)
def test_weights_that_decayed_to_almost_nothing_are_zeros(options: dict[str, Any]) -> None:
    """No float32 is their largest one by 127."""
    source = model_of(
        "(float[T, 1, 3] X) => (float[T, 1, 1, 4] Y) { Y, h = RNN <hidden_size = 4> (X, W, R) }", R=(1, 4, 4)
    )
    source.graph.initializer.append(numpy_helper.from_array(np.full((1, 4, 3), 1e-44, np.float32), "W"))
    inputs = {"X": np.ones((6, 1, 3), np.float32)}
    result = rnnlower.quantize(source, calibration=[inputs] * 2, **options)
    assert not run(result, inputs)["Y"].any()


def test_the_same_input_gives_the_same_bytes() -> None:
    source, data = LongMemory("GRU", 8).build(), {"X": recordings(4, SHORT)}
    first, second = (rnnlower.quantize(source, calibration=data).SerializeToString() for _ in range(2))
    assert first == second


def test_one_recording_cannot_be_set_aside(tmp_path: Path) -> None:
    source, data = LongMemory("GRU", 8).build(), recordings(2, SHORT)
    with pytest.raises(UnverifiableError, match="none can be set aside"):
        rnnlower.quantize(source, calibration={"X": data[0]}, verify=True)
    _, report = rnnlower.quantize.with_report(
        source, calibration={"X": data[0]}, inputs={"X": data[1]}, verify=True
    )
    assert (report.calibrated, report.measured) == (1, 1)


@pytest.mark.parametrize(
    "option", [{"activations": "int4"}, {"strategy": "lower"}, {"headroom": 0.5}, {"headroom": np.inf}]
)
def test_options_out_of_range_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="must be"):
        rnnlower.quantize(LongMemory("GRU", 4).build(), calibration={"X": recordings(2, 3)}, **option)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
@pytest.mark.parametrize(("activations", "least"), [("int8", 27), ("int16", 32)])
def test_scales_may_be_powers_of_two(op_type: str, activations: str, least: float) -> None:
    result, report = rnnlower.quantize.with_report(
        LongMemory(op_type).build(),
        calibration={"X": recordings()},
        scheme="pow2",
        activations=activations,
        verify=True,
    )
    assert report.sqnr is not None
    assert report.sqnr > least
    stored = {each.name: each for graph, _ in nodes_of(result.graph) for each in graph.initializer}
    pairs = [node for _, node in nodes_of(result.graph) if node.op_type == "DequantizeLinear"]
    for node in pairs:
        scales, zeros = (numpy_helper.to_array(stored[name]) for name in node.input[1:])
        np.testing.assert_array_equal(np.log2(scales), np.rint(np.log2(scales)))
        assert not zeros.any()
    assert all(entry["type"] in ("int8", "int16") for entry in report.scales)


@pytest.mark.parametrize(
    ("target", "activations", "words"),
    [
        ("tract", "int8", "products of int8; choose activations="),
        ("opencv", "uint16", "products of uint16; choose activations="),
        ("ort-qnn", "int8", "int8; choose activations=.int16. or activations=.uint16. or"),
        ("mnn", "int8-only", "target mnn takes no model that is quantized"),
        ("tidl", "uint16", "target tidl lacks uint16.*; choose activations=.int8-only.$"),
        ("tensorrt", "int8", "target tensorrt lacks int16.*; choose activations=.int8-only.$"),
        ("iree", "int8-only", "target iree lacks uint8.*; choose scheme=.pow2.$"),
    ],
)
def test_a_target_that_lacks_the_integers_is_refused(target: str, activations: str, words: str) -> None:
    source, data = LongMemory("LSTM", 8, 3).build(), {"X": recordings(2, 3)}
    with pytest.raises(UnsupportedModelError, match=words):
        rnnlower.quantize(source, calibration=data, activations=activations, target=target)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("target", ["tract", "opencv", "openvino", "tensorrt"])
def test_a_target_decides_the_strategy(target: str, dynamic: bool) -> None:
    source, data = LongMemory("GRU", 8, 40).build(), {"X": recordings(8, 40)}
    if dynamic:
        source.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    result, report = rnnlower.quantize.with_report(
        source, calibration=data, activations="int8-only", target=target, recurrent_only=True
    )
    flow = rnnlower.targets.find_target(target).control_flow
    ranked = ("Scan", "Loop") if not dynamic or flow.dynamic == "Scan" else ("Loop", "Scan")
    assert report.strategy == next(op for op in ranked if op in flow.ops).lower()
    assert not rnnlower.check(result, target=target)


def test_a_profile_keeps_recurrent_nodes() -> None:
    with pytest.raises(OptionError, match="sonnx is a profile"):
        rnnlower.quantize(LongMemory("GRU", 4).build(), calibration={"X": recordings(2, 3)}, target="sonnx")


@pytest.mark.usefixtures("forks")
def test_the_result_is_measured_on_another_runtime(tmp_path: Path) -> None:
    source = save(LongMemory("LSTM", 8, SHORT).build(), tmp_path)
    np.savez(tmp_path / "rec.npz", X=recordings(8, SHORT))
    arguments = ("quantize", source, "-o", tmp_path / "out.onnx", "--calibration", tmp_path / "rec.npz")
    figures = command(*arguments, "--on", runtime_command(tmp_path), "--json").json["sqnr"][0]
    assert abs(figures["sqnr_on"] - figures["sqnr_default"]) < 0.1
    (tmp_path / "out.onnx").unlink()
    doubled = runtime_command(tmp_path, outputs="outputs['Y'] = outputs['Y'] * 2")
    assert command(*arguments, "--on", doubled, "--json", code=1).json["sqnr"][0]["sqnr_on"] < 1
    command(*arguments, "--on", runtime_command(tmp_path, model="sys.exit('not here')"), code=4)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_states_are_carried_as_integers(op_type: str) -> None:
    step = rnnlower.stream(LongMemory(op_type, 32).build(), chunk=1)
    given = {"calibration": {"X": recordings(4, 100)}, "verify": True}
    of_floats = rnnlower.quantize.with_report(step, **given)[1]
    result, report = rnnlower.quantize.with_report(step, **given, integer_states=True)
    assert report.sqnr is not None
    assert report.sqnr >= 24.5
    # The same integers come out: only the states are written in another way.
    assert report.outputs[0].sqnr == pytest.approx(of_floats.outputs[0].sqnr, abs=1e-6)
    kinds = {
        each.name: each.type.tensor_type.elem_type for each in (*result.graph.input, *result.graph.output)
    }
    states = {
        f"first_{letter}_{end}" for letter in ("hc" if op_type == "LSTM" else "h") for end in ("in", "out")
    }
    assert {name for name, kind in kinds.items() if kind == onnx.TensorProto.INT16} == states
    assert all(any(name in note for note in report.notes) for name in states)


@pytest.mark.parametrize("activations", ["uint16", "int8-only"])
def test_states_that_are_no_signed_integers_of_16_bits_are_refused(activations: str) -> None:
    step = rnnlower.stream(LongMemory("GRU", 8).build(), chunk=1)
    given = {"calibration": {"X": recordings(4, 20)}, "integer_states": True}
    with pytest.raises(UnsupportedModelError, match="'first_h_in' is not one of a recurrence"):
        rnnlower.quantize(step, activations=activations, **given)


def test_a_model_without_states_has_no_integer_states() -> None:
    with pytest.raises(UnsupportedModelError, match="no states outside"):
        rnnlower.quantize(
            LongMemory("GRU", 8).build(), calibration={"X": recordings(2, 3)}, integer_states=True
        )


@pytest.mark.parametrize("strategy", ["unroll", "scan"])
@pytest.mark.parametrize("options", [{"scheme": "tflite"}, {"scheme": "pow2", "activations": "int8-only"}])
def test_int8_states_that_are_outputs_load_on_onnxruntime(options: dict[str, Any], strategy: str) -> None:
    """Version 1.32 refuses the quantizers that it inserts behind an Unsqueeze or Reshape itself."""
    source = model_of(
        "(float[5, 2, 3] X) => (float[5, 1, 2, 4] Y, float[1, 2, 4] Y_h) "
        "{ Y, Y_h = LSTM <hidden_size = 4> (X, W, R) }",
        W=(1, 16, 3),
        R=(1, 16, 4),
    )
    X = np.random.default_rng(0).normal(size=(6, 5, 2, 3)).astype(np.float32)
    given = {"calibration": {"X": X}, "strategy": strategy, "verify": True}
    result, report = rnnlower.quantize.with_report(source, **given, **options)
    got = run(result, {"X": X[0]})
    assert (got["Y"][-1] == got["Y_h"]).all()
    assert report.sqnr is not None
    assert report.sqnr > 15
