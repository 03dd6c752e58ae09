"""Padded models compute what their sources compute, at every length and whatever the padding holds."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import onnx
import pytest
from support.padded_models import (
    LSTM_BOTH,
    MAXIMUM,
    MODELS,
    RELATIVE_SHIFT,
    difference,
    padded_case,
    with_weights,
)
from support.sessions import session

import rnnlower


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_valid_part_is_right_at_every_length(name: str, mask: bool) -> None:
    source = padded_case(name)
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask)
    assert "T" not in str([value.type for value in padded.graph.input])
    assert difference(source, padded, 0.0, 5.0, -300.0, float("nan")) < 2e-6


NOT_PER_ROW = {
    "number of steps": "is a number of steps",
    "a mask of its own": "where rows are not one axis",
    "shape from counted steps": "where rows are not one axis",
    "step at a computed position": "rows",
    "positions divided by the length": "where rows are not one axis",
    "quantized product": "rows",
    "norm over time": "rows",
    "weights that count down": "differ from row to row",
    "turned by positions": "differ from row to row",
    "positions that count down": "number of steps",
    "turned in a Loop": "computed while it runs",
    "a part of a table of distances": "number of steps",
    "a relative shift": "number of steps",
    "a relative shift of frames": "number of steps",
    "implicit Einsum": "rows",
    "mirrored ends": "repeats the ends of rows",
    "mirrored ends of two axes": "repeats the ends of rows",
    "repeated ends": "repeats the ends of rows",
    **{name: "stretches rows" for name in MODELS if name.startswith("stretched to the length")},
    "stretched": "stretches rows",
    "repeated steps": "stretches rows",
    "every other step": "stretches rows",
    "Scan over features": "combines rows",
    "Scan of a Loop that ends by a condition": "combines rows",
    "the second step and the last but two of a row": "consist of several numbers",
}
"""Models in which rows meet, or whose steps move by a number of their own in each row."""
ONE_ROW = (
    "something behind the end",
    "the largest and the last step of a row",
    "twice, joined",
    "two heads",
    "vector of steps",
)
"""Models of a batch of one."""


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in (*NOT_PER_ROW, *ONE_ROW)])
def test_each_row_may_have_a_length_of_its_own(name: str, mask: bool) -> None:
    source = padded_case(name, batch="B")
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask, per_row=True)
    assert padded.graph.input[-1].type.tensor_type.shape.dim[0].dim_param == "B"
    assert rnnlower.verify(source, padded, trials=1)


@pytest.mark.parametrize("name", NOT_PER_ROW)
def test_a_node_that_joins_rows_is_refused_by_name(name: str) -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match=NOT_PER_ROW[name]):
        rnnlower.pad(padded_case(name, batch="B"), max={"T": MAXIMUM}, per_row=True)


@pytest.mark.parametrize(
    "nodes",
    [
        "i = Constant <value_int = 1> () z = CumSum (x, i)",
        "p = Constant <value_ints = [0, 1, 0, 0, 0, 0]> () z = Pad (x, p)",
        'z = Einsum <equation = "tbf, tcf -> bc"> (x, x)',
        "t = Transpose <perm = [0, 2, 1]> (x) z = MatMul (x, t)",
        "t = Transpose <perm = [2, 1, 0]> (x) c = Constant <value_ints = [2, 1, 1, 1]> () "
        "z = ReverseSequence <batch_axis = 0, time_axis = 1> (t, c)",
        "t = Transpose <perm = [0, 2, 1]> (x) c = Constant <value_float = 1.0> () e = ConstantOfShape (f413) "
        "k = Add (c, e) z, s = com.microsoft.CausalConvWithState (t, k)",
        'z, s = com.microsoft.LinearAttention <q_num_heads = 1, kv_num_heads = 1, update_rule = "linear"> '
        "(x, x, x)",
    ],
)
def test_an_operator_over_the_axis_of_rows_is_refused(nodes: str) -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> main (float[T, B, 4] x) => (float z) '
        f"<int64[3] f413 = {{4, 1, 3}}> {{ {nodes} }}"
    )
    source.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(rnnlower.UnsupportedModelError, match="combines rows"):
        rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True)


@pytest.mark.parametrize(
    "operator",
    [
        "Attention <q_num_heads = 1, kv_num_heads = 1>",
        "com.microsoft.MultiHeadAttention <num_heads = 1>",
        'com.microsoft.LinearAttention <q_num_heads = 1, kv_num_heads = 1, update_rule = "linear">',
    ],
)
def test_features_that_are_steps_are_refused(operator: str) -> None:
    source = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> main (float[T, B, 4] x) => '
        f"(float[B, 4, T] z) {{ t = Transpose <perm = [1, 2, 0]> (x) z = {operator} (t, t, t) }}"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="has features over time"):
        rnnlower.pad(source, max={"T": MAXIMUM})


@pytest.mark.parametrize("read", ["a3", "a2", "a1"])
def test_what_else_reads_scores_that_are_shifted_is_refused(read: str) -> None:
    shift = RELATIVE_SHIFT.replace("z =", "n1 =")
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T, 1, 3] x) => (float[T, 3] z) '
        f"{{ {shift} u = ReduceMax <axes = [0, 1]> ({read}) z = Add (n1, u) }}"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="folds time after another axis"):
        rnnlower.pad(source, max={"T": MAXIMUM})


def test_a_shift_that_loses_its_last_row_is_refused() -> None:
    """What it reads depends on the number of distances."""
    shift = RELATIVE_SHIFT.replace("(a1, one, d, zero1)", "(a1, zero1, w, zero1)")
    source = with_weights(
        f'<ir_version: 8, opset_import: ["" : 17]> main (float[T, 1, 3] x) => (float[T, 3] z) {{ {shift} }}'
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="folds time after another axis"):
        rnnlower.pad(source, max={"T": MAXIMUM})


def test_an_output_length_may_be_rounded_down() -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[1, 3, T] x) => (float[1, 3, U] z) { '
        "y = MaxPool <kernel_shape = [2], strides = [2]> (x) z = ConvTranspose <strides = [2]> (y, Q) }"
    )
    padded = rnnlower.pad(source, max={"T": 15})
    told = json.loads(next(each.value for each in padded.metadata_props if each.key == "rnnlower.pad"))
    assert told["outputs"]["z"]["size"] == "2 * (T // 2)"
    assert told["least"] == {"T": 2}
    assert rnnlower.verify(source, padded)


@pytest.mark.parametrize("name", ["tagger", "attention", "convolutions"])
def test_verify_knows_the_padding(name: str) -> None:
    source = padded_case(name)
    padded = rnnlower.pad(source, max={"T": 40})
    assert rnnlower.verify(source, padded)
    for node in padded.graph.node:
        if node.op_type == "Less":
            node.op_type = "GreaterOrEqual"
        if node.op_type in ("LSTM", "GRU", "RNN"):
            node.input[4] = ""
    assert not rnnlower.verify(source, padded)


def test_a_static_source_is_taken_with_its_axis() -> None:
    source = padded_case("bidirectional", str(MAXIMUM))
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, time_axes={"x": 0})
    assert difference(padded_case("bidirectional"), padded, 7.0) < 2e-6
    assert rnnlower.verify(source, padded)


def test_a_static_length_is_not_folded() -> None:
    source = padded_case("mean by hand", str(MAXIMUM), "B")
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, time_axes={"x": 0}, dims={"B": 1})
    assert rnnlower.verify(source, padded)


@pytest.mark.parametrize("sizes", [{"input_shapes": {"x": [12, 1, 3]}}, {"dims": {"T": 12}}])
def test_a_time_axis_of_a_size_that_is_given_is_refused(sizes: dict[str, Any]) -> None:
    """The size would be folded into the model, and the maximum would be a length that it does not expect."""
    source = padded_case("mean by hand", str(MAXIMUM), "1")
    with pytest.raises(rnnlower.OptionError, match=r"no input has a dimension 'T'.*do not fix its size"):
        rnnlower.pad(source, max={"T": MAXIMUM}, time_axes={"x": 0}, **sizes)


@pytest.mark.parametrize(
    ("divide", "reads"), [("Div (s, n)", 13), ("Mul (n, s)", 1 / 13), ("Div (s, n)", 12)]
)
def test_a_number_that_may_be_the_static_length_is_noted(divide: str, reads: float) -> None:
    source = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[13, 1, 3] x) => (float[1, 3] z) '
        f"{{ a = Constant <value_ints = [0]> () n = Constant <value_float = {reads:.9f}> () "
        f"s = ReduceSum <keepdims = 0> (x, a) z = {divide} }}"
    )
    _, report = rnnlower.pad.with_report(source, max={"T": MAXIMUM}, time_axes={"x": 0})
    told = [note for note in report.notes if "may follow from the static length 13" in note]
    assert len(told) == (reads != 12)


def test_two_lengths_cut_from_their_ends_by_one_node_are_refused() -> None:
    source = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T, 1] x, float[1, S] k) => (float[2, 3] z) '
        "{ b = Constant <value_ints = [-2, -3]> () e = Constant <value_ints = [9999, 9999]> () "
        "y = Mul (x, k) z = Slice (y, b, e) }"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="cuts several axes from their ends"):
        rnnlower.pad(source, max={"T": MAXIMUM, "S": MAXIMUM})


def test_a_static_length_in_a_shape_is_refused() -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[13, 1, 3] x) => (float[13, 4] z) '
        f"{{ {LSTM_BOTH} t = Transpose <perm = [0, 2, 1, 3]> (y) n = Constant <value_ints = [13, 6]> () "
        "r = Reshape (t, n) z = MatMul (r, P) }"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="a fixed number of steps, 13"):
        rnnlower.pad(source, max={"T": MAXIMUM}, time_axes={"x": 0})


@pytest.mark.parametrize(
    ("nodes", "shapes"),
    [
        ("c = ConstantOfShape (n) z = Mul (x, c)", "[13, 1, 3] and [6, 1, 3]"),
        (
            "b = Shape <end = 1> (m) e = Constant <value_ints = [-1, 3]> () k = Concat <axis = 0> (b, e) "
            "z = Reshape (x, k)",
            "[13, 1, 3] and [29, -1, 3]",
        ),
        ("z = Concat <axis = 2> (x, m)", "[13, 1, 3] and [29, 1, 3]"),
    ],
)
def test_shapes_that_do_not_fit_at_other_lengths_are_named(nodes: str, shapes: str) -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T, 1, 3] x, float[M, 1, 3] m) '
        f"=> (float[A, 1, B] z) {{ n = Constant <value_ints = [6, 1, 3]> () {nodes} }}"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match=rf"would get the shapes {re.escape(shapes)}"):
        rnnlower.pad(source, max={"T": MAXIMUM})


def test_a_source_of_one_length_cannot_be_verified() -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[13, 1, 3] x) => (float[1, 3] z) '
        "{ i = Constant <value_int = 12> () z = Gather <axis = 0> (x, i) }"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, time_axes={"x": 0})
    with pytest.raises(rnnlower.UnverifiableError, match="only at its full length"):
        rnnlower.verify(source, padded)


def test_two_lengths_are_padded_at_once() -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[1, T, 3] x, float[1, S, 3] m) '
        "=> (float[1, T, 3] z) { k = Transpose <perm = [0, 2, 1]> (m) w = MatMul (x, k) "
        "p = Softmax <axis = 2> (w) z = MatMul (p, m) }"
    )
    padded = rnnlower.pad(source, max={"T": 9, "S": 7})
    assert [value.name for value in padded.graph.input] == ["x", "m", "length_T", "length_S"]
    assert rnnlower.verify(source, padded)


REFUSED = {
    "no rule says what NonZero": "m = ReduceSum <keepdims = 0> (x) y = Mul (x, m) n = NonZero (y) "
    "f = Cast <to = 1> (n) z = ReduceSum <keepdims = 0> (f)",
    "repeats the sequence": "n = Constant <value_ints = [2, 1, 1]> () y = Tile (x, n) "
    "z = ReduceSum <keepdims = 0> (y)",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_node_without_a_rule_is_refused_by_name(reason: str) -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T, 1, 3] x) => (float z) '
        f"{{ {REFUSED[reason]} }}"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match=reason) as caught:
        rnnlower.pad(source, max={"T": MAXIMUM})
    op_type, position = caught.value.node.split("_")
    assert source.graph.node[int(position)].op_type == op_type
    assert caught.value.remedy


@pytest.mark.parametrize(
    "body",
    [
        "s2 = Constant <value_ints = [-1, 3]> () r = Reshape (x, s2) z = ReduceMax <axes = [0]> (r)",
        "t = Transpose <perm = [1, 0, 2]> (x) s2 = Constant <value_ints = [-1, 3]> () r = Reshape (t, s2) "
        "z = ReduceMax <axes = [0]> (r)",
    ],
    ids=["behind the batch", "before the batch"],
)
def test_an_open_batch_that_time_is_folded_with_is_named(body: str) -> None:
    source = with_weights(
        f'<ir_version: 8, opset_import: ["" : 17]> main (float[B, T, 3] x) => (float[1, 3] z) {{ {body} }}'
    )
    with pytest.raises(rnnlower.UnsupportedModelError) as caught:
        rnnlower.pad(source, max={"T": MAXIMUM})
    assert caught.value.remedy == 'give the other open sizes numbers: dims={"B": 1}'
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, dims={"B": 1}))


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_layers_of_folded_rows_are_computed_on_all_axes(mask: bool, per_row: bool) -> None:
    """Keras and PyTorch fold batch and time for a dense layer, whatever the order of the two."""
    source = model(
        "(float[B, T, 6] x) => (float[B, 1, 4] z) <int64[2] rows = {-1, 6}, int64[1] width = {4},"
        " int64[1] from = {0}, int64[1] to = {2}> {"
        " sizes = Shape (x) outer = Slice (sizes, from, to) shape = Concat <axis = 0> (outer, width)"
        " f = Reshape (x, rows) g = Gemm (f, P) h = Relu (g) y = Reshape (h, shape)"
        " z = ReduceMean <axes = [1]> (y) }"
    )
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask, per_row=per_row))


@pytest.mark.parametrize("opset", [7, 9])
def test_initializers_of_the_first_ir_versions_are_constants(opset: int) -> None:
    """Each had to be an input, which nobody could feed."""
    source = onnx.parser.parse_model(
        f'<ir_version: 3, opset_import: ["" : {opset}]> main (float[B, T, 2] x, int64[2] flat)'
        " => (float[B, 1] z) <int64[2] flat = {-1, 1}> {"
        " s = ReduceSum <axes = [1, 2], keepdims = 1> (x) z = Reshape (s, flat) }"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert [value.name for value in padded.graph.input] == ["x", "length"]
    assert rnnlower.verify(source, padded)


def test_time_behind_a_batch_is_refused() -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[2, T, 3] x) => (float[1, 3] z) '
        "{ s2 = Constant <value_ints = [-1, 3]> () r = Reshape (x, s2) z = ReduceMax <axes = [0]> (r) }"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="steps that are folded with another axis"):
        rnnlower.pad(source, max={"T": MAXIMUM})


@pytest.mark.parametrize(
    ("most", "words"),
    [
        ({}, "must name"),
        ({"T": 1}, "at least 2"),
        ({"Q": 8}, r'no input has .*\(time_axes=\{"INPUT": AXIS\}\)'),
    ],
)
def test_invalid_maxima_are_refused(most: dict[str, int], words: str) -> None:
    with pytest.raises(rnnlower.OptionError, match=words):
        rnnlower.pad(padded_case("mean"), max=most)


def test_a_loop_becomes_a_recurrent_node_first() -> None:
    source = rnnlower.loop(padded_case("forward state"))
    assert "Loop" in {node.op_type for node in source.graph.node}
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert "LSTM" in {node.op_type for node in padded.graph.node}
    assert rnnlower.verify(source, padded)
    kept = rnnlower.pad(source, max={"T": MAXIMUM}, lift=False)
    assert "Loop" in {node.op_type for node in kept.graph.node}
    assert rnnlower.verify(source, kept)


def test_sequences_without_a_frame_are_below_the_least() -> None:
    """Frames from a Range may be none, on which onnxruntime runs no LSTM."""
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T, 1, 3] x) => (float[F, 2, 1, 3] y) '
        "{ n = Shape <end = 1> (x) l = Squeeze (n) width = Constant <value_int = 6> () m = Sub (l, width) "
        "hop = Constant <value_int = 2> () r = Range (zero, m, hop) f = Gather <axis = 0> (x, r) "
        f"{LSTM_BOTH.replace('(x,', '(f,')} }}"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert json.loads(padded.metadata_props[0].value)["least"] == {"T": 7}
    assert rnnlower.verify(source, padded)


def test_shorter_sequences_than_a_number_of_steps_are_below_the_least() -> None:
    source = padded_case("largest three")
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert json.loads(padded.metadata_props[0].value)["least"] == {"T": 3}


def test_sequences_that_leave_nothing_to_average_are_below_the_least() -> None:
    source = model(
        "(float[T, 3] x) => (float[3] z) <int64 zeroth = {0}, int64 two = {2}> { s = Shape <end = 1> (x) "
        "n = Squeeze (s) m = Sub (n, two) r = Range (zeroth, m, two) y = Gather (x, r) "
        "z = ReduceMean <axes = [0], keepdims = 0> (y) }"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert json.loads(padded.metadata_props[0].value)["least"] == {"T": 3}
    assert rnnlower.verify(source, padded)


def test_an_old_model_is_converted_first() -> None:
    source = rnnlower.convert(padded_case("tagger"), opset=7)
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert padded.opset_import[0].version == 9
    assert rnnlower.verify(source, padded)


def test_padded_positions_may_be_any_number() -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (int64[1, T] x) => (float[1, 3] z) '
        "{ y = Gather <axis = 0> (V, x) z = ReduceMean <axes = [1], keepdims = 0> (y) }"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    x = np.array([[2, 0, 1]])
    (expected,) = session(source).run(None, {"x": x})
    for fill in (0, 99, -99):
        whole = np.concatenate([x, np.full((1, MAXIMUM - 3), fill)], 1)
        (found,) = session(padded).run(None, {"x": whole, "length": np.array([3])})
        np.testing.assert_allclose(found, expected, atol=1e-6)


def model(text: str) -> onnx.ModelProto:
    """Return the model, with random weights."""
    return with_weights(f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> main {text}')


@pytest.mark.parametrize("mask", [False, True])
def test_numbers_of_steps_as_outputs_keep_their_names(mask: bool) -> None:
    source = model("(float[T, N, 3] x) => (int64 n, int64[3] s, int64[3] s) { n = Size (x) s = Shape (x) }")
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask)
    assert [value.name for value in padded.graph.output] == ["n", "s", "s"]
    assert rnnlower.verify(source, padded)


def test_positions_that_all_follow_from_the_length_are_refused_as_an_output() -> None:
    source = model(
        "(float[T, 3] x) => (int64[T] r) <int64[1] place = {0}, int64 zeroth = {0}> "
        "{ s = Shape <start = 0, end = 1> (x) n = Squeeze (s, place) m = Mul (n, n) "
        "r = Range (zeroth, m, n) }"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="output 'r' follows from the number of steps"):
        rnnlower.pad(source, max={"T": MAXIMUM})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("e = Add (b, two) z = Slice (w, b, e, first)", "start follows from the length"),
        ("p = Concat <axis = 0> (b, r) z = Pad (w, p, , first)", "pads by an amount"),
        ("p = Concat <axis = 0> (b, r) z = Pad (x, p, , first)", "pads by an amount"),
        ("p = Concat <axis = 0> (b, two, m) v, z, u = Split (w, p)", "cuts the sequence into parts"),
    ],
)
def test_parts_that_begin_elsewhere_in_short_sequences_only_are_refused(text: str, reason: str) -> None:
    source = model(
        "(float[T, 3] x, float[20, 3] w) => (float[U, 3] z) <int64[1] two = {2}, int64[1] eight = {8}, "
        "int64[1] ten = {10}, int64[1] first = {0}> { n = Shape <start = 0, end = 1> (x) b = Min (n, eight) "
        f"r = Sub (eight, b) m = Add (ten, r) {text} }}"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match=reason):
        rnnlower.pad(source, max={"T": 40})


def test_a_part_that_only_short_sequences_have_is_refused() -> None:
    source = model(
        "(float[T, 3] x) => (float[U, 3] z) <int64[1] two = {2}, int64[1] first = {0}> "
        "{ n = Shape <start = 0, end = 1> (x) h = Div (n, two) b = Sub (n, two) e = Add (h, two) "
        "z = Slice (x, b, e, first) }"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="gets shorter where the sequence gets longer"):
        rnnlower.pad(source, max={"T": 40})


@pytest.mark.parametrize("begin", ["Sub (n, one)", "Sub (most, n)", "Identity (n)"])
def test_a_part_of_another_input_begins_where_the_length_says(begin: str) -> None:
    source = model(
        "(float[T, 3] x, float[20, 3] w) => (float[3] z) <int64[1] one = {1}, int64[1] most = {20}, "
        "int64[1] two = {2}, int64[1] first = {0}> { n = Shape <start = 0, end = 1> (x) "
        f"b = {begin} e = Add (b, two) v = Slice (w, b, e, first) p = ReduceSum <keepdims = 0> (v, first) "
        "m = ReduceMean <keepdims = 0, axes = [0]> (x) z = Add (p, m) }"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert rnnlower.verify(source, padded)
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True))


@pytest.mark.parametrize("shape", ["T, N", "N, T"])
@pytest.mark.parametrize("mask", [False, True])
def test_embedded_rows_may_have_lengths_of_their_own(shape: str, mask: bool) -> None:
    source = model(f"(int64[{shape}] x) => (float[{shape}, 4] y) {{ y = Gather (P, x) }}")
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask, per_row=True))


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [
        ("T, 2, M, 3", LSTM_BOTH),
        (
            "M, T, 3",
            "t = Transpose <perm = [1, 0, 2]> (x) "
            "y = com.microsoft.MultiHeadAttention <num_heads = 1> (t, t, t)",
        ),
    ],
)
@pytest.mark.parametrize("mask", [False, True])
def test_heads_folded_into_rows_have_the_length_of_their_row(shape: str, nodes: str, mask: bool) -> None:
    source = model(
        f"(float[T, N, 6] X) => (float[{shape}] y) <int64[3] sizes = {{0, -1, 3}}> "
        f"{{ x = Reshape (X, sizes) {nodes} }}"
    )
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask, per_row=True))


def test_an_output_may_be_declared_by_the_length_where_its_size_is_another() -> None:
    source = model(
        "(float[T, 3] x, float[4] c, float[N] d) => (float[T, 3] y, int64[1, T] r, float[T] s) "
        "{ y = Softmax <axis = 0> (x) r = NonZero (c) s = Relu (d) }"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in padded.graph.output]
    assert shapes == [[MAXIMUM, 3], [1, 0], [0]]


@pytest.mark.parametrize(
    "text",
    [
        "(float[N, 4, T] x) => (float[N, 4, T] y) { y = InstanceNormalization (x, b, b) }",
        "(float[T, 2, 4] x) => (float[T, 8] y) <int64[2] sizes = {0, -1}> { y = Reshape (x, sizes) }",
    ],
)
def test_verify_allows_for_rounding_and_features_of_single_rows(text: str) -> None:
    source = model(text)
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True))


def test_an_if_of_known_condition_is_its_branch() -> None:
    source = model(
        "(float[T, 1, 3] x) => (float[1, 1, 3] z) <bool c = {1}> { z = If (c) "
        "<then_branch = p () => (float[1, 1, 3] a) { a = ReduceMean <axes = [0]> (x) }, "
        "else_branch = q () => (float[1, 1, 3] b) { b = ReduceMax <axes = [0]> (x) }> }"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert "If" not in {node.op_type for node in padded.graph.node}
    assert rnnlower.verify(source, padded)


def test_a_shape_that_callers_may_override_is_known_with_freeze() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        main (float[T, 1, 2] x, int64[2] shape) => (float[T, 2] y)
        <int64[2] shape = {0, 2}> { y = Reshape (x, shape) }"""
    source = onnx.parser.parse_model(text)
    assert [tensor.name for tensor in source.graph.initializer] == ["shape"]
    with pytest.raises(rnnlower.UnsupportedModelError, match="freeze=True makes a constant of input 'shape'"):
        rnnlower.pad(source, max={"T": MAXIMUM})
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, freeze=True)
    assert difference(source, padded, 5.0) == 0


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("least", {"T": MAXIMUM + 1}, "the least length"),
        ("lengths", {}, "different lengths"),
        ("inputs", {"q": 0}, "different inputs"),
        ("outputs", {"y": {"size": "T"}}, "no axis"),
        ("max", {"T": 2**40}, f"no axis 0 of {2**40} steps"),
        ("inputs", {"x": 3}, "of the reference has no axis 3"),
        ("outputs", {"y": {"axis": 0, "size": "T + 29"}}, "shape"),
        ("outputs", {"y": {"axis": 7, "size": "T"}}, "shape"),
        ("outputs", {"y": {"axis": 0, "size": "T // 0"}}, "not an expression"),
    ],
)
def test_metadata_that_do_not_fit_are_told(key: str, value: object, words: str) -> None:
    source = model("(float[T, 3] x) => (float[T, 3] y) { y = Relu (x) }")
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    told = json.loads(padded.metadata_props[0].value)
    padded.metadata_props[0].value = json.dumps(told | {key: value})
    try:
        result = rnnlower.verify(source, padded)
        assert not result
        text = " ".join([*result.problems, *(each.note for each in result.outputs)])
    except (rnnlower.InvalidModelError, rnnlower.OptionError) as error:
        text = str(error)
    assert words in text


def test_rows_that_a_concat_joins_with_nothing() -> None:
    """As TorchScript exports `torch.cat([x])`."""
    source = model(
        "(float[T, B, 3] x) => (float[T, B, 3] y) "
        "{ a = Concat <axis = 1> (x) b = Tanh (a) y = Concat <axis = 0> (b) }"
    )
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True))


@pytest.mark.parametrize(
    "nodes",
    [
        # A least length, also behind a window; a most length; more steps than at the maximum.
        "d = Sub (ten, n) e = Max (d, zero1) p = Concat <axis = 0> (o, e) z = Pad (x, p)",
        "v = AveragePool <kernel_shape = [5]> (x) d = Sub (ten, n) e = Max (d, zero1) "
        "p = Concat <axis = 0> (o, e) z = Pad (v, p)",
        "e = Min (n, six) p = Concat <axis = 0> (six, e) z = ConstantOfShape (p)",
        "r = Mod (n, two) e = Mul (r, ten) p = Concat <axis = 0> (o, e) y = Pad (x, p) "
        "z = ReduceMean <axes = [2]> (y)",
        # Nothing at the least length of 3, which is no example.
        "r = Mod (n, two) d = Sub (n, r) e = Min (d, six) y = Slice (x, two, e, two) z = ReduceSum (y, two)",
    ],
)
def test_a_size_that_only_some_lengths_decide_is_refused(nodes: str) -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[1, 3, T] x) => (float z) '
        "<int64[1] ten = {10}, int64[1] six = {6}, int64[1] two = {2}, int64[5] o = {0, 0, 0, 0, 0}> "
        f"{{ n = Shape <start = 2> (x) {nodes} }}"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="in an unsupported way"):
        rnnlower.pad(source, max={"T": 24})


@pytest.mark.parametrize(("last", "least"), [("Sub (n, one)", 1), ("Add (one, one)", 3)])
def test_positions_bound_the_length_unless_they_follow_from_it(last: str, least: int) -> None:
    source = with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[1, T, 3] x) => (float[1, 3] z) { '
        "n = Shape <start = 1, end = 2> (x) one = Constant <value_ints = [1]> () "
        f"t = {last} p = Concat <axis = 0> (zero1, t) s = Constant <value_ints = [1, 2]> () "
        "i = Reshape (p, s) z = GatherND (x, i) }"
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    told = json.loads(next(each.value for each in padded.metadata_props if each.key == "rnnlower.pad"))
    assert told["least"] == {"T": least}
    assert difference(source, padded, 0.0, np.nan) < 1e-6


def test_a_model_without_nodes_is_not_padded() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> m (float[T] Y) => (float[T] Y) {}'
    with pytest.raises(rnnlower.UnsupportedModelError, match="has no nodes"):
        rnnlower.pad(onnx.parser.parse_model(text), max={"T": 8})
