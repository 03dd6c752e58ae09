"""Positions in a stream: a Range over its steps, tables of position codes, constants that settle."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper
from support.streamed import model, stream, streamed_and_metadata

import rnnlower

RANGE = """
    steps = Shape <start = 1, end = 2> (X)
    one = Constant <value_int = 1> ()
    zero = Constant <value_int = 0> ()
    count = Squeeze (steps)
    numbers = Range (zero, count, one)
"""
GRU = """
    s = Transpose <perm = [1, 0, 2]> (z)
    h = GRU <hidden_size = 4> (s, W, R)
    axis = Constant <value_ints = [1]> ()
    h1 = Squeeze (h, axis)
    Y = Transpose <perm = [1, 0, 2]> (h1)
"""
SIGNATURE = "(float[b, n, 4] X) => (float[b, n, 4] Y)"
STATIC = "(float[1, 40, 4] X) => (float[1, 40, 4] Y)"
WEIGHTS = {"W": (1, 12, 4), "R": (1, 12, 4)}


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_embedded_positions_are_counted_by_a_state(chunk: int | None) -> None:
    source = model(
        f"{SIGNATURE} {{ {RANGE} e = Gather (table, numbers) z = Add (X, e) {GRU} }}",
        table=(300, 4),
        **WEIGHTS,
    )
    metadata = stream(source, {"X": 1}, chunk=chunk)
    assert metadata["start"]["position_in"] == 0
    assert metadata["limit"] == 300


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_computed_position_codes_have_no_limit(chunk: int | None) -> None:
    codes = """
        float = Cast <to = 1> (numbers)
        last = Constant <value_ints = [1]> ()
        column = Unsqueeze (float, last)
        rates = Constant <value_floats = [0.1, 0.2, 0.3, 0.01]> ()
        angles = Mul (column, rates)
        e = Sin (angles)
        z = Add (X, e)
    """
    metadata = stream(model(f"{SIGNATURE} {{ {RANGE} {codes} {GRU} }}", **WEIGHTS), {"X": 1}, chunk=chunk)
    assert "limit" not in metadata


@pytest.mark.parametrize("rows", [30, 300])
@pytest.mark.parametrize("chunk", [1, 3, None])
def test_a_sliced_table_limits_the_stream(chunk: int | None, rows: int) -> None:
    slice_ = """
        steps = Shape <start = 1, end = 2> (X)
        zero = Constant <value_ints = [0]> ()
        time = Constant <value_ints = [1]> ()
        e = Slice (table, zero, steps, time)
        z = Add (X, e)
    """
    source = model(f"{SIGNATURE} {{ {slice_} {GRU} }}", table=(1, rows, 4), **WEIGHTS)
    assert stream(source, {"X": 1}, chunk=chunk)["limit"] == rows


def test_a_run_beyond_the_end_of_a_table_fails() -> None:
    source = model(
        f"{SIGNATURE} {{ {RANGE} e = Gather (table, numbers) z = Add (X, e) {GRU} }}", table=(8, 4), **WEIGHTS
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="table"):
        rnnlower.stream(source, chunk=9)
    streamed, metadata = streamed_and_metadata(source, {"X": 1}, chunk=4)
    assert metadata["limit"] == 8
    session = onnxruntime.InferenceSession(streamed.SerializeToString())
    feeds = {"X": np.zeros((1, 4, 4), np.float32), "GRU_0_h_in": np.zeros((1, 1, 4), np.float32)}
    for position in (0, 4):
        session.run(None, {**feeds, "position_in": np.array([position])})
    with pytest.raises(Exception, match="out of"):
        session.run(None, {**feeds, "position_in": np.array([8])})


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_constant_as_long_as_the_sequence(chunk: int, ahead: bool) -> None:
    swap = "Transpose <perm = [0, 2, 1]>"
    smooth = f"t = {swap} (X) c = Conv <pads = [1, 1]> (t, K) x = {swap} (c)"
    body = f"{smooth if ahead else 'x = Identity (X)'} z = Add (x, table) {GRU}"
    source = model(f"{STATIC} {{ {body} }}", table=(1, 40, 4), K=(4, 4, 3), **WEIGHTS)
    metadata = stream(source, {"X": 1}, chunk=chunk, allow_delay=ahead)
    assert metadata["limit"] == 40


@pytest.mark.parametrize("chunk", [1, 4])
def test_positions_are_delayed_with_the_convolution_they_are_added_to(chunk: int) -> None:
    swap = "Transpose <perm = [0, 2, 1]>"
    smooth = f"t = {swap} (X) c = Conv <pads = [1, 1]> (t, K) x = {swap} (c)"
    body = f"{smooth} {RANGE} e = Gather (table, numbers) z = Add (x, e) {GRU}"
    source = model(f"{STATIC} {{ {body} }}", table=(300, 4), K=(4, 4, 3), **WEIGHTS)
    stream(source, {"X": 1}, chunk=chunk, allow_delay=True)


def test_a_constant_that_settles_has_no_end() -> None:
    table = np.ones((1, 40, 4), np.float32)
    table[:, :5] = np.arange(5)[:, None]
    source = model(f"{STATIC} {{ z = Mul (X, table) {GRU} }}", **WEIGHTS)
    source.graph.initializer.append(numpy_helper.from_array(table, "table"))
    assert "limit" not in stream(source, {"X": 1}, chunk=4)


def test_two_chunks_do_not_show_that_a_constant_has_settled() -> None:
    source = model(f"{STATIC} {{ z = Mul (X, table) {GRU} }}", table=(1, 40, 4), **WEIGHTS)
    assert stream(source, {"X": 1}, chunk=20)["limit"] == 40


def test_rows_that_count_from_the_end_are_refused() -> None:
    rows = """
        steps = Shape <start = 1, end = 2> (X)
        from = Neg (steps)
        last = Constant <value_ints = [1000]> ()
        time = Constant <value_ints = [1]> ()
        e = Slice (table, from, last, time)
        z = Add (X, e)
    """
    source = model(f"{SIGNATURE} {{ {rows} {GRU} }}", table=(1, 300, 4), **WEIGHTS)
    with pytest.raises(rnnlower.UnsupportedModelError, match="depends on the number of steps"):
        rnnlower.stream(source, chunk=1, time_axes={"X": 1})


SIZES = """
    f = Transpose <perm = [1, 0, 2]> (X)
    shape = Shape (f)
    singly = Constant <value_ints = [1, 1, 1]> ()
    steps, rows, features = Split <axis = 0> (shape, singly)
"""
LENGTHS = """
    {ROW}
    lens = Cast <to = 6> (row)
    h = GRU <hidden_size = 4> (f, W, R, "", lens)
    axis = Constant <value_ints = [1]> ()
    h1 = Squeeze (h, axis)
    Y = Transpose <perm = [1, 0, 2]> (h1)
"""


@pytest.mark.parametrize("signature", [SIGNATURE, STATIC])
@pytest.mark.parametrize(
    "row",
    [
        "row = Tile (steps, rows)",
        "row = Expand (steps, rows)",
        "n = Max (rows, rows) row = Expand (steps, n)",
    ],
)
def test_lengths_that_are_computed_and_full(signature: str, row: str) -> None:
    """As MXNet writes them."""
    source = model(f"{signature} {{ {SIZES} {LENGTHS.replace('{ROW}', row)} }}", **WEIGHTS)
    assert "limit" not in stream(source, {"X": 1}, chunk=3)


@pytest.mark.parametrize("signature", [SIGNATURE, STATIC])
@pytest.mark.parametrize(
    ("operator", "number", "problem"), [("Sub", 1, "are shorter"), ("Min", 1000, "Min may bound")]
)
def test_lengths_that_are_or_may_become_shorter_are_refused(
    signature: str, operator: str, number: int, problem: str
) -> None:
    row = f"other = Constant <value_ints = [{number}]> () n = {operator} (steps, other) row = Tile (n, rows)"
    source = model(f"{signature} {{ {SIZES} {LENGTHS.replace('{ROW}', row)} }}", **WEIGHTS)
    with pytest.raises(rnnlower.UnsupportedModelError, match=f"has sequence_lens that {problem}"):
        rnnlower.stream(source, time_axes={"X": 1})


SCALED = """
    k = Cast <to = 1> (each)
    axes = Constant <value_ints = [1, 2]> ()
    k3 = Unsqueeze (k, axes)
    sk = Div (f, k3)
    z = Transpose <perm = [1, 0, 2]> (sk)
"""


def test_the_size_of_another_axis_at_every_step() -> None:
    """It is computed from each chunk, and not the number of rows of an example."""
    source = model(f"{SIGNATURE} {{ {SIZES} each = Tile (rows, steps) {SCALED} {GRU} }}", **WEIGHTS)
    assert "limit" not in stream(source, {"X": 1}, chunk=2)


def test_the_number_of_steps_at_every_step_is_refused() -> None:
    source = model(f"{SIGNATURE} {{ {SIZES} each = Tile (steps, steps) {SCALED} {GRU} }}", **WEIGHTS)
    with pytest.raises(rnnlower.UnsupportedModelError, match="'k3', which depends on the number of steps"):
        rnnlower.stream(source, time_axes={"X": 1})


def test_the_number_of_steps_as_a_state_is_refused() -> None:
    source = model(
        f"""{STATIC} {{ {SIZES}
            k = Cast <to = 1> (steps)
            size = Constant <value_ints = [1, 1, 4]> ()
            state = Expand (k, size)
            h = GRU <hidden_size = 4> (f, W, R, "", "", state)
            axis = Constant <value_ints = [1]> ()
            h1 = Squeeze (h, axis)
            Y = Transpose <perm = [1, 0, 2]> (h1)
        }}""",
        **WEIGHTS,
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="an initial_h that depends on the number"):
        rnnlower.stream(source, time_axes={"X": 1})


def test_a_step_of_a_sequence_beside_zeros_names_no_axis() -> None:
    """As NNabla writes the step of a cell: no node determines which axis is time."""
    source = model("""(float[2, 4, 3] X) => (float[2, 7] Y)
        <int64[3] from = {0, 1, 0}, int64[3] to = {2, 2, 3}, int64[3] axes = {0, 1, 2},
         int64[2] sizes = {2, 3}> {
            step = Slice (X, from, to, axes)
            x = Reshape (step, sizes)
            shape = Constant <value_ints = [2, 4]> ()
            h0 = ConstantOfShape (shape)
            Y = Concat <axis = 1> (x, h0)
        }""")
    with pytest.raises(rnnlower.OptionError, match="which axis is time is not clear"):
        rnnlower.stream(source)


def test_a_constant_whose_last_row_is_in_an_incomplete_chunk_keeps_it() -> None:
    source = model(
        "(float[10, 1] X) => (float[10, 1] Y) <float[10, 1] c = {0,0,0,0,0,0,0,0,0,5}> { Y = Add (X, c) }"
    )
    assert stream(source, {"X": 0}, chunk=3)["limit"] == 10


@pytest.mark.parametrize(("axis", "perm"), [(-1, [0, 1, 2]), (0, [1, 2, 0]), (1, [0, 2, 1])])
@pytest.mark.parametrize("chunk", [1, 3, None])
def test_classes_are_a_new_axis_before_or_after_time(axis: int, perm: list[int], chunk: int | None) -> None:
    source = model(
        f"""(int64[n, b] ids) => (float[n, 1, b, 4] Y) <int64 depth = {{3}}, float[2] values = {{0, 1}}> {{
            classes = OneHot <axis = {axis}> (ids, depth, values)
            s = Transpose <perm = {perm}> (classes)
            Y = GRU <hidden_size = 4> (s, W, R)
        }}""",
        W=(1, 12, 3),
        R=(1, 12, 4),
    )
    stream(source, {"ids": 0}, chunk=chunk)


def test_classes_as_many_as_steps_are_refused() -> None:
    source = model(
        """(int64[n, b] ids) => (float[n, b, 1] Y) <int64[1] first = {0}, float[2] values = {0.0, 1.0}> {
            sizes = Shape (ids)
            depth = Gather (sizes, first)
            last = Constant <value_ints = [-1]> ()
            classes = OneHot (ids, depth, values)
            Y = ReduceSum (classes, last)
        }""",
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="has a parameter that follows from the stream"):
        rnnlower.stream(source, time_axes={"ids": 0})
