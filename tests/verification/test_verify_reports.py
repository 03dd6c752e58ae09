from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.small_models import info, model_of, recurrent_model, weights

from rnnlower.engines.reference import Evaluator
from rnnlower.errors import OptionError
from rnnlower.verification import verify
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import generate_trials, input_maker
from rnnlower.verification.interfaces import find_state_pairs

FLOAT = TensorProto.FLOAT


def _streaming(state: str = "h_in", new_state: str = "h_out") -> onnx.ModelProto:
    node = helper.make_node("GRU", ["X", "W", "R", "B", "", state], ["Y", new_state], hidden_size=4)
    inputs = [info("X", FLOAT, [1, "N", 3]), info(state, FLOAT, [1, "N", 4])]
    outputs = [info("Y", FLOAT, [1, 1, "N", 4]), info(new_state, FLOAT, [1, "N", 4])]
    return model_of([node], inputs, outputs, weights("GRU"))


@pytest.mark.parametrize(
    ("old", "new"),
    [("h_in", "h_out"), ("state", "stateN"), ("h", "hn"), ("cache", "new_cache"), ("161", "87")],
)
def test_state_outputs_find_their_inputs(old: str, new: str) -> None:
    model = _streaming(old, new)
    assert find_state_pairs(model.graph, gather_facts(model)) == {new: old}


def test_a_name_alone_makes_no_state() -> None:
    """Only an initial state of a recurrent node is one, unless the user says so."""
    nodes = [
        helper.make_node("Abs", ["abs_input"], ["abs_output"]),
        helper.make_node("GRU", ["abs_output", "W", "R", "B", "", "h_in"], ["Y", "h_out"], hidden_size=3),
        helper.make_node("Sub", ["x_in", "Y"], ["x_out"]),
    ]
    sizes = {"abs": [1, 2, 3], "x": [1, 1, 2, 3], "h": [1, 2, 3]}
    inputs = [info(f"{name}_in{'put' * (name == 'abs')}", FLOAT, size) for name, size in sizes.items()]
    outputs = [info(f"{name}_out{'put' * (name == 'abs')}", FLOAT, size) for name, size in sizes.items()]
    model = model_of(nodes, inputs, outputs, weights("GRU", hidden_size=3))
    facts = gather_facts(model)
    assert find_state_pairs(model.graph, facts) == {"h_out": "h_in"}
    assert find_state_pairs(model.graph, facts, {"x_out": "x_in"}) == {"x_out": "x_in"}


def test_some_trials_continue_with_the_state() -> None:
    model = _streaming()
    facts = gather_facts(model)
    maker = input_maker(model.graph, model.graph, facts, 0)
    trials, _ = generate_trials(Evaluator(model).run, maker, 6, find_state_pairs(model.graph, facts))
    for before, after in [(1, 2), (4, 5)]:
        np.testing.assert_array_equal(trials[after].feeds["h_in"], trials[before].outputs["h_out"])
    assert not np.array_equal(trials[1].feeds["h_in"], trials[0].outputs["h_out"])


def test_given_states_must_exist() -> None:
    assert verify(_streaming(), _streaming(), states={"h_out": "h_in"})
    with pytest.raises(OptionError, match="h_out=nowhere"):
        verify(_streaming(), _streaming(), states={"h_out": "nowhere"})


def test_a_given_state_may_hold_strings() -> None:
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in ("x", "s")]
    inputs, outputs = (
        [info(f"{name}{end}", TensorProto.STRING, [2]) for name in "xs"] for end in ("", "_out")
    )
    model = model_of(nodes, inputs, outputs)
    assert verify(model, model, states={"x_out": "s"})


def _chain(second_clip: float | None = None) -> onnx.ModelProto:
    clip = {} if second_clip is None else {"clip": second_clip}
    nodes = [
        helper.make_node("RNN", ["X", "W", "R", "B"], ["first"], name="one", hidden_size=4),
        helper.make_node("Squeeze", ["first", "one_axis"], ["flat"]),
        helper.make_node("RNN", ["flat", "R", "R", "B"], ["second"], name="two", hidden_size=4, **clip),
        helper.make_node("Neg", ["second"], ["Y"]),
    ]
    constants = weights("RNN") | {"one_axis": np.array([1])}
    return model_of(nodes, [info("X", FLOAT, ["T", 2, 3])], [info("Y", FLOAT, None)], constants)


def test_a_difference_is_traced_to_its_origin() -> None:
    result = verify(_chain(), _chain(second_clip=0.1))
    assert not result
    assert result.first_difference is not None
    assert result.first_difference.startswith("second:")
    assert "RNN node 'two'" in result.first_difference


def _halves(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        main (float[2,3] X) => (float[2,3] Z)
        <float one = {{1}}, float two = {{2}}, float half = {{0.5}}, float third = {{0.3}}>
        {{ {text} }}
    """)


def test_a_value_computed_by_another_operator_is_not_compared() -> None:
    """A quantizer removes a Relu, and gives its name to what entered it."""
    source = _halves("a = Add (X, one)  r = Relu (a)  s = Mul (r, two)  Z = Neg (s)")
    changed = _halves("r = Add (X, one)  b = Relu (r)  s = Mul (b, one)  Z = Neg (s)")
    result = verify(source, changed)
    assert result.first_difference is not None
    assert result.first_difference.startswith("s:")


@pytest.mark.parametrize(("constant", "begins"), [("half", "z:"), ("third", "m:")])
def test_floats_of_two_types_are_compared_in_the_wider(constant: str, begins: str) -> None:
    source = _halves("m = Mul (X, half)  z = Add (m, one)  Z = Neg (z)")
    narrow = _halves(
        f"x = Cast <to = 10> (X)  c = Cast <to = 10> ({constant})  m = Mul (x, c)"
        "  w = Cast <to = 1> (m)  z = Add (w, two)  Z = Neg (z)"
    )
    result = verify(source, narrow)
    assert result.first_difference is not None
    assert result.first_difference.startswith(begins), result.first_difference
    assert "inf" not in result.first_difference


def test_equal_models_have_no_first_difference() -> None:
    assert verify(_chain(), _chain()).first_difference is None


@pytest.mark.parametrize(("layout", "step"), [(0, 2), (1, 2)])
def test_the_worst_time_step_is_told(layout: int, step: int) -> None:
    x = np.zeros((4, 2, 3), np.float32)
    x[step] = 1.0
    x = x.swapaxes(0, 1).copy() if layout else x
    constants = weights("RNN") | {"R": np.zeros((1, 4, 4), np.float32)}
    right = recurrent_model("RNN", constants=constants, outputs=("Y",), layout=layout)
    wrong = recurrent_model(
        "RNN", constants=constants | {"W": constants["W"] * np.float32(1.1)}, outputs=("Y",), layout=layout
    )
    result = verify(right, wrong, inputs={"X": x})
    assert result.outputs[0].worst_step == step
    assert f"time step {step}" in str(result)


def test_progress_is_told() -> None:
    calls: list[tuple[str, int, int]] = []
    verify(_chain(), _chain(), trials=2, progress=lambda *call: calls.append(call))
    assert calls == [("reference", 0, 2), ("reference", 1, 2), ("candidate", 0, 2), ("candidate", 1, 2)]
