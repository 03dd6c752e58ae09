from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.small_models import info, model_of, recurrent_model, weights

from rnnlower.verification import verify

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def _nudged(constants: Mapping[str, np.ndarray], name: str, factor: float) -> dict[str, np.ndarray]:
    """Return the constants with the largest element of one of them multiplied."""
    changed = {key: value.copy() for key, value in constants.items()}
    flat = changed[name].reshape(-1)
    flat[np.abs(flat).argmax()] *= factor
    return changed


def _swapped_gates(constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    changed = dict(constants)
    for name in ("W", "R"):
        first, second, *rest = np.split(changed[name], 4, axis=1)
        changed[name] = np.concatenate([second, first, *rest], axis=1)
    return changed


BASE = weights("LSTM") | {"initial_h": 0.5 * np.ones((1, 2, 4), np.float32)}
INPUTS: dict[str, Any] = {"X": (FLOAT, ["T", 2, 3]), "sequence_lens": (INT32, [2])}


def _reference(**attributes: Any) -> onnx.ModelProto:
    return recurrent_model(
        "LSTM",
        constants=BASE,
        inputs=INPUTS,
        clip=0.6,
        activations=["Sigmoid", "LeakyRelu", "Tanh"],
        **attributes,
    )


def _changed(
    constants: Mapping[str, np.ndarray] = BASE, inputs: Mapping[str, Any] = INPUTS, **attributes: Any
) -> onnx.ModelProto:
    given: dict[str, Any] = {"clip": 0.6, "activations": ["Sigmoid", "LeakyRelu", "Tanh"]} | attributes
    given = {name: value for name, value in given.items() if value is not None}
    return recurrent_model("LSTM", constants=constants, inputs=inputs, **given)


FAULTS = {
    "clip dropped": lambda: _changed(clip=None),
    "direction flipped": lambda: _changed(direction="reverse"),
    "activations dropped": lambda: _changed(activations=None),
    "alpha changed": lambda: _changed(activation_alpha=[0.05]),
    "gates coupled": lambda: _changed(input_forget=1),
    "W nudged": lambda: _changed(_nudged(BASE, "W", 1.05)),
    "R nudged": lambda: _changed(_nudged(BASE, "R", 1.05)),
    "B halved": lambda: _changed(BASE | {"B": BASE["B"] / 2}),
    "gates swapped": lambda: _changed(_swapped_gates(BASE)),
    "R transposed": lambda: _changed(
        BASE | {"R": np.concatenate([g.swapaxes(1, 2) for g in np.split(BASE["R"], 4, axis=1)], axis=1)}
    ),
    "initial state dropped": lambda: _changed({k: v for k, v in BASE.items() if k != "initial_h"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str) -> None:
    result = verify(_reference(), FAULTS[fault]())
    assert not result
    assert not all(output.equal for output in result.outputs)


def test_ignored_sequence_lengths_are_caught() -> None:
    ignoring = _changed()
    ignoring.graph.node[0].input[4] = ""
    assert not verify(_reference(), ignoring)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_model_equals_itself(op_type: str) -> None:
    model = recurrent_model(op_type)
    result = verify(model, model)
    assert result
    assert result.trials > 0
    assert [output.name for output in result.outputs] == ["Y", "Y_h"]


def test_a_candidate_with_fixed_dimensions_equals() -> None:
    fixed = recurrent_model("GRU", inputs={"X": (FLOAT, [4, 2, 3])})
    assert verify(recurrent_model("GRU"), fixed)


def test_contradicting_dimensions_differ() -> None:
    three, four = (recurrent_model("GRU", inputs={"X": (FLOAT, [T, 2, 3])}) for T in (3, 4))
    result = verify(three, four)
    assert not result
    assert "size 3" in result.problems[0]


def _renamed(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for value in model.graph.output:
        value.name = new if value.name == old else value.name
    for node in model.graph.node:
        node.output[:] = [new if name == old else name for name in node.output]
    return model


def test_a_renamed_output_is_a_difference() -> None:
    result = verify(recurrent_model("RNN"), _renamed(recurrent_model("RNN"), "Y_h", "state"))
    assert not result
    assert any("no output 'Y_h'" in problem for problem in result.problems)
    assert any("'state'" in problem for problem in result.problems)


def test_a_missing_output_is_a_difference() -> None:
    result = verify(recurrent_model("RNN"), recurrent_model("RNN", outputs=("Y",)))
    assert not result
    assert "Y_h" in result.problems[0]


def test_outputs_in_another_order_are_a_difference() -> None:
    swapped = recurrent_model("RNN")
    first, second = swapped.graph.output
    outputs = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in (second, first)]
    del swapped.graph.output[:]
    swapped.graph.output.extend(outputs)
    assert not verify(recurrent_model("RNN"), swapped)


def _with_tail(op_type: str, elem_type: int, **attributes: Any) -> onnx.ModelProto:
    nodes = [helper.make_node("RNN", ["X", "W", "R", "B"], ["h"], hidden_size=4)]
    nodes.append(helper.make_node(op_type, ["h"], ["Y"], **attributes))
    return model_of(nodes, [info("X", FLOAT, [3, 2, 3])], [info("Y", elem_type, None)], weights("RNN"))


def test_a_changed_output_dtype_is_a_difference() -> None:
    same = _with_tail("Identity", FLOAT)
    other = _with_tail("Cast", TensorProto.DOUBLE, to=TensorProto.DOUBLE)
    result = verify(same, other)
    assert not result
    assert "dtype" in result.outputs[0].note


def test_a_changed_output_rank_is_a_difference() -> None:
    result = verify(_with_tail("Identity", FLOAT), _with_tail("Flatten", FLOAT))
    assert not result
    assert "shape" in result.outputs[0].note


def test_another_input_type_is_a_difference() -> None:
    doubles = recurrent_model("GRU", constants=weights("GRU", dtype=np.float64), elem_type=TensorProto.DOUBLE)
    result = verify(recurrent_model("GRU"), doubles)
    assert not result
    assert result.trials == 0


def test_a_candidate_that_does_not_load_differs() -> None:
    broken = recurrent_model("RNN")
    broken.graph.node[0].ClearField("attribute")
    result = verify(recurrent_model("RNN"), broken)
    assert not result
    assert "does not load" in result.problems[0]
    assert "hidden_size" in result.problems[0]


def test_a_candidate_that_does_not_run_differs() -> None:
    narrow = recurrent_model("RNN")
    narrow.graph.initializer.append(numpy_helper.from_array(np.array([5, 1, 2, 4]), "shape"))
    narrow.graph.node[0].output[0] = "inner"
    narrow.graph.node.append(helper.make_node("Reshape", ["inner", "shape"], ["Y"]))
    result = verify(recurrent_model("RNN"), narrow)
    assert not result
    assert "does not run where the reference does" in result.problems[0]


def test_only_one_branch_at_fault_is_caught() -> None:
    def model(factor: float) -> onnx.ModelProto:
        def branch(scale: float) -> onnx.GraphProto:
            inner = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32(scale)))
            return helper.make_graph(
                [inner, helper.make_node("Mul", ["Y0", "k"], ["o"])], "b", [], [info("o", FLOAT, None)]
            )

        nodes = [
            helper.make_node("RNN", ["X", "W", "R", "B"], ["Y0"], hidden_size=4),
            helper.make_node("Equal", ["rate", "c"], ["flag"]),
            helper.make_node("If", ["flag"], ["Y"], then_branch=branch(2.0), else_branch=branch(factor)),
        ]
        inputs = [info("X", FLOAT, [3, 2, 3]), info("rate", TensorProto.INT64, [])]
        return model_of(nodes, inputs, [info("Y", FLOAT, None)], weights("RNN") | {"c": np.array(16000)})

    assert verify(model(3.0), model(3.0))
    assert not verify(model(3.0), model(3.01))


def test_random_outputs_are_not_held_against_the_candidate() -> None:
    nodes = [
        helper.make_node("RNN", ["X", "W", "R", "B"], ["Y"], hidden_size=4),
        helper.make_node("RandomNormalLike", ["X"], ["noise"]),
    ]
    outputs = [info("Y", FLOAT, None), info("noise", FLOAT, None)]
    model = model_of(nodes, [info("X", FLOAT, [3, 2, 3])], outputs, weights("RNN"))
    result = verify(model, model)
    assert result
    assert any("'noise'" in note for note in result.skipped)


def test_amplified_rounding_is_no_difference() -> None:
    def model(order: list[str]) -> onnx.ModelProto:
        # (x + 1e4) - 1e4 keeps few digits of x, and other ones in another order.
        nodes = [
            helper.make_node("Add", [order[0], order[1]], ["s"]),
            helper.make_node("Sub", ["s", order[2]], ["y"]),
        ]
        constants = {
            "k": np.float32(1e4) * np.ones(1, np.float32),
            "l": np.float32(-1e4) * np.ones(1, np.float32),
        }
        return model_of(nodes, [info("x", FLOAT, [8])], [info("y", FLOAT, None)], constants)

    assert verify(model(["x", "k", "k"]), model(["k", "x", "k"]))


def test_the_same_seed_gives_the_same_result() -> None:
    reference, candidate = _reference(), _changed(clip=None)
    assert verify(reference, candidate, seed=3) == verify(reference, candidate, seed=3)
    assert verify(reference, candidate, seed=3) != verify(reference, candidate, seed=4)


def test_the_result_is_plain_json() -> None:
    result = verify(_reference(), _changed(_nudged(BASE, "W", np.inf)))
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["equal"] is False
    assert set(data) >= {"equal", "engines", "trials", "outputs", "skipped"}
    assert set(data["outputs"][0]) >= {"name", "max_abs", "max_rel", "max_ulp", "equal"}
