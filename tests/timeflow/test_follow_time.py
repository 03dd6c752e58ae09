"""The analysis of time: where each value has it, and how many frames a sequence has there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import rnnlower
from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.passes.streaming import StreamPass
from rnnlower.timeflow import axes
from rnnlower.timeflow.axes import follow, make_samples
from rnnlower.timeflow.flow import Flow
from rnnlower.timeflow.tracks import Sample

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
WIDE = (
    "<float[4, 3, 3] K = {"
    + ", ".join(["0.5"] * 36)
    + "}, int64[1] one = {1}, int64[1] end = {9223372036854775807}, "
)
PLACES = "int64[1] last = {2}, int64[6] pads = {0, 0, 3, 0, 0, 1}>"
NODES = """
    c = Conv <kernel_shape = [3], strides = [2], pads = [2, 1]> (X, K)
    s = Slice (c, one, end, last)
    p = Pad (s, pads)
    m = MaxPool <kernel_shape = [2], strides = [3], ceil_mode = 1> (p)
    t = Transpose <perm = [0, 2, 1]> (m)
    r = Relu (t)
"""


def parsed(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEADER + text))


def follow_time(model: ir.Model, axes: dict[str, int]) -> Flow:
    return follow(model, next(make_samples(model, axes, None, 480)))


@pytest.mark.parametrize("steps", range(7, 20))
def test_frames_are_a_function_of_the_length(steps: int) -> None:
    outputs = ", ".join(f"float[1, a{name}, b{name}] {name}" for name in "cspmtr")
    model = parsed(f"main (float[1, 3, T] X) => ({outputs}) {WIDE}{PLACES} {{ {NODES} }}")
    flow = follow_time(model, {"X": 2})
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    found = session.run(None, {"X": np.zeros((1, 3, steps), np.float32)})
    for value, array in zip(model.graph.outputs, found, strict=True):
        track = flow.tracks[value]
        assert track.frames_of(steps) == array.shape[track.axis], value.name
    assert [flow.tracks[value].axis for value in model.graph.outputs] == [2, 2, 2, 2, 1, 1]
    assert flow.obstacles == []


def test_another_axis_may_be_empty() -> None:
    """A short example of a recording has no frame."""
    model = parsed("""
        main (float[B, 1, T] X) => (float[N, B, 2, 2] Y) <int64[4] split = {0, 0, 2, 2}> {
            w = Constant <value_floats = [1.0]> ()  size = Constant <value_ints = [4, 1, 200]> ()
            K = Expand (w, size)  frames = Conv (X, K)  steps = Transpose <perm = [2, 0, 1]> (frames)
            Y = Reshape (steps, split)
        }""")
    flow = follow(model, Sample({"X": 0}, 480, 1, {"T": 199, "": 1}))
    assert flow.obstacles == []
    assert flow.tracks[model.graph.outputs[0]].axis == 1


@pytest.mark.parametrize(
    ("equation", "axis"), [("bti, iz", 1), ("bti,ia", 2), ("zti,ij->tzj", 0), ("...i,ij->...j", 1)]
)
def test_an_einsum_puts_time_where_its_result_has_the_index(equation: str, axis: int) -> None:
    model = parsed(f"""
        main (float[1, T, 3] X, float[3, 4] W) => (float[a, b, c] Y)
        {{ Y = Einsum <equation = "{equation}"> (X, W) }}
    """)
    flow = follow_time(model, {"X": 1})
    assert flow.obstacles == []
    assert flow.tracks[model.graph.outputs[0]].axis == axis
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    feeds = {"X": np.zeros((1, 7, 3), np.float32), "W": np.zeros((3, 4), np.float32)}
    assert session.run(None, feeds)[0].shape[axis] == 7


@pytest.mark.parametrize(
    ("equation", "reason"), [("bti,btj", "sums over time"), ("...i,...j->ij", "which is not supported")]
)
def test_an_einsum_over_time_or_that_loses_an_ellipsis_is_named(equation: str, reason: str) -> None:
    model = parsed(f"""
        main (float[1, T, 3] X) => (float[a, b] Y) {{ Y = Einsum <equation = "{equation}"> (X, X) }}
    """)
    (error,) = follow_time(model, {"X": 1}).obstacles
    assert reason in str(error)


@pytest.mark.parametrize(("axis", "reason"), [(0, "reverses time"), (1, "reverses another axis than time")])
def test_a_reversed_sequence_is_named(axis: int, reason: str) -> None:
    model = parsed(f"""
        main (float[T, T, 3] X, int64[T] n) => (float[T, T, 3] Y)
        {{ Y = ReverseSequence <time_axis = {axis}, batch_axis = {1 - axis}> (X, n) }}
    """)
    (error,) = follow_time(model, {"X": 0}).obstacles
    assert reason in str(error)


def test_a_node_that_couples_steps_is_an_obstacle_and_the_rest_is_followed() -> None:
    model = parsed("""
        main (float[T, 4] X) => (float[T, 4] Y, float[T, 4] Z)
        { s = Softmax <axis = 0> (X) Y = Relu (s) Z = Tanh (X) }
    """)
    flow = follow_time(model, {"X": 0})
    assert [error.node.op_type for error in flow.obstacles if error.node is not None] == ["Softmax"]
    assert [value.name for value in flow.tracks] == ["X", "Z"]


def test_a_length_in_a_shape_is_known_for_the_sequence_and_for_a_chunk() -> None:
    model = parsed("""
        main (float[T, 4] X) => (float[a, b] Y) <int64[1] two = {2}>
        { s = Shape <end = 1> (X) d = Mul (s, two) n = Concat <axis = 0> (d, two) Y = Reshape (X, n) }
    """)
    flow = follow_time(model, {"X": 0})
    sizes = model.graph.node(2).outputs[0]
    whole, chunk = flow.content(sizes), flow.chunk_content(sizes)
    assert whole is not None
    assert chunk is not None
    assert whole.tolist() == [2 * flow.sample.steps, 2]
    assert chunk.tolist() == [2 * flow.sample.chunk, 2]


def test_a_last_window_that_ceil_mode_adds_is_not_lost() -> None:
    """A stream never reaches the end, so it cannot give the frame of a window that is cut off there."""
    model = parsed("""
        main (float[1, 3, T] X) => (float[1, 3, n] Y)
        { Y = MaxPool <kernel_shape = [3], strides = [2], pads = [1, 1], ceil_mode = 1> (X) }
    """)
    with pytest.raises(UnsupportedModelError, match="1 frame more than the input"):
        StreamPass(2, {"X": 2})(model)
    streaming = StreamPass(2, {"X": 2}, allow_delay=True)
    streaming(model)
    assert streaming.analysis is not None
    assert streaming.analysis.unreached == {"Y": 1}


def test_a_size_below_zero_in_the_sample_is_refused() -> None:
    """The example size of F is below the kernel's, and onnx's inference of Slice would abort the process."""
    kernel = f"float[1, 1, 1, 200] K = {{{', '.join(['1'] * 200)}}}"
    model = parsed(f"""
        main (float[1, 1, T, F] X) => (float[1, 1, T, G] Y)
        <{kernel}, int64[1] start = {{0}}, int64[1] end = {{3}}, int64[1] axis = {{3}}>
        {{ c = Conv <kernel_shape = [1, 200]> (X, K) Y = Slice (c, start, end, axis) }}
    """)
    with pytest.raises(UnsupportedModelError, match="fix dynamic dimensions other than time"):
        StreamPass(2, {"X": 2})(model)


def test_an_unnamed_node_in_the_way_is_named() -> None:
    model = onnx.parser.parse_model(
        HEADER
        + """main (float[T, 1, 3] X, float[1, 4, 3] W, float[1, 4, 4] R) => (float[T, 1, 1, 4] Y)
        {
            x = Einstein (X)
            Y = RNN <hidden_size = 4> (x, W, R)
        }"""
    )
    with pytest.raises(UnsupportedModelError, match="ends where Einstein node 'Einstein_0' may couple"):
        rnnlower.stream(model)


def test_an_unnamed_recurrent_node_in_the_way_has_the_name_that_inspect_shows() -> None:
    model = onnx.parser.parse_model(
        HEADER
        + """main (float[T, 1, 3] X, float[1, 16, 3] V, float[1, 16, 4] U,
            float[2, 12, 4] W, float[2, 12, 4] R) => (float[T, 2, 1, 4] Y)
        {
            axis = Constant <value_ints = [1]> ()
            all = LSTM <hidden_size = 4> (X, V, U)
            x = Squeeze (all, axis)
            Y = GRU <hidden_size = 4, direction = "bidirectional"> (x, W, R)
        }"""
    )
    lstm, gru = (node.name for node in rnnlower.inspect(model))
    assert (lstm, gru) == ("LSTM_0", "GRU_1")
    with pytest.raises(UnsupportedModelError, match=f"GRU node '{gru}': ") as raised:
        rnnlower.stream(model)
    assert raised.value.node == gru


@pytest.mark.parametrize(
    ("direction", "count", "problem"),
    [("bidirectional", 2, "is bidirectional"), ("reverse", 1, "is reverse"), ("forward", 1, "dequantize=")],
)
def test_a_quantized_recurrence_is_told_to_be_a_float_one_only_where_that_helps(
    direction: str, count: int, problem: str
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[T, 1, 3] X, int8[{count}, 3, 8] W, int8[{count}, 2, 8] R, float[{count}] s,
              int8[{count}] z) => (float[T, {count}, 1, 2] Y)
        {{
            Y = com.microsoft.DynamicQuantizeLSTM <direction = "{direction}", hidden_size = 2>
                (X, W, R, , , , , , s, z, s, z)
        }}"""
    )
    with pytest.raises(UnsupportedModelError, match=problem):
        rnnlower.stream(model)


def test_no_axis_is_followed_where_no_node_is_recurrent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds in a model of written-out steps, and cannot find anything."""
    monkeypatch.setattr(axes, "follow", None)
    model = parsed("main (float[N, T, 4] X) => (float[N, T, 4] Y) { Y = Relu (X) }")
    with pytest.raises(OptionError, match="the model has no recurrent node that determines it"):
        StreamPass()(model)
