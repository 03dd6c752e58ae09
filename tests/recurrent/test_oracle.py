"""The oracle against the two sources it must agree with: ONNX's own node tests and onnxruntime's kernels."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.case import node as node_cases
from support.installed import rnn_is_sound
from support.oracle import evaluate, evaluate_node, schema_version
from support.sessions import session

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_PER_DIRECTION = {"LSTM": 3, "GRU": 2, "RNN": 1}
_ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh"]
_ACTIVATIONS += ["HardSigmoid", "Elu", "Softsign", "Softplus"]


@cache
def _node_tests() -> dict[str, Any]:
    """Return ONNX's cases of the three operators; ``collect_testcases`` would slowly build all."""
    for module in ("lstm", "gru", "rnn"):
        importlib.import_module(f"{node_cases.__name__}.{module}")
    cases = [case for case in node_cases._NodeTestCases if case.model.graph.node[0].op_type in _GATES]
    return {case.name: case for case in cases}


def test_every_standard_node_test_agrees() -> None:
    assert len(_node_tests()) == 18
    for name, case in _node_tests().items():
        (node,), graph = case.model.graph.node, case.model.graph
        inputs, expected = case.data_sets[0]
        values = {info.name: value for info, value in zip(graph.input, inputs, strict=True)}
        results = evaluate_node(node, case.model.opset_import[0].version, values, semantics="spec")
        assert list(results) == [info.name for info in graph.output], name
        for info, value in zip(graph.output, expected, strict=True):
            np.testing.assert_allclose(results[info.name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def _random_node(seed: int) -> tuple[onnx.NodeProto, int, dict[str, np.ndarray]]:
    """Return a random node that onnxruntime has a kernel for, its opset, and values for all its inputs."""
    rng = np.random.default_rng(seed)
    op_type = str(rng.choice(list(_GATES)))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    D, G = 1 + (direction == "bidirectional"), _GATES[op_type]
    T, B, H, input_size = (int(rng.integers(1, high)) for high in (7, 4, 6, 5))
    attributes: dict[str, Any] = {"hidden_size": H, "direction": direction}
    if rng.random() < 0.6:
        count = D * _PER_DIRECTION[op_type]
        attributes["activations"] = [str(name) for name in rng.choice(_ACTIVATIONS, count)]
        for name in ("activation_alpha", "activation_beta"):
            if length := int(rng.integers(0, count + 2)):
                attributes[name] = rng.uniform(0.1, 1.0, length).tolist()
    if rng.random() < 0.4:
        attributes["clip"] = float(rng.choice([0.05, 0.5, 3.0]))
    if op_type == "LSTM":
        attributes["input_forget"] = int(rng.integers(2))
    if op_type == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(2))
    scale = float(rng.choice([0.2, 0.6]))
    shapes = {"X": (T, B, input_size), "W": (D, G * H, input_size), "R": (D, G * H, H), "B": (D, 2 * G * H)}
    shapes |= {"sequence_lens": (B,), "initial_h": (D, B, H)}
    shapes |= {"initial_c": (D, B, H), "P": (D, 3 * H)} if op_type == "LSTM" else {}
    values = {
        name: (scale * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
        if name in "XWR" or rng.random() < 0.6
    }
    if "sequence_lens" in values:
        values["sequence_lens"] = rng.integers(0, T + 1, B).astype(np.int32)
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    names = [name if name in values else "" for name in shapes]
    node = helper.make_node(op_type, names, outputs, **attributes)
    return node, int(rng.choice([7, 13, 14, 22])), values


def _is_judged(node: onnx.NodeProto, values: dict[str, np.ndarray]) -> bool:
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    activations = [name.decode() for name in attributes.get("activations", ())]
    direction = attributes["direction"].decode()
    return node.op_type != "RNN" or rnn_is_sound(direction, activations, "sequence_lens" in values)


def _native(node: onnx.NodeProto, opset: int, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    dtype = helper.np_dtype_to_tensor_dtype(values["X"].dtype)
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name in node.output]
    graph = helper.make_graph([node], "native", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return dict(zip(node.output, session(model).run(None, values), strict=True))


@pytest.mark.parametrize("block", range(8))
def test_onnxruntime_agrees(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        node, opset, values = _random_node(seed)
        if not _is_judged(node, values):
            continue
        expected, native = evaluate_node(node, opset, values), _native(node, opset, values)
        for name in node.output:
            np.testing.assert_allclose(
                native[name],
                expected[name],
                rtol=2e-4,
                atol=2e-5,
                err_msg=f"seed {seed}: {name} of {helper.printable_node(node)}",
            )


def test_float16_is_float32_rounded_at_the_end() -> None:
    nodes = map(_random_node, range(3, 50))
    node, opset, values = next(drawn for drawn in nodes if _is_judged(drawn[0], drawn[2]))
    values = {name: v.astype(np.float16) if v.dtype == np.float32 else v for name, v in values.items()}
    expected, native = evaluate_node(node, opset, values), _native(node, opset, values)
    for name in node.output:
        assert expected[name].dtype == np.float16
        np.testing.assert_allclose(native[name], expected[name], rtol=2e-3, atol=1e-4)


def _inputs(
    op_type: str, T: int = 3, B: int = 2, H: int = 2, dtype: Any = np.float32
) -> dict[str, np.ndarray]:
    rng, G = np.random.default_rng(0), _GATES[op_type]
    shapes = {"X": (T, B, 3), "W": (1, G * H, 3), "R": (1, G * H, H), "initial_h": (1, B, H)}
    shapes |= {"initial_c": (1, B, H)} if op_type == "LSTM" else {}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("op_type", _GATES)
def test_a_row_of_length_zero(op_type: str) -> None:
    inputs = _inputs(op_type) | {"sequence_lens": np.array([0, 2], np.int32)}
    spec = evaluate(op_type, 14, {}, inputs, semantics="spec")
    ort = evaluate(op_type, 14, {}, inputs, semantics="ort")
    for state in ("h", "c") if op_type == "LSTM" else ("h",):
        np.testing.assert_array_equal(spec[f"Y_{state}"][:, 0], inputs[f"initial_{state}"][:, 0])
        np.testing.assert_array_equal(ort[f"Y_{state}"][:, 0], 0)
        np.testing.assert_array_equal(ort[f"Y_{state}"][:, 1], spec[f"Y_{state}"][:, 1])
    np.testing.assert_array_equal(spec["Y"][:, :, 0], 0)


@pytest.mark.parametrize("op_type", _GATES)
@pytest.mark.parametrize(("T", "B"), [(0, 2), (3, 0), (0, 0)])
def test_empty_time_and_batch(op_type: str, T: int, B: int) -> None:
    inputs = _inputs(op_type, T=T, B=B)
    spec, ort = (evaluate(op_type, 14, {}, inputs, semantics=which) for which in ("spec", "ort"))
    assert spec["Y"].shape == ort["Y"].shape == (T, 1, B, 2)
    if T == 0:
        np.testing.assert_array_equal(spec["Y_h"], inputs["initial_h"])
        np.testing.assert_array_equal(ort["Y_h"], 0)


@pytest.mark.parametrize("op_type", _GATES)
def test_layout_1_is_layout_0_transposed(op_type: str) -> None:
    inputs = _inputs(op_type)
    swapped = {name: v if name in "WR" else v.transpose(1, 0, 2) for name, v in inputs.items()}
    plain = evaluate(op_type, 14, {}, inputs)
    batchwise = evaluate(op_type, 14, {"layout": 1}, swapped)
    np.testing.assert_array_equal(batchwise["Y"], plain["Y"].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(batchwise["Y_h"], plain["Y_h"].transpose(1, 0, 2))


def test_clip_reaches_the_cell_output_in_the_text_only() -> None:
    attributes = {"clip": 0.5, "activations": ["Sigmoid", "Tanh", "Relu"]}
    inputs = _inputs("LSTM", T=1) | {"initial_c": np.full((1, 2, 2), 40.0, np.float32)}
    assert np.max(evaluate("LSTM", 14, attributes, inputs, semantics="spec")["Y"]) <= 0.5
    assert np.max(evaluate("LSTM", 14, attributes, inputs, semantics="ort")["Y"]) > 0.5


def test_defaults_of_the_parameters() -> None:
    inputs = {"X": np.full((1, 1, 1), 3.0), "W": np.ones((1, 1, 1)), "R": np.ones((1, 1, 1))}

    def rnn(x: float, semantics: Any, name: str, **attributes: Any) -> float:
        attributes["activations"] = [name]
        given = inputs | {"X": np.full((1, 1, 1), x)}
        return float(evaluate("RNN", 14, attributes, given, semantics=semantics)["Y"].item())

    assert rnn(0.5, "spec", "ThresholdedRelu") == 0.0
    assert rnn(0.5, "ort", "ThresholdedRelu") == 0.5
    assert rnn(1.0, "spec", "ThresholdedRelu", activation_alpha=[1.0]) == 1.0
    assert rnn(1.0, "ort", "ThresholdedRelu", activation_alpha=[1.0]) == 0.0
    assert rnn(3.0, "spec", "Affine") == 3.0
    assert rnn(3.0, "ort", "Affine") == 0.0
    assert rnn(200.0, "spec", "Softplus") == 200.0
    with pytest.raises(ValueError, match="no default"):
        rnn(3.0, "spec", "ScaledTanh", activation_alpha=[1.0])


def test_bfloat16_in_and_out() -> None:
    inputs = _inputs("GRU", dtype=ml_dtypes.bfloat16)
    results = evaluate("GRU", 22, {}, inputs)
    wide = evaluate("GRU", 22, {}, {name: value.astype(np.float64) for name, value in inputs.items()})
    assert results["Y"].dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(results["Y"].astype(np.float64), wide["Y"], rtol=2**-8)


def test_each_opset_has_its_schema_version() -> None:
    assert [schema_version("GRU", opset) for opset in (1, 2, 3, 6, 7, 13, 14, 21, 22, 26)] == [
        *(1, 1, 3, 3, 7, 7, 14, 14, 22, 22)
    ]
    inputs = _inputs("GRU")
    np.testing.assert_array_equal(
        evaluate("GRU", 1, {"direction": "foward", "output_sequence": 1}, inputs)["Y"],
        evaluate("GRU", 14, {}, inputs)["Y"],
    )


@pytest.mark.parametrize(
    ("op_type", "version", "attributes", "message"),
    [
        ("GRU", 1, {"linear_before_reset": 1}, "no attribute"),
        ("GRU", 3, {"direction": "foward"}, "unknown direction"),
        ("LSTM", 7, {"output_sequence": 1}, "no attribute"),
        ("LSTM", 7, {"layout": 1}, "no attribute"),
        ("LSTM", 14, {"activations": ["Tanh"]}, "needs 3 activations"),
        ("LSTM", 14, {"clip": -1.0}, "clip"),
        ("LSTM", 14, {"hidden_size": 9}, "hidden_size"),
        ("RNN", 2, {}, "no version"),
        ("RNN", 14, {"activations": ["tanh"]}, "unknown activation"),
    ],
)
def test_illegal_nodes_are_refused(
    op_type: str, version: int, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(op_type, version, attributes, _inputs(op_type))


@pytest.mark.parametrize("lens", [[-1, 2], [2, 4], [2]])
def test_illegal_lengths_are_refused(lens: list[int]) -> None:
    with pytest.raises(ValueError, match="sequence_lens"):
        evaluate("RNN", 14, {}, _inputs("RNN") | {"sequence_lens": np.array(lens, np.int32)})
