"""Inputs with a default value: a candidate that ignores another value is different."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.small_models import info, model_of, recurrent_model, weights

import rnnlower
from rnnlower.verification import verify

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def _overridable(*names: str, **options: Any) -> onnx.ModelProto:
    """Return an LSTM of which these initializers are graph inputs, too."""
    model = recurrent_model("LSTM", **options)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    model.graph.input.extend(info(name, values[name], values[name].shape) for name in names or ("W", "R"))
    return model


def _without(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    model = copy.deepcopy(model)
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def _frozen(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the same inputs, but the node reads a copy of this one's default."""
    model = copy.deepcopy(model)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor)
    model.graph.initializer.append(numpy_helper.from_array(array, "frozen"))
    inputs = model.graph.node[0].input
    inputs[:] = ["frozen" if each == name else each for each in inputs]
    return model


@pytest.mark.parametrize("name", ["W", "R", "B"])
@pytest.mark.parametrize("engine", ["onnxruntime", "rnnlower-reference"])
def test_a_candidate_that_ignores_what_is_fed(name: str, engine: Any) -> None:
    model = _overridable("W", "R", "B")
    same = verify(model, model, engine=engine)
    assert same
    assert same.skipped == ()
    assert not verify(model, _frozen(model, name), engine=engine)


def test_zeros_get_other_values() -> None:
    constants = {**weights("LSTM"), "initial_h": np.zeros((1, 2, 4), np.float32)}
    model = _overridable("initial_h", constants=constants, inputs={"X": (FLOAT, ["T", 2, 3])})
    assert verify(model, model).skipped == ()
    assert not verify(model, _frozen(model, "initial_h"))


def test_the_default_is_tried_as_well() -> None:
    model = _overridable()
    other = copy.deepcopy(model)
    tensor = next(tensor for tensor in other.graph.initializer if tensor.name == "W")
    tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), "W"))
    assert not verify(model, other)


def test_a_candidate_that_lacks_the_input() -> None:
    model = _overridable()
    result = verify(model, _without(model, "W"))
    assert result
    assert result.skipped == ("input 'W': the default in every trial (the candidate has no such input)",)


def test_below_ir_4_an_initializer_may_leave_the_inputs() -> None:
    model = _overridable("W", "R", "B", opset=8)
    model.ir_version = 3
    candidate = _without(model, "W", "B")
    candidate.ir_version = 4
    for other in (model, candidate):
        result = verify(model, other)
        assert result
        assert result.skipped == ()


def test_a_candidate_whose_input_cannot_be_fed_is_noted() -> None:
    model = _overridable("W", "R", "B", opset=8)
    other = copy.deepcopy(model)
    other.ir_version = 3
    result = verify(model, other)
    assert result
    assert len(result.skipped) == 1
    assert (
        "inputs 'W', 'R', 'B': the default in every trial (the candidate's cannot be fed" in result.skipped[0]
    )


def test_a_candidate_without_the_default() -> None:
    model = _overridable()
    other = copy.deepcopy(model)
    other.graph.initializer.remove(next(t for t in other.graph.initializer if t.name == "W"))
    result = verify(model, other)
    assert not result
    assert result.problems == ("input 'W' has no default value in the candidate",)


def test_the_order_of_such_inputs_counts() -> None:
    model = _overridable()
    result = verify(model, _overridable("R", "W"))
    assert not result
    assert "ordered" in result.problems[0]


def test_a_single_trial_says_that_it_kept_the_default() -> None:
    model = _overridable()
    result = verify(model, model, trials=1)
    assert result.skipped == ("inputs 'W', 'R': the default in every trial (too few trials to try others)",)


def _reshaping() -> onnx.ModelProto:
    """Return y = a * reshape(x, size) + b, of which size is refused if it is another."""
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["scaled"]),
        helper.make_node("Cast", ["size"], ["whole"], to=INT64),
        helper.make_node("Reshape", ["scaled", "whole"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["again"]),
        helper.make_node("Add", ["again", "b"], ["y"]),
    ]
    floats = {"a": [2.0], "size": [30.0], "b": [1.0]}
    constants = {name: np.array(value, np.float32) for name, value in floats.items()}
    constants["shape"] = np.array([30])
    inputs = [info(name, value, value.shape) for name, value in constants.items()]
    return model_of(nodes, [info("x", FLOAT, [30]), *inputs], [info("y", FLOAT, [30])], constants)


def test_only_inputs_that_the_reference_refuses_keep_their_defaults() -> None:
    model = _reshaping()
    result = verify(model, model)
    assert result
    told = sorted(result.skipped)
    assert "input 'shape': the default in every trial (only floats get other values)" in told
    assert any(
        text.startswith("input 'size': the default in every trial (the reference refuses") for text in told
    )
    assert len(told) == 2
    for index, name in ((0, "a"), (4, "b")):
        other = copy.deepcopy(model)
        value = next(t for t in model.graph.initializer if t.name == name)
        other.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(value), "frozen"))
        other.graph.node[index].input[1] = "frozen"
        assert not verify(model, other), name


def test_states_are_still_fed_back() -> None:
    given = {"X": (FLOAT, [5, 2, 3]), "initial_h": (FLOAT, [1, 2, 4])}
    model = _overridable(inputs=given)
    assert verify(model, model).states == {"Y_h": "initial_h"}


def test_defaults_in_a_data_file(tmp_path: Path) -> None:
    model = _overridable()
    paths = [tmp_path / "model.onnx", tmp_path / "other.onnx"]
    for path, each in zip(paths, (model, _frozen(model, "W")), strict=True):
        onnx.save(each, path, save_as_external_data=True, size_threshold=0, location=f"{path.stem}.data")
    assert verify(paths[0], paths[0])
    assert not verify(*paths)


@pytest.mark.parametrize("opset", [8, 17])
def test_what_this_project_makes_is_equal(opset: int) -> None:
    model = _overridable("W", "R", "B", opset=opset, inputs={"X": (FLOAT, [5, 2, 3])})
    for ir_version in (3, 8) if opset == 8 else (8,):
        model.ir_version = ir_version
        results = [rnnlower.unroll(model), rnnlower.scan(model), rnnlower.loop(model)]
        results.append(rnnlower.convert(model, opset=13))
        for result in results:
            assert verify(model, result).skipped == ()
            assert verify(model, result)
