"""Knowledge: constants and shapes that follow from a model's inputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper
from support.opset_cases import node_cases

from rnnlower.graph.dependence import decided_by
from rnnlower.graph.evaluation import FOLDABLE, evaluate
from rnnlower.graph.knowledge import Knowledge
from rnnlower.graph.walk import walk

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def known(text: str) -> tuple[Knowledge, dict[str, ir.Value]]:
    own = ir.from_onnx_text(HEADER + text)
    values = {str(out.name): out for node, _ in walk(own.graph) for out in node.outputs}
    return Knowledge(own), values


def test_sizes_become_numbers_where_the_inputs_have_them() -> None:
    knowledge, values = known("""
        main (float[2, 12] x) => (float[a, b] y) <int64[1] zero = {0}, int64[1] rest = {-1}>
        {
            s = Shape (x)
            n = Gather (s, zero)
            t = Concat <axis = 0> (n, rest)
            y = Reshape (x, t)
            z = Abs (y)
        }
    """)
    assert knowledge.constant(values["t"]).tolist() == [2, -1]  # type: ignore[union-attr]
    assert knowledge.shape(values["z"]) == (2, 12)


def test_an_initializer_that_a_caller_may_override_is_not_constant() -> None:
    knowledge, values = known("""
        main (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { n = Neg (w)  y = Add (x, n) }
    """)
    assert knowledge.constant(values["n"]) is None


def test_a_state_that_grows_has_no_shape() -> None:
    knowledge, values = known("""
        main (float[1] x) => (float[n] y)
        <int64 count = {3}, bool on = {1}>
        {
            y = Loop (count, on, x) <body = b (int64 i, bool c, float[1] h) => (bool c_out, float[k] g) {
                c_out = Identity (c)
                g = Concat <axis = 0> (h, x)
            }>
        }
    """)
    assert knowledge.shape(values["y"]) == (None,)
    assert knowledge.constant(values["c_out"]) is None


def test_scans_keep_the_sizes_of_their_states() -> None:
    knowledge, values = known("""
        main (float[5, 2, 3] x, float[2, 3] h) => (float[a, b] last, float[t, a, b] all)
        {
            last, all = Scan <num_scan_inputs = 1, body = b (float s, float e) => (float o, float p) {
                o = Add (s, e)
                p = Neg (o)
            }> (h, x)
        }
    """)
    assert knowledge.shape(values["last"]) == (2, 3)
    assert knowledge.shape(values["all"]) == (5, 2, 3)


@pytest.mark.filterwarnings("ignore")
def test_what_is_evaluated_agrees_with_the_standard() -> None:
    tried, wrong = set(), []
    for case in node_cases():
        own = ir.from_proto(case.model)
        if len(own.graph) != 1 or own.graph.node(0).op_type not in FOLDABLE:
            continue
        node = own.graph.node(0)
        inputs = [None if value is None else case.feeds[str(value.name)] for value in node.inputs]
        if not all(array is None or isinstance(array, np.ndarray) for array in inputs):
            continue
        outputs = evaluate(node, inputs, max(own.opset_imports[""], 7))
        if outputs is None:
            continue
        tried.add(node.op_type)
        for have, want in zip(outputs, case.outputs, strict=True):
            if (
                have.dtype != want.dtype
                or have.shape != want.shape
                or not np.allclose(have, want, rtol=1e-6, atol=1e-6, equal_nan=True)
            ):
                wrong.append(case.name)
    assert not wrong
    assert tried == FOLDABLE


def test_integers_are_divided_as_the_standard_says() -> None:
    node = ir.from_proto(helper.make_node("Div", ["a", "b"], ["c"]))
    found = evaluate(node, [np.array([-7, 7], np.int64), np.array([2, -2], np.int64)], 17)
    assert found is not None
    assert found[0].tolist() == [-3, -3]


def test_a_division_of_integers_by_zero_is_left_alone() -> None:
    node = ir.from_proto(helper.make_node("Div", ["a", "b"], ["c"]))
    assert evaluate(node, [np.array([7], np.int64), np.array([0], np.int64)], 17) is None


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_a_node_is_evaluated_in_the_version_of_the_model(opset: int) -> None:
    """Up to opset 12 the axes of a Squeeze are an attribute, which the newest version ignores."""
    axes, attribute = ("ones", "") if opset >= 13 else ("", "<axes = [0]>")
    own = ir.from_onnx_text(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        main (float[2] x) => (float[1, 2] y, float[1, 1, 1, 2] z)
            <float[1, 1, 2] k = {{1, 2}}, int64[1] ones = {{0}}>
        {{
            s = Squeeze {attribute} (k{", " * bool(axes)}{axes})
            u = Unsqueeze {attribute} (k{", " * bool(axes)}{axes})
            y = Add (s, x)
            z = Add (u, x)
        }}
    """)
    knowledge = Knowledge(own)
    squeezed, unsqueezed = (knowledge.constant(own.graph.node(at).outputs[0]) for at in (0, 1))
    assert squeezed is not None
    assert unsqueezed is not None
    assert squeezed.tolist() == [[1, 2]]
    assert unsqueezed.tolist() == [[[[1, 2]]]]


def test_what_an_initializer_of_a_body_decides() -> None:
    """A constant of a body is no input of it."""
    own = ir.from_onnx_text(f"""{HEADER}
        main (float[2] x, int64 n) => (float[2] y) {{
            first = Loop (n, , x) <body = b (int64 i, bool c, float[2] h) => (bool c, float[2] h_out)
                <float[2] k = {{1, 1}}> {{ h_out = Add (h, k) }}>
            s = ReduceSum <keepdims = 0> (first)
            m = Cast <to = 7> (s)
            y = Loop (m, , x) <body = d (int64 j, bool e, float[2] v) => (bool e, float[2] v_out)
                {{ v_out = Mul (v, v) }}>
        }}
    """)
    decided = own.graph.node(-1).inputs[0]
    assert "'x'" in (decided_by(own, decided) or "")
