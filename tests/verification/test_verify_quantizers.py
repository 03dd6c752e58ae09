"""A difference that a quantizer makes of rounding is no fault; anything else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.commands import runtime_command
from support.configs import Config
from support.quantized_models import QuantizedLstm
from support.small_models import info

from rnnlower.verification import engine_choice, verify

WANTS_SHAPES = """
import onnx
model = onnx.load(model)
assert all(each.type.tensor_type.HasField("shape") for each in model.graph.input), "an input without a shape"
for tensor in model.graph.initializer:
    if tensor.name == "W":
        array = onnx.numpy_helper.to_array(tensor) * np.float32(1 + 2e-6)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, "W"))
model = model.SerializeToString()
"""
FLOAT = onnx.TensorProto.FLOAT
UNITS = 64


def quantized(dynamic: bool) -> onnx.ModelProto:
    """Return a GRU, a quantizer, an integer product and a second quantizer."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    arrays = {
        "W": weights(1, 3 * UNITS, 8),
        "R": weights(1, 3 * UNITS, UNITS),
        "M": rng.integers(-127, 128, (UNITS, 16)).astype(np.int8),
        "m": np.float32(0.01),
        "two": np.array([1], np.int64),
        "step": np.float32(1 / 128),
        "zero": np.int8(0),
    }
    if dynamic:
        first = helper.make_node("DynamicQuantizeLinear", ["h"], ["q", "s", "z"], name="quantizer")
        product = [
            helper.make_node("MatMulInteger", ["q", "M", "z"], ["i"]),
            helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
            helper.make_node("Mul", ["f", "s"], ["fs"]),
            helper.make_node("Mul", ["fs", "m"], ["y"]),
        ]
    else:
        first = helper.make_node("QuantizeLinear", ["h", "step", "zero"], ["q"], name="quantizer")
        product = [
            helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["hq"]),
            helper.make_node("DequantizeLinear", ["M", "m"], ["Mf"]),
            helper.make_node("MatMul", ["hq", "Mf"], ["y"]),
        ]
    nodes = [
        helper.make_node("GRU", ["X", "W", "R"], ["y3"], hidden_size=UNITS, name="gru"),
        helper.make_node("Squeeze", ["y3", "two"], ["h"]),
        first,
        *product,
        helper.make_node("QuantizeLinear", ["y", "step", "zero"], ["yq"], name="last"),
        helper.make_node("DequantizeLinear", ["yq", "step", "zero"], ["Y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantized",
        [info("X", FLOAT, ["T", "B", 8])],
        [info("Y", FLOAT, ["T", "B", 16])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def changed(model: onnx.ModelProto, name: str, factor: float, index: int | None = None) -> onnx.ModelProto:
    """Return the model with one weight, or all of a tensor, multiplied."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    tensor = next(each for each in other.graph.initializer if each.name == name)
    array = numpy_helper.to_array(tensor).copy()
    where = ... if index is None else np.unravel_index(index, array.shape)
    array[where] = array[where] * factor
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return other


@pytest.mark.parametrize("dynamic", [True, False])
def test_rounding_before_a_quantizer_is_no_difference(dynamic: bool) -> None:
    model = quantized(dynamic)
    result = verify(model, changed(model, "W", 1 + 2e-6))
    assert result, str(result)
    assert "Linear node 'quantizer' makes " in " ".join(result.skipped)


@pytest.mark.usefixtures("forks")
def test_on_a_runtime_that_wants_shapes(tmp_path: Path) -> None:
    model = quantized(dynamic=True)
    result = verify(model, model, on=runtime_command(tmp_path, model=WANTS_SHAPES), trials=4)
    assert result, str(result)
    assert "DynamicQuantizeLinear node 'quantizer' makes " in " ".join(result.skipped)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    ("name", "factor", "index"),
    [
        ("R", 1.02, None),
        ("R", 3.0, 5),
        ("m", 1.02, None),
        ("step", 1.02, None),
        ("M", 0.9, 3),
        ("zero", 1.0, None),
    ],
)
def test_faults_before_in_and_after_quantizers_are_found(
    dynamic: bool, name: str, factor: float, index: int | None
) -> None:
    model = quantized(dynamic)
    other = changed(changed(model, "W", 1 + 2e-6), name, factor, index)
    if name == "zero":
        # The quantizer alone is a step off, everywhere.
        other.graph.initializer.append(numpy_helper.from_array(np.asarray(np.int8(1)), "one"))
        next(node for node in other.graph.node if node.name == "last").input[2] = "one"
    assert not verify(model, other, trials=8)


def test_given_tolerances_are_final() -> None:
    model = quantized(dynamic=True)
    assert not verify(model, changed(model, "W", 1 + 2e-6), atol=1e-5, trials=8)


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_difference_of_saturating_products_is_explained(
    is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "products_saturate", lambda: not is_exact)
    source, other = (QuantizedLstm(bits=7, seed=seed).build() for seed in (0, 1))
    verification = verify(source, other, on="rnnlower-reference", trials=1)
    assert not verification
    assert any(engine_choice.SATURATION in words for words in verification.skipped) == (not is_exact)


def test_products_of_floats_do_not_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "products_saturate", lambda: True)
    assert not engine_choice.may_saturate(Config().build())
    assert engine_choice.may_saturate(QuantizedLstm().build())
