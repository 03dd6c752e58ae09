"""Padded models with open sizes that are not lengths, and the values that they decide."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.padded_models import MAXIMUM
from support.sessions import session

import rnnlower
from rnnlower.errors import UnsupportedModelError


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> main {text}')


@pytest.mark.parametrize(
    "text",
    [
        "(float[1, 2, T, W] x) => (float[1, 2, T, W] z) "
        "{ z = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x) }",
        "(float[1, 2, T, W] x) => (float[1, 2, U, V] z) { z = AveragePool "
        "<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 1], ceil_mode = 1, "
        "count_include_pad = 1> (x) }",
        "(float[N, 4, T, W] x, float[4] s) => (float[N, 4, T, W] z) "
        "{ z = GroupNormalization <num_groups = 2> (x, s, s) }",
        "(float[N, T, W] x) => (float[N, U, W] z) <int64[3] o = {0, 1, 0}> "
        "{ k = Shape (x) z = Slice (x, o, k) }",
        "(float[1, 2, W, 4] q, float[1, 2, T, 4] x) => (float[1, 2, W, 4] z) { z = Attention (q, x, x) }",
        "(float[T, 4] x, float[W] w) => (float[1, 4] z) { k = Shape (w) z = Gather (x, k) }",
    ],
)
def test_an_open_size_is_no_example(text: str) -> None:
    source = model(text)
    padded = session(rnnlower.pad(source, max={"T": MAXIMUM}))
    whole, rng = session(source), np.random.default_rng(0)
    for length, width in ((3, 2), (6, 3), (MAXIMUM, 5)):
        named = {"T": length, "W": width, "N": 2}
        feeds = {
            each.name: rng.normal(size=[named.get(dim, dim) for dim in each.shape]).astype(np.float32)
            for each in whole.get_inputs()
        }
        axis = next(each.shape for each in whole.get_inputs() if each.name == "x").index("T")
        more = [(0, MAXIMUM - length if place == axis else 0) for place in range(feeds["x"].ndim)]
        x = np.pad(feeds["x"], more, constant_values=np.nan)
        found = padded.run(None, {**feeds, "x": x, "length": np.array([length])})
        for wanted, got in zip(whole.run(None, feeds), found, strict=True):
            np.testing.assert_allclose(got[tuple(map(slice, wanted.shape))], wanted, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "(float[T, 4] x, float[W, 4] w) => (float[U, 4] z) { z = Concat <axis = 0> (w, x) }",
        "(float[T, 4] x, float[W, 4] w) => (float[U, 4] z) { z = Concat <axis = 0> (x, w) }",
        "(float[N, T, 4] x) => (int64[U] z) <int64 o = {0}, int64 i = {1}> "
        "{ k = Size (x) z = Range (o, k, i) }",
        "(float[T, 4] x, float[W] w) => (float[U, 4] z) <int64[1] o = {0}> "
        "{ k = Shape (w) z = Slice (x, o, k, o) }",
    ],
)
def test_a_length_with_another_open_size_is_refused(text: str) -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match="another open size"):
        rnnlower.pad(model(text), max={"T": MAXIMUM})


@pytest.mark.parametrize("rows", ["B", "2"])
def test_rows_are_not_folded_with_an_open_size(rows: str) -> None:
    """Each row would have a length, and be as many elements as the caller chooses."""
    source = model(
        f"(float[{rows}, S, T, 4] x) => (float[C, 4] z) <int64[1] a = {{1}}> "
        "{ k = Shape <start = 2> (x) m = Constant <value_ints = [-1]> () j = Concat <axis = 0> (m, k) "
        "y = Reshape (x, j) z = ReduceSum <keepdims = 0> (y, a) }"
    )
    with pytest.raises(
        rnnlower.UnsupportedModelError, match=r"ReduceSum .* give the other open sizes numbers"
    ):
        rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True)
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True, dims={"S": 3})
    assert rnnlower.verify(source, padded, trials=1)


@pytest.mark.parametrize(
    "head",
    [
        "(float[T, S] x) => (float[T, S] z) { z = Relu (x) }",
        ("(float[T, 4] x, float[4, S] y) => (float[T, S] z) { z = MatMul (x, y) }"),
    ],
)
def test_of_two_lengths_of_one_value_each_can_be_padded_alone(head: str) -> None:
    """So are the weights of attention, an output of many translators."""
    with pytest.raises(UnsupportedModelError, match=r"or pad one length alone \(a single max=\)"):
        rnnlower.pad(model(head), max={"T": MAXIMUM, "S": MAXIMUM})
    rnnlower.pad(model(head), max={"T": MAXIMUM})
    rnnlower.pad(model(head), max={"S": MAXIMUM})
