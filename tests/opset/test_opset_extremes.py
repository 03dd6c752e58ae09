"""Downward conversion at the ends of number ranges."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.opset_engines import outcomes, run_ort

from rnnlower.errors import OpsetError
from rnnlower.opset import convert_opset


def test_comparing_int64_stays_exact() -> None:
    big = 2**62
    a = np.array([big, big + 1, -big, -big - 1, 2**32, -(2**32), -1, 0], np.int64)
    b = np.array([big + 1, big, -big - 1, -big, 2**32 - 1, -1, 0, -(2**32)], np.int64)
    for op_type, function in (("Greater", np.greater), ("Less", np.less)):
        head = '<ir_version: 7, opset_import: ["" : 9]> g (int64[8] a, int64[8] b) => (bool[8] y)'
        work = ir.from_proto(onnx.parser.parse_model(f"{head} {{ y = {op_type}(a, b) }}"))
        convert_opset(work, 7)
        (found,) = outcomes(ir.to_proto(work), {"a": a, "b": b})["onnxruntime"]
        np.testing.assert_array_equal(found, function(a, b))


@pytest.mark.parametrize("bounds", [(0.5, -0.5), (np.inf, None), (None, -np.inf), (-0.5, -0.5)])
def test_clip_with_min_above_max_runs_in_its_older_form(bounds: tuple[float | None, float | None]) -> None:
    given = {name: bound for name, bound in zip("lh", bounds, strict=True) if bound is not None}
    constants = ", ".join(f"float {name} = {{{bound}}}" for name, bound in given.items())
    names = ", ".join(name if name in given else "" for name in "lh")
    head = '<ir_version: 6, opset_import: ["" : 11]> g (float[5] x) => (float[5] y)'
    model = onnx.parser.parse_model(f"{head} <{constants}> {{ y = Clip(x, {names}) }}")
    x = np.array([-5, -0.5, 0, 0.5, 5], np.float32)
    (expected,) = run_ort(model, {"x": x})
    for target in (7, 10):
        work = ir.from_proto(model)
        convert_opset(work, target)
        (found,) = run_ort(ir.to_proto(work), {"x": x})
        np.testing.assert_array_equal(found, expected)


def test_a_clip_with_an_empty_bound_is_refused() -> None:
    head = '<ir_version: 6, opset_import: ["" : 11]> g (float[5] x) => (float[5] y)'
    work = ir.from_proto(onnx.parser.parse_model(f"{head} <float[0] l = {{}}> {{ y = Clip(x, l) }}"))
    with pytest.raises(OpsetError, match=r"output 'y'.*Incompatible dimensions"):
        convert_opset(work, 10)


@pytest.mark.parametrize(
    ("bounds", "least", "most"), [("", None, None), (", l", 0, None), (", , l", None, 0)]
)
def test_clip_of_doubles_is_not_limited_to_those_of_float32(
    bounds: str, least: float | None, most: float | None
) -> None:
    head = '<ir_version: 6, opset_import: ["" : 11]> g (double[3] x) => (double[3] y)'
    work = ir.from_proto(onnx.parser.parse_model(f"{head} <double l = {{0}}> {{ y = Clip(x{bounds}) }}"))
    convert_opset(work, 10)
    x = np.array([-1e300, 0.5, 1e300])
    (found,) = run_ort(ir.to_proto(work), {"x": x})
    np.testing.assert_array_equal(found, np.clip(x, least, most))


@pytest.mark.parametrize(
    ("opset", "inputs", "node", "note"),
    [
        (10, "float[3] y, float l", "Clip(y, l)", "already has the form of Clip-11"),
        (12, "uint8[3] y", "Add(y, y)", "was not valid before: Add-7"),
    ],
)
def test_a_node_of_a_newer_form_than_its_opset_stays(opset: int, inputs: str, node: str, note: str) -> None:
    head = f'<ir_version: 6, opset_import: ["" : {opset}]> g ({inputs}) => ({inputs.split()[0]} z)'
    work = ir.from_proto(onnx.parser.parse_model(f"{head} {{ z = {node} }}"))
    report = convert_opset(work, 14)
    assert note in report.notes[0]
    onnx.checker.check_model(ir.to_proto(work), full_check=True)
