"""Forms of a step: both directions of one row at once, without mixing them up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.external_data_helper import set_external_data
from support.judge import all_nodes, differences, run, run_in, session_of
from support.small_models import lowered_by, recurrent_model, weights

import rnnlower
from rnnlower.lowering import sketching
from rnnlower.targets import find_target

FLOAT = onnx.TensorProto.FLOAT
NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm_clip": ("LSTM", {"clip": 0.4}),
    "lstm_coupled": ("LSTM", {"input_forget": 1}),
    "lstm_peepholes": ("LSTM", {"P": True}),
    "lstm_states": ("LSTM", {"initial_h": True, "initial_c": True}),
    "lstm_weights_at_run_time": ("LSTM", {"given": ("R", "B", "P"), "P": True}),
    "gru": ("GRU", {}),
    "gru_linear": ("GRU", {"linear_before_reset": 1, "initial_h": True}),
    "gru_without_bias": ("GRU", {"linear_before_reset": 1, "B": False}),
    "rnn": ("RNN", {"activations": ["Relu", "Relu"]}),
}
"""Operator, attributes and inputs."""


def form_source(
    op_type: str, options: dict[str, Any], steps: Any, direction: str = "bidirectional"
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model of a batch of one, and its inputs."""
    attributes = dict(options)
    directions = 2 if direction == "bidirectional" else 1
    constants = weights(op_type, directions=directions)
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"][:directions]
    if attributes.pop("P", False):
        constants["P"] = constants["B"][:, :12]
    if not attributes.pop("B", True):
        del constants["B"]
    rng = np.random.default_rng(0)
    feeds = {"X": rng.standard_normal((5, 1, 3)).astype(np.float32)}
    for name in ("initial_h", "initial_c"):
        if attributes.pop(name, False):
            feeds[name] = rng.standard_normal((directions, 1, 4)).astype(np.float32)
    feeds |= {name: constants.pop(name) for name in attributes.pop("given", ())}
    inputs = {name: (FLOAT, list(value.shape)) for name, value in feeds.items()}
    inputs["X"] = (FLOAT, [steps, 1, 3])
    outputs = ("Y", "Y_h", "Y_c")[: 3 if op_type == "LSTM" else 2]
    model = recurrent_model(
        op_type,
        constants=constants,
        inputs=inputs,
        outputs=outputs,
        direction=direction,
        **attributes,
    )
    return model, feeds


def product_ops(model: onnx.ModelProto) -> set[str]:
    """Return the operators that multiply matrices in bodies."""
    bodies = [
        attribute.g
        for node in all_nodes(model)
        for attribute in node.attribute
        if node.op_type in ("Scan", "Loop")
    ]
    return {node.op_type for body in bodies for node in body.node} & {"Gemm", "MatMul"}


@pytest.fixture(autouse=True)
def first_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first form that is allowed, whatever it costs."""
    monkeypatch.setattr(sketching, "_ERROR_OF_PRICES", 1e9)


@pytest.mark.parametrize("steps", [5, "T"])
@pytest.mark.parametrize(("strategy", "factor"), [("scan", 1), ("scan", 2), ("loop", 1)])
@pytest.mark.parametrize(("op_type", "options"), NODES.values(), ids=NODES)
def test_both_directions_in_one_step(
    op_type: str,
    options: dict[str, Any],
    strategy: str,
    factor: int,
    steps: Any,
) -> None:
    source, feeds = form_source(op_type, options, steps)
    result = lowered_by(source, strategy, unroll_factor=factor)
    # Weights that come at run time are not turned.
    assert product_ops(result) == ({"Gemm"} if "given" in options else {"MatMul"})
    assert differences(run(source, feeds), run(result, feeds), "float32") == []


@pytest.mark.parametrize(("more", "product"), [(0, "MatMul"), (1, "Gemm")])
def test_large_directions_have_products_of_their_own(more: int, product: str) -> None:
    size = int(find_target("onnxruntime").prices.thresholds["largest_pair"]) + more
    constants = weights("LSTM", hidden_size=size, directions=2)
    constants = {name: value / 8 for name, value in constants.items()}
    inputs = {"X": (FLOAT, [2, 1, 3])}
    source = recurrent_model(
        "LSTM", constants=constants, inputs=inputs, hidden_size=size, direction="bidirectional"
    )
    result = lowered_by(source, "scan")
    assert product_ops(result) == {product}
    feeds = {"X": np.random.default_rng(0).standard_normal((2, 1, 3)).astype(np.float32)}
    assert differences(run(source, feeds), run(result, feeds), "float32") == []


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_nothing_is_split_or_concatenated_outside_of_the_body(op_type: str) -> None:
    """Both directions' input products are one, and only the time of the second one is turned round."""
    source, _ = form_source(op_type, {}, 5)
    ops = [node.op_type for node in lowered_by(source, "scan").graph.node]
    assert ops.count("Gemm") == (2 if op_type == "GRU" else 1)
    assert ops.count("ReverseSequence") == ops.count("Gemm") + 1
    assert set(ops) <= {"Reshape", "Gemm", "ReverseSequence", "Scan", "Mul", "Add"}


@pytest.mark.parametrize(("declared", "steps"), [(5, 5), ("T", 5), ("T", 0)])
def test_the_first_direction_has_a_length_that_every_onnxruntime_takes(declared: Any, steps: int) -> None:
    """Of a row of length 0, onnxruntime 1.23 makes random numbers; none takes a length above the steps."""
    source, feeds = form_source("LSTM", {}, declared)
    result = lowered_by(source, "scan")
    lengths = {node.input[1] for node in result.graph.node if node.op_type == "ReverseSequence"}
    given = {each.name for each in result.graph.output}
    result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in lengths - given)
    found = run(result, feeds | {"X": feeds["X"][:steps]})
    assert {tuple(found[name]) for name in lengths} == {(min(1, steps), steps)}


@pytest.mark.parametrize("name", ["W", "R"])
def test_weights_stored_elsewhere_stay_there(name: str, tmp_path: Path) -> None:
    """Of both directions they would have to be read and written anew."""
    source, _ = form_source("LSTM", {}, 5)
    weight = next(each for each in source.graph.initializer if each.name == name)
    set_external_data(weight, "weights.bin")
    onnx.save(source, tmp_path / "model.onnx")
    lowered = rnnlower.scan(ir.load(tmp_path / "model.onnx"))
    pieces = [value.const_value for own, value in lowered.graph.initializers.items() if own[0] == name]
    assert sum(isinstance(each, ir.ExternalTensor) for each in pieces) == len(pieces) > 0


@pytest.mark.parametrize("strategy", ["scan", "loop"])
@pytest.mark.parametrize("direction", ["bidirectional", "reverse"])
def test_without_steps_the_final_state_is_zero(strategy: str, direction: str) -> None:
    source, feeds = form_source("LSTM", {"initial_h": True, "initial_c": True}, "T", direction)
    feeds["X"] = feeds["X"][:0]
    results = run(lowered_by(source, strategy), feeds)
    directions = 2 if direction == "bidirectional" else 1
    assert results["Y"].shape == (0, directions, 1, 4)
    np.testing.assert_array_equal(results["Y_h"], np.zeros((directions, 1, 4), np.float32))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("length", [0, 2, 5])
@pytest.mark.parametrize("direction", ["bidirectional", "forward", "reverse"])
def test_sequence_lens(length: int, constant: bool, direction: str) -> None:
    """A mask has one element for each direction; where no row has a step, nothing is computed."""
    lengths = {"sequence_lens": np.array([length], np.int32)}
    inputs = {"X": (FLOAT, [5, 1, 3]), "sequence_lens": (onnx.TensorProto.INT32, [1])}
    constants = weights("LSTM", directions=2 if direction == "bidirectional" else 1)
    if constant:
        constants |= lengths
        del inputs["sequence_lens"]
    outputs = ("Y", "Y_h", "Y_c")
    source = recurrent_model("LSTM", constants=constants, inputs=inputs, outputs=outputs, direction=direction)
    result = lowered_by(source, "scan")
    product = "MatMul" if direction == "bidirectional" else "Gemm"
    assert product_ops(result) == (set() if constant and length == 0 else {product})
    feeds = {"X": np.random.default_rng(0).standard_normal((5, 1, 3)).astype(np.float32)}
    feeds |= {} if constant else lengths
    assert differences(run(source, feeds), run(result, feeds), "float32") == []


def test_y_of_one_step_is_masked_once() -> None:
    """IREE 3.13 mixes up the choices of H and of C if Y is a choice of H's choice."""
    inputs = {"X": (FLOAT, [1, 3, 3]), "sequence_lens": (onnx.TensorProto.INT32, [3])}
    source = recurrent_model("LSTM", constants=weights("LSTM"), inputs=inputs, outputs=("Y", "Y_h", "Y_c"))
    choices = [node for node in lowered_by(source, "unroll").graph.node if node.op_type == "Where"]
    assert len(choices) == 3
    assert not {name for node in choices for name in node.output} & {
        name for n in choices for name in n.input
    }


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop"])
@pytest.mark.parametrize(
    ("op_type", "batch"), [("LSTM", 1), ("LSTM", 12), ("GRU", 1), ("GRU", 1024), ("RNN", 1)]
)
@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_a_nan_stays_in_its_direction_and_row(
    strange: float, op_type: str, batch: int, strategy: str
) -> None:
    """One in X touches its own row, from its step on in the order in which a direction takes the steps."""
    source = recurrent_model(
        op_type,
        constants=weights(op_type, directions=2),
        inputs={"X": (FLOAT, [6, batch, 3])},
        direction="bidirectional",
    )
    result = lowered_by(source, strategy)
    X = np.random.default_rng(0).standard_normal((6, batch, 3)).astype(np.float32)
    clean = run(result, {"X": X})["Y"]
    X[2, 0, 1] = strange
    dirty = run(result, {"X": X})["Y"]
    np.testing.assert_array_equal(dirty[:2, 0], clean[:2, 0])
    np.testing.assert_array_equal(dirty[3:, 1], clean[3:, 1])
    np.testing.assert_array_equal(dirty[:, :, 1:], clean[:, :, 1:])
    assert not np.array_equal(dirty, clean, equal_nan=True)


@pytest.mark.parametrize("strategy", ["scan", "loop"])
@pytest.mark.parametrize(("direction", "given"), [("forward", (1, 2)), ("bidirectional", (1, 1))])
def test_an_initial_state_of_another_size_is_an_error(
    direction: str, given: tuple[int, int], strategy: str
) -> None:
    """As it is for the node: a batched product would spread one over the other."""
    source = recurrent_model(
        "GRU",
        constants=weights("GRU", directions=2 if direction == "bidirectional" else 1),
        inputs={"X": (FLOAT, [5, 1, 3]), "initial_h": (FLOAT, ["D", "N", 4])},
        direction=direction,
    )
    feeds = {"X": np.ones((5, 1, 3), np.float32), "initial_h": np.ones((*given, 4), np.float32)}
    for model in (source, lowered_by(source, strategy)):
        session = session_of(model)
        with pytest.raises(Exception, match="Non-zero status code"):
            run_in(session, feeds)


def test_thresholds_of_a_target_decide(tmp_path: Path) -> None:
    """A file of a user has its own sizes, and a form whose size was not measured is allowed anywhere."""
    (built_in,) = Path(rnnlower.__file__).parent.glob("targets/data/onnxruntime.toml")
    text = built_in.read_text(encoding="utf-8")
    assert "largest_pair = 192, " in text
    size, found = 24, {}
    constants = weights("LSTM", hidden_size=size, directions=2)
    source = recurrent_model(
        "LSTM",
        constants={name: value / 8 for name, value in constants.items()},
        inputs={"X": (FLOAT, ["T", 1, 3])},
        hidden_size=size,
        direction="bidirectional",
    )
    for name, threshold in {"few": "largest_pair = 23, ", "many": "largest_pair = 24, ", "any": ""}.items():
        path = tmp_path / f"{name}.toml"
        path.write_text(text.replace("largest_pair = 192, ", threshold), encoding="utf-8")
        found[name] = product_ops(rnnlower.lower(source, target=path, native="lower"))
    assert found == {"few": {"Gemm"}, "many": {"MatMul"}, "any": {"MatMul"}}
