from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.small_models import info, model_of, recurrent_model, weights

from rnnlower.engines.reference import Evaluator
from rnnlower.engines.session import RunError
from rnnlower.errors import OptionError, UnverifiableError
from rnnlower.verification import verify
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import Trial, generate_trials, input_maker

FLOAT, INT32, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL


def _trials(model: onnx.ModelProto, count: int | None = None, seed: int = 0) -> list[Trial]:
    """Return the inputs generated for a model, judged by NumPy evaluation."""
    evaluator = Evaluator(model)

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        try:
            return evaluator.run(feeds)
        except (ValueError, RuntimeError, TypeError, IndexError) as error:
            raise RunError(str(error)) from error

    maker = input_maker(model.graph, model.graph, gather_facts(model), seed)
    return generate_trials(run, maker, count or maker.natural_trials)[0]


def test_names_that_a_simplifier_gave_to_unnamed_dimensions_may_agree() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[x_d0, x_d1] x, float[1, h_d1, 4] h) => (float[a, b] y) <int64[1] axis = {0}>
        {
            state = Squeeze (h, axis)
            y = Concat <axis = 1> (x, state)
        }
    """
    trials = _trials(onnx.parser.parse_model(text))
    assert all(len(trial.feeds["x"]) == trial.feeds["h"].shape[1] for trial in trials)
    assert len({trial.feeds["x"].shape for trial in trials}) > 3


def test_dimensions_of_one_name_have_one_size() -> None:
    given = {"X": (FLOAT, ["T", "N", 3]), "initial_h": (FLOAT, [1, "N", 4])}
    trials = _trials(recurrent_model("GRU", inputs=given))
    shapes = [(t.feeds["X"].shape, t.feeds["initial_h"].shape) for t in trials]
    assert all(x[1] == h[1] for x, h in shapes)
    assert len({x[0] for x, _ in shapes}) > 2
    assert len({x[1] for x, _ in shapes}) > 2
    assert 1 in {x[0] for x, _ in shapes}


def test_dimensions_without_a_name_agree_where_the_operator_says_so() -> None:
    given = {"X": (FLOAT, [None, None, None]), "initial_h": (FLOAT, [None, None, None])}
    trials = _trials(recurrent_model("GRU", inputs=given), 4)
    for trial in trials:
        _, batch, features = trial.feeds["X"].shape
        assert features == 3
        assert trial.feeds["initial_h"].shape == (1, batch, 4)


def test_sequence_lengths_stay_within_the_sequence() -> None:
    given = {"X": (FLOAT, ["T", 3, 3]), "lens": (INT64, [3])}
    model = recurrent_model("LSTM", inputs={k: v for k, v in given.items() if k == "X"})
    model.graph.input.append(info("lens", INT64, [3]))
    model.graph.node.insert(0, helper.make_node("Cast", ["lens"], ["short"], to=INT32))
    model.graph.node[1].input.append("short")
    trials = _trials(model)
    seen = set()
    for trial in trials:
        steps, lens = trial.feeds["X"].shape[0], trial.feeds["lens"]
        assert lens.min() >= 0
        assert lens.max() <= steps
        seen |= {"full" if n == steps else int(n) for n in lens}
    assert {"full", 0, 1} <= seen
    assert any((trial.feeds["lens"] < trial.feeds["X"].shape[0]).any() for trial in trials)


def test_indices_stay_within_the_data() -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=INT64),
        helper.make_node("Gather", ["table", "wide"], ["y"]),
    ]
    table = np.zeros((5, 2), np.float32)
    model = model_of(
        nodes, [info("ids", TensorProto.UINT8, ["n"])], [info("y", FLOAT, None)], {"table": table}
    )
    values = np.concatenate([trial.feeds["ids"] for trial in _trials(model)])
    assert set(values.tolist()) == set(range(5))


@pytest.mark.parametrize("depth", [[], [-5]])
def test_a_depth_that_is_no_size_limits_nothing(depth: list[int]) -> None:
    node = helper.make_node("OneHot", ["i", "depth", "values"], ["y"])
    constants = {"depth": np.array(depth, np.int64), "values": np.float32([0, 1])}
    model = model_of([node], [info("i", INT64, [4])], [info("y", FLOAT, None)], constants)
    assert gather_facts(model).uses["i"].indices == [0]


def test_a_compared_scalar_takes_the_constant_and_another_value() -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "b", [], [info("b", FLOAT, None)])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["c"])], "c", [], [info("c", FLOAT, None)])
    nodes = [
        helper.make_node("Equal", ["rate", "k"], ["flag"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=other),
    ]
    inputs = [info("x", FLOAT, [3]), info("rate", INT64, [])]
    model = model_of(nodes, inputs, [info("y", FLOAT, None)], {"k": np.array(16000)})
    rates = {int(trial.feeds["rate"]) for trial in _trials(model)}
    assert 16000 in rates
    assert len(rates) > 1


def test_flags_take_every_combination_with_every_magnitude() -> None:
    nodes = [
        helper.make_node("And", ["p", "q"], ["both"]),
        helper.make_node("Where", ["both", "x", "z"], ["y"]),
    ]
    inputs = [info("x", FLOAT, [3]), info("z", FLOAT, [3]), info("p", BOOL, []), info("q", BOOL, [1])]
    model = model_of(nodes, inputs, [info("y", FLOAT, None)])
    pairs = [
        (bool(t.feeds["p"]), bool(t.feeds["q"][0]), np.abs(t.feeds["x"]).max() > 20) for t in _trials(model)
    ]
    assert {(p, q, large) for p, q, large in pairs} >= {
        (p, q, True) for p in (True, False) for q in (True, False)
    }


def test_magnitudes_reach_from_rounding_to_saturation() -> None:
    largest = [float(np.abs(trial.feeds["X"]).max()) for trial in _trials(recurrent_model("LSTM"))]
    assert min(largest) < 0.01
    assert max(largest) > 50


def test_sizes_are_searched_until_the_model_runs() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
        helper.make_node("Conv", ["y", "w"], ["z"], kernel_shape=[40]),
    ]
    constants = {"shape": np.array([-1, 1, 64]), "w": np.ones((1, 1, 40), np.float32)}
    model = model_of(nodes, [info("x", FLOAT, [None, "n"])], [info("z", FLOAT, None)], constants)
    trials = _trials(model, 4)
    assert len(trials) == 4
    assert all(trial.feeds["x"].size % 64 == 0 for trial in trials)


@pytest.mark.parametrize("batch", ["batch_size", "B"])
def test_n_beside_a_batch_is_a_length(batch: str) -> None:
    """A waveform of N samples is longer than any batch."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[{batch}, {"N" if "batch" in batch else "samples"}] x) => (float[2, m] y)
        <int64[1] axis = {{1}}> {{
            one = Unsqueeze (x, axis)  y1 = Conv (one, w)  y = Squeeze (y1, axis)
        }}
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1, 400), np.float32), "w"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    assert min(trial.feeds["x"].shape[1] for trial in _trials(model)) >= 400
    assert max(trial.feeds["x"].shape[0] for trial in _trials(model)) < 10


def test_a_trace_of_many_steps_gets_as_many() -> None:
    """Its axes may be declared open all the same."""
    constants = {"last": np.array(46), "weights": np.ones(47, np.float32)}
    nodes = [
        helper.make_node("Gather", ["x", "last"], ["y"]),
        helper.make_node("Add", ["x", "weights"], ["z"]),
    ]
    outputs = [info("y", FLOAT, []), info("z", FLOAT, None)]
    model = model_of(nodes, [info("x", FLOAT, ["T"])], outputs, constants)
    assert verify(model, model)


def test_a_model_that_runs_at_no_size_is_not_verified() -> None:
    constants = {"shape": np.array([7, 11, 13, 17])}
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = model_of(nodes, [info("x", FLOAT, ["n"])], [info("y", FLOAT, None)], constants)
    with pytest.raises(UnverifiableError, match="ran on no generated inputs"):
        verify(model, model)


@pytest.mark.parametrize("op_type", ["Gather", "Reshape"])
def test_a_dimension_of_zero_is_named_in_the_refusal(op_type: str) -> None:
    """The last of no time steps: NumPy's error alone would say nothing of the node."""
    constants = weights("GRU")
    cell = helper.make_node("GRU", ["X", "W", "R"], ["Y"], hidden_size=4)
    constants["last"] = np.array(-1) if op_type == "Gather" else np.array([0, -1])
    last = helper.make_node(op_type, ["Y", "last"], ["y"], name="last_step")
    model = model_of([cell, last], [info("X", FLOAT, [0, 2, 3])], [info("y", FLOAT, None)], constants)
    with pytest.raises(UnverifiableError) as raised:
        verify(model, model)
    assert f"{op_type} node 'last_step' does not run on shapes [0, 1, 2, 4]" in str(raised.value)
    assert "Error:" not in str(raised.value)
    assert "at least 1" in raised.value.remedy


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_inputs_of_few_elements_are_drawn_more_often(seed: int) -> None:
    """A bias shows only where the clip leaves it anything, which few numbers reach."""
    constants = {"W": np.array([[[-1.2]]]), "R": np.zeros((1, 1, 1)), "B": np.array([[8.0, 0.0]])}
    constants = {name: value.astype(np.float32) for name, value in constants.items()}
    source, faulty = (
        recurrent_model(
            "RNN",
            constants=constants | {"B": np.float32(factor) * constants["B"]},
            inputs={"X": (FLOAT, [1, 1, 1])},
            hidden_size=1,
            clip=3.0,
        )
        for factor in (1.0, 1.05)
    )
    assert not verify(source, faulty, seed=seed)


def test_inputs_with_initializers_are_left_to_them() -> None:
    model = recurrent_model("RNN", opset=6)
    assert {value.name for value in model.graph.input} > {"X"}
    assert set(_trials(model, 1)[0].feeds) == {"X"}


def test_the_same_seed_gives_the_same_inputs() -> None:
    model = recurrent_model("GRU")
    first, again, other = (_trials(model, 2, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a.feeds["X"], b.feeds["X"]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0].feeds["X"], other[0].feeds["X"])


X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 2, 3)


def test_given_arrays_are_the_only_trial() -> None:
    result = verify(recurrent_model("RNN"), recurrent_model("RNN"), inputs={"X": X})
    assert result
    assert result.trials == 1


@pytest.mark.parametrize("prefix", ["", "in::"])
def test_an_npz_file_gives_one_trial(tmp_path: Path, prefix: str) -> None:
    np.savez(tmp_path / "data.npz", **{f"{prefix}X": X, "out::Y": X})
    assert verify(recurrent_model("RNN"), recurrent_model("RNN"), inputs=tmp_path / "data.npz").trials == 1


def test_a_test_data_folder_gives_one_trial_per_set(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        (folder / "input_0.pb").write_bytes(numpy_helper.from_array(X + number).SerializeToString())
    model = recurrent_model("RNN")
    assert verify(model, model, inputs=tmp_path).trials == 2
    assert verify(model, model, inputs=tmp_path / "test_data_set_0").trials == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no value given for the input 'X'"),
        ({"X": X, "Z": X}, "'Z'"),
        ({"X": X.astype(np.float64)}, "dtype float64"),
        ({"X": X[0]}, "rank 2"),
        ({"X": X[:, :, :2]}, "has 2 on axis 2, the model needs 3"),
    ],
)
def test_given_arrays_that_do_not_fit_are_refused(given: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        verify(recurrent_model("RNN"), recurrent_model("RNN"), inputs=given)


def _archive(damage: int) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, X=X)
    data = bytearray(buffer.getvalue())
    data[damage] ^= 0xFF
    return bytes(data)


def _array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, X)
    return buffer.getvalue()


@pytest.mark.parametrize("data", [b"no archive", b"", b"PK\x03\x04", _array(), *map(_archive, (30, 60, 200))])
def test_an_unreadable_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(data)
    with pytest.raises(OptionError, match=r"data\.npz"):
        verify(recurrent_model("RNN"), recurrent_model("RNN"), inputs=tmp_path / "data.npz")


def test_given_inputs_on_which_the_reference_fails_are_no_verdict() -> None:
    model = recurrent_model("RNN", constants=weights("RNN") | {"sequence_lens": np.array([9, 1], np.int32)})
    with pytest.raises(UnverifiableError, match="given inputs"):
        verify(model, model, inputs={"X": X})


def test_steps_without_features_are_tried() -> None:
    """A masked layer of Keras skips them."""
    text = """<ir_version: 9, opset_import: ["" : 18]> main (float[N, 40] x) => (float[N, 1] y)
        <int64[1] axis = {1}, float zero = {0}, float one = {1}> {
            size = Abs (x) sum = ReduceSum (size, axis) is_step = Greater (sum, zero)
            y = Where (is_step, one, VALUE) }"""
    masked, unmasked = (onnx.parser.parse_model(text.replace("VALUE", value)) for value in ("zero", "one"))
    assert verify(masked, masked)
    assert not verify(masked, unmasked)


@pytest.mark.parametrize(
    ("attributes", "least"),
    [
        ("kernel_shape = [4], strides = [2]", 4),
        ("kernel_shape = [4], strides = [2], pads = [1, 1]", 3),
        ("kernel_shape = [4], strides = [2], ceil_mode = 1", 3),
        ("kernel_shape = [3], strides = [3], dilations = [2]", 5),
        ('kernel_shape = [4], strides = [2], auto_pad = "VALID"', 4),
        ('kernel_shape = [4], strides = [2], auto_pad = "SAME_UPPER"', 1),
    ],
)
def test_pooling_meets_no_size_below_its_window(attributes: str, least: int) -> None:
    """There, onnxruntime gives an element where the ONNX spec gives none, and other runtimes refuse."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[1, 1, width] x) => (float[1, 1, a] y) {{ abs = Abs (x) y = MaxPool <{attributes}> (abs) }}
    """
    model = onnx.parser.parse_model(text)
    maker = input_maker(model.graph, model.graph, gather_facts(model), 0)
    trials, _ = generate_trials(lambda feeds: {}, maker, 48)
    assert min(trial.feeds["x"].shape[2] for trial in trials) == least


def test_pooling_in_a_branch_meets_no_size_below_its_window() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[1, 1, width] x, bool c) => (float[1, 1, a] y) {
            y = If (c) <
                then_branch = one () => (float[1, 1, p] p) { p = MaxPool <kernel_shape = [4]> (x) },
                else_branch = other () => (float[1, 1, q] q) { q = Identity (x) }
            >
        }
    """)
    trials, _ = generate_trials(
        lambda feeds: {}, input_maker(model.graph, model.graph, gather_facts(model), 0), 48
    )
    assert min(trial.feeds["x"].shape[2] for trial in trials) == 4


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ("1, 1, 2", "kernel_shape = [3], strides = [2]"),
        ("1, 1, 2, w", "kernel_shape = [3, 1], strides = [2, 1]"),
    ],
)
def test_a_size_below_a_pooling_window_is_tried_where_a_model_has_no_other(
    shape: str, attributes: str
) -> None:
    doubled, summed, squared = (
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : 17]>
            main (float[{shape}] x) => (float[a, b, {"c, " * shape.count("w")}d] y) {{
                p = MaxPool <{attributes}> (x)
                y = {operator} (p, p)
            }}
        """)
        for operator in ("Add", "Sum", "Mul")
    )
    assert verify(doubled, summed)
    assert not verify(doubled, squared)


def test_an_operator_of_another_domain_with_the_name_of_a_pooling_pools_nothing() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        main (float[1, 1, w] x) => (float[1, 1, w] y) { y = own.MaxPool (x) }
        <domain: "own", opset_import: ["" : 17]>
        MaxPool (x) => (y) { y = Abs (x) }
    """)
    assert verify(model, model)
