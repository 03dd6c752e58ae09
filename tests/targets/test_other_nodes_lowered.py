"""Nodes of the rest of the model that a target lacks: expressed as the emitted ones are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import all_nodes
from support.runtimes import RUNTIMES

import rnnlower

WEIGHTS = {"W": (1, 3, 4), "R": (1, 3, 3), "w": (3, 3), "b": (3,), "k": (4, 4, 1)}


def model_of(nodes: str, opset: int = 13, inputs: str = "float[3, 1, 4] x") -> onnx.ModelProto:
    """Build a model whose nodes read constants of `WEIGHTS`; the output is y."""
    text = f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        main ({inputs}) => (float y) <int64[1] first = {{0}}, int64[1] second = {{1}}, float one = {{1.0}}>
        {{ {nodes} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in WEIGHTS.items()
        if name in read
    )
    return model


def check_lowered(source: onnx.ModelProto, target: str) -> set[str]:
    """Lower the model, which must then fit the target as a whole; return its operators."""
    lowered = rnnlower.lower(source, target=target)
    assert rnnlower.check(lowered, target=target) == []
    assert rnnlower.verify(source, lowered)
    return {node.op_type for node in all_nodes(lowered)}


RNN = "h = RNN <hidden_size = 3> (x, W, R)"


@pytest.mark.parametrize("target", ["primitive", "ort-quantization"])
def test_a_gemm_and_a_squeeze_of_the_model(target: str) -> None:
    nodes = f"{RNN} s = Squeeze (h, second) t = Squeeze (s, second) y = Gemm <alpha = 0.5> (t, w, b)"
    used = check_lowered(model_of(nodes), target)
    assert "MatMul" in used
    assert "Gemm" not in used
    assert target == "ort-quantization" or "Squeeze" not in used


@pytest.mark.parametrize("opset", [9, 11])
def test_a_squeeze_whose_axes_follow_from_the_shape(opset: int) -> None:
    assert "Squeeze" in check_lowered(model_of(f"{RNN} y = Squeeze (h)", opset), "tract")


@pytest.mark.parametrize(
    "nodes",
    [
        f'{RNN} y = com.microsoft.FusedGemm <activation = "Relu"> (h2, w, b)',
        f"{RNN} f = com.microsoft.FusedMatMul <alpha = 0.5, transA = 1> (h2, h2) y = Relu (f)",
        f"{RNN} f = com.microsoft.QuickGelu (h2) y = Relu (f)",
        # The sizes of what the node reads are known once the one before it is expressed.
        't = Transpose <perm = [1, 2, 0]> (x) c = com.microsoft.FusedConv <activation = "Relu"> (t, k)'
        " f = com.microsoft.FusedMatMul <transA = 1> (c, c) u = Transpose <perm = [2, 0, 1]> (c)"
        " h = RNN <hidden_size = 3> (u, W, R) s = ReduceSum (f) y = Add (h, s)",
    ],
)
def test_fused_nodes_of_onnxruntime_are_expressed(nodes: str) -> None:
    if "h2" in nodes:
        nodes = nodes.replace(RNN, f"{RNN} h1 = Squeeze (h, second) h2 = Squeeze (h1, second)")
    source = model_of(nodes)
    assert any(
        misfit.op_type.startswith("com.microsoft.") for misfit in rnnlower.check(source, target="tract")
    )
    assert not {"FusedGemm", "FusedMatMul", "FusedConv", "QuickGelu"} & check_lowered(source, "tract")


def test_quantized_nodes_of_onnxruntime_are_expressed() -> None:
    nodes = f"""
        s = Constant <value = float {{0.02}}> ()  z = Constant <value = uint8 {{128}}> ()
        q = QuantizeLinear (x, s, z)  g = com.microsoft.QLinearSigmoid (q, s, z, s, z)
        a = com.microsoft.QLinearMul (q, s, z, g, s, z, s, z)  x2 = DequantizeLinear (a, s, z)
        {RNN.replace("(x,", "(x2,")} y = Relu (h)
    """
    used = check_lowered(model_of(nodes), "emx")
    assert not {"QLinearSigmoid", "QLinearMul"} & used
    assert used >= {"QuantizeLinear", "DequantizeLinear"}


def test_an_unknown_operator_of_another_domain_stays_and_is_told() -> None:
    source = model_of(f"{RNN} y = com.microsoft.Inverse (h)", inputs="float[3, 3, 4] x")
    lowered, report = rnnlower.lower.with_report(source, target="primitive")
    assert "Inverse" in {node.op_type for node in all_nodes(lowered)}
    assert any("does not run com.microsoft.Inverse" in note for note in report.notes)


def test_the_type_of_an_inner_value_decides_on_a_node() -> None:
    """OpenCV fails at run time in a Clip of integers without an upper bound."""
    nodes = f"""{RNN} before = Sub (n, second) bounded = Clip (before, one_step)
        factor = Cast <to = 1> (bounded) y = Mul (h, factor)"""
    source = model_of(nodes, inputs="float[3, 1, 4] x, int64[1] n")
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one_step"))
    used = check_lowered(source, "opencv")
    assert "Max" in used
    assert "Clip" not in used


def test_a_window_that_would_begin_in_the_padding_on_emx() -> None:
    """onnx's inference counts that window, and emx-onnx-cgen wants the shape without it."""
    nodes = """p = MaxPool <ceil_mode = 1, kernel_shape = [2], strides = [4]> (x)
        t = Transpose <perm = [2, 0, 1]> (p)  y = RNN <hidden_size = 3> (t, W, R)"""
    source = model_of(nodes, inputs="float[1, 4, 7] x")
    lowered = rnnlower.lower(source, target="emx")
    (pool,) = (node for node in lowered.graph.node if node.op_type == "MaxPool")
    assert "ceil_mode" not in {attribute.name for attribute in pool.attribute}
    assert rnnlower.check(lowered, target="emx") == []
    assert rnnlower.verify(source, lowered)


def test_an_equation_that_emx_does_not_have() -> None:
    nodes = f'{RNN} e = Einsum <equation = "tdbh,hk->tbk"> (h, w) y = Relu (e)'
    assert "Einsum" not in check_lowered(model_of(nodes), "emx")
    assert "Einsum" in check_lowered(
        model_of(
            f'e = Einsum <equation = "ij->ji"> (z) {RNN} y = Add (h, e)',
            inputs="float[3, 1, 4] x, float[3, 1] z",
        ),
        "emx",
    )


@pytest.mark.parametrize(("scale", "equal"), [(0.02, True), (0.0202, False)])
def test_an_integer_operator_may_be_one_step_off_and_not_more(scale: float, equal: bool) -> None:
    """The kernel of QLinearMul rounds otherwise than floats do; a wrong scale shifts large values by more."""
    head = "s = Constant <value = float {0.02}> ()  z = Constant <value = uint8 {128}> ()"
    source = model_of(f"""{head}
        q = QuantizeLinear (x, s, z)  a = com.microsoft.QLinearMul (q, s, z, q, s, z, s, z)
        y = DequantizeLinear (a, s, z)""")
    floats = model_of(f"""{head} other = Constant <value = float {{{scale}}}> ()
        q = QuantizeLinear (x, s, z)  f = DequantizeLinear (q, s, z)  p = Mul (f, f)
        a = QuantizeLinear (p, other, z)  y = DequantizeLinear (a, s, z)""")
    assert bool(rnnlower.verify(source, floats)) == equal


JOINED = "c = Concat <axis = 1> (r, s) y = MatMul (c, w)"


@pytest.mark.parametrize("repetition", ["Tile (e, times)", "Expand (e, sizes)"])
@pytest.mark.parametrize("product", ["y = RNN <hidden_size = 3> (r, W3, R)", "y = MatMul (r, w)", JOINED])
def test_a_repetition_in_front_of_a_product_gets_a_max_for_tract(repetition: str, product: str) -> None:
    """The decoder of an autoencoder: tract fails to load it without an op in between."""
    mean = "s = Squeeze (h, second) g = ReduceMean <axes = [0]> (s) e = Neg (g)"
    source = model_of(f"{RNN} {mean} r = {repetition} {product}")
    for name, value in (("times", [3, 1, 1]), ("sizes", [3, 1, 3]), ("W3", np.ones((1, 3, 3), np.float32))):
        source.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    read = {name for node in source.graph.node for name in node.input}
    for tensor in [each for each in source.graph.initializer if each.name not in read]:
        source.graph.initializer.remove(tensor)
    assert "Max" in check_lowered(source, "tract")
    engine = RUNTIMES["tract"].engine
    if not engine.missing:
        assert rnnlower.verify(source, rnnlower.lower(source, target="tract"), on="tract")
