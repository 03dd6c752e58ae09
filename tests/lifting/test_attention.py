"""Loops and Scans that update a matrix become LinearAttention, or stay."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run
from support.linear_attention import RULES
from support.state_models import AttentionCase, random_case

import rnnlower
from rnnlower.passes import ExpandDefinitionsPass

STEP = {
    "gated": "d = Mul (s, gw)  w = Mul (kw, vw)  s2 = Add (d, w)  p = Mul (s2, qw)  o = ReduceSum (p, key)",
    "matmul": "d = Mul (gw, s)  w = MatMul (kw, vw)  s2 = Add (w, d)  p = MatMul (qr, s2) "
    "o = Squeeze (p, key)",
    "cast": "d = Mul (s, gw)  w = Mul (kw, vw)  u = Add (d, w)  p = Mul (u, qw)  o = ReduceSum (p, key) "
    "s2 = Cast <to = 1> (u)",
    "keys by rows": "front = Constant <value_ints = [-1]> ()  end = Constant <value_ints = [-9]> () "
    "order = Constant <value_ints = [2, 0, 3, 1]> () "
    "scale = Constant <value_floats = [0.5, 1.0, 2.0, 1.5]> () "
    "k1 = LpNormalization (k)  k2 = LayerNormalization <axis = 1> (k1, scale)  k3 = Softmax <axis = 1> (k2) "
    "k4 = Slice (k3, front, end, key, front)  k5 = Gather <axis = 1> (k4, order) "
    "a1, a2 = Split <axis = -1, num_outputs = 2> (k5)  m = Einsum <equation = 'bi,bi->b'> (a1, a2) "
    "mc = Unsqueeze (m, key)  k6 = Gemm <alpha = 0.5, transB = 1> (k5, W, scale) "
    "k7 = Mul (k6, mc)  k7w = Unsqueeze (k7, value) "
    "d = Mul (s, gw)  w = Mul (k7w, vw)  s2 = Add (d, w)  p = Mul (s2, qw)  o = ReduceSum (p, key)",
    "einsum": "d = Mul (s, gw)  w = Einsum <equation = 'bk,bv->bkv'> (k, v)  s2 = Add (d, w) "
    "o = Einsum <equation = 'bk,bkv->bv'> (q, s2)",
    "einsum without a result": "kt = Einsum <equation = 'zb'> (k)  ks = Sigmoid (kt)  "
    "k2 = Einsum <equation = 'zb'> (ks)  k2w = Unsqueeze (k2, value)  d = Mul (s, gw)  w = Mul (k2w, vw)  "
    "u = Add (d, w)  ut = Transpose <perm = [0, 2, 1]> (u)  s2 = Einsum <equation = 'bvk'> (ut)  "
    "p = Mul (s2, qw)  o = ReduceSum (p, key)",
    "delta": "d = Mul (s, gw)  m = Mul (d, kw)  rd = ReduceSum (m, key)  e = Sub (v, rd)  be = Mul (b, e) "
    "bw = Unsqueeze (be, key)  w = Mul (kw, bw)  s2 = Add (d, w)  p = Mul (s2, qw)  o = ReduceSum (p, key)",
    "no correction": "d = Mul (s, gw)  m = Mul (d, kw)  rd = ReduceSum (m, key)  "
    "none = Constant <value_float = 0.0> ()  zd = Mul (rd, none)  zw = Unsqueeze (zd, key)  "
    "kz = Mul (kw, zw)  kv = Mul (kw, vw)  w = Sub (kv, kz)  s2 = Add (d, w)  p = Mul (s2, qw)  "
    "o = ReduceSum (p, key)",
    "skip": "d = Mul (s, gw)  w = Mul (kw, vw)  s2 = Add (d, w)  p = Mul (s2, qw)  t = ReduceSum (p, key) "
    "sk = Tanh (v)  o = Add (t, sk)",
}
STEP["decay with a lower bound"] = STEP["gated"].replace(
    "d = Mul (s, gw)", "low = Constant <value_float = 0.1> ()  gx = Max (gn, low)  d = Mul (s, gx)"
)
STEP |= {
    f"{step} read before": STEP[step].replace("(s2, qw)", "(s, qw)").replace("(qr, s2)", "(qr, s)")
    for step in ("gated", "matmul", "delta", "skip")
}
BONUS = "half = Constant <value_float = 0.5> ()  u = Mul (half, kw)  ukv = Mul (u, vw)  a = Add (s, ukv)  "
STEP |= {
    # RWKV: r (S + u k v), with the state before the step.
    "bonus": BONUS + STEP["gated"].replace("Mul (s2, qw)", "Mul (a, qw)"),
    "bonus by MatMul": BONUS + STEP["matmul"].replace("MatMul (qr, s2)", "MatMul (qr, a)"),
    "bonus of the value": BONUS.replace("a = Add (s, ukv)", "a = Sub (s, vw)")
    + STEP["gated"].replace("Mul (s2, qw)", "Mul (a, qw)"),
    "bonus after the delta rule": STEP["delta"].replace(
        "p = Mul (s2, qw)", BONUS.replace("(s, ukv)", "(s2, ukv)") + "p = Mul (a, qw)"
    ),
    "bonus with the state after": STEP["gated"].replace(
        "p = Mul (s2, qw)", "kq = Mul (kw, qw)  a = Add (s2, kq)  p = Mul (a, qw)"
    ),
}
STAYS = {
    "read before and after": STEP["gated"].replace("p = Mul (s2, qw)", "t = Add (s, s2)  p = Mul (t, qw)"),
    "read as a query": STEP["gated"].replace(
        "p = Mul (s2, qw)", "sq = ReduceMax (s, key)  sw = Unsqueeze (sq, value)  p = Mul (s2, sw)"
    ),
    "added to what is read": STEP["gated"].replace(
        "o = ReduceSum (p, key)", "p2 = Add (p, s)  o = ReduceSum (p2, key)"
    ),
    "other key": STEP["delta"].replace("m = Mul (d, kw)", "m = Mul (d, qw)"),
    "no decay before": STEP["delta"].replace("m = Mul (d, kw)", "m = Mul (s, kw)"),
    "activation": STEP["gated"].replace("s2 = Add (d, w)", "s1 = Add (d, w)  s2 = Tanh (s1)"),
    "negative": STEP["gated"].replace("Mul (s, gw)", "Mul (s, gn)"),
    "twice": STEP["gated"].replace("o = ReduceSum (p, key)", "p2 = Mul (p, s2)  o = ReduceSum (p2, key)"),
    "transposed": STEP["gated"]
    .replace("Mul (s, gw)", "Mul (st, gw)")
    .replace("d = ", "st = Transpose <perm = [0, 2, 1]> (s)  d = "),
}


def scan(step: str, keys: int = 4, values: int = 4) -> onnx.ModelProto:
    """Return a Scan over a state ``[B, keys, values]``."""
    return onnx.parser.parse_model(
        f"""
        <ir_version: 9, opset_import: ["" : 18]>
        main (float[T, B, {keys}] Q, float[T, B, {keys}] K, float[T, B, {values}] V, float[T, B, 1] G,
              float[T, B, 1] R, float[B, {keys}, {values}] S) => (float[T, B, M] O, float[B, L, M] E)
        <int64[1] key = {{1}}, int64[1] value = {{2}},
         float[4, 4] W = {{{", ".join(map(str, range(-8, 8)))}}}> {{
            E, O = Scan <num_scan_inputs = 5, body = step (float[B, {keys}, {values}] s, float[B, {keys}] q,
                float[B, {keys}] k, float[B, {values}] v, float[B, 1] g, float[B, 1] r)
            => (float[B, {keys}, {values}] s3, float[B, {values}] o2) {{
                qw = Unsqueeze (q, value)  qr = Unsqueeze (q, key)  kw = Unsqueeze (k, value)
                vw = Unsqueeze (v, key)  gs = Sigmoid (g)  gw = Unsqueeze (gs, value)
                gn = Unsqueeze (g, value)  b = Sigmoid (r)
                {step}
                s3 = Identity (s2)  o2 = Identity (o)
            }}> (S, Q, K, V, G, R)
        }}
        """.replace("'", '"')
    )


def drop_axis(step: str) -> str:
    return step.replace("ReduceSum (", "ReduceSum <keepdims = 0> (")


def random_feeds(steps: int, batch: int, keys: int = 4, values: int = 4) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {"Q": (keys,), "K": (keys,), "V": (values,), "G": (1,), "R": (1,)}
    feeds = {name: draw.normal(size=(steps, batch, *shape)) for name, shape in shapes.items()}
    feeds["S"] = draw.normal(size=(batch, keys, values))
    return {name: value.astype(np.float32) for name, value in feeds.items()}


@pytest.mark.parametrize("way", ["lift", "scan", "unroll"])
@pytest.mark.parametrize("step", STEP)
def test_a_state_update_becomes_a_linear_attention(step: str, way: str) -> None:
    model = scan(drop_axis(STEP[step]))
    dims = {"T": 37} if way == "unroll" else {}
    options = {} if way == "lift" else {"dims": dims}
    result = getattr(rnnlower, way)(model, **options)
    left = {node.op_type for node in result.graph.node}
    assert ("LinearAttention" in left) == (way == "lift")
    # A Scan of open length is in an If.
    assert bool({"If", "Scan"} & left) == (way == "scan")
    for steps, batch in ((37, 2), (37, 1)) if dims else ((37, 2), (1, 1), (5, 3)):
        feeds = random_feeds(steps, batch)
        got = run(result, feeds)
        for name, want in run(model, feeds).items():
            assert np.abs(got[name] - want).max() < 1e-4 * max(1, np.abs(want).max()), name


@pytest.mark.parametrize("step", ["gated", "delta", "no correction"])
def test_the_last_state_alone_is_read(step: str) -> None:
    model = scan(drop_axis(STEP[step]), values=6)
    del model.graph.output[0]
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["LinearAttention"]
    for steps, batch in ((1, 2), (37, 1)):
        feeds = random_feeds(steps, batch, values=6)
        np.testing.assert_allclose(run(lifted, feeds)["E"], run(model, feeds)["E"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("step", STAYS)
def test_other_updates_stay(step: str) -> None:
    model = scan(drop_axis(STAYS[step]))
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == [None]
    assert "as a LinearAttention" in str(report.nodes[0].reason)
    assert [node.op_type for node in lifted.graph.node] == ["Scan"]


@pytest.mark.parametrize("seed", range(30))
def test_an_expanded_definition_is_lifted(seed: int) -> None:
    case = random_case(seed)
    if not isinstance(case, AttentionCase):
        case = AttentionCase(RULES[seed % 4], steps=seed % 5 + 1, dynamic=seed % 2 == 0)
    heads = case.heads
    case = dataclasses.replace(case, domain="", opset=27, keys=heads, queries=heads * (1 + seed % 3))
    case = dataclasses.replace(case, superfluous=False, dtype="float32", state_dtype="float32")
    own = ir.from_proto(case.model())
    ExpandDefinitionsPass(lambda node: node.op_type == "LinearAttention")(own)
    written_out = ir.to_proto(own)
    assert "Scan" in {node.op_type for node in written_out.graph.node}
    lifted, report = rnnlower.lift.with_report(written_out)
    is_matrix = case.key_size > 1 and case.value_size > 1
    found = [node.op_type for node in report.nodes]
    assert found == ["LinearAttention"] or not is_matrix
    feeds = case.feeds(seed)
    for value, want in zip(run(lifted, feeds).values(), case.expected(feeds), strict=True):
        assert value.shape == want.shape
        assert np.abs(value - want).max(initial=0) < 1e-5 * max(1, np.abs(want).max(initial=0))


GEMM = """w = Gemm <transA = 1, alpha = 0.5, beta = 0.9> (k, v, s)  p = Gemm (q, w)
    o = Gemm <transB = 1> (p, W, c)"""


@pytest.mark.parametrize(
    ("step", "is_lifted"),
    [
        (GEMM, True),
        (GEMM.replace("(k, v, s)", "(v, k, s)").replace("(q, w)", "<transB = 1> (q, w)"), True),
        (GEMM.replace("beta = 0.9", "beta = -0.9"), False),
        (GEMM.replace("(q, w)", "(q, w, q)"), True),
        (GEMM.replace("(q, w)", "(q, s)"), True),
    ],
)
def test_products_may_be_gemms(step: str, is_lifted: bool) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[T, 1, 4] Q, float[T, 1, 4] K, float[T, 1, 4] V, float[4, 4] S)
            => (float[T, 1, 4] O, float[4, 4] E)
        <float[4, 4] W = {{{", ".join(map(str, range(-8, 8)))}}}, float[4] c = {{1, 2, 3, 4}}> {{
            E, O = Scan <num_scan_inputs = 3, body = step (float[4, 4] s, float[1, 4] q, float[1, 4] k,
                float[1, 4] v) => (float[4, 4] s2, float[1, 4] o2) {{
                {step} s2 = Identity (w) o2 = Identity (o) }}> (S, Q, K, V) }}""")
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["LinearAttention" if is_lifted else None]
    for steps in (1, 3, 50):
        feeds = {key: value for key, value in random_feeds(steps, 1).items() if key in "QKV"}
        feeds["S"] = random_feeds(1, 1)["S"][0]
        for want, got in zip(run(model, feeds).values(), run(lifted, feeds).values(), strict=True):
            assert np.abs(got - want).max() < 1e-4 * max(1, np.abs(want).max())


def test_a_decay_may_be_hoisted() -> None:
    model = scan(drop_axis(STAYS["negative"]))
    model.graph.node[0].input[4] = "decay"
    model.graph.node.insert(0, onnx.helper.make_node("Exp", ["G"], ["decay"]))
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["LinearAttention"]
    feeds = random_feeds(9, 2)
    for got, want in zip(run(lifted, feeds).values(), run(model, feeds).values(), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("inputs", ["(kw)", "(kw, none)"])
@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("op_type", ["ReduceL1", "ReduceMax", "ReduceSum", "ReduceSumSquare"])
def test_a_reduction_without_axes_is_over_all_or_none(op_type: str, noop: int, inputs: str) -> None:
    reduced = f"n = {op_type} <keepdims = 1, noop_with_empty_axes = {noop}> {inputs}  kn = Mul (kw, n)  "
    model = scan(drop_axis(reduced + STEP["gated"].replace("Mul (kw, vw)", "Mul (kn, vw)")))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(0, np.int64), "none"))
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["LinearAttention"]
    feeds = random_feeds(5, 2)
    for got, want in zip(run(lifted, feeds).values(), run(model, feeds).values(), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


def test_a_reduction_of_a_scalar_stays() -> None:
    one = "g1 = ReduceMax <keepdims = 0> (g)  g2 = ReduceL1 (g1)  kn = Mul (kw, g2)  "
    model = scan(drop_axis(one + STEP["gated"].replace("Mul (kw, vw)", "Mul (kn, vw)")))
    _, report = rnnlower.lift.with_report(model)
    assert "reduces a scalar" in str(report.nodes[0].reason)


def test_a_target_without_exp_gets_no_logarithms_of_decays() -> None:
    source = scan(STEP["matmul"].replace("o = Squeeze (p, key)", "o = Reshape (p, rows)"))
    source.graph.initializer.append(onnx.helper.make_tensor("rows", onnx.TensorProto.INT64, [2], [2, 4]))
    result, report = rnnlower.lower.with_report(source, target="primitive", dims={"T": 3, "B": 2})
    assert {"MatMul", "Sigmoid"} <= {node.op_type for node in result.graph.node}
    assert report.nodes == []


@pytest.mark.parametrize("step", ["gated", "keys by rows"])
def test_a_lifted_update_is_written_in_an_older_opset(step: str) -> None:
    """Its Reshapes need no allowzero, as they keep the axes that may be empty."""
    text = STEP[step].replace("LayerNormalization <axis = 1>", "Mul")
    model = scan(drop_axis(text.replace("Gemm <alpha = 0.5, transB = 1> (k5, W, scale)", "MatMul (k5, W)")))
    result = rnnlower.scan(model, opset=13)
    assert "LinearAttention" not in {node.op_type for node in result.graph.node}
    for steps, batch in ((37, 2), (1, 1)):
        feeds = random_feeds(steps, batch)
        got = run(result, feeds)
        for name, want in run(model, feeds).items():
            np.testing.assert_allclose(got[name], want, atol=1e-4, rtol=1e-4)


def test_a_lifted_update_declares_its_output() -> None:
    lifted = rnnlower.lift(scan(drop_axis(STEP["gated"])))
    (node,) = (node for node in lifted.graph.node if node.op_type == "LinearAttention")
    (declared,) = (
        value.type.tensor_type for value in lifted.graph.value_info if value.name == node.output[0]
    )
    assert declared.elem_type == onnx.TensorProto.FLOAT
    assert [dim.dim_param or dim.dim_value for dim in declared.shape.dim] == ["B", "T", 4]
