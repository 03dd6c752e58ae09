"""Models in float16, and models that another tool converted to a smaller type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from long_memory import LongMemory, recordings
from onnx import helper
from onnx.helper import np_dtype_to_tensor_dtype
from support.small_models import info, lowered_by, model_of, weights

import rnnlower
from rnnlower.errors import OptionError
from rnnlower.verification import verify
from rnnlower.verification.models import load_parsed
from rnnlower.verification.rewritten_models import with_float_activations

UNITS = 16


def classifier(fault: str = "", kind: Any = np.float16) -> onnx.ModelProto:
    """Return an LSTM with a dense layer and a sigmoid after it; a `fault` is in one of its weights."""
    constants = weights("LSTM", input_size=8, hidden_size=UNITS)
    constants["D"] = np.random.default_rng(0).standard_normal((UNITS, 6)) * 0.3
    if fault.startswith("dense layer"):
        constants["D"] = constants["D"] * (1 + int(fault[-2]) / 100)
    elif fault.startswith("recurrence"):
        constants["R"] = constants["R"] * (1 + int(fault[-2]) / 100)
    elif fault.startswith("a weight"):
        name = fault[-4]
        constants[name] = constants[name].copy()
        constants[name].reshape(-1)[np.abs(constants[name]).argmax()] *= 1.05
    nodes = [
        helper.make_node("LSTM", ["X", "W", "R", "B"], ["", "h"], hidden_size=UNITS, name="cell"),
        helper.make_node("MatMul", ["h", "D"], ["d"], name="dense"),
        helper.make_node("Sigmoid", ["d"], ["Z"]),
    ]
    elem_type = np_dtype_to_tensor_dtype(np.dtype(kind))
    return model_of(
        nodes,
        [info("X", elem_type, ["T", 2, 8])],
        [info("Z", elem_type, None)],
        {name: value.astype(kind) for name, value in constants.items()},
    )


FAULTS = ["", "dense layer 2%", "a weight of W 5%", "a weight of R 5%"]


@pytest.mark.parametrize("fault", [*FAULTS, "recurrence 1%"])
def test_a_wrong_weight_does_not_hide_in_float16(fault: str) -> None:
    """Float16's row allows more than it changes; in float32 it shows."""
    result = verify(classifier(), lowered_by(classifier(fault), "scan"))
    assert bool(result) is not bool(fault), str(result)
    assert any("in float32 instead of float16" in note for note in result.skipped) is bool(fault)


def test_a_rounded_sum_of_biases_may_have_a_half_that_is_another_sum() -> None:
    """The half 0.426 is found, since 0.25 and 0.176 make it; yet its own sum is rounded."""
    biases = [0.4260254, 0.25, 0.08538818, 0.17602539]
    constants = {name: array.astype(np.float16) for name, array in weights("RNN", hidden_size=2).items()}
    constants["B"], constants["R"][:] = np.array([biases], np.float16), 0
    nodes = [
        helper.make_node("RNN", ["X", "W", "R", "B"], ["Y"], hidden_size=2),
        helper.make_node("Split", ["Y"], ["first", "second"], axis=3),
    ]
    elem_type = onnx.TensorProto.FLOAT16
    shape = ["T", 2, constants["W"].shape[2]]
    source = model_of(nodes, [info("X", elem_type, shape)], [info("first", elem_type, None)], constants)
    assert verify(source, lowered_by(source, "scan"))


@pytest.mark.parametrize("strategy", ["unroll", "scan"])
@pytest.mark.parametrize("fault", ["", "a weight of W 5%", "a weight of R 5%"])
def test_a_wrong_weight_does_not_hide_in_bfloat16(fault: str, strategy: str) -> None:
    """The sum of two biases is exact: their rounding explains no difference."""
    constants = weights("LSTM", input_size=8, hidden_size=UNITS)
    wrong = {name: array.copy() for name, array in constants.items()}
    if fault:
        name = fault[-4]
        wrong[name].reshape(-1)[np.abs(wrong[name]).argmax()] *= 1.05
    source, candidate = (
        model_of(
            [helper.make_node("LSTM", ["X", "W", "R", "B"], ["Y"], hidden_size=UNITS, name="cell")],
            [info("X", onnx.TensorProto.BFLOAT16, [10, 2, 8])],
            [info("Y", onnx.TensorProto.BFLOAT16, [10, 1, 2, UNITS])],
            {name: array.astype(ml_dtypes.bfloat16) for name, array in given.items()},
            opset=22,
        )
        for given in (constants, wrong)
    )
    result = verify(source, lowered_by(candidate, strategy))
    assert bool(result) is not bool(fault), str(result)


def in_float16(model: onnx.ModelProto, keep_io_types: bool) -> onnx.ModelProto:
    """Return the model as onnxruntime's tool converts it to float16."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted = convert_float_to_float16(model, keep_io_types=keep_io_types)
    assert isinstance(converted, onnx.ModelProto)
    return converted


def converted(fault: str, keep_io_types: bool) -> onnx.ModelProto:
    """Return the classifier in float16."""
    return in_float16(classifier(fault, np.float32), keep_io_types)


def quantized(fault: str, folder: Path, reduce_range: bool) -> Path:
    """Return the classifier as onnxruntime's tool quantizes it."""
    from onnxruntime.quantization import quantize_dynamic

    paths = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(classifier(fault, np.float32), paths[0])
    quantize_dynamic(*paths, reduce_range=reduce_range)
    return paths[1]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("keep_io_types", [True, False])
def test_a_conversion_to_float16(fault: str, keep_io_types: bool) -> None:
    result = verify(
        classifier(kind=np.float32), converted(fault, keep_io_types=keep_io_types), tolerance="float16"
    )
    assert bool(result) is not bool(fault), str(result)
    notes = [note for note in result.skipped if "it was cast" in note]
    assert len(notes) == (0 if keep_io_types else 2)


def test_an_exponent_is_not_rounded() -> None:
    """The power of a negative number is NaN for an exponent of 2.001: weights are moved, 2 is not."""
    source = classifier(kind=np.float32)
    source.graph.node[-1].CopyFrom(helper.make_node("Pow", ["d", "two"], ["Z"]))
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2, np.float32), "two"))
    result = verify(source, in_float16(source, keep_io_types=True), tolerance="float16")
    assert result, str(result)


def test_an_epsilon_is_rounded_like_the_candidates() -> None:
    """Sqrt(d * d + 1e-12) is 2.4e-4 where d is 0, in the model's float16 as in its float32."""
    source = classifier(kind=np.float32)
    source.graph.node.pop()
    constants = {"eps": 1e-12, "small": 1e-3}
    source.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value, np.float32), name) for name, value in constants.items()
    )
    source.graph.node.extend(
        helper.make_node(*each)
        for each in (
            ("Mul", ["d", "small"], ["less"]),
            ("Mul", ["less", "less"], ["square"]),
            ("Add", ["square", "eps"], ["sum"]),
            ("Sqrt", ["sum"], ["Z"]),
        )
    )
    wrong = onnx.ModelProto.FromString(source.SerializeToString())
    next(t for t in wrong.graph.initializer if t.name == "eps").CopyFrom(
        onnx.numpy_helper.from_array(np.array(1e-6, np.float32), "eps")
    )
    converted = [in_float16(model, keep_io_types=True) for model in (source, wrong)]
    results = [verify(source, model, tolerance="float16") for model in converted]
    assert results[0], str(results[0])
    assert not results[1]


def test_without_the_tolerance_a_conversion_differs() -> None:
    result = verify(classifier(kind=np.float32), converted("", keep_io_types=False))
    assert any("another type" in problem for problem in result.problems)


def test_inputs_of_the_reference_are_given_to_a_conversion() -> None:
    feeds = {"X": np.random.default_rng(3).standard_normal((5, 2, 8)).astype(np.float32)}
    source = classifier(kind=np.float32)
    assert verify(source, converted("", keep_io_types=False), inputs=feeds, tolerance="float16")
    wrong = converted("dense layer 2%", keep_io_types=False)
    assert not verify(source, wrong, inputs=feeds, tolerance="float16")


@pytest.mark.parametrize("reduce_range", [False, True])
@pytest.mark.parametrize("fault", ["", "dense layer 5%", "recurrence 5%"])
def test_a_quantization_to_int8(fault: str, reduce_range: bool, tmp_path: Path) -> None:
    """What rounded activations hide, a comparison of the weights alone does not."""
    # On some processors onnxruntime's products of integers are not exact.
    result = verify(
        classifier(kind=np.float32),
        quantized(fault, tmp_path, reduce_range),
        tolerance="int8",
        engine="rnnlower-reference",
    )
    assert bool(result) is not bool(fault), str(result)


PRODUCTS = {
    "rows": "product (uint8[3, 5] A, int8[5, 4] B) => (int32[3, 4] Y) "
    "<uint8[3] a = {1, 20, 130}, int8[4] b = {1, -2, 30, 4}> { Y = MatMulInteger (A, B, a, b) }",
    "rows of several matrices": "product (uint8[2, 3, 5] A, int8[2, 5, 4] B) => (int32[2, 3, 4] Y) "
    "<uint8[2, 3, 1] a = {1, 20, 130, 7, 8, 9}> { Y = MatMulInteger (A, B, a) }",
    "a vector": "product (uint8[5] A, int8[5, 4] B) => (int32[4] Y) <uint8 a = {20}> "
    "{ Y = MatMulInteger (A, B, a) }",
    "channels": "product (uint8[1, 2, 9] A, int8[3, 2, 4] B) => (int32[1, 3, 6] Y) "
    "<uint8 a = {128}, int8[3] b = {1, -2, 30}> { Y = ConvInteger (A, B, a, b) }",
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_zero_points_of_rows_and_channels(product: str, tmp_path: Path) -> None:
    """The product of floats has the numbers that the operator's text gives."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {PRODUCTS[product]}')
    written = with_float_activations(load_parsed(model, "candidate", tmp_path)).proto
    types = {"A": np.uint8, "B": np.int8}
    rng, feeds = np.random.default_rng(0), {}
    for value in written.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.integers(0, 100, shape).astype(types[value.name])
    zeros = {each.name: onnx.numpy_helper.to_array(each).astype(float) for each in model.graph.initializer}
    a, b = feeds["A"].astype(float), feeds["B"].astype(float)
    if product == "channels":
        a, b = a - zeros["a"], b - zeros["b"][:, None, None]
        wanted = np.stack([(b * a[:, :, i : i + 4]).sum(axis=(1, 2)) for i in range(6)], axis=-1)[None]
    else:
        a = a - (zeros["a"][:, None] if product == "rows" else zeros["a"])
        wanted = a @ (b - zeros.get("b", 0))
    del written.graph.output[0].type.tensor_type.shape.dim[:]
    written.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = onnxruntime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0].reshape(wanted.shape), wanted)


def test_a_tolerance_is_a_type_or_a_number() -> None:
    model = classifier()
    with pytest.raises(OptionError, match="it must be one of float16"):
        verify(model, model, tolerance="float8")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="follows from a type"):
        verify(model, model, tolerance="float16", atol=1e-3)


def test_a_quantized_recurrence_is_compared_on_recordings() -> None:
    """Generated inputs exceed the ranges of the calibration, and clipping is no fault."""
    source = LongMemory("LSTM", 16).build()
    result = rnnlower.quantize(source, calibration={"X": recordings(4, 40)})
    assert verify(source, result, tolerance="int8", inputs={"X": recordings(1, 40, seed=9)[0]})
    generated = verify(source, result, tolerance="int8")
    assert not generated
    assert any("compare on recordings (inputs=" in note for note in generated.skipped)
