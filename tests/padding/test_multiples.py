"""Models that accept only multiples of a number of steps are padded for these."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from support.padded_models import with_weights
from support.sessions import session

import rnnlower
from rnnlower.graph.facts import Facts
from rnnlower.padding.examples import Examples

_MODELS = {
    "halved and doubled, with a skip": (
        "float[N, 4, T]",
        2,
        "a = Conv <pads = [1, 1]> (x, E4) m = MaxPool <kernel_shape = [2], strides = [2]> (a) "
        "d = ConvTranspose <strides = [2]> (m, Q4) j = Add (d, a) z = Conv <pads = [1, 1]> (j, E4)",
        "T",
    ),
    "halved twice, with a mean": (
        "float[N, 4, T]",
        4,
        "m1 = MaxPool <kernel_shape = [2], strides = [2]> (x) "
        "m2 = MaxPool <kernel_shape = [2], strides = [2]> (m1) "
        "d1 = ConvTranspose <strides = [2]> (m2, Q4) j1 = Add (d1, m1) "
        "d2 = ConvTranspose <strides = [2]> (j1, Q4) "
        "j2 = Add (d2, x) mean = ReduceMean <axes = [2]> (j2) z = Sub (j2, mean)",
        "T",
    ),
    "folded": (
        "float[N, T, 1]",
        3,
        "n = Constant <value_ints = [0, -1, 3]> () f = Reshape (x, n) t = Transpose <perm = [1, 0, 2]> (f) "
        'z, h, c = LSTM <hidden_size = 3, direction = "bidirectional"> (t, W, R, B)',
        "T // 3",
    ),
    "halved, its size written out": (
        "float[N, T, 3]",
        2,
        "l = Shape <start = 1, end = 2> (x) w = Constant <value_ints = [2]> () "
        "half = Div (l, w) n0 = Constant <value_ints = [0]> () n6 = Constant <value_ints = [6]> () "
        "n = Concat <axis = 0> (n0, half, n6) f = Reshape (x, n) z = MatMul (f, P)",
        "T // 2",
    ),
    "even and odd steps": (
        "float[N, T, 3]",
        2,
        "one = Constant <value_ints = [1]> () two = Constant <value_ints = [2]> () "
        "end = Constant <value_ints = [1000]> () a = Slice (x, zero1, end, one, two) "
        "b = Slice (x, one, end, one, two) c = Concat <axis = 2> (a, b) z = MatMul (c, P)",
        "T // 2",
    ),
}
_MAXIMUM = 24


def _case(name: str) -> onnx.ModelProto:
    shape, _, nodes, _ = _MODELS[name]
    model = with_weights(
        f'<ir_version: 8, opset_import: ["" : 17]> main ({shape} x) => (float z) {{ {nodes} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def _metadata(padded: onnx.ModelProto) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(
        {e.key: e.value for e in padded.metadata_props}["rnnlower.pad"]
    )
    return found


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", _MODELS)
def test_the_valid_part_is_right_at_every_multiple(name: str, mask: bool) -> None:
    _, multiple, _, size = _MODELS[name]
    source = _case(name)
    padded = rnnlower.pad(source, max={"T": _MAXIMUM}, mask=mask)
    told = _metadata(padded)
    assert (told["multiples"], told["least"]) == ({"T": multiple}, {"T": multiple})
    axis, valid = told["inputs"]["x"], told["outputs"]["z"]
    assert valid["size"] == size
    whole, fixed = session(source), session(padded)
    for length in range(multiple, _MAXIMUM + 1, multiple):
        shape = [length if place == axis else size or 2 for place, size in enumerate(_shape(source))]
        x = np.random.default_rng(length).normal(size=shape).astype(np.float32)
        (expected,) = whole.run(None, {"x": x})
        shape[axis] = _MAXIMUM - length
        row = (np.arange(_MAXIMUM)[None] < length).astype(np.float32)
        for fill in (0, -300, float("nan")):
            feeds = {"x": np.concatenate([x, np.full(shape, fill, np.float32)], axis)}
            feeds |= {"mask": row} if mask else {"length": np.array([length])}
            (found,) = fixed.run(None, feeds)
            found = found.take(range(eval(valid["size"], {"T": length})), valid["axis"])
            np.testing.assert_allclose(found, expected, atol=2e-6)


def _shape(model: onnx.ModelProto) -> list[int]:
    return [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


@pytest.mark.parametrize("name", _MODELS)
def test_each_row_may_have_a_multiple_of_its_own(name: str) -> None:
    source = _case(name)
    padded = rnnlower.pad(source, max={"T": _MAXIMUM}, per_row=True)
    assert _metadata(padded)["multiples"] == {"T": _MODELS[name][1]}
    assert rnnlower.verify(source, padded)


def test_a_length_between_multiples_is_the_multiple_below() -> None:
    padded = session(rnnlower.pad(_case("halved twice, with a mean"), max={"T": _MAXIMUM}))
    x = np.random.default_rng(0).normal(size=(2, 4, _MAXIMUM)).astype(np.float32)
    (of_8,), (of_11,) = (padded.run(None, {"x": x, "length": np.array([length])}) for length in (8, 11))
    np.testing.assert_array_equal(of_8[..., :8], of_11[..., :8])


def test_a_maximum_that_is_no_multiple_is_refused() -> None:
    with pytest.raises(rnnlower.OptionError, match=r"must be multiples of 4; choose 24 or 28"):
        rnnlower.pad(_case("halved twice, with a mean"), max={"T": 26})


def test_a_model_of_every_length_has_no_multiple() -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[N, 4, T] x) => (float[N, 4, T] z) '
        "{ z = Conv <pads = [1, 1]> (x, E4) }"
    )
    told = _metadata(rnnlower.pad(source, max={"T": 13}))
    assert (told["multiples"], told["least"]) == ({}, {"T": 1})


def test_sizes_that_follow_from_data_tell_no_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    compute, tried = Examples._facts_at, []

    def count(self: Examples, *given: Any) -> Facts:
        tried.append(given)
        return compute(self, *given)

    monkeypatch.setattr(Examples, "_facts_at", count)
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T] x) => (int64[1, U] z) { z = NonZero (x) }'
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="NonZero"):
        rnnlower.pad(source, max={"T": 512})
    assert len(tried) < 20


def test_verify_finds_a_wrong_result_at_a_multiple() -> None:
    source = _case("halved twice, with a mean")
    padded = rnnlower.pad(source, max={"T": _MAXIMUM})
    for node in padded.graph.node:
        if node.op_type == "Less":
            node.op_type = "GreaterOrEqual"
    assert not rnnlower.verify(source, padded)
