"""SetInputsPass: inputs become constants of their declared type and shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.passes import SetInputsPass

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def with_inputs_set(inputs: str, sets: dict[str, Any]) -> tuple[ir.Model, dict[str, np.ndarray]]:
    own = ir.from_onnx_text(f"{HEADER} main ({inputs}) => (float[K] y) {{ y = Neg (x) }}")
    setting = SetInputsPass(sets)
    assert setting(own).modified
    return own, setting.values


def test_an_input_becomes_a_constant() -> None:
    own, values = with_inputs_set("float[K] x, int64 sr", {"sr": 16000})
    assert [value.name for value in own.graph.inputs] == ["x"]
    tensor = own.graph.initializers["sr"].const_value
    assert tensor is not None
    assert (tensor.dtype, tensor.shape, tensor.numpy()) == (ir.DataType.INT64, [], 16000)
    assert values["sr"] == 16000


@pytest.mark.parametrize(
    ("declared", "given", "held"),
    [
        ("float16", 0.1, np.float16(0.1)),
        ("float[2, 1]", 0, np.zeros((2, 1), np.float32)),
        ("bool[1]", [True], np.array([True])),
        ("uint8[2]", np.array([1, 255]), np.array([1, 255], np.uint8)),
        ("bool", 1, np.bool_(True)),
        ("float", float("-inf"), np.float32("-inf")),
        ("int32[0]", [], np.zeros(0, np.int32)),
    ],
)
def test_the_value_has_the_declared_type_and_shape(declared: str, given: Any, held: Any) -> None:
    _, values = with_inputs_set(f"float[K] x, {declared} v", {"v": given})
    assert (values["v"].dtype, values["v"].shape) == (held.dtype, held.shape)
    assert np.array_equal(values["v"], held)


def test_an_array_fixes_an_open_size_everywhere() -> None:
    own, _ = with_inputs_set("float[K] x, int64[K] lens", {"lens": [3, 2, 1]})
    assert own.graph.inputs[0].shape == [3]
    assert own.graph.outputs[0].shape == [3]


def test_an_input_that_is_an_output_too() -> None:
    own = ir.from_onnx_text(f"{HEADER} main (float[2] x) => (float[2] x) {{ y = Neg (x) }}")
    SetInputsPass({"x": 1})(own)
    assert [value.name for value in own.graph.outputs] == ["x"]
    assert own.graph.outputs[0].producer() is not None


@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [
        ("uint8", 256, "cannot hold 256: it takes integers from 0 to 255"),
        ("uint8", -1, "integers from 0 to 255"),
        ("int64", 1.0, "takes integers"),
        ("int64", True, None),
        ("float", True, None),
        ("bool", 2, "cannot hold 2: it takes true or false"),
        ("float16", 70000, "cannot hold 70000"),
        ("int64[2]", [1], r"shape \[2\], and the value given \[1\]"),
        ("int64[N]", 1, "dims="),
        ("float", "1", "takes numbers"),
    ],
)
def test_a_value_of_a_wrong_type_or_shape_is_refused(declared: str, given: Any, message: str | None) -> None:
    with pytest.raises(rnnlower.OptionError, match=message or "cannot be True"):
        with_inputs_set(f"float[K] x, {declared} v", {"v": given})


def test_an_unknown_input_name_is_refused() -> None:
    with pytest.raises(rnnlower.OptionError, match="no input named 'rate' to set; it has x, sr"):
        with_inputs_set("float[K] x, int64 sr", {"rate": 16000})
