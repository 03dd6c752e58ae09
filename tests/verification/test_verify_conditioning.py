"""Trials that cannot distinguish a fault from rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from support.small_models import info, recurrent_model, weights

import rnnlower
from rnnlower.verification import verify
from rnnlower.verification.verdict import excuses
from rnnlower.verification.verdict.conditioning import overflowing, rounding_noise

FLOAT = onnx.TensorProto.FLOAT


def noise_of(output: np.ndarray, moved_by: float = 0.0, opinion: float | None = None) -> np.ndarray | None:
    """Return the tolerance of a reference with this output, which moves by `moved_by` times its scale."""
    feeds = {"x": np.ones(2, np.float32)}

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        assert not np.array_equal(inputs["x"], feeds["x"])
        wide = output.astype(np.float64)
        return {"y": (wide + moved_by * np.abs(wide).max()).astype(output.dtype)}

    opinions = [] if opinion is None else [{"y": np.full(output.shape, opinion)}]
    return rounding_noise(run, feeds, {"y": output}, 0, opinions)["y"]


def test_noise_covers_perturbations_and_another_precision() -> None:
    ones = np.ones(3, np.float32)
    still = noise_of(ones)
    assert still is not None
    assert not still.any()
    moved, other = noise_of(ones, moved_by=1e-4), noise_of(ones, opinion=1.0002)
    assert moved == pytest.approx(4e-4, rel=1e-2)
    assert other == pytest.approx(8e-4, rel=1e-2)


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"), [(np.float32, 2e-3, 3e-3), (ml_dtypes.bfloat16, 0.02, 0.04)]
)
def test_outputs_moved_too_far_by_rounding_are_undetermined(dtype: Any, within: float, beyond: float) -> None:
    ones = np.ones(3, dtype)
    assert noise_of(ones, moved_by=within) is not None
    assert noise_of(ones, moved_by=beyond) is None


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"),
    [(np.float32, 1e18, 1e20), (np.float64, 1e150, 1e160), (np.float16, 60, 70)],
)
def test_what_overflows(dtype: Any, within: float, beyond: float) -> None:
    """A product of two such numbers, somewhere inside, would."""
    values = np.array([within, -within, beyond, -np.inf, np.nan])
    assert overflowing(values, dtype).tolist() == [False, False, True, True, True]


def clipped(clip: float, mask: float | None, *, joined: bool = False) -> onnx.ModelProto:
    """Return an LSTM beside a mask, as an output of its own or in one with Y_h."""
    model = recurrent_model("LSTM", inputs={"X": (FLOAT, ["T", 2, 3])}, clip=clip)
    if mask is None:
        return model
    constant = np.full((1, 2, 4), mask, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(constant, "mask"))
    ending = helper.make_node("Identity", ["mask"], ["masked"])
    if joined:
        ending = helper.make_node("Concat", ["Y_h", "mask"], ["masked"], axis=2)
        del model.graph.output[:]
    model.graph.node.append(ending)
    model.graph.output.append(info("masked", FLOAT, [None] * 3))
    return model


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("mask", [None, -1e9, -1e30, float(np.finfo(np.float32).min), -np.inf, np.nan])
def test_a_mask_excuses_nothing(mask: float | None, joined: bool) -> None:
    """Neither as a trial that overflows nor as the scale of what it stands beside."""
    right, wrong = clipped(5.0, mask, joined=joined), clipped(8.0, mask, joined=joined)
    assert verify(right, right)
    assert not verify(right, wrong)


def test_overflows_inside_a_kernel_are_left_out() -> None:
    """onnxruntime's Relu makes 0 of NaN, also of what has overflowed before it in an LSTM."""
    constants = weights("LSTM")
    source = recurrent_model(
        "LSTM",
        constants=constants,
        inputs={"X": (FLOAT, ["T", 2, 3])},
        outputs=["Y"],
        activations=["Relu", "Tanh", "HardSigmoid"],
    )
    result = verify(source, rnnlower.loop(source))
    assert result, str(result)


def _compared(text: str, columns: str = "{0, 1, -1}") -> onnx.ModelProto:
    """Return whether a number beside X is larger than X: in the first column, rounding decides."""
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        main (float[N,3] X) => (bool[N,3] Z)
        <float[3] c = {columns}, float three = {{3}}>
        {{ {text}  moved = Add (same, c)  Z = Greater (moved, X) }}
    """)


def test_near_ties_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = _compared("a = Mul (X, three)  b = Reciprocal (three)  same = Mul (a, b)")
    result = verify(reference, _compared("same = Identity (X)"))
    assert result, str(result)
    assert any("only as far as rounding goes" in reason for reason in result.skipped)
    assert not verify(reference, _compared("same = Identity (X)", "{0, 1, 1}"))
    assert not verify(reference, _compared("same = Identity (X)"), atol=0.0)
    monkeypatch.setattr(excuses, "_DRAWS_OF_TIES", 0)
    assert not verify(reference, _compared("same = Identity (X)"))


def growing(seed: int, scale: float = 1.0) -> onnx.ModelProto:
    """Return a GRU whose update gate has no bounds: its state grows beyond the range in every trial."""
    constants = {name: 2.5 * value for name, value in weights("GRU", directions=2, seed=seed).items()}
    constants["W"] *= scale
    return recurrent_model(
        "GRU",
        constants=constants,
        inputs={"X": (FLOAT, ["T", 2, 3])},
        direction="bidirectional",
        linear_before_reset=1,
        activations=["LeakyRelu", "Softplus", "Softsign", "LeakyRelu"],
    )


def single(seed: int) -> onnx.ModelProto:
    """A GRU of one unit whose gates have no bounds in one direction."""
    constants = weights("GRU", hidden_size=1, directions=2, seed=seed)
    return recurrent_model(
        "GRU",
        constants={name: 2.5 * value for name, value in constants.items()},
        inputs={"X": (FLOAT, ["T", 2, 3])},
        hidden_size=1,
        direction="bidirectional",
        activations=["Relu", "Relu", "Relu", "HardSigmoid"],
        activation_alpha=[0.329],
        activation_beta=[0.644],
    )


def exploding(seed: int) -> onnx.ModelProto:
    """A GRU of one unit and both directions whose state, an input, squares at every step of one of them."""
    constants = weights("GRU", input_size=4, hidden_size=1, directions=2, seed=seed)
    return recurrent_model(
        "GRU",
        constants={name: 2.5 * value for name, value in constants.items()},
        inputs={"X": (FLOAT, [7, 1, 4]), "initial_h": (FLOAT, [2, 1, 1])},
        hidden_size=1,
        direction="bidirectional",
        linear_before_reset=1,
        activations=["Relu", "Relu", "Relu", "HardSigmoid"],
        activation_alpha=[0.329],
        activation_beta=[0.644],
    )


@pytest.mark.parametrize("weights_seed", [2, 5, 22, 32, 57])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.filterwarnings("error")
def test_a_large_state_that_is_fed_back_explains_infinities(weights_seed: int, seed: int) -> None:
    """The outputs hold no large number, but infinity and NaN from the second step on: the input does."""
    model = exploding(weights_seed)
    result = verify(model, rnnlower.scan(model), seed=seed)
    assert result, str(result)


def test_perturbed_inputs_stay_finite() -> None:
    largest = np.array([-1, 1], np.float32) * np.finfo(np.float32).max
    seen = []

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        seen.append(inputs["x"])
        return {"y": inputs["x"]}

    rounding_noise(run, {"x": largest}, {"y": largest}, 0)
    assert seen
    assert all(np.isfinite(each).all() for each in seen)


@pytest.mark.parametrize(("model", "seed"), [(growing(82), 82), (single(199), 199)], ids=["82", "199"])
def test_gates_without_bounds_raise_no_false_alarm(model: onnx.ModelProto, seed: int) -> None:
    result = verify(model, rnnlower.scan(model), seed=seed, trials=8)
    assert result, str(result)


@pytest.mark.parametrize("seed", [15, 17])
def test_outputs_that_always_overflow_are_compared_in_float64(seed: int) -> None:
    result = verify(growing(seed), rnnlower.scan(growing(seed)), trials=8)
    assert result, str(result)
    assert any("equal in float64 or within range" in reason for reason in result.skipped)
    assert not verify(growing(seed), rnnlower.scan(growing(seed, 1.05)), trials=8)


def test_being_correct_only_in_float64_is_not_enough() -> None:
    """Where the reference does not overflow, what does so is wrong: log(1 + exp(x)) for a large x."""

    def softplus(text: str) -> onnx.ModelProto:
        return onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : 18]>
            main (float[N,3] X) => (float[N,3] Z) <float one = {{1}}> {{ {text} }}
        """)

    plain = softplus("Z = Softplus (X)")
    assert verify(plain, plain)
    assert not verify(plain, softplus("e = Exp (X)  s = Add (e, one)  Z = Log (s)"))


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
@pytest.mark.parametrize(
    ("elem_type", "dtype", "opset"),
    [
        (onnx.TensorProto.DOUBLE, np.float64, 14),
        (onnx.TensorProto.BFLOAT16, ml_dtypes.bfloat16, 22),
        (FLOAT, np.float32, 14),
    ],
    ids=["float64", "bfloat16", "float32"],
)
def test_a_softplus_that_overflows_at_a_state_of_zero_is_not_a_difference(
    op_type: str, elem_type: int, dtype: Any, opset: int
) -> None:
    """0 times infinity is NaN in the source; what is emitted has no product with a state of zero."""
    constants = {name: (40 * value).astype(dtype) for name, value in weights(op_type).items()}
    softplus = ["Softplus", "Tanh", "Tanh"][: 3 if op_type == "LSTM" else 2]
    source, faulty = (
        recurrent_model(
            op_type,
            constants=given,
            inputs={"X": (elem_type, [4, 2, 3])},
            elem_type=elem_type,
            opset=opset,
            activations=softplus,
        )
        for given in (constants, constants | {"W": -constants["W"]})
    )
    assert verify(source, rnnlower.unroll(source))
    assert not verify(source, rnnlower.unroll(faulty))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_first_steps_of_diverging_sequences_are_compared(seed: int) -> None:
    constants = {name: 6 * value for name, value in weights("GRU", seed=seed).items()}
    moved = constants["W"].copy()
    moved.flat[int(np.argmax(np.abs(moved)))] *= 1.05
    source, faulty = (
        recurrent_model(
            "GRU",
            constants=constants | {"W": W},
            inputs={"X": (FLOAT, [40, 2, 3])},
            outputs=["Y"],
            activations=["Relu", "Relu"],
        )
        for W in (constants["W"], moved)
    )
    assert verify(source, rnnlower.unroll(source))
    assert not verify(source, rnnlower.unroll(faulty))


def test_integers_behind_rows_of_nan_are_compared() -> None:
    """NaN among the outputs is no range that integers could exceed."""
    reference, candidate = (
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : 17]>
            main (float[2, 3] X) => (uint8[2] P, float[2, 3] S)
            <float low = {{{low}}}, float zero = {{0}}, int64[1] one = {{1}}> {{
                sums = ReduceSum (X, one)
                is_low = Less (sums, zero)
                mask = Where (is_low, low, zero)
                M = Add (X, mask)
                S = Softmax <axis = -1> (M)
                is_nan = IsNaN (S)
                ones = Cast <to = 6> (is_nan)
                I = ReduceMax <axes = [1], keepdims = 0> (ones)
                P = Cast <to = 2> (I)
            }}
        """)
        for low in ("-inf", "0")
    )
    result = verify(reference, candidate)
    assert [output.equal for output in result.outputs] == [False, False]


def cut_by_a_step(moved: str, compared: str, steps: int) -> onnx.ModelProto:
    """Return an LSTM without its input's first step; an output is 1 larger at some numbers of steps."""
    model = recurrent_model(inputs={"X": (FLOAT, ["T", 2, 3])}, outputs=("", "Y_h", "Y_c"))
    lstm = next(node for node in model.graph.node if node.op_type == "LSTM")
    lstm.input[0] = "cut"
    lstm.output[list(lstm.output).index(moved)] = "exact"
    constants = {"one": [1], "far": [2**31], "steps": [steps]}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()
    )
    after = [
        helper.make_node("Shape", ["X"], ["all"], end=1),
        helper.make_node(compared, ["all", "steps"], ["is_there"]),
        helper.make_node("Cast", ["is_there"], ["more"], to=FLOAT),
        helper.make_node("Add", ["exact", "more"], [moved]),
    ]
    nodes = [helper.make_node("Slice", ["X", "one", "far"], ["cut"]), *model.graph.node, *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


@pytest.mark.parametrize(
    ("moved", "compared", "equal"),
    [("Y_c", "Equal", True), ("Y_c", "Greater", False), ("Y_h", "Equal", False), ("Y_h", "Greater", False)],
)
def test_what_onnxruntime_leaves_unset_over_no_steps_says_nothing(
    moved: str, compared: str, equal: bool
) -> None:
    """Y_c of an LSTM over no steps is what the memory held; Y_h is zeros."""
    result = verify(cut_by_a_step(moved, "Equal", steps=-1), cut_by_a_step(moved, compared, steps=1))
    assert bool(result) is equal
    assert equal is any("an LSTM over no steps" in note for note in result.skipped)


@pytest.mark.parametrize(("steps", "equal"), [(-1, True), (1, False)])
def test_what_an_lstm_over_no_steps_sets_is_compared(steps: int, equal: bool) -> None:
    """Of one output, what follows from Y_c says nothing, but what follows from Y_h does."""
    models = [cut_by_a_step("Y_h", "Equal", steps=each) for each in (-1, steps)]
    for model in models:
        model.graph.node.append(helper.make_node("Concat", ["Y_c", "Y_h"], ["both"], axis=-1))
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_value_info("both", FLOAT, None))
    assert bool(verify(*models)) is equal
