"""`quantize` where values are all 0, almost 0, or unlike those of the recordings."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from long_memory import LongMemory, recordings
from onnx import numpy_helper
from support.judge import run
from support.streamed import model as model_of

import rnnlower
from rnnlower.errors import UnsupportedModelError


def decibels(wanted: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(wanted.astype(float) ** 2) / np.sum((got - wanted.astype(float)) ** 2)))


def set_weight(model: onnx.ModelProto, name: str, scale: float) -> None:
    (weight,) = (each for each in model.graph.initializer if each.name == name)
    array = scale * numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))


def test_recordings_of_one_step_do_not_fix_the_ranges_of_the_state() -> None:
    """A factor that was 0 had a range of a millionth."""
    source = LongMemory("GRU", 16, linear_before_reset=False).build()
    result, report = rnnlower.quantize.with_report(
        source, calibration={"X": recordings(20, 1)}, activations="int16", verify=True
    )
    (warning,) = (str(each) for each in report.warnings if "guess" in str(each))
    assert warning.startswith("node 'first': ")
    assert "'h product'" in warning
    inputs = {"X": recordings(1, 12)[0]}
    assert decibels(run(source, inputs)["Y"], run(result, inputs)["Y"]) > 30
    report = rnnlower.quantize.with_report(source, calibration={"X": recordings(4, 12)})[1]
    assert not report.warnings


def test_results_as_small_as_the_error_of_a_tanh_are_not_blamed_on_quantizers() -> None:
    source = model_of(
        "(float[T, 2, 1] X) => (float[T, 1, 2, 4] Y) { Y, h = RNN <hidden_size = 4> (X, W, R, B) }",
        W=(1, 4, 1),
        R=(1, 4, 4),
        B=(1, 8),
    )
    set_weight(source, "B", 1e-6)
    zeros = [{"X": np.zeros((5, 2, 1), np.float32)}] * 4
    assert rnnlower.quantize.with_report(source, calibration=zeros, verify=True)[1].outputs


def test_a_bias_beyond_32_bits_is_refused() -> None:
    """It was clipped to almost nothing."""
    source, data = LongMemory("LSTM", 8).build(), {"X": recordings(4, 6)}
    set_weight(source, "first.W", 1e-8)
    with pytest.raises(UnsupportedModelError, match=r"node 'first'.*bias of .* does not fit into 32 bits"):
        rnnlower.quantize(source, calibration=data, scheme="tflite")
    assert rnnlower.quantize.with_report(source, calibration=data, verify=True)[1].sqnr is not None


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_node_without_a_hidden_size(op_type: str) -> None:
    """onnxruntime's quantizer, which runs the model if there is more in it, has no kernel for the node."""
    source, data = LongMemory(op_type, 8, layers=2).build(), {"X": recordings(4, 6)}
    for node in source.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != "hidden_size"]
        del node.attribute[:]
        node.attribute.extend(kept)
    sqnr = rnnlower.quantize.with_report(source, calibration=data, verify=True)[1].sqnr
    assert sqnr is not None
    assert sqnr > 20


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(("rows", "units", "timed"), [(2, 4, ["Y"]), (8, 4, []), (2, 8, [])])
def test_sizes_that_equal_the_number_of_steps_are_no_quarters(
    layout: int, rows: int, units: int, timed: list[str]
) -> None:
    """Those of rows and units were shown for those of the sequence."""
    source = model_of(
        f"""(float[N, T, 3] X) => (float[A, B, C, D] Y, float[E, F, {units}] Y_h) {{
            Y, Y_h = RNN <hidden_size = {units}, layout = {layout}> (X, W, R)
        }}""",
        W=(1, units, 3),
        R=(1, units, units),
    )
    shape = (rows, 8) if layout else (8, rows)
    data = np.random.default_rng(0).normal(size=(4, *shape, 3)).astype(np.float32)
    report = rnnlower.quantize.with_report(source, calibration={"X": data}, verify=True)[1]
    assert [each.name for each in report.outputs if each.quarters is not None] == timed


def test_an_outlier_is_not_blamed_on_quantizers() -> None:
    """It gave the check of their places steps between which the other recordings vanished."""
    data = recordings(4, 6)
    data[1] *= 1e25
    report = rnnlower.quantize.with_report(
        LongMemory("LSTM", 8).build(), calibration={"X": data}, verify=True
    )[1]
    assert report.sqnr is not None


@pytest.mark.parametrize("strategy", ["scan", "loop"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_number_of_steps_that_no_shape_tells(direction: str, strategy: str) -> None:
    many = 1 + (direction == "bidirectional")
    source = model_of(
        f"(float[n] X, int64[3] S) => (float[t, {many}, b, 8] Y) "
        f'{{ x = Reshape (X, S) Y = GRU <hidden_size = 8, direction = "{direction}"> (x, W, R) }}',
        W=(many, 24, 3),
        R=(many, 24, 8),
    )
    draw = np.random.default_rng(0)
    data = [{"X": draw.uniform(-1, 1, 12 * n).astype(np.float32), "S": [n, 4, 3]} for n in (6, 1, 9, 6)]
    options = {"calibration": data, "strategy": strategy, "verify": True}
    report = rnnlower.quantize.with_report(source, **options)[1]
    assert report.sqnr is not None
    assert report.sqnr > 30


def test_a_counter_of_steps_is_an_integer_already() -> None:
    source = model_of(
        "(float[T, 1, 3] X) => (float[T, 1, 1, 8] Y) { n = Shape <start = 0, end = 1> (X) s = Squeeze (n) "
        "a = Constant <value_int = 0> () d = Constant <value_int = 1> () r = Range (a, s, d) "
        "f = Cast <to = 1> (r) c = Cos (f) e = Constant <value_ints = [1, 2]> () u = Unsqueeze (c, e) "
        "x = Add (X, u) Y = GRU <hidden_size = 8> (x, W, R) }",
        W=(1, 24, 3),
        R=(1, 24, 8),
    )
    step = rnnlower.stream(source, chunk=2)
    data = {"X": np.random.default_rng(0).uniform(-1, 1, (6, 20, 1, 3)).astype(np.float32)}
    options = {"calibration": data, "integer_states": True, "verify": True}
    result, report = rnnlower.quantize.with_report(step, **options)
    kinds = {each.name: each.type.tensor_type.elem_type for each in result.graph.input}
    assert sorted(kinds.values()) == [onnx.TensorProto.FLOAT, onnx.TensorProto.INT16, onnx.TensorProto.INT64]
    assert report.sqnr is not None
    assert report.sqnr > 25
