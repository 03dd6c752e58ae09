"""StreamPass: single nodes before and after."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.passes import StreamPass
from rnnlower.verification import verify

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
WEIGHTS = {
    "W": (1, 24, 4),
    "W8": (1, 24, 8),
    "R": (1, 24, 8),
    "W4": (1, 32, 4),
    "R4": (1, 32, 8),
    "kernel": (4, 4, 3),
}


def parsed(text: str) -> ir.Model:
    """Return the model, with random weights for the names in `WEIGHTS` that it mentions."""
    parsed = onnx.parser.parse_model(HEADER + text)
    rng = np.random.default_rng(0)
    read = {name for node in parsed.graph.node for name in node.input}
    for name, shape in WEIGHTS.items():
        if name in read:
            array = rng.standard_normal(shape).astype(np.float32)
            parsed.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for number, node in enumerate(parsed.graph.node):
        node.name = f"{node.op_type.lower()}{number}"
    return ir.from_proto(parsed)


def stream(text: str, chunk: int | None = 1, **options: object) -> onnx.ModelProto:
    """The streamed model, valid and proved to be right."""
    own = parsed(text)
    source = ir.to_proto(own)
    StreamPass(chunk, **options)(own)  # type: ignore[arg-type]
    proto = ir.to_proto(own)
    onnx.checker.check_model(proto, full_check=True)
    result = verify(source, proto)
    assert result, str(result)
    return proto


def shapes(values: object) -> dict[str, list[int | str]]:
    return {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in values  # type: ignore[attr-defined]
    }


def metadata_entry(proto: onnx.ModelProto, key: str) -> dict[str, object]:
    return json.loads({entry.key: entry.value for entry in proto.metadata_props}[f"rnnlower.{key}"])


def refusal(text: str, chunk: int | None = 1, **options: object) -> str:
    with pytest.raises((UnsupportedModelError, OptionError)) as caught:
        StreamPass(chunk, **options)(parsed(text))  # type: ignore[arg-type]
    return str(caught.value)


def test_a_gru_gets_a_state_input_and_output() -> None:
    proto = stream("""
        main (float[T, 1, 4] X) => (float[T, 1, 1, 8] Y) { Y = GRU <hidden_size = 8> (X, W, R) }
    """)
    assert shapes(proto.graph.input) == {"X": [1, 1, 4], "gru0_h_in": [1, 1, 8]}
    assert shapes(proto.graph.output) == {"Y": [1, 1, 1, 8], "gru0_h_out": [1, 1, 8]}
    assert [node.op_type for node in proto.graph.node] == ["GRU"]
    assert metadata_entry(proto, "state") == {"gru0_h_out": "gru0_h_in"}
    assert metadata_entry(proto, "stream") == {
        "chunk": 1,
        "inputs": {"X": 0},
        "outputs": {"Y": 0},
        "delay": 0,
        "start": {"gru0_h_in": 0.0},
    }


def test_a_row_that_is_repeated_is_no_dynamic_batch() -> None:
    """Of any number of rows, only one fits an Expand to two, and the state has two."""
    text = """
        main (float[T, N, 4] X) => (float[T, 1, 2, 8] Y) <int64[3] rows = {1, 2, 1}>
        { x = Expand (X, rows) Y = GRU <hidden_size = 8> (x, W, R) }
    """
    assert "Expand node 'expand0' repeats one row only, and the batch is dynamic; fix" in refusal(text)
    for size in ("1", "2"):
        proto = stream(text.replace("N", size))
        assert shapes(proto.graph.input) == {"X": [1, int(size), 4], "gru1_h_in": [1, 2, 8]}


def test_a_final_state_that_is_an_output_keeps_its_name() -> None:
    proto = stream("""
        main (float[T, B, 4] X) => (float[T, 1, B, 8] Y, float[1, B, 8] last, float[1, B, 8] cell)
        { Y, last, cell = LSTM <hidden_size = 8> (X, W4, R4) }
    """)
    assert [value.name for value in proto.graph.output] == ["Y", "last", "cell", "lstm0_h_out", "lstm0_c_out"]
    assert shapes(proto.graph.input)["lstm0_c_in"] == [1, "B", 8]


def test_states_that_are_inputs_and_outputs_stay() -> None:
    proto = stream("""
        main (float[T, B, 4] X, float[1, B, 8] h) => (float[T, 1, B, 8] Y, float[1, B, 8] h_new)
        { Y, h_new = GRU <hidden_size = 8> (X, W, R, , , h) }
    """)
    assert [value.name for value in proto.graph.input] == ["X", "h"]
    assert metadata_entry(proto, "state") == {"h_new": "h"}


def test_a_final_state_that_two_outputs_hold() -> None:
    proto = stream("""
        main (float[T, B, 4] X, float[1, B, 8] h)
            => (float[1, B, 8] copy, float[T, 1, B, 8] Y, float[1, B, 8] h_new)
        { Y, h_new = GRU <hidden_size = 8> (X, W, R, , , h) copy = Identity (h_new) }
    """)
    assert metadata_entry(proto, "state") == {"h_new": "h"}
    assert [value.name for value in proto.graph.output] == ["copy", "Y", "h_new"]


def test_a_state_input_without_an_output_gets_one() -> None:
    proto = stream("""
        main (float[T, B, 4] X, float[1, B, 8] h) => (float[T, 1, B, 8] Y)
        { Y = GRU <hidden_size = 8> (X, W, R, , , h) }
    """)
    assert metadata_entry(proto, "state") == {"h_out": "h"}


def test_a_constant_initial_state_is_in_the_metadata() -> None:
    proto = stream("""
        main (float[T, 1, 4] X) => (float[T, 1, 1, 8] Y)
        <float[1, 1, 8] h = {1, 2, 3, 4, 5, 6, 7, 8}>
        { Y = GRU <hidden_size = 8> (X, W, R, , , h) }
    """)
    assert metadata_entry(proto, "stream")["start"] == {
        "gru0_h_in": [[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]]
    }


def test_a_state_of_the_model_starts_with_its_default() -> None:
    """An input with an initializer is one that a caller may leave out: that value is its start."""
    proto = stream("""
        main (float[T, 1, 4] X, float[1, 1, 8] c) => (float[T, 1, 1, 8] Y)
        <float[1, 1, 8] c = {1, 2, 3, 4, 5, 6, 7, 8}>
        { Y = LSTM <hidden_size = 8> (X, W4, R4, , , , c) }
    """)
    assert metadata_entry(proto, "state") == {"lstm0_h_out": "lstm0_h_in", "c_out": "c"}
    assert metadata_entry(proto, "stream")["start"] == {
        "lstm0_h_in": 0.0,
        "c": [[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]],
    }


def test_a_state_that_the_caller_must_give_starts_with_zeros() -> None:
    proto = stream("""
        main (float[T, B, 4] X, float[1, B, 8] h) => (float[T, 1, B, 8] Y, float[1, B, 8] h_new)
        { Y, h_new = GRU <hidden_size = 8> (X, W, R, , , h) }
    """)
    assert metadata_entry(proto, "stream")["start"] == {"h": 0.0}


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("twice = Add (S, S) Y, S2 = GRU <hidden_size = 8> (X, W, R, , , twice)", ""),
        ("Y, h = GRU <hidden_size = 8> (X, W, R, , , S) S2 = Slice (h, last, first, two, last)", ""),
        (
            "Y, S2 = GRU <hidden_size = 8> (X, W, R, , , S) x = Neg (X) "
            "Z, S3 = GRU <hidden_size = 8> (x, W, R, , , S)",
            ", float[T, 1, 1, 8] Z, float[1, 1, 8] S3",
        ),
    ],
)
def test_a_state_that_does_not_come_back_is_refused(nodes: str, outputs: str) -> None:
    """The next call would get another state than the one that the call before returned."""
    message = refusal(
        f"""main (float[T, 1, 4] X, float[1, 1, 8] S) => (float[T, 1, 1, 8] Y, float[1, 1, 8] S2{outputs})
        <int64[1] last = {{-1}}, int64[1] first = {{-99}}, int64[1] two = {{2}}> {{ {nodes} }}"""
    )
    assert "different forms, or together with another state" in message


def test_a_state_that_comes_back_in_a_form_that_only_one_row_shares_is_for_one_row() -> None:
    proto = stream("""
        main (float[T, B, 4] X, float[1, B, 8] S) => (float[T, 1, B, 8] Y, float[B, 1, 8] S2)
        { Y, h = GRU <hidden_size = 8> (X, W, R, , , S) S2 = Transpose <perm = [1, 0, 2]> (h) }
    """)
    batches = [value.type.tensor_type.shape.dim[1].dim_value for value in proto.graph.input]
    assert batches == [1, 1]


@pytest.mark.parametrize(
    ("more", "output", "reader"),
    [
        ("Z = Neg (S)", ", float[1, B, 8] Z", "Neg node"),
        ("turned = Transpose <perm = [0, 2, 1]> (S) Z = Abs (turned)", ", float[1, 8, B] Z", "Abs node"),
        ("", ", float[1, B, 8] S", "output 'S'"),
    ],
)
def test_a_state_that_is_read_elsewhere_is_refused(more: str, output: str, reader: str) -> None:
    """Later chunks do not have the first state, of which the whole sequence made an output."""
    message = refusal(
        f"""main (float[T, B, 4] X, float[1, B, 8] S) => (float[T, 1, B, 8] Y, float[1, B, 8] S2{output})
        {{ Y, S2 = GRU <hidden_size = 8> (X, W, R, , , S) {more} }}"""
    )
    assert f"that {reader}" in message
    assert "before the first step" in message


def test_the_size_of_a_state_may_be_read_elsewhere() -> None:
    proto = stream("""
        main (float[T, B, 4] X, float[1, B, 8] S) => (float[T, 1, B, 8] Y, float[1, B, 8] S2, int64[3] Z)
        { Y, S2 = GRU <hidden_size = 8> (X, W, R, , , S) Z = Shape (S) }
    """)
    assert metadata_entry(proto, "state") == {"S2": "S"}


def test_a_pool_of_integers_begins_with_the_least_one() -> None:
    pool = "<kernel_shape = [3], pads = [2, 0]>"
    stream(f"main (int8[1, 4, T] X) => (int8[1, 4, T] Y) {{ Y = MaxPool {pool} (X) }}", time_axes={"X": 2})


@pytest.mark.parametrize("kernel", [1, 2])
def test_positions_of_the_largest_values_are_refused(kernel: int) -> None:
    text = f"Y, I = MaxPool <kernel_shape = [1, {kernel}]> (X)"
    inputs = "main (float[1, 4, T, 8] X) => (float[1, 4, T, N] Y, int64[1, 4, T, N] I)"
    assert "positions of the largest" in refusal(f"{inputs} {{ {text} }}", time_axes={"X": 2})


def test_a_causal_convolution_keeps_frames() -> None:
    proto = stream(
        """
        main (float[1, 4, T] X) => (float[1, 4, T] Y)
        { Y = Conv <pads = [4, 0], dilations = [2]> (X, kernel) }
        """,
        chunk=2,
        time_axes={"X": 2},
    )
    assert [node.op_type for node in proto.graph.node] == ["Concat", "Slice", "Conv"]
    assert shapes(proto.graph.input)["X_cache_in"] == [1, 4, 4]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_a_convolution_that_looks_ahead_is_taken_at_a_delay(chunk: int) -> None:
    text = """
        main (float[T, 1, 4] X) => (float[T, 1, 1, 8] Y, float[1, 4, T] Z)
        {
            channels = Transpose <perm = [1, 2, 0]> (X)
            once = Conv <pads = [1, 1]> (channels, kernel)
            Z = Conv <pads = [2, 2], dilations = [2]> (once, kernel)
            steps = Transpose <perm = [2, 0, 1]> (Z)
            Y = GRU <hidden_size = 8> (steps, W, R)
        }
    """
    assert "looks 1 frame ahead" in refusal(text, chunk)
    proto = stream(text, chunk, allow_delay=True)
    # What they look ahead in sum, in whole chunks: a state must not see what comes before the first frame.
    assert metadata_entry(proto, "stream")["delay"] == {1: 3, 2: 4, 3: 3, 7: 7}[chunk]


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize(
    "late",
    [
        "Z = Concat <axis = 2> (first, x)",
        "Z = Pad (x, ahead)",
        "kept = Concat <axis = 2> (first, x) Z = Pad (kept, ahead)",
        "zero = Pad (X, ahead) begun = Concat <axis = 2> (first, zero) Z = Slice (begun, start, end, time)",
        "sum = CumSum <exclusive = 1> (x, two) Z = Concat <axis = 2> (first, sum)",
        "more = Conv <pads = [1, 1]> (x, kernel) Z = Concat <axis = 2> (first, more)",
    ],
)
def test_frames_padded_in_front_of_a_delayed_stream_come_right_before_its_first_frame(
    late: str, chunk: int
) -> None:
    """They come right before its first frame, and nothing that belongs to no step comes between."""
    text = f"""
        main (float[1, 4, T] X) => (float[1, 4, S] Y)
        <int64 two = {{2}}, float[1, 4, 1] first = {{1, 2, 3, 4}}, int64[6] ahead = {{0, 0, 2, 0, 0, 0}},
         int64[1] start = {{0}}, int64[1] end = {{-3}}, int64[1] time = {{2}}>
        {{
            x = Conv <pads = [1, 1]> (X, kernel)
            {late}
            Y = CumSum (Z, two)
        }}
    """
    stream(text, chunk, time_axes={"X": 2}, allow_delay=True)


def test_a_value_that_is_two_outputs_is_late_in_both() -> None:
    proto = stream(
        """
        main (float[1, 4, T] X) => (float[1, 4, T] Y, float[1, 4, T] Z, float[1, 4, T] Z)
        { Y = Conv <pads = [1, 1]> (X, kernel) Z = Relu (X) }
        """,
        time_axes={"X": 2},
        allow_delay=True,
    )
    assert [value.name for value in proto.graph.output][:3] == ["Y", "Z", "Z"]


def test_an_input_that_is_an_output_cannot_be_late() -> None:
    text = """
        main (float[1, 4, T] X) => (float[1, 4, T] Y, float[1, 4, T] X)
        { Y = Conv <pads = [1, 1]> (X, kernel) }
    """
    message = refusal(text, time_axes={"X": 2}, allow_delay=True)
    assert "output 'X' is an input, too, and would be 1 frame late" in message


@pytest.mark.parametrize("chunk", [1, 3, None])
@pytest.mark.parametrize(
    ("before", "after", "delay"), [(1, -1, 0), (3, -1, 0), (0, -2, 0), (-1, 1, 1), (-2, -1, 2)]
)
def test_a_pad_by_less_than_zero_shifts_or_cuts(
    before: int, after: int, delay: int, chunk: int | None
) -> None:
    text = f"""
        main (float[1, 4, T] X) => (float[1, 4, S] Y) <int64[6] pads = {{0, 0, {before}, 0, 0, {after}}}>
        {{ x = Pad (X, pads) Y = Relu (x) }}
    """
    proto = stream(text, chunk, time_axes={"X": 2}, allow_delay=True)
    assert metadata_entry(proto, "stream")["delay"] == delay


@pytest.mark.parametrize(
    "behind",
    [
        "Y = Pad (short, pads)",
        "Y = Concat <axis = 2> (short, last)",
        "Y = Conv <pads = [1, 1]> (short, kernel)",
    ],
)
def test_frames_behind_an_end_that_was_cut_off_are_refused(behind: str) -> None:
    """The stream has frames there."""
    text = f"""
        main (float[1, 4, T] X) => (float[1, 4, S] Y)
        <int64[6] pads = {{0, 0, 0, 0, 0, 1}}, float[1, 4, 1] last = {{1, 2, 3, 4}},
         int64[1] start = {{0}}, int64[1] end = {{-1}}, int64[1] time = {{2}}>
        {{ short = Slice (X, start, end, time) {behind} }}
    """
    assert "puts frames after the end" in refusal(text, time_axes={"X": 2}, allow_delay=True)


def test_frames_behind_the_last_one_are_refused_or_left_out() -> None:
    text = """
        main (float[1, 4, T] X) => (float[1, 4, S] Y) <int64[6] behind = {0, 0, 0, 0, 0, 1}>
        { Y = Pad (X, behind) }
    """
    assert "which a stream never reaches" in refusal(text, time_axes={"X": 2}, allow_delay=False)
    metadata = stream(text, time_axes={"X": 2}, allow_delay=True).metadata_props
    (entry,) = (each.value for each in metadata if each.key == "rnnlower.stream")
    assert json.loads(entry)["unreached"] == {"Y": 1}


def test_valid_convolutions_and_the_last_state() -> None:
    """Nothing is late about a final state: it is as of the last frame."""
    proto = stream("""
        main (float[1, 4, T] X) => (float[1, 1, 8] last)
        {
            short = Conv (X, kernel)
            steps = Transpose <perm = [2, 0, 1]> (short)
            , last = GRU <hidden_size = 8> (steps, W, R)
        }
    """)
    assert metadata_entry(proto, "stream")["outputs"] == {}


def test_static_lengths_in_reshapes_become_those_of_a_chunk() -> None:
    proto = stream(
        """
        main (float[2, 12, 4] X) => (float[2, 12, 8] Y)
        <int64[3] by_step = {12, 2, 8}, int32[2] full = {12, 12}>
        {
            steps = Transpose <perm = [1, 0, 2]> (X)
            y = GRU <hidden_size = 8> (steps, W, R, , full)
            flat = Reshape (y, by_step)
            Y = Transpose <perm = [1, 0, 2]> (flat)
        }
        """,
        chunk=3,
    )
    assert shapes(proto.graph.output)["Y"] == [2, 3, 8]


def test_a_recurrence_over_another_axis_carries_nothing() -> None:
    proto = stream(
        """
        main (float[1, T, 5, 4] X) => (float[1, T, 5, 8] Y)
        <int64[3] rows = {-1, 5, 4}, int64[4] back = {1, -1, 5, 8}, int64[1] one = {1}>
        {
            folded = Reshape (X, rows)
            bands = Transpose <perm = [1, 0, 2]> (folded)
            y = GRU <hidden_size = 8, direction = "reverse"> (bands, W, R)
            squeezed = Squeeze (y, one)
            frames = Transpose <perm = [1, 0, 2]> (squeezed)
            Y = Reshape (frames, back)
        }
    """,
        time_axes={"X": 1},
    )
    assert metadata_entry(proto, "state") == {}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ('Y = GRU <hidden_size = 8, direction = "reverse"> (X, W, R)', "is reverse: it begins with the last"),
        (
            "m = ReduceMean <axes = [0]> (X) x = Sub (X, m) Y = GRU <hidden_size = 8> (x, W, R)",
            "averages over",
        ),
        ("y, h = GRU <hidden_size = 8> (X, W, R) Y = Add (y, h)", "combines every step with the last one"),
        ("h = ReduceMax <axes = [0]> (X) Y = GRU <hidden_size = 8> (X, W, R)", "takes the largest over time"),
        (
            "x, a, b, c, d = BatchNormalization (X, S, S, S, S) Y = GRU <hidden_size = 8> (x, W, R)",
            "statistics of its input",
        ),
        (
            "n = Size (X) y = GRU <hidden_size = 8> (X, W, R) f = Cast <to = 1> (n) Y = Mul (y, f)",
            "number of",
        ),
        (
            "x = Unknown (X) Y = GRU <hidden_size = 8> (X, W, R)",
            "behavior of Unknown over time",
        ),
    ],
)
def test_what_couples_time_steps_is_refused_by_name(nodes: str, words: str) -> None:
    declared = "<float[1] S = {1}>"
    message = refusal(f"main (float[T, 1, 4] X) => (float[T, 1, 1, 8] Y) {declared} {{ {nodes} }}")
    assert words in message
    assert "node '" in message


def test_sizes_that_decide_a_branch_are_asked_for() -> None:
    """No example number: it would decide the branch at random."""
    branches = """
        <then_branch = yes () => (float[T, 1, B, 8] y) { y = GRU <hidden_size = 8> (X, W, R, , , h) },
         else_branch = no () => (float[T, 1, B, 8] z) { z = GRU <hidden_size = 8> (X, W, R) }>
    """
    text = f"""
        main (float[T, B, 4] X, float[1, B, 8] h) => (float[T, 1, B, 8] Y) <int64 one = {{1}}>
        {{
            sizes = Shape (h) rows = Gather (sizes, one) single = Equal (rows, one)
            Y = If (single) {branches}
        }}
    """
    assert "the sizes of input 'h' decide it: dims={\"B\": N}" in refusal(text)
    other = """
        x = If (single) <then_branch = yes () => (float[T, B, 4] y) { y = Relu (X) },
                         else_branch = no () => (float[T, B, 4] z) { z = Tanh (X) }>
        Y = GRU <hidden_size = 8> (x, W, R)
    """
    before = refusal(text.replace(f"Y = If (single) {branches}", other))
    assert "has a body that reads values over time" in before
    assert "the sizes of input 'h' decide it: dims={\"B\": N}" in before


def test_all_recurrences_from_the_end_are_named_at_once() -> None:
    message = refusal("""
        main (float[T, 1, 4] X) => (float[T, 1, 1, 8] Y) <int64[1] one = {1}>
        {
            a = GRU <hidden_size = 8, direction = "reverse"> (X, W, R)
            b = Squeeze (a, one)
            c = GRU <hidden_size = 8> (b, W8, R)
            d = Squeeze (c, one)
            Y = GRU <hidden_size = 8, direction = "reverse"> (d, W8, R)
        }
    """)
    assert "GRU node 'gru0': is reverse: it begins with the last step" in message
    assert "'gru4'" in message
    assert "'gru2'" not in message


STRIDED = """
    half = Conv <pads = [2, 0], strides = [2]> (X, kernel)
    quarter = Conv <pads = [2, 0], strides = [2]> (half, kernel)
    steps = Transpose <perm = [2, 0, 1]> (quarter)
"""


@pytest.mark.parametrize("chunk", [1, 2, 30, None])
def test_a_recurrence_from_the_end_comes_before_any_chunk(chunk: int | None) -> None:
    """No chunk would help."""
    message = refusal(
        f"""
        main (float[1, 4, 24] X) => (float[S, 1, 1, 8] Y)
        {{ {STRIDED} Y = GRU <hidden_size = 8, direction = "reverse"> (steps, W, R) }}
        """,
        chunk,
    )
    assert "it begins with the last step" in message
    assert "chunk" not in message


@pytest.mark.parametrize("chunk", [1, 2, None])
def test_the_chunk_that_satisfies_all_nodes_is_named(chunk: int | None) -> None:
    text = f"""
        main (float[1, 4, T] X) => (float[S, 1, 1, 8] Y)
        {{ {STRIDED} Y = GRU <hidden_size = 8> (steps, W, R) }}
    """
    message = refusal(text, chunk)
    assert "must be a multiple of 4 steps" in message
    assert "chunk=4" in message
    for name in ("'conv0'", "'conv1'") if chunk != 2 else ("'conv1'",):
        assert name in message
    stream(text, 4)


def test_a_delay_and_a_chunk_are_asked_for_at_once() -> None:
    text = f"""
        main (float[1, 4, T] X) => (float[S, 1, 1, 8] Y)
        {{ {STRIDED.replace("[2, 0]", "[0, 2]")} Y = GRU <hidden_size = 8> (steps, W, R) }}
    """
    message = refusal(text, 1)
    assert "looks 1 frame ahead" in message
    assert "must be a multiple of 4 steps" in message
    assert "allow_delay=True" in message
    assert "chunk=4" in message
    stream(text, 4, allow_delay=True)


def test_a_length_that_no_chunk_fits_is_refused_with_the_reason() -> None:
    """Of 25 steps no multiple of 4 ends with the sequence, and the output is a final state."""
    text = f"""
        main (float[1, 4, 25] X) => (float[1, 1, 8] last)
        {{ {STRIDED} , last = GRU <hidden_size = 8> (steps, W, R) }}
    """
    for chunk in (1, 2, 4, 5):
        message = refusal(text, chunk)
        assert "no chunk fits: it must be a multiple of 4 steps" in message
        assert "25" in message
        assert "ask for one" not in message
    fits = refusal(text.replace("25", "24"), 2)
    assert "chunk=4" in fits
    stream(text.replace("25", "24"), 4)


def test_frames_of_several_samples_ask_for_whole_ones() -> None:
    text = """
        main (float[1, T] X) => (float[S, 1, 1, 8] Y) <int64[3] frames = {-1, 1, 4}>
        { steps = Reshape (X, frames) Y = GRU <hidden_size = 8> (steps, W, R) }
    """
    message = refusal(text, 1, time_axes={"X": 1})
    assert "must be a multiple of 4 steps" in message
    assert "chunk=4" in message
    stream(text, 8, time_axes={"X": 1})


def test_all_inputs_that_decide_branches_are_named_at_once() -> None:
    """An If in a branch of another: the second is not told after the first was set."""
    inner = """
        sizes = Shape (h) rows = Gather (sizes, one) single = Equal (rows, one)
        y = If (single) <then_branch = t () => (float[T, 1, B, 8] a) { a = GRU <hidden_size = 8> (X, W, R) },
                         else_branch = e () => (float[T, 1, B, 8] b) { b = Identity (zero) }>
    """
    message = refusal(f"""
        main (float[T, B, 4] X, int64[1] rate, float[1, B, 8] h) => (float[T, 1, B, 8] Y)
        <int64[1] one = {{1}}, float[1, 1, 1, 8] zero = {{0, 0, 0, 0, 0, 0, 0, 0}}>
        {{
            fast = Equal (rate, one)
            Y = If (fast) <then_branch = yes () => (float[T, 1, B, 8] y) {{ {inner} }},
                           else_branch = no () => (float[T, 1, B, 8] z) {{ z = Identity (zero) }}>
        }}
    """)
    assert "input 'rate' decides it" in message
    assert "the sizes of input 'h' decide it" in message


def test_a_loop_without_a_name_is_told_by_its_number() -> None:
    model = parsed("""
        main (float[T, 4] X, float[1, 8] h) => (float[1, 8] last)
        {
            last = Scan <num_scan_inputs = 1, body = step (float[1, 8] a, float[4] x) => (float[1, 8] b)
                { b = Identity (a) }> (h, X)
        }
    """)
    body = model.graph[0].attributes["body"].as_graph()
    body.insert_before(body[0], ir.node("GRU", [body.inputs[1]], name="gru"))
    model.graph[0].name = ""
    with pytest.raises(
        UnsupportedModelError,
        match=r"Scan node 'Scan_0' holds the recurrent nodes.*time_axes=.*control_flow=.unroll",
    ):
        StreamPass()(model)


def test_an_opset_that_shapes_are_not_inferred_for_has_a_remedy() -> None:
    text = """
        main (float[T, 1, 4] X) => (float[T, 1, 1, 8] Y) <float[1] one = {1}>
        { x = BatchNormalization <is_test = 1> (X, one, one, one, one) Y = GRU <hidden_size = 8> (x, W, R) }
    """
    model = parsed(text)
    model.opset_imports[""] = 3
    with pytest.raises(UnsupportedModelError, match="convert the model to opset 7 or higher first"):
        StreamPass(time_axes={"X": 0})(model)


def test_a_sequence_without_steps_is_refused() -> None:
    model = parsed("main (float[0, 1, 4] X) => (float[0, 1, 1, 8] Y) { Y = GRU <hidden_size = 8> (X, W, R) }")
    with pytest.raises(OptionError, match="the model has 0 time steps"):
        StreamPass(time_axes={"X": 0})(model)


def test_a_model_without_a_recurrent_node_is_refused() -> None:
    message = refusal("main (float[T, 4] X) => (float[T, 4] Y) { Y = Relu (X) }")
    assert "the model has no recurrent node" in message
    assert 'time_axes={"INPUT": AXIS}' in message


def test_lengths_that_an_input_holds_name_it() -> None:
    text = "main (float[6, 1, 4] X, int32[1] n) => (float[6, 1, 1, 8] Y)"
    message = refusal(f"{text} {{ Y = GRU <hidden_size = 8> (X, W, R, , n) }}")
    assert 'sets={"n": VALUE}' in message


def test_the_chunk_must_fit_the_model() -> None:
    text = "main (float[6, 1, 4] X) => (float[6, 1, 1, 8] Y) { Y = GRU <hidden_size = 8> (X, W, R) }"
    assert "longer than the model's 6 time steps" in refusal(text, 7)
    assert "at least 1" in refusal(text, 0)
    strided = """
        main (float[1, 4, T] X) => (float[S, 1, 1, 8] Y)
        {
            half = Conv <pads = [2, 0], strides = [2]> (X, kernel)
            steps = Transpose <perm = [2, 0, 1]> (half)
            Y = GRU <hidden_size = 8> (steps, W, R)
        }
    """
    assert "must be a multiple of 2 steps" in refusal(strided, 3)
    assert metadata_entry(stream(strided, 4), "stream")["outputs"] == {"Y": 0}


ANY = """
    main (float[1, T, 4] X) => (float[T, 1, 1, 8] Y, float[T, 1, 4] S)
    <int64 time = {0}>
    {
        channels = Transpose <perm = [0, 2, 1]> (X)
        smooth = Conv <pads = [4, 0], dilations = [2]> (channels, kernel)
        steps = Transpose <perm = [2, 0, 1]> (smooth)
        S = CumSum <exclusive = 1> (steps, time)
        Y = GRU <hidden_size = 8> (steps, W, R)
    }
"""


def test_a_chunk_of_any_length() -> None:
    """Cut at every step, nowhere, and anywhere: a state that depends on the length of a chunk would show."""
    proto = stream(ANY, chunk=None)
    assert shapes(proto.graph.input) == {
        "X": [1, "T", 4],
        "channels_cache_in": [1, 4, 4],
        "S_sum_in": [1, 1, 4],
        "gru4_h_in": [1, 1, 8],
    }
    assert metadata_entry(proto, "stream")["chunk"] is None


def test_a_result_that_is_right_for_one_chunk_length_only_is_noticed() -> None:
    own = parsed(ANY)
    source = ir.to_proto(own)
    StreamPass(None)(own)
    wrong = ir.to_proto(own)
    cache = next(node for node in wrong.graph.node if node.op_type == "Slice" and "cache" in node.output[0])
    # The last frames of the chunk alone: enough for long chunks, too few for short ones.
    cache.input[0] = "channels"
    assert not verify(source, wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "main (float[6, 1, 4] X) => (float[6, 1, 1, 8] Y) { Y = GRU <hidden_size = 8> (X, W, R) }",
            "6 time",
        ),
        (
            """main (float[1, 4, T] X) => (float[S, 1, 1, 8] Y) {
                half = Conv <pads = [2, 0], strides = [2]> (X, kernel)
                steps = Transpose <perm = [2, 0, 1]> (half)
                Y = GRU <hidden_size = 8> (steps, W, R)
            }""",
            "must be a multiple of 2 steps",
        ),
    ],
    ids=["static", "strided"],
)
def test_a_dynamic_chunk_is_refused_for_static_or_strided_inputs(text: str, words: str) -> None:
    assert words in refusal(text, chunk=None)


def test_a_verification_of_one_call_notes_that_states_were_not_tested() -> None:
    own = parsed("main (float[1, 1, 4] X) => (float[1, 1, 1, 8] Y) { Y = GRU <hidden_size = 8> (X, W, R) }")
    source = ir.to_proto(own)
    StreamPass(1, {"X": 0})(own)
    result = verify(source, ir.to_proto(own))
    assert result
    assert any("carrying states between calls was not tested" in note for note in result.skipped)


def test_the_same_input_gives_the_same_bytes() -> None:
    text = "main (float[T, 1, 4] X) => (float[T, 1, 1, 8] Y) { Y = GRU <hidden_size = 8> (X, W, R) }"
    assert stream(text).SerializeToString() == stream(text).SerializeToString()
