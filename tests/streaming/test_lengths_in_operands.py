"""Operands whose content follows from the number of steps, or that come at the end: no chunk has them."""

from __future__ import annotations

import pytest
from support.streamed import model

import rnnlower
from rnnlower.errors import UnsupportedModelError

LENGTH = """
    all, state = RNN <hidden_size = 4> (X, W, R)
    second = Constant <value_ints = [1]> ()  y = Squeeze (all, second)
    sizes = Shape (X)  first = Constant <value_int = 0> ()  steps = Gather (sizes, first)
    number = Cast <to = 1> (steps)  scale = Div (vector, number)  matrix = Div (M, number)
    three = Constant <value_int = 3> ()  rest = Mod (steps, three)  zero = Constant <value_ints = [0]> ()
    one = Unsqueeze (rest, zero)  next = Add (one, second)  last = Constant <value_ints = [2]> ()
    count = Unsqueeze (steps, zero)
"""
OPERANDS = {
    "MatMul": "Y = MatMul (y, matrix)",
    "Einsum": 'Y = Einsum <equation = "tbh,hk->tbk"> (y, matrix)',
    "Gemm": "rows = Flatten <axis = 2> (y)  Y = Gemm (rows, matrix)",
    "LayerNormalization": "Y = LayerNormalization (y, scale)",
    "QuantizeLinear": "q = QuantizeLinear (y, number)  Y = DequantizeLinear (q, number)",
    "BatchNormalization": "t = Transpose <perm = [1, 2, 0]> (y)  "
    "n = BatchNormalization (t, scale, vector, vector, vector)  Y = Transpose <perm = [2, 0, 1]> (n)",
    "Gather": "Y = Gather <axis = 2> (y, rest)",
    "Gather of positions": "places = Cast <to = 7> (y)  Y = Gather (matrix, places)",
    "vector": "v = Constant <value_ints = [4]> ()  end = Reshape (state, v)  Y = MatMul (y, end)",
}


@pytest.mark.parametrize("name", OPERANDS)
def test_an_operand_that_no_chunk_has_is_refused(name: str) -> None:
    text = f"(float[T, 1, 3] X) => (float Y) {{ {LENGTH} {OPERANDS[name]} }}"
    source = model(text, W=(1, 4, 3), R=(1, 4, 4), M=(4, 4), vector=(4,))
    source.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match=name.split()[0] if name != "vector" else "last one"):
        rnnlower.stream(source, chunk=1)


SIZES = {
    "Slice": "Y = Slice (y, one, next, last)",
    "Pad": "sides = Constant <value_ints = [0, 0, 1, 0, 0, 1]> ()  Y = Pad (y, sides, number)",
    "Pad by the rest": "sides = Concat <axis = 0> (none, one, none, next)  Y = Pad (y, sides)",
    "Split": "parts = Concat <axis = 0> (next, other)  Y, rest_of_it = Split <axis = 2> (y, parts)",
    "Expand": "part = Slice (y, zero, second, last)  wide = Concat <axis = 0> (second, second, count)  "
    "Y = Expand (part, wide)",
    "Resize": 'wide = Concat <axis = 0> (count, second, count)  Y = Resize <mode = "nearest"> (y, , , wide)',
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_another_axis_that_follow_from_the_length_are_refused(name: str) -> None:
    more = (
        "none = Constant <value_ints = [0, 0]> ()  h = Constant <value_ints = [4]> ()  other = Sub (h, next)"
    )
    source = model(
        f"(float[T, 1, 3] X) => (float Y) {{ {LENGTH} {more} {SIZES[name]} }}",
        opset=18,
        W=(1, 4, 3),
        R=(1, 4, 4),
        M=(4, 4),
        vector=(4,),
    )
    source.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match=f"{name.split()[0]} node.*number of time steps"):
        rnnlower.stream(source, chunk=1)


def test_the_scales_of_blocks_are_cut_to_chunks() -> None:
    source = model(
        """(float[6, 1, 3] X) => (float[6, 1, 4] Y) {
            all, state = RNN <hidden_size = 4> (X, W, R)
            second = Constant <value_ints = [1]> ()  y = Squeeze (all, second)  scales = Abs (S)
            q = QuantizeLinear <axis = 2, block_size = 2> (y, scales)
            Y = DequantizeLinear <axis = 2, block_size = 2> (q, scales)
        }""",
        opset=21,
        W=(1, 4, 3),
        R=(1, 4, 4),
        S=(6, 1, 2),
    )
    streamed = rnnlower.stream(source, chunk=2)
    assert rnnlower.verify(source, streamed)


PARTS = {
    "fades in over a tenth": """
        ten = Constant <value_int = 10> ()  part = Div (steps, ten)  starts = Less (numbers, part)
        early = Unsqueeze (starts, axes)  Y = Where (early, nil, X)""",
    "grows to a third": """
        f = Cast <to = 1> (numbers)  share = Div (f, number)  three = Constant <value_float = 3.0> ()
        grows = Mul (share, three)  whole = Constant <value_float = 1.0> ()  gain = Min (grows, whole)
        rows = Unsqueeze (gain, axes)  Y = Mul (X, rows)""",
    "stops": """
        most = Constant <value_ints = [400]> ()  count = Min (length, most)
        first = Constant <value_ints = [0]> ()  Y = Slice (X, first, count, first)""",
    "is empty": "none = Sub (length, length)  Y = Slice (X, nought, none, nought)",
    "is padded up to a length": """
        most = Constant <value_ints = [500]> ()  rest = Sub (most, length)
        sides = Concat <axis = 0> (nought, nought, nought, rest, nought, nought)  Y = Pad (X, sides)""",
    "is read by a Loop of fewer iterations": """
        most = Constant <value_int = 400> ()  count = Min (steps, most)  go = Cast <to = 9> (one)
        start = Constant <value_floats = [0.0, 0.0, 0.0]> ()
        last, Y = Loop (count, go, start) <body = sum (int64 i, bool on, float[3] s) =>
            (bool more, float[3] new, float[3] y) {
                more = Identity (on)  x = Gather (X, i)  row = Squeeze (x, nought)  both = Mul (s, row)
                new = Add (both, row)  y = Identity (new)
            }>""",
    "takes the last of a part": """
        most = Constant <value_int = 399> ()  last = Sub (steps, one)  place = Min (last, most)
        Y = Gather <axis = 0> (X, place)""",
}


REASONS = (
    *("number of (time )?steps", "as many steps", "not the last one", "changes with its length"),
    *("one step of each sequence", "the first steps"),
)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_a_longer_sequence_has_elsewhere_is_refused(name: str, chunk: int) -> None:
    source = model(
        f"""(float[T, 1, 3] X) => (float Y) {{
            zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()
            axes = Constant <value_ints = [1, 2]> ()  nought = Constant <value_ints = [0]> ()
            nil = Constant <value_float = 0.0> ()
            length = Shape <end = 1> (X)  steps = Squeeze (length)  number = Cast <to = 1> (steps)
            numbers = Range (zero, steps, one)  {PARTS[name]}
        }}"""
    )
    source.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match="|".join(REASONS)):
        rnnlower.stream(source, time_axes={"X": 0}, chunk=chunk)


@pytest.mark.parametrize(
    "limits",
    ["none = Shape <end = 0> (X)  r = Range (zero, none, one)", "r = Range (zero, steps, zero)"],
)
def test_a_range_without_limits_or_with_a_step_of_0_is_refused(limits: str) -> None:
    source = model(
        f"""(float[T, 3] X) => (float Y) {{
            zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()
            length = Shape <end = 1> (X)  steps = Squeeze (length)  {limits}
            numbers = Cast <to = 1> (r)  axes = Constant <value_ints = [1]> ()
            rows = Unsqueeze (numbers, axes)  Y = Mul (X, rows)
        }}"""
    )
    source.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match="Mul node"):
        rnnlower.stream(source, time_axes={"X": 0})


@pytest.mark.parametrize("shape", [(6, 1, 4), (6, 1, 1)])
def test_scales_of_a_normalization_are_cut_to_chunks(shape: tuple[int, ...]) -> None:
    source = model(
        """(float[6, 1, 3] X) => (float[6, 1, 4] Y) {
            all, state = RNN <hidden_size = 4> (X, W, R)
            second = Constant <value_ints = [1]> ()  y = Squeeze (all, second)  Y = LayerNormalization (y, S)
        }""",
        W=(1, 4, 3),
        R=(1, 4, 4),
        S=shape,
    )
    assert rnnlower.verify(source, rnnlower.stream(source, chunk=2))
