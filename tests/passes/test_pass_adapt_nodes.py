"""AdaptNodesPass and CorrectShapesPass."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.graph.walk import walk
from rnnlower.passes import AdaptNodesPass, CorrectShapesPass

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
PAD = """
    main (float[1, 4] x) => (float[1, 9] y) <int64[4] pads = {{0, 2, 0, 3}}>
    {{ y = Pad <mode = "{}"> (x, pads) }}
"""


def adapted(text: str, *refused: str, opset: int = 17) -> list[str]:
    source = onnx.parser.parse_model(HEADER.replace("17", str(opset)) + text)
    own = ir.from_proto(source)
    AdaptNodesPass(lambda node: node.op_type in refused)(own)
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(source, result)
    return [node.op_type for node, _ in walk(own.graph)]


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_reflect_and_edge_pads_become_gathers(mode: str) -> None:
    assert adapted(PAD.format(mode), "Pad") == ["Gather"]


def test_a_node_without_another_form_stays() -> None:
    assert adapted(PAD.format("constant"), "Pad") == ["Pad"]
    assert adapted(PAD.format("reflect"), "Pad", "Gather") == ["Pad"]


@pytest.mark.parametrize("shape", ["T, N, 3", "N, T, 3"])
@pytest.mark.parametrize("op_type", ["ReverseSequence", "Slice"])
def test_an_axis_of_any_size_is_reversed_by_a_scan(op_type: str, shape: str) -> None:
    axis = shape.split(", ").index("T")
    node = {
        "ReverseSequence": f"ReverseSequence <time_axis = {axis}, batch_axis = {1 - axis}> (x, lengths)",
        "Slice": "Slice (x, back, low, axis, back)",
    }[op_type]
    text = f"""main (float[{shape}] x) => (float[{shape}] y)
        <int64[1] axis = {{{axis}}}, int64[1] rows = {{{1 - axis}}}, int64[1] back = {{-1}},
         int64[1] low = {{-9223372036854775807}}> {{
        sizes = Shape (x)  size = Gather (sizes, axis)  count = Gather (sizes, rows)
        lengths = Expand (size, count)
        y = {node}
    }}"""
    assert set(adapted(text, op_type)) - {"Expand", "Gather", "Shape"} == {"Identity", "Scan"}
    # A part of the axis, or every other step, is not the whole axis.
    other = text.replace("low = {-9223372036854775807}", "low = {-3}").replace(
        "(size, count)", "(part, count)"
    )
    part = other.replace(
        "lengths =", "one = Constant <value = int64[1] {1}> ()  part = Sub (size, one) lengths ="
    )
    source = onnx.parser.parse_model(HEADER + part)
    own = ir.from_proto(source)
    assert not AdaptNodesPass(lambda node: node.op_type == op_type)(own).modified


@pytest.mark.parametrize("node", ["Flatten (x)", "Squeeze (x, axis)", "Unsqueeze (x, axis)"])
def test_shaping_becomes_a_reshape(node: str) -> None:
    text = f"main (float[1, 4, 3] x) => (float y) <int64[1] axis = {{0}}> {{ t = {node}  y = ReduceSum "
    assert adapted(text + "<keepdims = 0> (t) }", node.split()[0])[0] == "Reshape"


def test_a_reshape_that_allows_zeros_and_has_none() -> None:
    text = """main (float[4, 3] x) => (float[2, 6] y) <int64[2] s = {2, -1}>
        { y = Reshape <allowzero = 1> (x, s) }"""
    source = onnx.parser.parse_model(HEADER + text)
    lowered = rnnlower.lower(source, target="onnx2torch")
    assert [node.op_type for node in lowered.graph.node] == ["Reshape"]
    assert not lowered.graph.node[0].attribute
    assert rnnlower.verify(source, lowered)
    assert rnnlower.check(source, target="onnx2torch")


@pytest.mark.parametrize("axis", [1, -2])
def test_a_gather_by_a_matrix(axis: int) -> None:
    text = f"""main (float[2, 4, 3] x) => (float[2, 2, 2, 3] y) <int64[2, 2] of = {{3, 0, 1, -1}}>
        {{ y = Gather <axis = {axis}> (x, of) }}"""
    source = onnx.parser.parse_model(HEADER + text)
    lowered = rnnlower.lower(source, target="tinygrad")
    assert [node.op_type for node in lowered.graph.node] == ["Gather", "Reshape"]
    assert rnnlower.verify(source, lowered)
    assert rnnlower.check(lowered, target="tinygrad") == []
    assert [each.reason for each in rnnlower.check(source, target="tinygrad")] == [
        "its constant input 1 has 2 axes"
    ]


@pytest.mark.parametrize("opset", [9, 17])
def test_a_split_becomes_slices(opset: int) -> None:
    sizes = "(x, sizes)" if opset >= 13 else "<split = [1, 3]> (x)"
    text = f"""
        main (float[2, 4] x) => (float[2, 1] y, float[2, 3] z) <int64[2] sizes = {{1, 3}}>
        {{ y, z = Split <axis = -1> {sizes} }}
    """
    text = text.replace("<axis = -1> <split", "<axis = -1, split")
    if opset < 13:
        text = text.replace("<int64[2] sizes = {1, 3}>", "")
    assert adapted(text, "Split", opset=opset) == ["Slice", "Slice"]


@pytest.mark.parametrize(
    "bounds", ["-1 -9 0 -1", "4 0 0 -1", "-2 -5 0 -2", "3 -1 0 -1", "9 -99 1 -1", "1 -1 1 1", "-1 -9 -2 -1"]
)
def test_a_slice_that_goes_backwards(bounds: str) -> None:
    start, end, axis, step = map(int, bounds.split())
    shape = [5, 4]
    shape[axis] = len(range(shape[axis])[start:end:step])
    text = f"""main (float[5, 4] x) => (float{shape} y)
        <int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{{axis}}}, int64[1] p = {{{step}}}>
        {{ y = Slice (x, s, e, a, p) }}"""
    assert adapted(text, "Slice") == ["Gather"]


def test_a_slice_of_two_axes_for_a_target_that_goes_forward_only() -> None:
    text = """main (float[5, 4] x) => (float[5, 2] y) <int64[2] s = {-1, 3}, int64[2] e = {-9, -9},
        int64[2] a = {0, 1}, int64[2] p = {-1, -2}> { y = Slice (x, s, e, a, p) }"""
    source = onnx.parser.parse_model(HEADER + text)
    assert [each.reason for each in rnnlower.check(source, target="emx")] == [
        "its constant input 4 is negative"
    ]
    lowered = rnnlower.lower(source, target="emx")
    assert [node.op_type for node in lowered.graph.node] == ["Gather", "Gather"]
    assert rnnlower.check(lowered, target="emx") == []
    assert rnnlower.verify(source, lowered)


def test_a_wrong_shape_is_corrected() -> None:
    own = ir.from_onnx_text(
        f"{HEADER} main (float[1, 1, 12] x) => (float[1, 12] y) <float[1, 1, 12] s, int64[1] axis = {{1}}>"
        " { s = Squeeze (x, axis)  y = Neg (s) }"
    )
    assert CorrectShapesPass()(own).modified
    assert own.graph.node(0).outputs[0].shape == [1, 12]
    assert not CorrectShapesPass()(own).modified


def test_the_name_of_an_input_replaces_another() -> None:
    """The dynamo exporter names the sizes of each value; tract takes two names for two sizes."""
    own = ir.from_onnx_text("""<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, T] x) => (float[K, L] y)
        <float["Abs_dim_0", "Abs_dim_1"] a, float["Pad_dim_0", M] p, int64[4] pads = {0, 1, 0, 0}>
        { a = Abs (x) p = Pad (a, pads) y = Neg (p) }""")
    assert CorrectShapesPass()(own).modified
    a, p, y = (node.outputs[0].shape for node in own.graph)
    assert [list(map(str, shape or ())) for shape in (a, p, y)] == [["N", "T"], ["N", "M"], ["K", "L"]]
    assert not CorrectShapesPass()(own).modified


def test_an_output_that_declares_the_length_of_the_export_gets_its_own() -> None:
    """As PyTorch's exporter writes it: the time of X is open, but that of the output is the traced one."""
    text = """
        main (float[N, T, 4] x) => (float[N, 10, 4] y) { h = Neg (x)  y = Abs (h) }
    """
    source = onnx.parser.parse_model(HEADER + text)
    lowered, report = rnnlower.unroll.with_report(source, dims={"N": 2, "T": 12})
    dims = lowered.graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [2, 12, 4]
    assert report.notes == ["output 'y' declares the shape [2, 10, 4] and has [2, 12, 4]: corrected"]
    assert rnnlower.verify(source, lowered)
    kept = rnnlower.unroll(source).graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in kept] == ["N", 10, 4]


def test_known_sizes_are_declared_for_a_target() -> None:
    """emx-onnx-cgen takes sizes that are numbers only."""
    own = ir.from_onnx_text(
        f"{HEADER} main (float[2, 3] x, bool c) => (float[2, ?] y) {{ y = If (c) <then_branch = a"
        " () => (float[2, ?] z) { z = Neg (x) }, else_branch = b () => (float[?, 3] w) { w = Abs (x) }> }"
    )
    assert CorrectShapesPass(outputs=True)(own).modified
    branches = [each.as_graph() for each in own.graph.node(0).attributes.values()]
    assert [out.shape for each in (own.graph, *branches) for out in each.outputs] == [ir.Shape([2, 3])] * 3


def test_outputs_without_a_shape_get_theirs_where_that_is_asked_for() -> None:
    own = ir.from_onnx_text(f"{HEADER} main (float[2, 3] x) => (float[2, 3] y) {{ y = Neg (x) }}")
    own.graph.outputs[0].shape = None
    assert not CorrectShapesPass()(own).modified
    assert CorrectShapesPass(outputs=True)(own).modified
    assert own.graph.outputs[0].shape == [2, 3]


def test_unknown_sizes_get_names_for_a_target() -> None:
    """OpenCV 5 refuses an output, and what a body takes and gives, of a size without a number and a name."""
    own = ir.from_onnx_text(
        f"{HEADER} main (float[2, N] h, int64 n, bool[N] is_part) => (float[2, z_1] y, float[2, ?] w) {{"
        " w = Compress <axis = 1> (h, is_part)  y = Loop (n, , w) <body = b"
        " (int64 i, bool c, float[2, ?] h_in) => (bool d, float[2, ?] z) {"
        " d = Identity (c)  z = Neg (h_in) }> }"
    )
    assert CorrectShapesPass(outputs=True)(own).modified
    assert own.graph.outputs[1].shape == ir.Shape([2, "w_1"])
    body = own.graph.node(1).attributes["body"].as_graph()
    assert body.inputs[2].shape == ir.Shape([2, "h_in_1"])
    assert body.outputs[1].shape == ir.Shape([2, "z_1_1"])
    assert not CorrectShapesPass(outputs=True)(own).modified


def test_bodies_name_sizes_as_the_inputs_do() -> None:
    """tract 0.23 takes no state of another size than its start: it refused TorchScript's Loops, as Scans."""
    own = ir.from_onnx_text(
        HEADER + "main (float[T, N, 2] x) => (float[T, N, 2] y) <int64[1] two = {2}> {"
        " rows = Shape <start = 1, end = 2> (x)  sizes = Concat <axis = 0> (rows, two)"
        " zeros = ConstantOfShape (sizes)  last, y = Scan <num_scan_inputs = 1, body = b"
        " (float[?, 2] h, float[?, 2] x_t) => (float[M, 2] z, float[?, 2] row) {"
        " z = Add (h, x_t)  row = Neg (z) }> (zeros, x) }"
    )
    assert CorrectShapesPass(outputs=True)(own).modified
    body = next(node for node in own.graph if node.op_type == "Scan").attributes["body"].as_graph()
    assert all(value.shape == ir.Shape(["N", 2]) for value in (*body.inputs, *body.outputs))


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_a_tanh_becomes_a_sigmoid(dtype: str) -> None:
    text = f"main ({dtype}[2, 3] x) => ({dtype}[2, 3] y) {{ y = Tanh (x) }}"
    assert adapted(text, "Tanh") == ["Mul", "Sigmoid", "Mul", "Sub"]


@pytest.mark.parametrize("box", ["0:1, 0:4, 0:3", "0:2, 1:3, 0:3", "1:2, 2:4, 1:2", "0:2, 0:4, 0:3"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_a_scatter_becomes_slices_only_if_it_fills_a_box(box: str, depth: int, turned: bool) -> None:
    shape, bounds = (2, 4, 3), [tuple(map(int, part.split(":"))) for part in box.split(",")][:depth]
    ranges = [np.arange(*each) for each in bounds]
    indices = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).astype(np.int64)
    indices = indices[::-1].copy() if turned else indices
    updates = [*indices.shape[:-1], *shape[depth:]]
    text = f"main (float[2, 4, 3] x, float{updates} u) => (float[2, 4, 3] y) {{ y = ScatterND (x, i, u) }}"
    model = onnx.parser.parse_model(HEADER + text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(indices, "i"))
    own = ir.from_proto(model)
    AdaptNodesPass(lambda node: node.op_type == "ScatterND")(own)
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(model, result)
    ops = {node.op_type for node in result.graph.node}
    # The other way round it is no box, unless it is one slice thick.
    is_box = not turned or len(ranges[0]) == 1
    assert ops <= ({"Reshape", "Slice", "Concat"} if is_box else {"ScatterND"})


def test_the_shape_of_an_adapted_result_is_known_to_the_next_node() -> None:
    text = """
        main (float[3, 2] x, float[1, 2] u) => (float[3, 2] y)
            <int64[1, 1] first = {0}, int64[1, 1] last = {2}>
        { t = ScatterND (x, first, u)  y = ScatterND (t, last, u) }
    """
    assert "ScatterND" not in adapted(text, "ScatterND")


@pytest.mark.parametrize(("lengths", "expected"), [("5, 5", ["Gather"]), ("5, 3", ["ReverseSequence"])])
@pytest.mark.parametrize("order", ["time_axis = 0, batch_axis = 1", "time_axis = 1, batch_axis = 0"])
def test_a_whole_sequence_is_reversed_by_a_gather(lengths: str, expected: list[str], order: str) -> None:
    shape = "5, 2, 3" if order.startswith("time_axis = 0") else "2, 5, 3"
    text = f"""main (float[{shape}] x) => (float[{shape}] y) <int64[2] n = {{{lengths}}}>
        {{ y = ReverseSequence <{order}> (x, n) }}"""
    assert adapted(text, "ReverseSequence") == expected


@pytest.mark.parametrize("target", ["mnn", "opencv", "tract"])
def test_a_constant_of_shape_gets_the_value_that_its_text_gives_it(target: str) -> None:
    text = """main (float[N, 4] x) => (float[N, 4] y)
        { s = Shape (x)  z = ConstantOfShape (s)  c = Cos (z)  y = Mul (x, c) }"""
    source = onnx.parser.parse_model(HEADER + text)
    lowered = rnnlower.lower(source, target=target)
    (node,) = (node for node in lowered.graph.node if node.op_type == "ConstantOfShape")
    assert onnx.numpy_helper.to_array(node.attribute[0].t) == np.zeros(1, np.float32)
    assert rnnlower.verify(source, lowered)
    assert rnnlower.check(source, target=target)
    assert not rnnlower.check(lowered, target=target)
