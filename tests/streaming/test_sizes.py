"""Sizes of states, and states of integers."""

from __future__ import annotations

import onnx
import pytest
from support.streamed import model, streamed_and_metadata

import rnnlower


@pytest.mark.parametrize("channels", [101, 103, 206])
def test_a_static_size_is_not_taken_for_that_of_the_batch(channels: int) -> None:
    source = model(
        f"""(float[N, {channels}, n] X) => (float[N, 2, n] Y) {{
            Y = Conv <kernel_shape = [2], pads = [1, 0]> (X, w)
        }}""",
        w=(2, channels, 2),
    )
    streamed, _ = streamed_and_metadata(source, {"X": 2})
    (dims,) = [value.type.tensor_type.shape.dim for value in streamed.graph.input[1:]]
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["N", channels, 1]


@pytest.mark.parametrize(
    ("dims", "size"), [("N, 2, 3", "2*N"), ("N, K, 3", "N*K"), ("N, K, 6", "2*N*K"), ("N, N, 3", "N*N")]
)
def test_a_batch_of_several_axes_is_their_product(dims: str, size: str) -> None:
    source = model(
        f"""(float[n, {dims}] X) => (float[n, 1, k, 2] Y) <int64[3] rows = {{0, -1, 3}}> {{
            x = Reshape (X, rows)
            Y = GRU <hidden_size = 2> (x, W, R)
        }}""",
        W=(1, 6, 3),
        R=(1, 6, 2),
    )
    # PyTorch's exporter names dimensions so, too.
    for name in ("N", "2*s0"):
        source.graph.input[0].type.tensor_type.shape.dim[1].dim_param = name
        streamed = rnnlower.stream(source)
        (dim,) = [value.type.tensor_type.shape.dim[1] for value in streamed.graph.input[1:]]
        assert name == "2*s0" or dim.dim_param == size
        assert rnnlower.verify(source, streamed)


BATCH_OF_RUN_TIME = {
    "Reshape": "shape = Concat <axis = 0> (b, steps, four)  x = Reshape (X, shape)",
    "Reshape, the last size open": "shape = Concat <axis = 0> (b, steps, rest)  x = Reshape (X, shape)",
    "Reshape, a multiple": """k = Transpose <perm = [0, 2, 1]> (X)  twice = Add (b, b)
        shape = Concat <axis = 0> (twice, two, steps)  r = Reshape (k, shape)  n = Neg (r)
        back = Concat <axis = 0> (b, four, steps)  m = Reshape (n, back)
        x = Transpose <perm = [0, 2, 1]> (m)""",
    "Expand": """m = ReduceMean <axes = [2]> (X)  shape = Concat <axis = 0> (b, steps, four)
        x = Expand (m, shape)""",
    "equal rows": "shape = Concat <axis = 0> (b, steps, four)  k = Expand (half, shape)  x = Add (k, X)",
    "rows by position": """shape = Concat <axis = 0> (b, steps, four)  k = Expand (half, shape)
        sums = CumSum (k, one)  x = Mul (sums, X)""",
}


def reads_batch(text: str) -> onnx.ModelProto:
    return model(
        f"""(float[N, 7, 4] X) => (float[m, 1, N, 2] Y)
        <int64[1] steps = {{7}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] rest = {{-1}},
        int64 one = {{1}}, float[1] half = {{0.5}}> {{
            b = Shape <start = 0, end = 1> (X)
            {text}
            t = Transpose <perm = [1, 0, 2]> (x)
            Y = GRU <hidden_size = 2> (t, W, R)
        }}""",
        W=(1, 6, 4),
        R=(1, 6, 2),
    )


@pytest.mark.parametrize("case", BATCH_OF_RUN_TIME)
def test_a_static_length_beside_a_dynamic_batch(case: str) -> None:
    streamed_and_metadata(reads_batch(BATCH_OF_RUN_TIME[case]), {"X": 1})


BATCH_OF_ONE = {
    "rows that do not broadcast": """shape = Concat <axis = 0> (b, steps, four)  k = Expand (half, shape)
        c = Concat <axis = 2> (k, X)  n, x = Split <axis = 2> (c)""",
    "rows that are repeated": """shape = Concat <axis = 0> (b, steps, four, b)  e = Unsqueeze (X, rest)
        w = Expand (e, shape)  x = ReduceMean <axes = [3], keepdims = 0> (w)""",
    "the batch as a number": """f = Cast <to = 1> (b)  shape = Concat <axis = 0> (b, steps, four)
        k = Expand (f, shape)  x = Div (X, k)""",
}


@pytest.mark.parametrize("case", BATCH_OF_ONE)
def test_a_dynamic_batch_that_a_constant_cannot_follow_is_declared_as_one(case: str) -> None:
    streamed, _ = streamed_and_metadata(reads_batch(BATCH_OF_ONE[case]), {"X": 1})
    assert streamed.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


def test_a_state_that_begins_with_the_batch_as_a_number_is_that_of_a_batch_of_one() -> None:
    source = model(
        """(float[T, N, 3] X) => (float[T, 1, N, 2] Y) <int64[1] one = {1}, int64[1] two = {2}> {
            n = Shape <start = 1, end = 2> (X)
            shape = Concat <axis = 0> (one, n, two)
            f = Cast <to = 1> (n)
            h = Expand (f, shape)
            Y = GRU <hidden_size = 2> (X, W, R, , , h)
        }""",
        W=(1, 6, 3),
        R=(1, 6, 2),
    )
    streamed, _ = streamed_and_metadata(source, {"X": 0})
    assert streamed.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 1


def test_a_streamed_model_that_lost_the_names_of_its_sizes_is_verified() -> None:
    source = model(
        "(float[n, N, 3] X) => (float[n, 1, N, 2] Y) { Y = GRU <hidden_size = 2> (X, W, R) }",
        W=(1, 6, 3),
        R=(1, 6, 2),
    )
    streamed = rnnlower.stream(source)
    for value in streamed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    assert rnnlower.verify(source, streamed)


@pytest.mark.parametrize("kind", ["int64", "bool"])
def test_a_state_of_integers_that_is_returned_in_another_order_is_refused(kind: str) -> None:
    operator = "Add" if kind == "int64" else "Xor"
    source = model(
        f"""({kind}[n, 7] X, {kind}[7] first) => ({kind}[n, 7] Y, {kind}[7] final)
        <int64[7] order = {{6, 5, 4, 3, 2, 1, 0}}> {{
            last, Y = Scan <num_scan_inputs = 1, body = each ({kind}[7] s, {kind}[7] x)
                => ({kind}[7] t, {kind}[7] y) {{ t = {operator} (s, x) y = Identity (t) }}> (first, X)
            final = Gather (last, order)
        }}"""
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="in different forms"):
        rnnlower.stream(source, time_axes={"X": 0})


def test_a_model_that_can_be_streamed_for_a_batch_of_one_alone_declares_it() -> None:
    source = model(
        """(float[N, n] X) => (float[k] Y) {
            flat = Constant <value_ints = [-1]> ()
            steps = Reshape (X, flat)
            axis = Constant <value_int = 0> ()
            Y = CumSum (steps, axis)
        }"""
    )
    streamed, _ = streamed_and_metadata(source, {"X": 1})
    assert [dim.dim_value for dim in streamed.graph.input[0].type.tensor_type.shape.dim] == [1, 1]
