"""Steps with several matrix states."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import run

import rnnlower

SHAPES = {"q": "2, 4", "k": "2, 4", "v": "2, 4", "g": "2, 4", "S": "2, 4, 4", "Z": "2, 4"}
GATED = """
    gn = Exp (g)  gs = Neg (gn)  decay = Exp (gs)  dw = Unsqueeze (decay, last)  kw = Unsqueeze (k, last)
    vw = Unsqueeze (v, row)  d = Mul (S, dw)  w = Mul (kw, vw)  S2 = Add (d, w)  qw = Unsqueeze (q, row)
    p = MatMul (qw, S2)  y = Squeeze (p, row)
"""
NORMALIZED = f"""{GATED}
    dz = Mul (Z, decay)  Z2 = Add (dz, k)  m = Mul (q, Z2)  n = ReduceSum <keepdims = 1> (m, row)
    o = Div (y, n)
"""
"""Linear attention with its normalizer."""
STACKED = f"""{GATED}
    h = Tanh (y)  hw = Unsqueeze (h, last)  kv = Mul (hw, vw)  z1 = Mul (Z, half)  Z2 = Add (z1, kv)
    p2 = MatMul (qw, Z2)  y2 = Squeeze (p2, row)  o = Add (y2, h)
"""
"""Two layers in one step."""
CIRCULAR = STACKED.replace(
    "vw = Unsqueeze (v, row)", "z0 = ReduceMax <keepdims = 0> (Z, row)  vw = Unsqueeze (z0, row)"
)
BEFORE = STACKED.replace("MatMul (qw, Z2)", "MatMul (qw, Z)").replace("MatMul (qw, S2)", "MatMul (qw, S)")


def scan(step: str, outputs: str = "O, ES, EZ", **shapes: str) -> onnx.ModelProto:
    """Return a Scan over the states ``S`` and ``Z``."""
    dims = SHAPES | shapes
    states = [name for name in "SZ" if name in step]
    inner = ", ".join(f"float[B, {dims[name]}] {name}" for name in [*states, *"qkvg"])
    outer = ", ".join(
        [f"float[B, {dims[name]}] I{name}" for name in states]
        + [f"float[T, B, {dims[name]}] X{name}" for name in "qkvg"]
    )
    ends = {f"E{name}": f"float[B, {dims[name]}]" for name in states} | {"O": "float[T, B, H, M]"}
    given = ", ".join(f"{ends[name]} {name}" for name in outputs.split(", ") if name in ends)
    results = ", ".join(f"float[B, {dims[name]}] {name}3" for name in states)
    copies = " ".join(f"{name}3 = Identity ({name}2)" for name in states)
    left, read = ", ".join(ends), ", ".join([f"I{name}" for name in states] + [f"X{name}" for name in "qkvg"])
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        main ({outer}) => ({given})
        <int64[1] row = {{2}}, int64[1] last = {{3}}, float half = {{0.5}}> {{
            {left} = Scan <num_scan_inputs = 4, body = step ({inner}) => ({results}, float[B, H, M] o2) {{
                {step} {copies} o2 = Identity (o) }}> ({read})
        }}"""
    )


def compare(model: onnx.ModelProto, lifted: onnx.ModelProto) -> None:
    for steps, batch in ((1, 2), (7, 1), (40, 3)):
        draw = np.random.default_rng(steps)
        dims = {"T": steps, "B": batch}
        feeds = {
            each.name: draw.random(
                [dims.get(dim.dim_param, dim.dim_value) for dim in each.type.tensor_type.shape.dim]
            )
            for each in model.graph.input
        }
        feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
        got = run(lifted, feeds)
        for name, want in run(model, feeds).items():
            np.testing.assert_allclose(got[name], want, atol=1e-5, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("step", "state", "outputs"),
    [
        (NORMALIZED, "2, 4", "O"),
        (NORMALIZED, "2, 4", "O, ES, EZ"),
        (STACKED, "2, 4, 4", "O"),
        (STACKED, "2, 4, 4", "EZ"),
        (BEFORE, "2, 4, 4", "O, EZ, ES"),
    ],
    ids=["normalizer", "and last states", "two layers", "last state of two layers", "read before"],
)
@pytest.mark.parametrize("way", ["lift", "scan"])
def test_each_state_becomes_a_linear_attention(step: str, state: str, outputs: str, way: str) -> None:
    model = scan(step, outputs, Z=state)
    result, report = getattr(rnnlower, way).with_report(model)
    if way == "lift":
        assert [node.op_type for node in report.nodes] == ["LinearAttention", "LinearAttention"]
        assert "Scan" not in {node.op_type for node in result.graph.node}
    compare(model, result)


def test_states_that_depend_on_each_other_stay() -> None:
    lifted, report = rnnlower.lift.with_report(scan(CIRCULAR, Z="2, 4, 4"))
    assert "its states depend on each other" in str(report.nodes[0].reason)
    assert [node.op_type for node in lifted.graph.node] == ["Scan"]


MAMBA = """
    dw = Unsqueeze (g, last)  da = Mul (dw, A)  decay = Exp (da)  kw = Unsqueeze (k, row)
    vw = Unsqueeze (v, last)
    d = Mul (decay, S)  w1 = Mul (dw, kw)  w = Mul (w1, vw)  S2 = Add (d, w)  qw = Unsqueeze (q, row)
    p = Mul (S2, qw)  o = ReduceSum <keepdims = 0> (p, last)
"""
"""A selective state space: every element of the state has its own decay."""


@pytest.mark.parametrize("outputs", ["O", "ES", "O, ES"])
def test_a_state_whose_elements_have_their_own_decays_stays(outputs: str) -> None:
    """As heads with values of size 1 it would be slower."""
    model = scan(MAMBA, outputs, S="6, 4", v="6", g="6", q="4", k="4")
    places = {"row": np.array([1]), "last": np.array([2]), "A": -np.ones((6, 4), np.float32)}
    kept = [each for each in model.graph.initializer if each.name not in places]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *(onnx.numpy_helper.from_array(v, k) for k, v in places.items())])
    lifted, report = rnnlower.lift.with_report(model)
    assert "its state has no axis of values" in str(report.nodes[0].reason)
    assert [node.op_type for node in lifted.graph.node] == ["Scan"]


def test_a_decay_that_is_computed_before_the_steps_needs_no_logarithm() -> None:
    model = scan(
        GATED.replace("gn = Exp (g)  gs = Neg (gn)  decay = Exp (gs)", "decay = Identity (g)")
        + "o = Neg (y)",
        "O",
    )
    model.graph.node[0].input[-1] = "decays"
    for name, op_type, given in (("decays", "Exp", "less"), ("less", "Neg", "more"), ("more", "Exp", "Xg")):
        model.graph.node.insert(0, onnx.helper.make_node(op_type, [given], [name]))
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["LinearAttention"]
    assert "Log" not in {node.op_type for node in lifted.graph.node}
    compare(model, lifted)


def test_a_sum_of_layers_stays() -> None:
    text = " ".join(
        f"y{n} = Conv (x{n}, W{n})  x{n + 1} = Tanh (y{n})  s{n + 1} = Add (s{n}, x{n + 1})" for n in range(5)
    )
    weights = [onnx.numpy_helper.from_array(np.full((4, 4, 1), n / 9, np.float32), f"W{n}") for n in range(5)]
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[2, 4, 6] x0, float[2, 4, 6] s0) => (float[2, 4, 6] s5) {{ {text} }}""")
    model.graph.initializer.extend(weights)
    lifted, report = rnnlower.lift.with_report(model)
    assert "its state has no axis of values" in str(report.nodes[0].reason)
    assert [node.op_type for node in lifted.graph.node] == [node.op_type for node in model.graph.node]
