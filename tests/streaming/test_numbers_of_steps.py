"""Parameters that follow from the number of time steps: a chunk has another number than the sequence."""

from __future__ import annotations

import pytest
from support.streamed import model, stream

import rnnlower

GRU = {"W": (1, 6, 4), "R": (1, 6, 2)}
COUNT = """
    sizes = Shape <end = 1> (X)
    three = Constant <value_ints = [3]> ()
    step = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [2]> ()
    rest = Mod (sizes, three)
    after = Add (rest, step)
    number = Cast <to = 1> (sizes)
    factor = Mul (ones, number)
    square = Mul (eye, number)
"""


@pytest.mark.parametrize(
    "body",
    [
        "Y = MatMul (X, square)",
        'Y = Einsum <equation = "tnc, cd -> tnd"> (X, square)',
        "flat = Squeeze (X, step) product = Gemm (flat, square) Y = Unsqueeze (product, step)",
        "Y = LayerNormalization (X, factor)",
        "part = Gather <axis = 2> (X, rest) Y = Add (X, part)",
        "part = Slice (X, rest, after, last) Y = Add (X, part)",
        "all = Concat <axis = 0> (sizes, sizes, step) more = Expand (X, all) Y = ReduceSum (more, step)",
        "zeros = Constant <value_ints = [0, 0, 0, 0, 0]> () pads = Concat <axis = 0> (zeros, sizes)"
        " more = Pad (X, pads) mean = ReduceMean <axes = [2]> (more) Y = Add (X, mean)",
        "four = Sub (three, rest) all = Concat <axis = 0> (rest, four, step)"
        " a, b, c = Split <axis = 2> (X, all) sum = ReduceSum (b, last) Y = Add (X, sum)",
        "axis = Min (rest, last) sum = ReduceSum (X, axis) Y = Add (X, sum)",
        "sorted, places = TopK (X, after) best = ReduceMax <axes = [2]> (sorted) Y = Add (X, best)",
        "indices = Cast <to = 7> (X) size = Gather (sizes, indices)"
        " float = Cast <to = 1> (size) Y = Add (X, float)",
    ],
)
def test_a_parameter_that_follows_from_the_number_of_steps_is_refused(body: str) -> None:
    source = model(f"(float[n, 1, 4] X) => (float[n, 1, 4] Y) {{ {COUNT} {body} }}", ones=(4,), eye=(4, 4))
    with pytest.raises(rnnlower.UnsupportedModelError):
        rnnlower.stream(source, chunk=2, time_axes={"X": 0})


@pytest.mark.parametrize("end", ["half", "most"])
def test_a_part_that_grows_with_the_sequence_ends_a_number_of_steps_before_it(end: str) -> None:
    text = (
        "(float[n, 1, 4] X) => (float[m, 1, 1, 2] Y) <int64[1] zero = {0}, int64[1] two = {2}> { "
        "n = Shape <end = 1> (X) half = Div (n, two) most = Sub (n, two) "
        f"y = GRU <hidden_size = 2> (X, W, R) Y = Slice (y, zero, {end}, zero) }}"
    )
    source = model(text, **GRU)
    if end == "most":
        stream(source, {"X": 0}, chunk=4)
        return
    with pytest.raises(rnnlower.UnsupportedModelError, match="not by as many steps"):
        rnnlower.stream(source, chunk=4, time_axes={"X": 0})


@pytest.mark.parametrize("layer", ["Conv <pads = [2, 2]>", "ConvTranspose", "ConvTranspose <strides = [2]>"])
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("steps", ["n", "12"])
def test_what_a_convolution_adds_at_the_end_is_cut_to_the_length(layer: str, chunk: int, steps: str) -> None:
    source = model(
        f"(float[1, 3, {steps}] X) => (float[1, 3, m] Y) <int64[1] two = {{2}}, int64[1] zero = {{0}}> {{ "
        f"n = Shape <start = 2> (X) twice = Add (n, n) y = {layer} (X, K) "
        f"Y = Slice (y, zero, {'twice' if 'strides' in layer else 'n'}, two) }}",
        K=(3, 3, 3),
    )
    stream(source, {"X": 2}, chunk=chunk)


def test_a_scan_that_reads_a_final_state_in_its_body_is_refused() -> None:
    source = model(
        """(float[n, 1, 4] X) => (float[n, 1, 4] Y) {
            y, h = GRU <hidden_size = 2> (X, W, R)
            sum = ReduceSum <keepdims = 0> (h)
            s, Y = Scan <num_scan_inputs = 1, body = each (float[1, 4] s, float[1, 4] x)
                => (float[1, 4] t, float[1, 4] z) { t = Add (s, x) z = Mul (t, sum) }> (zero, X)
        }""",
        W=(1, 6, 4),
        R=(1, 6, 2),
        zero=(1, 4),
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="combines every step with the last one"):
        rnnlower.stream(source)


def test_a_resize_that_names_the_axis_of_its_size_keeps_the_steps() -> None:
    source = model(
        """(float[1, 2, n] X) => (float[1, 2, n] Y) {
            size = Shape <start = 2> (X)
            Y = Resize <mode = "linear", axes = [2]> (X, , , size)
        }""",
        opset=18,
    )
    stream(source, {"X": 2})


@pytest.mark.parametrize("divisor", [2, 10, 13])
@pytest.mark.parametrize("chunk", [1, None])
def test_a_number_that_some_lengths_share_is_not_taken_for_a_constant(
    divisor: int, chunk: int | None
) -> None:
    source = model(
        f"""(float[n, 4] X) => (float[n, 4] Y) {{
            sizes = Shape <end = 1> (X)
            divisor = Constant <value_int = {divisor}> ()
            rest = Mod (sizes, divisor)
            number = Cast <to = 1> (rest)
            Y = Mul (X, number)
        }}"""
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="the number of time steps"):
        rnnlower.stream(source, chunk=chunk, time_axes={"X": 0})


@pytest.mark.parametrize(
    "body",
    [
        "place = Constant <value_int = 130> () Y = Gather (X, place)",
        "start = Constant <value_ints = [130]> () end = Constant <value_ints = [1000000]> ()"
        " Y = Slice (X, start, end)",
        "Y = GRU <hidden_size = 2> (X, W, R, , lengths)",
    ],
)
def test_a_place_where_only_the_example_ends_is_not_the_last_step(body: str) -> None:
    source = model(f"(float[n, 1, 4] X) => (float[k] Y) <int32[1] lengths = {{131}}> {{ {body} }}", **GRU)
    del source.graph.output[0].type.tensor_type.shape.dim[:]
    source.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(rnnlower.UnsupportedModelError):
        rnnlower.stream(source, time_axes={"X": 0})


def test_a_slice_that_ends_at_a_step_limits_the_stream() -> None:
    source = model(
        """(float[n, 1, 4] X) => (float[k, 1, 4] Y) {
            start = Constant <value_ints = [0]> ()
            end = Constant <value_ints = [200]> ()
            Y = Slice (X, start, end)
        }"""
    )
    assert stream(source, {"X": 0})["limit"] == 200


@pytest.mark.parametrize("scale", [1.005, 2.005])
def test_a_scale_that_repeats_steps_in_the_example_alone_is_refused(scale: float) -> None:
    how = 'mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"'
    source = model(
        f"""(float[1, 2, n] X) => (float[1, 2, k] Y) <float[3] scales = {{1, 1, {scale}}}> {{
            Y = Resize <{how}> (X, , scales)
        }}"""
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="interpolates between frames"):
        rnnlower.stream(source, time_axes={"X": 2})


ROWS_OF_A_BATCH = """(float[1, 1, T] X) => (float[2, L, 1] Z)
    <float[2, 1, 3] k = {1, -1, 0.5, 2, 1, -0.5},
     float[1, 1, 1] w = {0.5}, float[1, 1, 1] r = {-1}, int64[1] one = {1}, float[1] zero = {0}> {
        c = Conv (X, k)
        t = Transpose <perm = [1, 2, 0]> (c)
        n = Shape <start = 1, end = 2> (t)
        s = Concat <axis = 0> (one, n, one)
        h = START
        Y = RNN <hidden_size = 1> (t, w, r, , , h)
        Z = Squeeze (Y, one)
    }"""
"""As PyTorch writes a layer over frequency: zeros for each frame, and T - 2 frames."""


@pytest.mark.parametrize(
    "zeros", ["ConstantOfShape (s)", "ConstantOfShape <value = float[1] {0}> (s)", "Expand (zero, s)"]
)
def test_initial_states_of_zeros_of_any_size_are_left_out(zeros: str) -> None:
    stream(model(ROWS_OF_A_BATCH.replace("START", zeros)), {"X": 2}, chunk=4, allow_delay=True)


def test_an_initial_state_of_ones_of_another_size_than_the_steps_is_refused() -> None:
    source = model(ROWS_OF_A_BATCH.replace("START", "ConstantOfShape <value = float[1] {1}> (s)"))
    with pytest.raises(rnnlower.UnsupportedModelError, match="takes its shape from the number of time steps"):
        rnnlower.stream(source, time_axes={"X": 2}, chunk=4, allow_delay=True)


STEP_OF_A_SEQUENCE = """(float[T, B, 2] X) => (float[T, B, 2] Y, float[B, 2] Z)
    <int64 place = {PLACE}, float[2, 2] w = {1, 2, -1, 0.5}> {
        step = Gather <axis = 0> (X, place)
        s = Shape (step)
        h = ConstantOfShape <value = float[1] {0.5}> (s)
        Y = Add (X, h)
        Z = MatMul (READ, w)
    }"""


@pytest.mark.parametrize("place", [0, 5])
def test_a_step_that_is_read_for_its_shape_alone(place: int) -> None:
    """As TorchScript writes `torch.zeros_like(x[0])`."""
    text = STEP_OF_A_SEQUENCE.replace("PLACE", str(place)).replace("READ", "h")
    stream(model(text), {"X": 0}, chunk=2)


def test_a_step_whose_values_are_read_is_refused() -> None:
    text = STEP_OF_A_SEQUENCE.replace("PLACE", "0").replace("READ", "step")
    with pytest.raises(rnnlower.UnsupportedModelError, match="picks a step of the sequence"):
        rnnlower.stream(model(text), time_axes={"X": 0}, chunk=2)


def test_values_over_different_axes_name_the_inputs_that_may_be_the_stream() -> None:
    """As the joint network of a transducer adds every frame and every token."""
    source = model("""(float[1, T, 2] X, float[1, U, 2] tokens) => (float[1, T, U, 2] Y)
        <int64[1] two = {2}, int64[1] one = {1}> {
            x = Unsqueeze (X, two)
            u = Unsqueeze (tokens, one)
            Y = Add (x, u)
        }""")
    with pytest.raises(rnnlower.UnsupportedModelError, match="different axes") as caught:
        rnnlower.stream(source, time_axes={"X": 1, "tokens": 1})
    assert 'time_axes={"X": 1} or time_axes={"tokens": 1}' in str(caught.value)
    stream(source, {"X": 1})
