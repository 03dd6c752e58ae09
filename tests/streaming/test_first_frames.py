"""First frames that a model puts before those that it computes from neighbors, as pre-emphasis does."""

from __future__ import annotations

import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto
from support.streamed import model, stream, streamed_and_metadata

import rnnlower
from rnnlower.graph.facts import Facts
from rnnlower.streaming.first_frames import choose_first_frames

CONSTANTS = (
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9223372036854775807}"
)
CONSTANTS += ", int64[1] last = {-1}, int64[1] before_last = {-2}, int64 number = {0}, float c = {0.97}"
REST = """
    later = Slice (x, one, end, {axis})
    earlier = Slice (x, zero, last, {axis})
    scaled = Mul (earlier, c)
    rest = Sub (later, scaled)
"""
FIRST = {
    "slice of all axes": """
        axes = Constant <value_ints = [0, {number}]> ()
        starts = Constant <value_ints = [0, 0]> ()
        ends = Constant <value_ints = [9223372036854775807, 1]> ()
        first = Slice (x, starts, ends, axes)
    """,
    "slice": "first = Slice (x, zero, one, {axis})",
    "gather": "first = Gather <axis = {number}> (x, zero)",
    "split off": "element = Gather <axis = {number}> (x, number) first = Unsqueeze (element, {axis})",
}
GRU = "frames = Transpose <perm = [1, 0, 2]> (y) Y = GRU <hidden_size = 4> (frames, W, R)"
WEIGHTS = {"W": (1, 12, 4), "R": (1, 12, 4)}


@pytest.mark.parametrize(
    ("first", "length", "chunk"),
    [
        ("slice", "n", None),
        ("gather", "n", 1),
        ("split off", "n", 3),
        ("slice", 12, 3),
        ("split off", 12, 1),
        ("slice of all axes", "n", 2),
    ],
)
def test_pre_emphasis_streams(first: str, length: str | int, chunk: int | None) -> None:
    body = (FIRST[first] + REST).format(axis="one", number=1)
    text = f"(float[b, {length}, 4] X) => (float[s, 1, b, 4] Y) <{CONSTANTS}>"
    source = model(
        f"{text} {{ x = Identity (X) {body} y = Concat <axis = 1> (first, rest) {GRU} }}", **WEIGHTS
    )
    stream(source, {"X": 1}, chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 4])
def test_first_frames_of_which_only_the_shape_is_read_stream(chunk: int) -> None:
    """PyTorch writes zeros_like(x[:, :1]) so."""
    body = f"""
        first = Slice (X, zero, one, one)
        shape = Shape (first)
        zeros = ConstantOfShape (shape)
        earlier = Slice (X, zero, last, one)
        y = Concat <axis = 1> (zeros, earlier)
        {GRU}
    """
    source = model(f"(float[2, n, 4] X) => (float[n, 1, 2, 4] Y) <{CONSTANTS}> {{ {body} }}", **WEIGHTS)
    stream(source, {"X": 1}, chunk=chunk)


@pytest.mark.parametrize("chunk", [3, None])
def test_first_frames_whose_number_is_read_need_a_chunk_that_has_them(chunk: int | None) -> None:
    body = f"""
        first = Slice (X, zero, COUNT, one)
        shape = Shape (first)
        count = Gather (shape, one)
        factor = Cast <to = 1> (count)
        y = Mul (X, factor)
        {GRU}
    """
    text = f"(float[2, n, 4] X) => (float[n, 1, 2, 4] Y) <{CONSTANTS}> {{ {body} }}"
    stream(model(text.replace("COUNT", "one"), **WEIGHTS), {"X": 1}, chunk=chunk)
    if chunk is None:
        with pytest.raises(rnnlower.UnsupportedModelError, match="depends on its length; say how long"):
            rnnlower.stream(model(text.replace("COUNT", "two"), **WEIGHTS), chunk=None)
    else:
        stream(model(text.replace("COUNT", "two"), **WEIGHTS), {"X": 1}, chunk=chunk)


@pytest.mark.parametrize("dtype", ["bool", "int16"])
def test_first_elements_without_a_pad_in_onnxruntime_are_left_alone(dtype: str) -> None:
    body = f"""
        x = Cast <to = {getattr(TensorProto, dtype.upper())}> (X)
        later = Slice (x, one, end, two)
        first = Slice (x, zero, one, two)
        rest = Identity (later)
        joined = Concat <axis = 2> (first, rest)
        y = Cast <to = 1> (joined)
        {GRU}
    """
    source = model(f"(float[2, n, 4] X) => (float[n, 1, 2, 4] Y) <{CONSTANTS}> {{ {body} }}", **WEIGHTS)
    streamed, _ = streamed_and_metadata(source, {"X": 1})
    onnxruntime.InferenceSession(streamed.SerializeToString())


def test_the_only_frame_after_the_first_ones_is_not_computed_from_an_earlier_one() -> None:
    """Of two frames, the second is the last one, and the other is gone in its call."""
    body = (FIRST["slice"] + REST).format(axis="one", number=1)
    text = f"(float[b, 2, 4] x) => (float[b, 2, 4] y) <{CONSTANTS}>"
    source = model(f"{text} {{ {body} y = Concat <axis = 1> (first, rest) }}")
    with pytest.raises(rnnlower.UnsupportedModelError, match="combines every step with the last one"):
        rnnlower.stream(source, time_axes={"x": 1})
    stream(source, {"x": 1}, chunk=2)


def test_two_first_frames_stay_before_a_second_difference() -> None:
    body = """
        first = Slice (X, zero, two, zero)
        later = Slice (X, two, end, zero)
        earlier = Slice (X, zero, before_last, zero)
        rest = Sub (later, earlier)
        y = Concat <axis = -3> (first, rest)
        Y = GRU <hidden_size = 4> (y, W, R)
    """
    source = model(f"(float[n, b, 4] X) => (float[n, 1, b, 4] Y) <{CONSTANTS}> {{ {body} }}", **WEIGHTS)
    stream(source, {"X": 0})


@pytest.mark.parametrize(
    "rest",
    [
        "rest = Relu (x)",
        "later = Slice (x, two, end, one) rest = Relu (later)",
        "later = Slice (x, one, end, two) rest = Relu (later)",
        "later = Slice (x, one, last, one) rest = Relu (later)",
        "later = Slice (X, one, end, one) rest = Relu (later)",
        "later = Slice (x, one, end, one) rest = ReduceSum <keepdims = 1> (later, one)",
    ],
)
def test_other_frames_beside_the_first_are_left_alone(rest: str) -> None:
    """Where the others are not the sequence without its first frames, their number may be any."""
    body = f"x = Neg (X) first = Slice (x, zero, one, one) {rest} Y = Concat <axis = 1> (first, rest)"
    source = model(f"(float[2, n, 4] X) => (float[2, s, 4] Y) <{CONSTANTS}> {{ {body} }}")
    ours = ir.from_proto(source)
    choose_first_frames(ours, Facts(ours))
    assert "Where" not in [node.op_type for node in ours.graph]
