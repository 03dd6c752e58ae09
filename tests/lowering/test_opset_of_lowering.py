"""A lowering to an opset below the model's: emitted in it, or refused with the node's name."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from onnx import helper
from support.grids import pairs_of
from support.judge import STRATEGIES, recurrent_left
from support.small_models import info, model_of, recurrent_model, weights

import rnnlower
from rnnlower.errors import OpsetError
from rnnlower.files.model_io import load_model
from rnnlower.passes.pipeline import LoweringOptions, lower_model

MODELS = pathlib.Path(__file__).parents[2] / "models"
FLOAT = onnx.TensorProto.FLOAT
DIMS = {"T": 5, "time": 5}
# Models above opset 13 in which the sequences are long or the weights computed at run time, and the like.
NAMES = [
    "gru14_bidirectional_sequence_lens_states",
    "gru14_reverse_layout1",
    "gru17_dynamic_weights_computed",
    "gru18_function_ref_attr",
    "lstm14_bidirectional_layout1_clip",
    "lstm14_float64",
    "lstm14_in_scan",
    "lstm14_no_steps",
    "lstm17_states_expanded",
    "rnn14_bidirectional_affine_scaled_tanh",
]
REVERSED = {"lstm14_in_scan", "lstm17_states_expanded"} | {
    name for name in NAMES if "bidirectional" in name or "reverse" in name
}


def opset_of(model: onnx.ModelProto) -> int:
    return max(each.version for each in model.opset_import if each.domain == "")


@pytest.mark.parametrize(("name", "strategy", "opset"), pairs_of(NAMES, STRATEGIES, [9, 10, 13]))
def test_the_result_has_the_opset_and_computes_the_same(name: str, strategy: str, opset: int) -> None:
    source = onnx.load(MODELS / f"{name}.onnx")
    known = {
        dim.dim_param for value in source.graph.input for dim in value.type.tensor_type.shape.dim
    } & DIMS.keys()
    dims = {each: DIMS[each] for each in known} if strategy == "unroll" else {}
    if strategy == "loop" and opset == 9 and name in REVERSED:
        with pytest.raises(OpsetError, match=r"\(Slice-10\) cannot be expressed in opset 9; ask for "):
            rnnlower.loop(source, opset=9)
        return
    lowered = getattr(rnnlower, strategy)(source, opset=opset, dims=dims)
    assert opset_of(lowered) == opset
    assert recurrent_left(lowered) == []
    onnx.checker.check_model(lowered, full_check=True)
    verification = rnnlower.verify(source, lowered, trials=1)
    assert verification, verification.outputs


@pytest.mark.parametrize(
    ("strategy", "opset", "what", "lowest"),
    [
        ("unroll", 7, "Less-9", 9),
        ("unroll", 8, "Less-9", 9),
        ("scan", 8, "Less-9", 9),
        ("loop", 7, "Slice-10", 10),
    ],
)
def test_a_refusal_names_the_recurrent_node_and_the_lowest_opset(
    strategy: str, opset: int, what: str, lowest: int
) -> None:
    inputs = {"X": (FLOAT, [5, 2, 3]), "sequence_lens": (onnx.TensorProto.INT32, [2])}
    model = recurrent_model(inputs=inputs, direction="reverse")
    with pytest.raises(OpsetError) as refusal:
        getattr(rnnlower, strategy)(model, opset=opset)
    expected = f"LSTM node 'cell': its replacement ({what}) cannot be expressed in opset {opset}; "
    assert str(refusal.value) == f"{expected}ask for opset {lowest} or higher"
    assert opset_of(getattr(rnnlower, strategy)(model, opset=lowest)) == lowest


def test_another_node_that_stands_in_the_way_is_named_itself() -> None:
    nodes = [
        helper.make_node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=4, name="cell"),
        helper.make_node("Mish", ["Y"], ["Z"], name="mish"),
        helper.make_node("Asinh", ["Z"], ["V"], name="asinh"),
    ]
    outputs = [info("V", FLOAT, [5, 1, 2, 4])]
    model = model_of(nodes, [info("X", FLOAT, [5, 2, 3])], outputs, weights("LSTM"), opset=18)
    with pytest.raises(OpsetError, match=r"^Asinh node 'asinh': Asinh-9 does not exist before opset 9"):
        rnnlower.scan(model, opset=8)
    assert opset_of(rnnlower.scan(model, opset=9)) == 9


def test_a_scan_over_a_batch_says_it_at_opset_8() -> None:
    model = recurrent_model("RNN", inputs={"X": (FLOAT, [5, 2, 3])}, opset=14)
    lowered = rnnlower.scan(model, opset=8)
    assert opset_of(lowered) == 8
    assert rnnlower.verify(model, lowered, trials=2)


def test_rows_that_end_after_the_first_steps_raise_the_opset() -> None:
    node = helper.make_node("RNN", ["X", "W", "R", "", "lengths"], ["Y"], hidden_size=4)
    constants = {**weights("RNN"), "lengths": np.array([7, 5], np.int32)}
    model = model_of([node], [info("X", FLOAT, [7, 2, 3])], [info("Y", FLOAT, None)], constants, opset=7)
    lowered = rnnlower.unroll(model)
    assert opset_of(lowered) == 9
    assert rnnlower.verify(model, lowered, trials=2)


def test_bfloat16_goes_below_the_opset_that_brought_it_to_the_operator() -> None:
    source = MODELS / "lstm22_bfloat16.onnx"
    lowered = rnnlower.scan(source, opset=13)
    assert opset_of(lowered) == 13
    assert rnnlower.verify(source, lowered, trials=2)


def test_functions_that_go_are_reported() -> None:
    plain = helper.make_function(
        "own", "plain", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    nodes = [
        helper.make_node("LSTM", ["X", "W", "R"], ["y"], hidden_size=4),
        helper.make_node("plain", ["y"], ["Y"], domain="own"),
    ]
    outputs = [info("Y", FLOAT, [5, 1, 2, 4])]
    X = info("X", FLOAT, [5, 2, 3])
    model = model_of(nodes, [X], outputs, weights("LSTM"), functions=[plain], extra_domains=["own"])
    work = load_model(model)
    report = lower_model(work, LoweringOptions("scan", opset=13))
    assert not work.functions
    assert report.notes == ["opset 13 has no functions: 1 were inlined"]
