from __future__ import annotations

import cProfile
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.installed import rnn_is_sound
from support.small_models import info, model_of, recurrent_model, run_onnxruntime, weights

from rnnlower.engines.reference import evaluate, recurrent_ops
from rnnlower.errors import InvalidModelError, UnsupportedModelError

FLOAT = TensorProto.FLOAT
ACTIVATIONS = [
    "Relu",
    "Tanh",
    "Sigmoid",
    "Affine",
    "LeakyRelu",
    "ThresholdedRelu",
    "ScaledTanh",
    "HardSigmoid",
]
ACTIVATIONS += ["Elu", "Softsign", "Softplus"]


def _x(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _random_node(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a node that onnxruntime's kernels run, and inputs."""
    rng = np.random.default_rng(seed)
    op_type = str(rng.choice(["LSTM", "GRU", "RNN"]))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    T, N = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    attributes: dict[str, Any] = {"direction": direction}
    per_direction = {"LSTM": 3, "GRU": 2, "RNN": 1}[op_type]
    if rng.random() < 0.6:
        attributes["activations"] = [str(a) for a in rng.choice(ACTIVATIONS, per_direction * directions)]
    for name in ("activation_alpha", "activation_beta"):
        if rng.random() < 0.5:
            attributes[name] = [float(v) for v in rng.uniform(0.1, 1, int(rng.integers(1, 5)))]
    if rng.random() < 0.5:
        attributes["clip"] = float(rng.uniform(0.1, 2))
    if op_type == "LSTM" and rng.random() < 0.3:
        attributes["input_forget"] = 1
    if op_type == "GRU" and rng.random() < 0.5:
        attributes["linear_before_reset"] = 1
    constants = weights(op_type, directions=directions, seed=seed)
    if rng.random() < 0.3:
        del constants["B"]
    if op_type == "LSTM" and rng.random() < 0.5:
        constants["P"] = _x(directions, 12, seed=seed)
    if rng.random() < 0.5:
        constants["initial_h"] = _x(directions, N, 4, seed=seed + 1)
    if op_type == "LSTM" and rng.random() < 0.5:
        constants["initial_c"] = _x(directions, N, 4, seed=seed + 2)
    inputs: dict[str, Any] = {"X": (FLOAT, [T, N, 3])}
    feeds = {"X": _x(T, N, 3, seed=seed + 3)}
    if rng.random() < 0.5:
        inputs["sequence_lens"] = (TensorProto.INT32, [N])
        feeds["sequence_lens"] = rng.integers(0, T + 1, N).astype(np.int32)
    outputs = ["Y", "Y_h", "Y_c"] if op_type == "LSTM" else ["Y", "Y_h"]
    return recurrent_model(op_type, constants=constants, inputs=inputs, outputs=outputs, **attributes), feeds


def _is_judged(node: onnx.NodeProto) -> bool:
    """Return whether the installed onnxruntime may judge a node."""
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    functions = [name.decode() for name in values.get("activations", ())]
    direction = values["direction"].decode()
    return node.op_type != "RNN" or rnn_is_sound(direction, functions, "sequence_lens" in node.input)


@pytest.mark.parametrize("block", range(4))
def test_onnxruntime_agrees_on_random_nodes(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        model, feeds = _random_node(seed)
        if not _is_judged(model.graph.node[0]):
            continue
        expected = run_onnxruntime(model, feeds)
        for name, value in evaluate(model, feeds).items():
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}, {name}"
            )


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_row_of_length_zero_ends_in_zeros_or_the_initial_state(op_type: str) -> None:
    initial = _x(1, 2, 4, seed=5)
    constants = weights(op_type) | {"initial_h": initial, "sequence_lens": np.array([0, 2], np.int32)}
    model = recurrent_model(op_type, constants=constants)
    assert not evaluate(model, {"X": _x(3, 2, 3)})["Y_h"][0, 0].any()
    as_written = evaluate(model, {"X": _x(3, 2, 3)}, semantics="spec")
    np.testing.assert_array_equal(as_written["Y_h"][0, 0], initial[0, 0])
    assert not as_written["Y"][:, 0, 0].any()


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0), (0, 0)])
def test_zero_length_time_and_batch(op_type: str, time: int, batch: int) -> None:
    outputs = evaluate(recurrent_model(op_type), {"X": np.zeros((time, batch, 3), np.float32)})
    assert outputs["Y"].shape == (time, 1, batch, 4)
    assert outputs["Y_h"].shape == (1, batch, 4)
    assert not outputs["Y_h"].any()


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_layout_1_swaps_time_and_batch(op_type: str) -> None:
    x, initial = _x(5, 2, 3), _x(1, 2, 4, seed=2)
    time_major = recurrent_model(op_type, constants=weights(op_type) | {"initial_h": initial})
    swapped = weights(op_type) | {"initial_h": np.ascontiguousarray(initial.swapaxes(0, 1))}
    batch_major = recurrent_model(op_type, constants=swapped, layout=1)
    expected, found = evaluate(time_major, {"X": x}), evaluate(batch_major, {"X": x.swapaxes(0, 1)})
    np.testing.assert_array_equal(found["Y"], expected["Y"].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(found["Y_h"], expected["Y_h"].swapaxes(0, 1))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_dtypes_round_once_at_the_end(dtype: Any) -> None:
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    narrow = weights("GRU", dtype=dtype)
    x = _x(4, 2, 3).astype(dtype)
    opset = 22 if dtype == ml_dtypes.bfloat16 else 17
    found = evaluate(recurrent_model("GRU", constants=narrow, elem_type=elem_type, opset=opset), {"X": x})[
        "Y"
    ]
    wide = {name: value.astype(np.float32) for name, value in narrow.items()}
    expected = evaluate(recurrent_model("GRU", constants=wide), {"X": x.astype(np.float32)})["Y"]
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found.astype(np.float32), expected, rtol=float(ml_dtypes.finfo(dtype).eps) + 1e-6, atol=1e-6
    )


def test_clip_reaches_the_cell_output_only_in_the_text() -> None:
    constants = weights("LSTM") | {"initial_c": np.full((1, 2, 4), 5.0, np.float32)}
    model = recurrent_model("LSTM", constants=constants, clip=0.5)
    feeds = {"X": _x(1, 2, 3)}
    assert np.abs(evaluate(model, feeds)["Y"] - evaluate(model, feeds, semantics="spec")["Y"]).max() > 0.01


def test_softplus_overflows_in_the_kernels_only() -> None:
    model = recurrent_model("RNN", activations=["Softplus"])
    feeds = {"X": 1000 * _x(1, 2, 3)}
    native = run_onnxruntime(model, feeds)["Y"]
    assert np.isinf(native).any()
    np.testing.assert_array_equal(np.isinf(evaluate(model, feeds)["Y"]), np.isinf(native))
    assert np.isfinite(evaluate(model, feeds, semantics="spec")["Y"]).all()


def test_softplus_of_float64_overflows_later() -> None:
    constants = weights("RNN", dtype=np.float64)
    inputs = {"X": (onnx.TensorProto.DOUBLE, [1, 1, 3])}
    model = recurrent_model("RNN", constants=constants, inputs=inputs, elem_type=11, activations=["Softplus"])
    direction = np.sign(constants["W"][0, 0])[np.newaxis, np.newaxis]
    size = np.abs(constants["W"][0, 0]).sum()
    assert np.isfinite(evaluate(model, {"X": direction * 500 / size})["Y"][0, 0, 0, 0])
    assert np.isinf(evaluate(model, {"X": direction * 1000 / size})["Y"][0, 0, 0, 0])


def test_scaled_tanh_has_no_default_in_the_text() -> None:
    model = recurrent_model("RNN", activations=["ScaledTanh"])
    assert not evaluate(model, {"X": _x(2, 2, 3)})["Y"].any()
    with pytest.raises(UnsupportedModelError, match="activation_alpha"):
        evaluate(model, {"X": _x(2, 2, 3)}, semantics="spec")


def test_the_misspelled_direction_of_gru_1_is_read() -> None:
    gru = weights("GRU")
    old = recurrent_model("GRU", constants=gru, opset=1, direction="foward", output_sequence=1)
    x = _x(3, 2, 3)
    np.testing.assert_array_equal(
        evaluate(old, {"X": x})["Y"], evaluate(recurrent_model("GRU", constants=gru), {"X": x})["Y"]
    )


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes"),
    [
        ("GRU", 1, {"linear_before_reset": 1}),
        ("LSTM", 7, {"output_sequence": 1}),
        ("RNN", 13, {"layout": 1}),
        ("LSTM", 17, {"momentum": 0.5}),
        ("GRU", 17, {"activations": ["Tanh", "Swish"]}),
        ("RNN", 17, {"activations": ["tanh"]}),
        ("LSTM", 17, {"direction": "backwards"}),
        ("LSTM", 17, {"clip": 0.0}),
    ],
)
def test_attributes_that_a_version_lacks_are_refused(
    op_type: str, opset: int, attributes: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedModelError, match="cell"):
        evaluate(recurrent_model(op_type, opset=opset, **attributes), {"X": _x(2, 2, 3)})


def test_weights_of_a_wrong_shape_are_refused() -> None:
    constants = weights("LSTM")
    constants["R"] = constants["R"][:, :-1]
    with pytest.raises(InvalidModelError, match="R has shape"):
        evaluate(recurrent_model("LSTM", constants=constants), {"X": _x(2, 2, 3)})


def test_a_length_beyond_the_sequence_is_refused() -> None:
    constants = weights("LSTM") | {"sequence_lens": np.array([3, 1], np.int32)}
    with pytest.raises(ValueError, match="outside"):
        evaluate(recurrent_model("LSTM", constants=constants), {"X": _x(2, 2, 3)})


def test_operators_serve_the_plain_evaluator() -> None:
    model = recurrent_model("LSTM", clip=0.3, outputs=("", "Y_h"))
    feeds = {"X": _x(3, 2, 3)}
    plain = ReferenceEvaluator(model, new_ops=recurrent_ops())
    np.testing.assert_array_equal(plain.run(None, feeds)[0], evaluate(model, feeds)["Y_h"])


def test_an_omitted_output_feeds_no_omitted_input() -> None:
    nodes = [
        helper.make_node("LSTM", ["X", "W", "R", "B"], ["", "h"], hidden_size=4),
        helper.make_node("LSTM", ["X", "W", "R", "B", "", "h"], ["Y"], hidden_size=4),
    ]
    model = model_of(nodes, [info("X", FLOAT, [3, 2, 3])], [info("Y", FLOAT, None)], weights("LSTM"))
    feeds = {"X": _x(3, 2, 3)}
    np.testing.assert_allclose(evaluate(model, feeds)["Y"], run_onnxruntime(model, feeds)["Y"], atol=1e-6)


def test_functions_get_attributes_defaults_and_omissions() -> None:
    cell = helper.make_node("GRU", ["x", "w", "r", "b"], ["", "h"])
    for name, kind in (("hidden_size", "INT"), ("clip", "FLOAT"), ("direction", "STRING")):
        attribute = cell.attribute.add(name=name, ref_attr_name=name)
        attribute.type = getattr(onnx.AttributeProto, kind)
    inner = helper.make_function(
        "local", "Cell", ["x", "w", "r", "b"], ["h"], [cell], [helper.make_opsetid("", 17)]
    )
    inner.attribute.extend(["clip", "direction"])
    inner.attribute_proto.append(helper.make_attribute("hidden_size", 4))
    call = helper.make_node("Cell", ["x", "w", "r"], ["h"], domain="local", clip=0.25)
    outer = helper.make_function(
        "local",
        "Outer",
        ["x", "w", "r"],
        ["h"],
        [call],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    )
    constants = weights("GRU")
    del constants["B"]
    model = model_of(
        [helper.make_node("Outer", ["X", "W", "R"], ["Y_h"], domain="local")],
        [info("X", FLOAT, [3, 2, 3])],
        [info("Y_h", FLOAT, None)],
        constants,
        functions=[outer, inner],
        extra_domains=["local"],
    )
    flat = recurrent_model("GRU", constants=constants, clip=0.25)
    np.testing.assert_array_equal(
        evaluate(model, {"X": _x(3, 2, 3)})["Y_h"], evaluate(flat, {"X": _x(3, 2, 3)})["Y_h"]
    )


def test_overloads_of_a_function_are_told_apart() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "local" : 1]>
        main (float[2] x) => (float[2] y) { a = local.F : one (x) y = local.F : two (a) }
        <domain: "local", overload: "one", opset_import: ["" : 17]> F (x) => (y) { y = Exp (x) }
        <domain: "local", overload: "two", opset_import: ["" : 17]> F (x) => (y) { y = Neg (x) }
    """)
    feeds = {"x": np.array([1, 2], np.float32)}
    np.testing.assert_allclose(evaluate(model, feeds)["y"], run_onnxruntime(model, feeds)["y"], rtol=1e-6)


@pytest.mark.parametrize(("op_type", "weight"), [("Conv", (3, 2, 2)), ("ConvTranspose", (2, 3, 2))])
def test_convolutions_of_no_rows(op_type: str, weight: tuple[int, ...]) -> None:
    node = helper.make_node(op_type, ["x", "w"], ["y"])
    model = model_of(
        [node], [info("x", FLOAT, ["n", 2, 5])], [info("y", FLOAT, None)], {"w": np.ones(weight, np.float32)}
    )
    feeds = {"x": np.ones((0, 2, 5), np.float32)}
    np.testing.assert_array_equal(evaluate(model, feeds)["y"], run_onnxruntime(model, feeds)["y"])


def test_if_branches_capture_the_outer_scope() -> None:
    def branch(x: str) -> onnx.GraphProto:
        node = helper.make_node("RNN", [x, "W", "R", "B"], ["Y"], hidden_size=4)
        return helper.make_graph([node], "branch", [], [info("Y", FLOAT, None)])

    nodes = [
        helper.make_node("Neg", ["X"], ["minus"]),
        helper.make_node("If", ["c"], ["Y"], then_branch=branch("X"), else_branch=branch("minus")),
    ]
    inputs = [info("X", FLOAT, [3, 2, 3]), info("c", TensorProto.BOOL, [])]
    model = model_of(nodes, inputs, [info("Y", FLOAT, None)], weights("RNN"))
    for condition in (True, False):
        feeds = {"X": _x(3, 2, 3), "c": np.array(condition)}
        np.testing.assert_allclose(evaluate(model, feeds)["Y"], run_onnxruntime(model, feeds)["Y"], atol=1e-6)


@pytest.mark.parametrize("trips", [0, 3])
def test_loop_stacks_its_scan_outputs(trips: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["cond"], ["cond_out"]),
            helper.make_node("RNN", ["X", "W", "R", "B", "", "h"], ["Y", "h_out"], hidden_size=4),
        ],
        "body",
        [info("i", TensorProto.INT64, []), info("cond", TensorProto.BOOL, []), info("h", FLOAT, [1, 2, 4])],
        [
            info("cond_out", TensorProto.BOOL, []),
            info("h_out", FLOAT, [1, 2, 4]),
            info("Y", FLOAT, [3, 1, 2, 4]),
        ],
    )
    node = helper.make_node("Loop", ["M", "", "h0"], ["h_end", "Ys"], body=body)
    model = model_of(
        [node],
        [info("X", FLOAT, [3, 2, 3]), info("h0", FLOAT, [1, 2, 4]), info("M", TensorProto.INT64, [])],
        [info("h_end", FLOAT, None), info("Ys", FLOAT, None)],
        weights("RNN"),
    )
    feeds = {"X": _x(3, 2, 3), "h0": _x(1, 2, 4), "M": np.array(trips)}
    expected = run_onnxruntime(model, feeds)
    for name, value in evaluate(model, feeds).items():
        assert value.shape == expected[name].shape
        np.testing.assert_allclose(value, expected[name], atol=1e-6)


def _scan_model() -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["s_out"]), helper.make_node("Mul", ["s", "x"], ["y"])],
        "body",
        [info("s", FLOAT, [2]), info("x", FLOAT, [2])],
        [info("s_out", FLOAT, [2]), info("y", FLOAT, [2])],
    )
    node = helper.make_node(
        "Scan",
        ["s0", "X"],
        ["s_end", "ys"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[1],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    outputs = [info("s_end", FLOAT, None), info("ys", FLOAT, None)]
    return model_of([node], [info("s0", FLOAT, [2]), info("X", FLOAT, [2, None])], outputs)


@pytest.mark.parametrize("op_type", ["Scan", "Loop"])
def test_an_iteration_does_not_visit_the_values_outside_of_the_body(op_type: str) -> None:
    body = "b (float s, float x) => (float t, float u) { t = Add (s, shift)\n u = Add (t, x) }"
    node = "s, Z = Scan <num_scan_inputs = 1, body = " + body + "> (zero, X)"
    if op_type == "Loop":
        body = "b (int64 i, bool c, float s) => (bool c, float t) { t = Add (s, shift) }"
        node = "Z = Loop <body = " + body + "> (count, yes, zero)"

    def calls(iterations: int, others: int) -> int:
        outside = "\n".join(f"other_{k} = Identity (zero)" for k in range(others))
        model = onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : 18]>
            main (float[N] X, int64 count) => (float Z)
            <float zero = {{0.0}}, bool yes = {{1}}> {{ shift = Identity (zero)\n {outside}\n {node} }}
        """)
        feeds, profile = {"X": _x(iterations), "count": np.array(iterations)}, cProfile.Profile()
        profile.runcall(evaluate, model, feeds)
        return sum(entry.callcount for entry in profile.getstats())

    calls(1, 1)
    more = (calls(30, 50) - calls(10, 50)) - (calls(30, 1) - calls(10, 1))
    # 49 values more in each of 20 iterations; a garbage collection may add a few calls.
    assert abs(more) < 20 * 49


def test_scan_without_steps_keeps_the_state() -> None:
    # onnxruntime's Scan fails on zero steps, and here divides by zero.
    feeds = {"s0": _x(2), "X": np.zeros((2, 0), np.float32)}
    found = evaluate(_scan_model(), feeds)
    np.testing.assert_array_equal(found["s_end"], feeds["s0"])
    assert found["ys"].shape == (2, 0)


def test_scan_with_axes_and_directions() -> None:
    model, feeds = _scan_model(), {"s0": _x(2), "X": _x(2, 4)}
    expected = run_onnxruntime(model, feeds)
    for name, value in evaluate(model, feeds).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6)


def _one_node(
    op_type: str, feeds: dict[str, np.ndarray], opset: int, outputs: int = 1, **attributes: Any
) -> Any:
    names = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op_type, list(feeds), names, **attributes)
    inputs = [info(name, value, value.shape) for name, value in feeds.items()]
    return model_of([node], inputs, [info(name, FLOAT, None) for name in names], opset=opset)


def test_old_broadcasting_starts_at_an_axis() -> None:
    a, b = _x(2, 3, 4), _x(3)
    found = evaluate(_one_node("Add", {"a": a, "b": b}, 6, broadcast=1, axis=1), {"a": a, "b": b})["o0"]
    np.testing.assert_array_equal(found, a + b[:, None])


def test_old_division_of_integers_is_exact() -> None:
    feeds = {"a": np.array([2**53 + 1, -7, 7]), "b": np.array([1, 2, -2])}
    assert evaluate(_one_node("Div", feeds, 6), feeds)["o0"].tolist() == [2**53 + 1, -3, -3]


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_old_softmax_flattens(op_type: str) -> None:
    x = _x(2, 3, 4)
    model = _one_node(op_type, {"x": x}, 11, axis=1)
    np.testing.assert_allclose(
        evaluate(model, {"x": x})["o0"], run_onnxruntime(model, {"x": x})["o0"], atol=1e-6
    )


def test_old_batch_normalization_infers_when_only_y_is_asked_for() -> None:
    feeds = {"x": _x(2, 3, 5), "s": _x(3), "b": _x(3, seed=2), "m": _x(3, seed=3), "v": np.abs(_x(3, seed=4))}
    model = _one_node("BatchNormalization", feeds, 9)
    np.testing.assert_allclose(
        evaluate(model, feeds)["o0"], run_onnxruntime(model, feeds)["o0"], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 1], "dilations": [2, 1], "pads": [1, 0, 1, 0]},
        {"strides": [3, 2], "output_padding": [2, 1], "pads": [0, 1, 2, 0]},
        {"strides": [2, 2], "output_shape": [9, 10]},
        {"strides": [2, 2], "output_shape": [9, 10], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 3], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 1], "auto_pad": "VALID"},
    ],
    ids=str,
)
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution(group: int, attributes: dict[str, Any]) -> None:
    feeds = {"x": _x(2, 4, 5, 5), "w": _x(4, 3, 3, 3), "b": _x(3 * group)}
    model = _one_node("ConvTranspose", feeds, 11, group=group, **attributes)
    np.testing.assert_allclose(evaluate(model, feeds)["o0"], run_onnxruntime(model, feeds)["o0"], atol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 1], "dilations": [2, 1], "pads": [1, 0, 1, 0]},
        {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
        {"strides": [3, 2], "auto_pad": "SAME_LOWER"},
        {"auto_pad": "SAME_LOWER", "strides": [1, 1]},
        {"strides": [2, 1], "auto_pad": "VALID"},
    ],
    ids=str,
)
@pytest.mark.parametrize("group", [1, 2])
def test_convolution(group: int, attributes: dict[str, Any]) -> None:
    feeds = {"x": _x(2, 4, 7, 6), "w": _x(6, 4 // group, 3, 2), "b": _x(6)}
    model = _one_node("Conv", feeds, 11, group=group, **attributes)
    np.testing.assert_allclose(evaluate(model, feeds)["o0"], run_onnxruntime(model, feeds)["o0"], atol=1e-5)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_convolutions_run_no_python_for_every_element(op_type: str) -> None:
    calls = []
    for size in (4, 4, 16):
        feeds = {"x": _x(1, 2, size, size), "w": _x(2, 2, 3, 3)}
        model, profile = _one_node(op_type, feeds, 11), cProfile.Profile()
        profile.runcall(evaluate, model, feeds)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    # The first evaluation also fills caches.
    assert calls[1] == calls[2]


def test_nodes_may_stand_in_any_order() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        main (float[2] X, bool c) => (float[2] Z) {
            Z = If (c) <then_branch = p () => (float[2] a) { a = Neg (late)  },
                        else_branch = q () => (float[2] b) { b = Neg (k)\n k = Abs (late) }>
            late = Add (early, X)
            early = Exp (X)
        }
    """)
    x = _x(2)
    for condition, expected in ((True, -(np.exp(x) + x)), (False, -np.abs(np.exp(x) + x))):
        found = evaluate(model, {"X": x, "c": np.array(condition)})["Z"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_optional_values_are_elements_or_none() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        main (float[2] X) => (optional(float[2]) full, optional(float[2]) empty, float[2] Y, bool a, bool b) {
            full = Optional (X)
            empty = Optional <type: type_proto = float[2]> ()
            Y = OptionalGetElement (full)
            a = OptionalHasElement (full)
            b = OptionalHasElement (empty)
        }
    """)
    x = _x(2)
    found = evaluate(model, {"X": x})
    np.testing.assert_equal(
        found, {"full": x, "empty": None, "Y": x, "a": np.array(True), "b": np.array(False)}
    )


def test_a_missing_operator_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="GlobalLpPool"):
        evaluate(_one_node("GlobalLpPool", {"x": _x(1, 1, 2, 2)}, 2), {"x": _x(1, 1, 2, 2)})


def test_a_missing_input_is_named() -> None:
    with pytest.raises(ValueError, match="'X'"):
        evaluate(recurrent_model("RNN"), {})


@pytest.mark.parametrize("opset", [8, 12])
@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((5,), "kernel_shape = [3], pads = [0, 1]"),
        ((6,), "kernel_shape = [3], pads = [1, 1]"),
        ((4,), 'kernel_shape = [3], auto_pad = "SAME_UPPER"'),
        ((5, 3), "kernel_shape = [3, 1], pads = [1, 0, 1, 0]"),
        ((5, 6), "kernel_shape = [1, 2], pads = [0, 0, 0, 0]"),
    ],
)
def test_max_pool_with_strides_of_1(size: tuple[int, ...], attributes: str, opset: int) -> None:
    shape = (1, 2, *size)
    dims = ", ".join(map(str, shape))
    graph = f"g (float[{dims}] x) => (float y, int64 i) {{ y, i = MaxPool <{attributes}> (x) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}')
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    found = evaluate(model, feeds)
    for name, array in run_onnxruntime(model, feeds).items():
        np.testing.assert_array_equal(found[name], array)
