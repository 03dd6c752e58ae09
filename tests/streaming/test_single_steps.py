"""Step models: the outputs that are states of inputs are found, reported and verified."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save
from support.judge import run
from support.streamed import model, streamed_and_metadata

import rnnlower

GRU = """(float[1, 6] x, float[1, 1, 6] h{more}) => (float[1, 6] y, float[1, 1, 6] {out}) {{
    axis = Constant <value_ints = [0]> ()
    one = Unsqueeze (x, axis)
    all, last = GRU <hidden_size = 6> (one, W, R, , , h)
    {out} = Identity (last)
    y = Squeeze (all, both)
}}"""
CACHE = """(float[1, 4, 1] x, float[1, 4, 2] past) => (float[1, 4, 1] y, float[1, 4, 2] recent) {
    all = Concat <axis = 2> (past, x)
    y = Conv (all, K)
    start = Constant <value_ints = [1]> ()
    end = Constant <value_ints = [3]> ()
    axis = Constant <value_ints = [2]> ()
    recent = Slice (all, start, end, axis)
}"""


def gru(out: str = "h_next", more: str = "") -> onnx.ModelProto:
    source = model(GRU.format(out=out, more=more), W=(1, 18, 6), R=(1, 18, 6))
    source.graph.initializer.append(onnx.helper.make_tensor("both", onnx.TensorProto.INT64, [2], [0, 1]))
    return source


def states_of(streamed: onnx.ModelProto) -> dict[str, str]:
    (entry,) = (each.value for each in streamed.metadata_props if each.key == "rnnlower.state")
    return json.loads(entry)


def test_the_state_of_a_recurrent_node_is_found() -> None:
    streamed = rnnlower.stream(gru("unrelated_name"))
    assert states_of(streamed) == {"unrelated_name": "h"}
    result = rnnlower.verify(gru("unrelated_name"), streamed)
    assert result
    assert result.trials == 60
    assert result.states == {"unrelated_name": "h"}


def test_inputs_with_a_default_are_weights_or_states() -> None:
    source = gru("unrelated_name", ", float[1, 18, 6] W")
    start = onnx.helper.make_tensor("h", onnx.TensorProto.FLOAT, [1, 1, 6], [0.5] * 6)
    source.graph.initializer.append(start)
    streamed = rnnlower.stream(source)
    assert states_of(streamed) == {"unrelated_name": "h"}
    assert rnnlower.verify(source, streamed)


def test_lowered_as_well_over_many_calls() -> None:
    streamed = rnnlower.stream(gru(), strategy="unroll")
    assert "GRU" not in {node.op_type for node in streamed.graph.node}
    assert rnnlower.verify(gru(), streamed)


def test_a_time_axis_of_one_step_is_verified_over_many_calls() -> None:
    source = model(
        "(float[1, 1, 4] x, float[1, 1, 8] h) => (float[1, 1, 1, 8] y, float[1, 1, 8] n) "
        "{ y, n = RNN <hidden_size = 8> (x, W, R, , , h) }",
        W=(1, 8, 4),
        R=(1, 8, 8),
    )
    result = rnnlower.verify(source, rnnlower.stream(source))
    assert result
    assert (result.trials, result.states, result.skipped) == (60, {"n": "h"}, ())


@pytest.mark.parametrize("error", [0.0, 1e-3])
def test_a_state_that_amplifies_rounding_from_call_to_call(error: float) -> None:
    source, other = (
        model(
            "(float[1, 4] x, float[1, 1, 32] h) => (float[1, 1, 32] n) <int64[1] axis = {0}> "
            "{ one = Unsqueeze (x, axis) y, n = RNN <hidden_size = 32> (one, W, R, , , h) }",
            W=(1, 32, 4),
        )
        for _ in range(2)
    )
    weights = np.random.default_rng(0).normal(size=(1, 32, 32)).astype(np.float32)
    source.graph.initializer.append(numpy_helper.from_array(weights, "R"))
    weights[0, 13, 2] += error
    other.graph.initializer.append(numpy_helper.from_array(weights, "R"))
    assert bool(rnnlower.verify(source, rnnlower.stream(other, strategy="unroll"))) == (error == 0)


def test_a_state_that_decays_too_fast_is_noticed() -> None:
    """A fault in the state alone grows from call to call."""
    streamed = rnnlower.stream(gru())
    names = [node.output[0] for node in streamed.graph.node if node.op_type == "Identity"]
    assert names
    (node,) = (each for each in streamed.graph.node if each.op_type == "Identity")
    node.op_type = "Mul"
    node.input.append("almost")
    streamed.graph.initializer.append(onnx.helper.make_tensor("almost", onnx.TensorProto.FLOAT, [1], [0.999]))
    assert not rnnlower.verify(gru(), streamed)


def test_a_cache_needs_its_state_named() -> None:
    source = model(CACHE, K=(4, 4, 3))
    with pytest.raises(
        rnnlower.RnnLowerError, match=r"which axis is time is not clear.*one step per call.*states="
    ):
        rnnlower.stream(source)
    assert states_of(rnnlower.stream(source, states={"recent": "past"})) == {"recent": "past"}


def test_the_command_reports_the_states(tmp_path: Path) -> None:
    path, out = save(gru(), tmp_path), tmp_path / "step.onnx"
    said = command("stream", path, "-o", out)
    assert "h_next feeds h" in said.stderr
    assert "h_next to h" in said.stdout
    timed = command("bench", out, "--runs", 2).stdout
    assert "a time step of the stream's inputs" in timed


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        ({"y": "h"}, "differ in type or shape"),
        ({"z": "h"}, "no such output"),
        ({"h_next": "g"}, "no such output, or no such input"),
    ],
)
def test_invalid_states_are_refused(states: dict[str, str], problem: str) -> None:
    with pytest.raises(rnnlower.OptionError, match=problem):
        rnnlower.stream(gru(), states=states)


def test_a_state_without_an_output_is_refused() -> None:
    source = gru()
    del source.graph.output[1]
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"initial_h from input 'h'.*state"):
        rnnlower.stream(source)


def test_more_than_one_step_a_call_is_refused() -> None:
    with pytest.raises(rnnlower.OptionError, match="one step per call, and the chunk is 4"):
        rnnlower.stream(gru(), chunk=4)


MOVED = """(float[{batch}, {steps}, 6] x) => (float[{batch}, {steps}, 6] y, float[{batch}, 6] last) {{
    time_first = {move}
    all, end = GRU <hidden_size = 6> (time_first, W, R)
    axis = Constant <value_ints = [1]> ()
    squeezed = Squeeze (all, axis)
    y = {back}
    kept = Slice (squeezed, minus_one, most, zero)
    last = Squeeze (kept, zero)
}}"""
BOUNDS = {"minus_one": -1, "most": 2**31 - 1, "zero": 0}


def moved(batch: int, steps: int, move: str, back: str) -> onnx.ModelProto:
    source = model(MOVED.format(batch=batch, steps=steps, move=move, back=back), W=(1, 18, 6), R=(1, 18, 6))
    for name, value in [*BOUNDS.items(), ("there", [1, batch, 6]), ("back", [batch, 1, 6])]:
        source.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64, ndmin=1), name))
    return source


@pytest.mark.parametrize("batch", [1, 3])
def test_a_reshape_that_moves_the_only_step_and_the_last_of_one(batch: int) -> None:
    """A Transpose that moves an axis of size 1 may be exported as a Reshape; Keras takes the last step."""
    whole = moved(batch, 5, *("Transpose <perm = [1, 0, 2]> (" + value for value in ("x)", "squeezed)")))
    step = moved(batch, 1, "Reshape (x, there)", "Reshape (squeezed, back)")
    streamed, said = streamed_and_metadata(step, {"x": 1})
    assert batch == 1 or said["outputs"] == {"y": 1}
    ((output, name),) = states_of(streamed).items()
    x = np.random.default_rng(0).standard_normal((batch, 5, 6)).astype(np.float32)
    expected, state = run(whole, {"x": x}), np.zeros((1, batch, 6), np.float32)
    for index in range(5):
        outputs = run(streamed, {"x": x[:, index : index + 1], name: state})
        state = outputs[output]
        np.testing.assert_allclose(outputs["y"], expected["y"][:, index : index + 1], atol=1e-5)
    np.testing.assert_allclose(outputs["last"], expected["last"], atol=1e-5)


def test_the_moved_axis_of_one_step_is_found() -> None:
    rnnlower.stream(moved(3, 1, "Reshape (x, there)", "Reshape (squeezed, back)"))


@pytest.mark.parametrize("axes", [None, {"x": 0}])
def test_a_reshape_of_one_step_to_rows_keeps_the_step_in_the_rows(axes: dict[str, int] | None) -> None:
    """A convolution over features takes each row of the step as a signal of one channel."""
    source = model(
        """(float[1, 2, 6] x) => (float[1, 1, 2, 3] y) {
            signals = Reshape (x, there)
            filtered = Conv <pads = [1, 1]> (signals, K)
            rows = Reshape (filtered, back)
            y, end = GRU <hidden_size = 3> (rows, W, R)
        }""",
        K=(4, 1, 3),
        W=(1, 9, 24),
        R=(1, 9, 3),
    )
    for name, value in (("there", [2, 1, 6]), ("back", [1, 2, 24])):
        source.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    streamed = rnnlower.stream(source, time_axes=axes)
    assert len(states_of(streamed)) == 1
    assert rnnlower.verify(source, streamed)


def test_an_axis_that_nothing_determines_is_asked_for() -> None:
    with pytest.raises(rnnlower.OptionError, match=r"may be x:0 or x:1; name it \(time_axes="):
        rnnlower.stream(moved(1, 1, "Reshape (x, there)", "Reshape (squeezed, back)"))
