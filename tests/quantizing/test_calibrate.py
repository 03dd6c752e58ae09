"""`calibrate`: what a model reads in each call, with states carried, and ranges by role."""

from __future__ import annotations

import importlib.util
import json
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from long_memory import LongMemory, recordings
from onnxruntime import InferenceSession
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save

import rnnlower
from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.quantizing.observing import Range, Role


@pytest.mark.parametrize("chunk", [1, 4])
def test_states_are_those_of_a_real_run(chunk: int) -> None:
    step = rnnlower.stream(LongMemory("LSTM", 8).build(), chunk=chunk)
    data = recordings(2, 20)
    calls = rnnlower.calibrate(step, {"X": data}).calls
    session = InferenceSession(step.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    assert len(calls) == 2 * 20 // chunk
    for sequence, first in zip(data, (0, 20 // chunk), strict=True):
        states = {f"first_{letter}_in": np.zeros((1, 1, 8), np.float32) for letter in "hc"}
        for number in range(20 // chunk):
            feeds = {"X": sequence[number * chunk : (number + 1) * chunk], **states}
            for name, array in feeds.items():
                np.testing.assert_allclose(calls[first + number][name], array, atol=1e-4)
            outputs = dict(zip(names, session.run(None, feeds), strict=True))
            states = {f"first_{letter}_in": outputs[f"first_{letter}_out"] for letter in "hc"}


def test_an_archive_holds_the_calls_and_can_be_read_again(tmp_path: Path) -> None:
    step = save(rnnlower.stream(LongMemory("GRU", 8).build()), tmp_path)
    np.savez(tmp_path / "a.npz", X=recordings(2, 10))
    np.savez(tmp_path / "b.npz", X=recordings(1, 10)[0])
    out = tmp_path / "calls.npz"
    done = command("calibrate", step, tmp_path / "a.npz", tmp_path / "b.npz", "-o", out, "--json")
    assert (done.json["calls"], done.json["sequences"]) == (30, 3)
    with np.load(out) as file:
        assert {name: file[name].shape for name in file.files} == {
            "X": (30, 1, 1, 16),
            "first_h_in": (30, 1, 1, 8),
        }
    again = rnnlower.calibrate(step, out)
    assert len(again.calls) == again.sequences == 30


@pytest.mark.parametrize("format_", ["rknn", "qnn", "python"])
def test_recordings_are_written_in_formats_of_other_tools(format_: str, tmp_path: Path) -> None:
    source = save(LongMemory("GRU", 8).build(), tmp_path)
    first, second = recordings(2, 10)
    np.savez(tmp_path / "a.npz", X=first)
    np.savez(tmp_path / "b.npz", X=second[:7])
    out = tmp_path / ("reader.py" if format_ == "python" else "data")
    command("calibrate", source, tmp_path / "a.npz", tmp_path / "b.npz", "-o", out, "--format", format_)
    read = []
    if format_ == "rknn":
        read = [np.load(out / line) for line in (out / "dataset.txt").read_text().splitlines()]
    elif format_ == "qnn":
        for line in (out / "input_list.txt").read_text().splitlines():
            name, file = line.split(":=")
            assert name == "X"
            read.append(np.fromfile(out / file, np.float32).reshape(-1, 1, 16))
    else:
        spec = importlib.util.spec_from_file_location("reader", out)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        reader = module.Reader()
        while (feeds := reader.get_next()) is not None:
            read.append(feeds["X"])
    np.testing.assert_array_equal(read[0], first)
    np.testing.assert_array_equal(read[1], second[:7])
    assert len(read) == 2


@pytest.mark.parametrize("name", ["X 1", "X\n"])
def test_a_name_with_a_space_is_refused_in_a_list_of_qnn(name: str, tmp_path: Path) -> None:
    model = LongMemory("GRU", 8).build()
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    calls = rnnlower.calibrate(model, {name: recordings(1, 5)[0]})
    with pytest.raises(OptionError, match="has a space in its name"):
        calls.save(tmp_path / "data", "qnn")
    assert not list(tmp_path.iterdir())
    calls.save(tmp_path / "data", "rknn")


@pytest.mark.parametrize("name", ['a"b', 'a"""b', "a\\b", "a\nb"])
def test_a_reader_whose_file_has_a_strange_name(name: str, tmp_path: Path) -> None:
    (X,) = recordings(1, 5)
    rnnlower.calibrate(LongMemory("GRU", 8).build(), {"X": X}).save(tmp_path / f"{name}.py", "python")
    values = runpy.run_path(str(tmp_path / f"{name}.py"))
    np.testing.assert_array_equal(values["Reader"]().get_next()["X"], X)


def test_one_array_takes_calls_of_one_shape(tmp_path: Path) -> None:
    first, second = recordings(2, 10)
    calls = rnnlower.calibrate(LongMemory("GRU", 8).build(), [{"X": first}, {"X": second[:7]}])
    with pytest.raises(OptionError, match="which do not stack"):
        calls.save(tmp_path / "out.npz")
    assert not list(tmp_path.iterdir())


def test_ranges_are_pooled_over_all_steps(tmp_path: Path) -> None:
    source = LongMemory("LSTM", 8, direction="bidirectional").build()
    data = recordings(3, 50)
    found = rnnlower.calibrate(source, {"X": data}, ranges=True)
    assert found.ranges is not None
    Y = np.stack([InferenceSession(source.SerializeToString()).run(None, {"X": x})[0] for x in data])
    for index, direction in enumerate(("forward", "reverse")):
        seen = found.ranges[Role("first", direction, "h")]
        np.testing.assert_allclose(
            (seen.least, seen.largest), (Y[:, :, index].min(), Y[:, :, index].max()), 1e-4
        )
    assert found.ranges[Role("first", "", "x")] == Range(float(data.min()), float(data.max()))
    found.save_ranges(tmp_path / "r.json")
    entries = json.loads((tmp_path / "r.json").read_text())["ranges"]
    assert {"node", "direction", "role", "min", "max"} == set(entries[0])
    assert len(entries) == len(found.ranges)


def test_the_rows_of_a_gru_have_the_same_roles_in_every_length() -> None:
    source = LongMemory("GRU", 8).build()
    short, long = (rnnlower.calibrate(source, {"X": recordings(2, n)}, ranges=True).ranges for n in (1, 40))
    assert short is not None
    assert long is not None
    assert short.keys() == long.keys()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "lacks the input 'X'"),
        ({"X": np.zeros((3, 1, 16)), "Z": np.zeros(1)}, "'Z', which is no input"),
        ({"X": np.zeros((3, 16))}, "has 2 axes"),
        ({"X": np.zeros((3, 1, 16), np.int64)}, "is int64"),
        ({"X": np.zeros((0, 3, 1, 16))}, "hold no sequence"),
    ],
)
def test_recordings_that_do_not_fit_are_refused(arrays: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        rnnlower.calibrate(LongMemory("GRU", 8).build(), arrays)


def test_a_recording_of_some_of_the_states_is_refused() -> None:
    """At each call it went with what the others had become."""
    step = rnnlower.stream(LongMemory("LSTM", 8).build())
    arrays = {"X": recordings(1, 5)[0], "first_h_in": np.zeros((1, 1, 8), np.float32)}
    with pytest.raises(OptionError, match=r"holds the state 'first_h_in' and lacks 'first_c_in'"):
        rnnlower.calibrate(step, arrays)


def test_a_model_without_recurrence_is_refused() -> None:
    source = LongMemory("GRU", 8).build()
    source.graph.node[0].op_type, source.graph.node[0].domain = "Identity", ""
    del source.graph.node[0].input[1:], source.graph.node[0].attribute[:]
    source.graph.output[0].CopyFrom(source.graph.input[0])
    source.graph.output[0].name = "Y"
    del source.graph.initializer[:]
    with pytest.raises(
        UnsupportedModelError, match=r"no LSTM, GRU or RNN node; if steps are written out.*lift"
    ):
        rnnlower.calibrate(source, {"X": recordings(1, 3)})


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_recordings_that_are_not_finite(bad: float) -> None:
    data = recordings(4, 10)
    data[2, 3, 0, 1] = bad
    with pytest.raises(OptionError, match=rf"'X' holds {bad} at \[2, 3, 0, 1\]"):
        rnnlower.calibrate(LongMemory("GRU", 8).build(), {"X": data})


def test_numbers_beyond_the_type_of_an_input() -> None:
    source = LongMemory("GRU", 8).build()
    with pytest.raises(OptionError, match=r"'X' holds .*e\+299"):
        rnnlower.calibrate(source, {"X": np.full((2, 10, 1, 2), 7e299)})
    lengths = onnx.helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, [1])
    source.graph.input.append(lengths)
    data = {"X": recordings(2, 10), "lengths": np.array([[3], [2**32 + 3]])}
    with pytest.raises(OptionError, match="'lengths' holds numbers beyond int32"):
        rnnlower.calibrate(source, data)


def test_an_input_of_unknown_rank_takes_one_sequence() -> None:
    source = LongMemory("GRU", 8).build()
    source.graph.input[0].type.tensor_type.ClearField("shape")
    (data,) = recordings(1, 10)
    assert rnnlower.calibrate(source, {"X": data}).sequences == 1


def test_states_have_the_rows_of_the_recording() -> None:
    source = LongMemory("LSTM", 8).build()
    source.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "N"
    source.graph.output[0].type.tensor_type.shape.dim[2].dim_param = "N"
    data = np.concatenate([recordings(2, 10, seed) for seed in range(3)], 2)
    calls = rnnlower.calibrate(rnnlower.stream(source, chunk=1), {"X": data}).calls
    assert len(calls) == 20
    assert calls[0]["first_h_in"].shape == (1, 3, 8)


def test_ranges_and_recordings_may_be_given_in_any_order(tmp_path: Path) -> None:
    source, data = LongMemory("GRU", 8).build(), {"X": recordings(4, 10)}
    for name, part in (("a", data["X"][:2]), ("b", data["X"][2:])):
        rnnlower.calibrate(source, {"X": part}, ranges=True).save_ranges(tmp_path / f"{name}.json")
    given = [tmp_path / "a.json", data, tmp_path / "b.json"]
    of_all = rnnlower.calibrate(source, data, ranges=True)
    of_all.save_ranges(tmp_path / "all.json")
    first, second = (
        rnnlower.quantize.with_report(source, calibration=each)[1].scales
        for each in (given, [tmp_path / "all.json", data])
    )
    assert first == second


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    found = rnnlower.calibrate(LongMemory("GRU", 8).build(), {"X": recordings(2, 5)}, ranges=True)
    for write in (found.save, found.save_ranges):
        with pytest.raises(OptionError, match="there is no folder"):
            write(tmp_path / "nothing" / "out")


def test_nothing_is_written_if_the_ranges_cannot_be(tmp_path: Path) -> None:
    model = save(LongMemory("GRU", 8).build(), tmp_path)
    np.savez(tmp_path / "data.npz", X=recordings(2, 5))
    line = ("calibrate", model, tmp_path / "data.npz", "-o", tmp_path / "out.npz")
    result = command(*line, "--ranges", tmp_path / "absent" / "ranges.json", code=2)
    assert "there is no folder" in result.stderr
    assert not (tmp_path / "out.npz").exists()
    one = tmp_path / "one.json"
    result = command(*line[:-1], one, "--ranges", one, code=2)
    assert "that is the output's file" in result.stderr
    assert not one.exists()


def test_a_reader_in_the_place_of_its_data(tmp_path: Path) -> None:
    found = rnnlower.calibrate(LongMemory("GRU", 8).build(), {"X": recordings(2, 5)})
    with pytest.raises(OptionError, match=r"ends in \.py"):
        found.save(tmp_path / "calls.npz", "python")
    assert not any(tmp_path.iterdir())


def test_a_file_of_ranges_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is no file of ranges"):
        rnnlower.quantize(LongMemory("GRU", 8).build(), calibration=tmp_path / "absent.json")


@pytest.mark.parametrize(("least", "largest"), [(np.nan, 1), (0, np.inf), (1, 0), (0, 1e300)])
def test_a_file_of_ranges_that_are_none(least: float, largest: float, tmp_path: Path) -> None:
    entry = {"node": "first", "direction": "", "role": "x", "min": least, "max": largest}
    (tmp_path / "ranges.json").write_text(json.dumps({"ranges": [entry]}))
    with pytest.raises(OptionError, match=r"is no file of ranges .*'x' of node 'first' is from"):
        rnnlower.quantize(LongMemory("GRU", 8).build(), calibration=tmp_path / "ranges.json")


@pytest.mark.parametrize(
    ("function", "argument"), [(rnnlower.calibrate, "recordings"), (rnnlower.quantize, "calibration")]
)
def test_an_empty_list_of_recordings(function: Callable[..., object], argument: str) -> None:
    with pytest.raises(OptionError, match="hold no sequence"):
        function(LongMemory("GRU", 8).build(), **{argument: []})


def test_an_array_gives_a_scalar_input_one_value_for_each_sequence() -> None:
    """One scalar for each sequence."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        scaled (float[4, 1, 16] X, float factor) => (float[4, 1, 16] scaled) { scaled = Mul (X, factor) }
    """)
    source = LongMemory("GRU", 4, steps=4).build()
    source.graph.input.append(model.graph.input[1])
    source.graph.node.insert(0, model.graph.node[0])
    source.graph.node[1].input[0] = "scaled"
    data = {"X": recordings(3, 4), "factor": np.array([1, 2, 3], np.float32)}
    calls = rnnlower.calibrate(source, data).calls
    assert [call["factor"].tolist() for call in calls] == [1, 2, 3]
    (call,) = rnnlower.calibrate(source, {"X": recordings(3, 4)[0].tolist(), "factor": np.float32(2)}).calls
    assert call["factor"].tolist() == 2
