"""LinearAttention and CausalConvWithState, lowered by every strategy, against their text."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.linear_attention import RULES
from support.state_models import MICROSOFT, AttentionCase, Case, ConvolutionCase, random_case

import rnnlower
from rnnlower.engines.reference import evaluate

TOLERANCES = {"float32": 1e-5, "float16": 2e-3}
WAYS: list[dict[str, Any]] = [
    {"way": "unroll"},
    {"way": "scan"},
    {"way": "loop"},
    {"way": "scan", "unroll_factor": 5},
    {"way": "scan", "unroll_factor": 16},
    {"way": "loop", "unroll_factor": 32},
    {"way": "lower", "target": "tract"},
    {"way": "lower", "target": "onnxruntime"},
    {"way": "lower", "target": "onnxruntime", "native": "lower"},
    {"way": "convert", "opset": 26},
]


def lowered(model: onnx.ModelProto, way: str, **options: Any) -> onnx.ModelProto:
    return getattr(rnnlower, way)(model, **options)  # type: ignore[no-any-return]


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def check(case: Case, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    expected = case.expected(feeds)
    got = run(model, feeds)
    types = [case.dtype, case.state_dtype if isinstance(case, AttentionCase) else case.dtype]
    for name, a, b, dtype in zip(("output", "present_state"), got, expected, types, strict=True):
        assert (a.shape, a.dtype.name) == (b.shape, dtype), name
        error = np.abs(a - b).max(initial=0) / max(1, np.abs(b).max(initial=0))
        assert error < TOLERANCES[dtype], (name, error)


def is_left(model: onnx.ModelProto) -> bool:
    return any(node.op_type in ("LinearAttention", "CausalConvWithState") for node in model.graph.node)


@pytest.mark.parametrize("seed", range(70))
def test_random_nodes_agree_with_the_oracle(seed: int) -> None:
    check_way(seed, WAYS[seed % len(WAYS)])


@pytest.mark.parametrize("seed", range(24))
def test_random_nodes_without_conv_and_control_flow(seed: int) -> None:
    check_way(seed, {"way": "lower", "target": "litert"})


def check_way(seed: int, way: dict[str, Any]) -> None:
    """Check a random node, lowered in a way."""
    case = random_case(seed)
    if way["way"] == "unroll":
        case = dataclasses.replace(case, dynamic=False)
    if way.get("target") in ("tract", "litert"):
        types = {"state_dtype": "float32"} if isinstance(case, AttentionCase) else {}
        case = dataclasses.replace(case, dynamic=False, dtype="float32", **types)
    if way["way"] == "convert":
        case = dataclasses.replace(case, domain="", opset=27, **_standard(case))
    model = lowered(case.model(), **way)
    assert is_left(model) == (way == WAYS[7] and _has_kernel(case))
    check(case, model, case.feeds(seed))


def _standard(case: Case) -> dict[str, Any]:
    """Return what com.microsoft's operators alone may be, as the standard has it."""
    if isinstance(case, ConvolutionCase):
        return {"dilation": 1, "channels_last": False}
    return {"keys": case.heads, "queries": case.heads, "superfluous": False}


def _has_kernel(case: Case) -> bool:
    """Return whether onnxruntime has a kernel that is right, and faster than a Conv."""
    if isinstance(case, ConvolutionCase):
        return case.dynamic or case.steps <= 16
    return case.dtype == case.state_dtype


@pytest.mark.parametrize("way", [way for way in WAYS if way["way"] != "unroll"], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_no_time_steps_pass_the_state_on(rule: str, way: dict[str, Any]) -> None:
    for past in (True, False):
        case = AttentionCase(rule, steps=0, past=past, dynamic=True)
        check(case, lowered(case.model(), **way), case.feeds(0))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("past", [True, False])
def test_a_convolution_of_no_time_steps_passes_the_state_on(way: dict[str, Any], past: bool) -> None:
    for width in (1, 3):
        case = ConvolutionCase(steps=0, past=past, dynamic=True, width=width)
        check(case, lowered(case.model(), **way), case.feeds(0))


@pytest.mark.parametrize("rule", ["linear", "gated"])
def test_rules_without_delta_are_unrolled_without_steps(rule: str) -> None:
    case = AttentionCase(rule, steps=300, dynamic=True)
    model = lowered(case.model(), "unroll")
    assert not {"Scan", "Loop", "If"} & {node.op_type for node in model.graph.node}
    for steps in (1, 64, 300):
        check(case, model, dataclasses.replace(case, steps=steps).feeds(1))


@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_the_number_of_nodes_does_not_depend_on_the_steps(rule: str, per_key: bool) -> None:
    sizes = set()
    for steps in (256, 2048):
        case = AttentionCase(rule, steps=steps, per_key=per_key and "gated" in rule)
        model = lowered(case.model(), "lower", target="onnxruntime", native="lower")
        bodies = [a.g.node for node in model.graph.node for a in node.attribute if a.HasField("g")]
        sizes.add(len(model.graph.node) + sum(map(len, bodies)))
    assert len(sizes) == 1
    assert max(sizes) <= 150


def test_bfloat16_is_computed_in_float32() -> None:
    case = AttentionCase(steps=6)
    model = case.model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    feeds = {name: _bfloat16(array) for name, array in case.feeds(0).items()}
    result = lowered(model, "scan", unroll_factor=4)
    want = evaluate(model, feeds)
    for name, value in evaluate(result, feeds).items():
        assert value.dtype == feeds["query"].dtype
        assert np.abs(value.astype("f") - want[name].astype("f")).max() < 1e-2


@pytest.mark.parametrize("case", [AttentionCase(), ConvolutionCase()])
def test_an_input_whose_type_is_not_declared_needs_no_cast(case: Case) -> None:
    model = case.model()
    (node,) = model.graph.node
    for number, name in enumerate(node.input):
        if name:
            model.graph.node.insert(0, onnx.helper.make_node("Identity", [name], [f"computed_{name}"]))
            node.input[number] = f"computed_{name}"
    result = lowered(model, "unroll")
    assert "Cast" not in [each.op_type for each in result.graph.node]
    feeds = case.feeds(0)
    check(case, result, feeds)


def _bfloat16(array: np.ndarray) -> np.ndarray:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    return array.astype(dtype)


def test_a_node_that_is_not_chosen_stays() -> None:
    model = AttentionCase(rule="linear").model()
    other = onnx.NodeProto()
    other.CopyFrom(model.graph.node[0])
    other.name, other.domain, other.output[:] = "other", MICROSOFT, ["other_output", "other_state"]
    model.graph.node.append(other)
    model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    for old, name in zip([*model.graph.output], other.output, strict=True):
        model.graph.output.add().CopyFrom(old)
        model.graph.output[-1].name = name
    for chosen, left in (("node", "other"), ("other", "node")):
        result = lowered(model, "scan", nodes=[chosen])
        assert [node.name for node in result.graph.node if node.op_type == "LinearAttention"] == [left]


def test_an_output_that_nothing_reads_leaves_no_nodes() -> None:
    model = AttentionCase(rule="linear").model()
    whole = len(lowered(model, "scan").graph.node)
    del model.graph.output[1]
    result = lowered(model, "scan")
    assert len(result.graph.node) <= whole
    assert [output.name for output in result.graph.output] == ["output"]
    read = {name for node in result.graph.node for name in node.input} | {"output"}
    assert all(read & {*node.output} for node in result.graph.node)
