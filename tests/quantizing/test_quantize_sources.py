"""`quantize` on nodes in every form: inputs, states, weights and attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from long_memory import LongMemory, recordings
from onnx import TensorProto, helper, numpy_helper
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save
from support.small_models import info, model_of, recurrent_model, weights

import rnnlower
from rnnlower.engines.session import RunError
from rnnlower.errors import UnsupportedModelError, UnverifiableError
from rnnlower.quantizing import observing


def sqnr_of(source: onnx.ModelProto, data: dict[str, np.ndarray], **options: object) -> float:
    found = rnnlower.quantize.with_report(source, calibration=data, verify=True, **options)[1].sqnr
    assert found is not None
    return float(found)


def test_initial_states_and_lengths_of_rows() -> None:
    shape = LongMemory("LSTM", 8)
    source = shape.build()
    for name in ("h", "c"):
        source.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1, 8]))
    source.graph.input.append(helper.make_tensor_value_info("lens", onnx.TensorProto.INT32, [1]))
    source.graph.node[0].input.extend(["lens", "h", "c"])
    draw = np.random.default_rng(0)
    data = {
        "X": recordings(8, 40),
        "h": draw.uniform(-1, 1, (8, 1, 1, 8)).astype(np.float32),
        "c": draw.uniform(-2, 2, (8, 1, 1, 8)).astype(np.float32),
        "lens": np.full((8, 1), 33, np.int32),
    }
    _, report = rnnlower.quantize.with_report(source, calibration=data, verify=True)
    assert report.sqnr is not None
    assert report.sqnr > 30


def test_a_weight_that_comes_at_run_time_is_refused() -> None:
    source = LongMemory("GRU", 4).build()
    (weight,) = (each for each in source.graph.initializer if each.name == "first.R")
    source.graph.initializer.remove(weight)
    array = numpy_helper.to_array(weight)
    shape = list(array.shape)
    source.graph.input.append(helper.make_tensor_value_info("first.R", onnx.TensorProto.FLOAT, shape))
    data = {"X": recordings(2, 3), "first.R": np.stack([array] * 2)}
    with pytest.raises(UnsupportedModelError, match=r"node 'first'.*cannot be stored in 8 bits"):
        rnnlower.quantize(source, calibration=data)


def test_a_weight_that_is_cut_from_a_larger_constant() -> None:
    source = LongMemory("GRU", 8).build()
    (weight,) = (each for each in source.graph.initializer if each.name == "first.R")
    array = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(np.concatenate([array, array]), "stacked"))
    for name, number in (("zero", 0), ("one", 1)):
        source.graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    source.graph.node.insert(0, helper.make_node("Slice", ["stacked", "zero", "one"], ["first.R"]))
    source.graph.node.append(helper.make_node("Identity", ["stacked"], ["other"]))
    source.graph.output.append(helper.make_tensor_value_info("other", onnx.TensorProto.FLOAT, None))
    data = {"X": recordings(4, 20)}
    _, report = rnnlower.quantize.with_report(source, calibration=data, verify=True)
    assert report.outputs[0].sqnr > 30


@pytest.mark.parametrize("strategy", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_nodes_without_a_bias(op_type: str, strategy: str) -> None:
    source = LongMemory(op_type, 16, 40).build()
    del source.graph.node[0].input[3:]
    assert sqnr_of(source, {"X": recordings(8, 40)}, strategy=strategy) > 30


def test_loops_and_scans_compute_the_same() -> None:
    source, data = LongMemory("GRU", 16, direction="bidirectional").build(), {"X": recordings(8, 40)}
    ratios = [sqnr_of(source, data, strategy=strategy) for strategy in ("scan", "loop")]
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-3)


def test_both_directions_share_their_scales() -> None:
    source = LongMemory("LSTM", 8, direction="bidirectional").build()
    report = rnnlower.quantize.with_report(source, calibration={"X": recordings(4, 20)})[1]
    scales = {(entry["direction"], entry["role"]): entry["scale"] for entry in report.scales}
    for (direction, role), scale in scales.items():
        if direction == "forward":
            assert scales["reverse", role] == scale


def test_initializers_that_are_inputs_too() -> None:
    source, data = LongMemory("GRU", 16).build(), {"X": recordings(8, 40)}
    source.graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in source.graph.initializer
    )
    assert sqnr_of(source, data, freeze=True) > 30
    with pytest.raises(UnsupportedModelError, match=r"node 'first'.*freeze=True"):
        rnnlower.quantize(source, calibration=data)
    source.ir_version = 3
    del source.opset_import[:]
    source.opset_import.append(helper.make_opsetid("", 8))
    assert sqnr_of(source, data) > 30


@pytest.mark.parametrize("more", [False, True])
def test_a_form_that_onnxruntime_has_no_kernel_for(more: bool) -> None:
    source = LongMemory("LSTM", 16, 40).build()
    source.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    X, Y = source.graph.input[0], source.graph.output[0]
    for value, shape in ((X, [1, 40, 16]), (Y, [1, 40, 1, 16])):
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    if more:
        source.graph.node.append(helper.make_node("Relu", [Y.name], ["above"]))
        source.graph.output.append(
            helper.make_tensor_value_info("above", onnx.TensorProto.FLOAT, [1, 40, 1, 16])
        )
    assert sqnr_of(source, {"X": recordings(8, 40).swapaxes(1, 2)}) > 30


def test_integers_that_a_body_shares_with_the_graph_around_it() -> None:
    # With one unit and one feature, every weight is 127.
    source = LongMemory("LSTM", 1, 4).build()
    for each in source.graph.initializer:
        array = numpy_helper.to_array(each)
        kept = array[:, :, :1] if array.ndim == 3 else array
        each.CopyFrom(numpy_helper.from_array(np.abs(kept), each.name))
    source.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 1
    assert sqnr_of(source, {"X": recordings(8, 4)[..., :1]}, strategy="scan") > 20


@pytest.mark.parametrize("strategy", ["scan", "unroll"])
@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("LSTM", {"clip": 0.8}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"activations": ["HardSigmoid", "Softsign", "ScaledTanh"], "activation_alpha": [0.2, 1.5]}),
        ("GRU", {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.1]}),
        ("GRU", {"clip": 1.0}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)
def test_nodes_with_attributes_keep_their_accuracy(
    op_type: str, attributes: dict[str, object], strategy: str
) -> None:
    source = LongMemory(op_type, 16, 40).build()
    for name, value in attributes.items():
        source.graph.node[0].attribute.append(helper.make_attribute(name, value))
    assert sqnr_of(source, {"X": recordings(8, 40)}, strategy=strategy) > 25


@pytest.mark.parametrize("batch", [2, 5])
def test_batches_keep_their_accuracy(batch: int) -> None:
    shape = LongMemory("GRU", 16, linear_before_reset=False)
    source = dataclasses.replace(shape).build()
    source.graph.input[0].type.tensor_type.shape.dim[1].dim_value = batch
    source.graph.output[0].type.tensor_type.shape.dim[2].dim_value = batch
    data = {"X": np.concatenate([recordings(8, 40, seed) for seed in range(batch)], 2)}
    assert sqnr_of(source, data) > 30


def test_a_constant_branch_outside_of_the_body() -> None:
    # onnxruntime's WhereDummyDq aborted the process.
    source = LongMemory("LSTM", 8).build()
    activations = ["Softsign", "ThresholdedRelu", "ThresholdedRelu"]
    source.graph.node[0].attribute.append(helper.make_attribute("activations", activations))
    assert sqnr_of(source, {"X": recordings(8, 10)}, activations="int8-only", strategy="scan") > 10


def test_values_that_are_small_have_fine_scales() -> None:
    source, data = LongMemory("LSTM", 16).build(), {"X": recordings(8, 40)}
    for each in source.graph.initializer:
        each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each) * np.float32(1e-3), each.name))
    report = rnnlower.quantize.with_report(source, calibration=data, verify=True)[1]
    scales = {entry["role"]: entry["scale"] for entry in report.scales}
    assert scales["f Sigmoid"] == 2**-15 > 64 * scales["g Tanh"]
    assert report.sqnr is not None
    assert report.sqnr > 25


def test_the_rest_has_headroom_at_16_bits() -> None:
    source, data = LongMemory("GRU", 8, layers=2).build(), {"X": recordings(8, 40)}
    (head,) = (each for each in source.graph.initializer if each.name == "head")
    head.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(head) * 50, "head"))
    louder = {"X": recordings(4, 40, seed=2) * np.float32(1.3)}
    results = [
        rnnlower.quantize.with_report(
            source, calibration=data, inputs=louder, activations="int16", headroom=headroom, verify=True
        )[1].sqnr
        for headroom in (1.0, 2.0)
    ]
    assert all(each is not None for each in results)
    assert results[1] > results[0]


def test_a_known_number_of_steps_behind_other_nodes() -> None:
    source = LongMemory("GRU", 8, 12, layers=2).build()
    assert not source.graph.value_info
    report = rnnlower.quantize.with_report(source, calibration={"X": recordings(2, 12)})[1]
    assert report.strategy == "unroll"


def with_larger(model: onnx.ModelProto, name: str, factor: float, offset: float = 0) -> onnx.ModelProto:
    """The model with the magnitudes of a weight scaled; an offset makes them positive."""
    tensor = next(each for each in model.graph.initializer if each.name == name)
    array = numpy_helper.to_array(tensor) * np.float32(factor)
    changed = np.abs(array) + np.float32(offset) if offset else array
    tensor.CopyFrom(numpy_helper.from_array(changed, name))
    return model


def test_values_that_outgrow_the_range_are_not_blamed_on_quantizers(tmp_path: Path) -> None:
    """No quantizer is misplaced: the recordings reach values of other magnitudes."""
    model = LongMemory("GRU", 1, steps=5).build()
    model.graph.node[0].attribute.append(helper.make_attribute("activations", ["Relu", "Relu"]))
    for letter in "WRB":
        with_larger(model, f"first.{letter}", 1, 0.5)
    sequences = np.abs(recordings(4, 5)) * np.array([1, 1, 1, 9], np.float32).reshape(4, 1, 1, 1)
    np.savez(tmp_path / "rec.npz", X=sequences)
    source, out = save(model, tmp_path), tmp_path / "out.onnx"
    failed = command("quantize", source, "-o", out, "--calibration", tmp_path / "rec.npz", code=1)
    assert "beyond the range of the calibration" in failed.stderr
    assert not out.exists()


def test_a_model_that_is_unstable_itself() -> None:
    model = with_larger(LongMemory("RNN", 16, steps=100).build(), "first.R", 6)
    with pytest.raises(UnsupportedModelError, match="the float model is unstable"):
        rnnlower.quantize.with_report(model, calibration={"X": recordings(4, 100)}, verify=True)


def test_steps_that_fill_no_chunk_are_told() -> None:
    step = rnnlower.stream(LongMemory("LSTM", 8).build(), chunk=8)
    calibration = rnnlower.calibrate(step, {"X": recordings(2, 43)})
    note = "the last 3 steps (or fewer) of 2 recordings fill no chunk of 8, and are left out"
    assert [*calibration.notes] == [note]
    report = rnnlower.quantize.with_report(step, calibration={"X": recordings(2, 43)}, verify=True)[1]
    assert note in report.notes
    assert not rnnlower.calibrate(step, {"X": recordings(2, 40)}).notes


def test_quantizers_that_a_target_leaves_out_are_told() -> None:
    def notes(activations: str) -> Sequence[str]:
        return rnnlower.quantize.with_report(
            LongMemory("GRU", 8).build(),
            calibration={"X": recordings(2, 8)},
            activations=activations,
            target="openvino",
        )[1].notes

    assert "target openvino leaves out quantizers of uint16: it computes in floats there" in notes("uint16")
    assert not notes("int8-only")


@pytest.mark.parametrize(("activations", "value"), [("int8", -5e-43), ("uint16", -6.5e-41)])
def test_values_below_the_smallest_scale_are_zeros(activations: str, value: float) -> None:
    data = {"X": np.full_like(recordings(4, 5), value)}
    assert sqnr_of(LongMemory("GRU", 4).build(), data, activations=activations) > 20


@pytest.mark.parametrize("kind", ["string", "sequence"])
def test_an_output_without_numbers_cannot_be_measured(kind: str) -> None:
    source, data = LongMemory("GRU", 4).build(), {"X": recordings(4, 5)}
    if kind == "string":
        words = helper.make_tensor("words", onnx.TensorProto.STRING, [1], [b"a"])
        source.graph.node.append(helper.make_node("Constant", [], ["other"], value=words))
        value = helper.make_tensor_value_info("other", onnx.TensorProto.STRING, [1])
    else:
        source.graph.node.append(helper.make_node("SequenceConstruct", ["Y", "Y"], ["other"]))
        value = helper.make_tensor_sequence_value_info("other", onnx.TensorProto.FLOAT, None)
    source.graph.output.append(value)
    with pytest.raises(UnverifiableError, match="'other' is no tensor of numbers"):
        rnnlower.quantize(source, calibration=data, verify=True)
    assert len(rnnlower.quantize(source, calibration=data).graph.output) == 2


def test_names_that_observed_values_would_get() -> None:
    source = LongMemory("GRU", 4).build()
    source.graph.input[0].name = source.graph.node[0].input[0] = "rnnlower.role.0"
    source.graph.output[0].name = source.graph.node[0].output[0] = "rnnlower.role.1.steps"
    assert sqnr_of(source, {"rnnlower.role.0": recordings(4, 5)}) > 20


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights_of_the_source_that_a_branch_captures(axis: int | None, moved: bool) -> None:
    rng = np.random.default_rng(0)
    at = "" if axis is None else f"<axis = {axis}>"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[5, 2, 8] X) => (float[5, 2, 8] Y) {{
            y = GRU <hidden_size = 8> (X, W, R)
            one = Constant <value_ints = [1]> ()
            c = Squeeze (y, one)
            {"whole" if moved else "M"} = DequantizeLinear {at} (q, scale)
            {"M = Transpose <perm = [1, 0]> (whole)" if moved else ""}
            sum = ReduceSum <keepdims = 0> (X)
            zero = Constant <value_float = 0.0> ()
            positive = Greater (sum, zero)
            Y = If (positive) <
                then_branch = then () => (float[5, 2, 8] a) {{ a = MatMul (c, M) }},
                else_branch = else () => (float[5, 2, 8] b) {{ b = Identity (c) }}>
        }}""")
    arrays = {
        "W": rng.uniform(-0.5, 0.5, (1, 24, 8)).astype(np.float32),
        "R": rng.uniform(-0.5, 0.5, (1, 24, 8)).astype(np.float32),
        "q": rng.integers(-100, 101, (8, 8)).astype(np.int8),
        "scale": rng.uniform(0.001, 0.02, () if axis is None else 8).astype(np.float32),
    }
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    recording = np.abs(rng.standard_normal((20, 5, 2, 8))).astype(np.float32)
    recording[10:] *= -1
    assert sqnr_of(model, {"X": recording}) > 25


def in_a_function(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its nodes in a function, of which the weights are parameters."""
    graph, imports = source.graph, [*source.opset_import]
    inputs = [each.name for each in (*graph.input, *graph.initializer)]
    outputs = [each.name for each in graph.output]
    function = helper.make_function("local", "Whole", inputs, outputs, graph.node, imports)
    del graph.node[:]
    graph.node.append(helper.make_node("Whole", inputs, outputs, domain="local"))
    source.functions.append(function)
    source.opset_import.append(helper.make_opsetid("local", 1))
    return source


def test_a_node_in_a_function() -> None:
    """Its weights are known at the call, and nothing is left of the function."""
    shape = LongMemory("GRU", 8)
    data = {"X": recordings(4, 20)}
    result = rnnlower.quantize(in_a_function(shape.build()), calibration=data)
    assert not result.functions
    assert {node.op_type for node in result.graph.node} == {
        node.op_type for node in rnnlower.quantize(shape.build(), calibration=data).graph.node
    }


def test_a_node_of_float16_in_a_function_is_refused() -> None:
    source = recurrent_model("GRU", constants=weights("GRU", dtype=np.float16), elem_type=TensorProto.FLOAT16)
    data = {"X": np.zeros((2, 5, 1, 3), np.float16)}
    with pytest.raises(UnsupportedModelError, match="its weights are FLOAT16"):
        rnnlower.quantize(in_a_function(source), calibration=data)


def test_a_branch_that_a_constant_condition_never_takes() -> None:
    source = LongMemory("GRU", 8).build()
    graph, data = source.graph, {"X": recordings(4, 20)}
    expected = rnnlower.quantize(source, calibration=data)
    branch = helper.make_graph(graph.node, "branch", [], graph.output)
    names = [each.name for each in graph.output]
    del graph.node[:]
    graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    graph.node.append(helper.make_node("If", ["yes"], names, then_branch=branch, else_branch=branch))
    for each in graph.node[0].attribute:
        rename = {name: f"{each.name}_{name}" for node in each.g.node for name in node.output}
        for node in each.g.node:
            node.input[:] = [rename.get(name, name) for name in node.input]
            node.output[:] = [rename[name] for name in node.output]
        for output in each.g.output:
            output.name = rename[output.name]
    result = rnnlower.quantize(source, calibration=data)
    assert [node.op_type for node in result.graph.node] == [node.op_type for node in expected.graph.node]


def test_weights_of_the_rest_may_be_dequantized() -> None:
    """onnxruntime's optimizer computes their products in integers, which is no fault of a quantizer."""
    draw = np.random.default_rng(0)
    constants = weights("GRU") | {
        "q": draw.integers(-90, 90, (4, 2)).astype(np.int8),
        "scale": np.array(1 / 64, np.float32),
        "zero": np.array(0, np.int8),
        "axes": np.array([1]),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["M"]),
        helper.make_node("GRU", ["X", "W", "R", "B"], ["Y"], hidden_size=4),
        helper.make_node("Squeeze", ["Y", "axes"], ["y"]),
        helper.make_node("MatMul", ["y", "M"], ["z"]),
    ]
    X, z = (info(name, TensorProto.FLOAT, [6, 1, size]) for name, size in (("X", 3), ("z", 2)))
    data = {"X": draw.standard_normal((4, 6, 1, 3)).astype(np.float32)}
    assert sqnr_of(model_of(nodes, [X], [z], constants), data) > 20


def test_a_model_that_runs_only_with_optimizations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def run(self, _: object) -> None:
            raise RunError("Starts must be a 1-D array")

        def close(self) -> None:
            pass

    monkeypatch.setattr(observing, "open_model", lambda *_, **__: Failing())
    with pytest.raises(UnverifiableError, match="does not run on the recording: Starts must be"):
        rnnlower.quantize(LongMemory("GRU", 16, 40).build(), calibration={"X": recordings(8, 40)})
