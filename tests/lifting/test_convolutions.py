"""A past and an input joined, a depthwise Conv, the last steps become a CausalConvWithState, or stay."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from support.judge import run
from support.state_models import ConvolutionCase, random_case

import rnnlower
from rnnlower.inspection import find_liftable

JOIN, CONV, TAIL = "h = Concat <axis = 2> (p, x)", "Conv <group = 4>", "n = Slice (h, tail, most, time)"
SILU, SAME = "g = Sigmoid (c)  y = Mul (g, c)", "n = Identity (p)"
SWAP = "Transpose <perm = [0, 2, 1]>"
FORMS = {
    "whole": f"{JOIN}  c = {CONV} (h, k, b)  {SILU}  {TAIL}",
    "the tail first": f"{JOIN}  {TAIL}  y = {CONV} (h, k)",
    "dilated": "q = Concat <axis = -1> (p, p)  h = Concat <axis = -1> (q, x)  six = Add (tail, tail) "
    "y = Conv <group = 4, dilations = [2]> (h, k, b)  n = Slice (h, six, most, time)",
    "computed tail": f"{JOIN}  s = Shape (x)  t = Gather (s, time)  u = Shape (h)  v = Gather (u, time) "
    f"c = {CONV} (h, k)  {SILU}  n = Slice (h, t, v, time)",
    "no tail": f"{JOIN}  c = {CONV} (h, k, b)  {SILU}  {SAME}",
    "zeros": f"h = Concat <axis = 2> (none, x)  c = {CONV} (h, k, b)  {SILU}  {TAIL}",
    "turned": f"xt = {SWAP} (x)  pt = {SWAP} (p)  w = Concat <axis = 1> (pt, xt)  h = {SWAP} (w) "
    f"c = {CONV} (h, k, b)  {SILU}  m = Slice (w, tail, most, one)  n = {SWAP} (m)",
    "turned, the tail after": f"xt = {SWAP} (x)  pt = {SWAP} (p)  w = Concat <axis = 1> (pt, xt) "
    f"h = {SWAP} (w)  y = {CONV} (h, k, b)  {TAIL}",
    "the gate is read twice": f"{JOIN}  c = {CONV} (h, k)  g = Sigmoid (c)  m = Mul (g, c)  y = Add (m, g) "
    f"{TAIL}",
    "padded": f"c = Conv <group = 4, pads = [3, 0]> (x, k, b)  {SILU}  {SAME}",
    "padded at both ends": f"f = Conv <group = 4, pads = [3, 3]> (x, k, b)  c = Slice (f, zero, tail, time) "
    f"{SILU}  {SAME}",
}
WITH_SILU = {form for form in FORMS if SILU in FORMS[form]}
STAYS = {
    "its past has 2 steps": f"r = Slice (p, one, most, time)  h = Concat <axis = 2> (r, x)  y = {CONV} (h, k)"
    f"  {SAME}",
    "along axis 0, which is not time": f"h = Concat <axis = 0> (x, x)  y = {CONV} (h, k)  {SAME}",
    "does not compute every step": f"{JOIN}  y = Conv <group = 4, strides = [2]> (h, k)  {TAIL}",
    "2 groups for 4 channels": f"{JOIN}  y = Conv <group = 2> (h, pairs)  {TAIL}",
    "1 groups for 4 channels": f"{JOIN}  y = Conv (h, dense)  {TAIL}",
    "8 channels": f"{JOIN}  y = {CONV} (h, double)  {TAIL}",
    "than the last 3": f"{JOIN}  y = {CONV} (h, k)  two = Add (tail, one)  n = Slice (h, two, most, time)",
    "other steps are kept": f"{JOIN}  y = {CONV} (h, k)  n = Slice (h, zero, three, time)",
    "other steps are kept than": f"{JOIN}  y = {CONV} (h, k)  n = Slice (h, tail, most, one)",
    "read by Abs": f"{JOIN}  y = {CONV} (h, k)  n = Abs (h)",
    "pads a past and an input": f"{JOIN}  y = Conv <group = 4, pads = [1, 0]> (h, k)  {TAIL}",
    "joined of 3 parts": f"h = Concat <axis = 2> (p, x, x)  y = {CONV} (h, k)  {SAME}",
    "its past has an unknown number": f"h = Concat <axis = 2> (x, x)  y = {CONV} (h, k)  {SAME}",
    "sees steps past the end of the input": f"y = Conv <group = 4, pads = [3, 3]> (x, k)  {SAME}",
    "pads 1 steps": f"y = Conv <group = 4, pads = [1, 1]> (x, k)  {SAME}",
    "does not look back": f"{JOIN}  y = {CONV} (h, point)  {TAIL}",
    "is an output": f"n = Concat <axis = 2> (p, x)  y = {CONV} (n, k)",
}


def model(nodes: str, opset: int = 18) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : {opset}]>
        main (float[2, 4, T] x, float[2, 4, 3] p) => (float[A, D, B] y, float[E, F, C] n)
        <int64[1] tail = {{-3}}, int64[1] most = {{9223372036854775807}}, int64[1] time = {{2}},
         int64[1] one = {{1}}, int64[1] zero = {{0}}, int64[1] three = {{3}}> {{ {nodes} }}"""
    )
    draw = np.random.default_rng(0)
    shapes = {"k": (4, 1, 4), "b": (4,), "pairs": (4, 2, 4), "dense": (4, 4, 4), "double": (8, 1, 4)}
    arrays = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    arrays |= {"point": np.ones((4, 1, 1)), "none": np.zeros((2, 4, 3))}
    made.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    return made


def random_feeds(steps: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(steps)
    return {name: draw.normal(size=(2, 4, size)).astype("f4") for name, size in (("x", steps), ("p", 3))}


def assert_close(source: onnx.ModelProto, result: onnx.ModelProto, *lengths: int) -> None:
    for steps in lengths:
        got = run(result, random_feeds(steps))
        for name, want in run(source, random_feeds(steps)).items():
            assert got[name].shape == want.shape
            np.testing.assert_allclose(got[name], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("opset", [18, 27])
@pytest.mark.parametrize("form", FORMS)
def test_a_causal_convolution_becomes_one_with_state(form: str, opset: int) -> None:
    source = model(FORMS[form], opset)
    lifted, report = rnnlower.lift.with_report(source)
    (entry,) = report.nodes
    assert (entry.form, entry.op_type, entry.reason) == ("line", "CausalConvWithState", None)
    nodes = {node.op_type: node for node in lifted.graph.node}
    node = nodes["CausalConvWithState"]
    assert node.domain == ("" if opset == 27 and form != "dilated" else "com.microsoft")
    assert any(attribute.s == b"silu" for attribute in node.attribute) == (form in WITH_SILU)
    assert "Conv" not in nodes
    assert ("Concat" in nodes) == (form == "dilated")
    assert_close(source, lifted, 1, 2, 3, 17)


@pytest.mark.parametrize("reason", STAYS)
def test_other_convolutions_stay(reason: str) -> None:
    source = model(STAYS[reason])
    lifted, report = rnnlower.lift.with_report(source)
    (entry,) = report.nodes
    assert entry.op_type is None
    assert reason in str(entry.reason)
    assert [node.op_type for node in lifted.graph.node] == [node.op_type for node in source.graph.node]


@pytest.mark.parametrize(("steps", "has_kernel"), [(1, True), (None, True), (128, False)])
def test_onnxruntime_gets_its_kernel_where_it_is_fast(steps: int | None, has_kernel: bool) -> None:
    source = model(FORMS["whole"])
    lowered = rnnlower.lower(source, target="onnxruntime", dims={} if steps is None else {"T": steps})
    kernels = {node.op_type for node in lowered.graph.node if node.domain == "com.microsoft"}
    assert kernels == ({"CausalConvWithState"} if has_kernel else set())
    assert_close(source, lowered, steps or 5)


def test_other_runtimes_keep_their_convolution() -> None:
    lowered = rnnlower.lower(model(FORMS["whole"]), target="tract", dims={"T": 8})
    assert {"Concat", "Conv", "Sigmoid", "Slice"} <= {node.op_type for node in lowered.graph.node}


def test_inspect_lists_convolutions_with_a_state() -> None:
    for form in ("whole", "padded"):
        found = find_liftable(ir.from_proto(model(FORMS[form])))
        assert [(node.form, node.op_type) for node in found] == [("line", "CausalConvWithState")] * (
            form == "whole"
        )


def test_a_state_of_a_convolution_streams() -> None:
    source, step = model(FORMS["whole"]), rnnlower.stream(model(FORMS["whole"]), chunk=2)
    x, p = random_feeds(8).values()
    want, state, parts = run(source, {"x": x, "p": p}), p, []
    for start in range(0, 8, 2):
        y, state = run(step, {"x": x[:, :, start : start + 2], "p": state}).values()
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 2), want["y"], atol=1e-5)
    np.testing.assert_array_equal(state, want["n"])


@pytest.mark.parametrize("seed", range(60))
def test_a_lowered_operator_is_lifted_again(seed: int) -> None:
    case = random_case(seed)
    if not isinstance(case, ConvolutionCase):
        case = ConvolutionCase("com.microsoft", 21, steps=seed % 5 + 1, dilation=seed % 3 + 1)
    case = dataclasses.replace(case, dtype="float32", dynamic=False)
    lifted, report = rnnlower.lift.with_report(rnnlower.unroll(case.model()))
    # A kernel of one tap has no state.
    assert [node.op_type for node in report.nodes] == ["CausalConvWithState"] * (case.width > 1)
    feeds = case.feeds(seed)
    for got, want in zip(run(lifted, feeds).values(), case.expected(feeds), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)
