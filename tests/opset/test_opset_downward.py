"""Downward conversion: adapted nodes compute the same, others are refused with their name."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.installed import newest_opset
from support.judge import run
from support.opset_engines import meaning_of, outcomes, same

import rnnlower
from rnnlower.errors import OpsetError
from rnnlower.opset import convert_opset
from rnnlower.opset.families.shaping import COMPUTED_SIZES

RNG = np.random.default_rng(3)
SHAPES = {"a": (2, 3, 4), "b": (2, 3, 4), "m": (4, 5), "s": (4,), "c": (2, 8, 3, 5)}
KINDS = {
    "float": lambda shape: RNG.standard_normal(shape).astype(np.float32),
    "double": lambda shape: RNG.standard_normal(shape),
    "float16": lambda shape: RNG.standard_normal(shape).astype(np.float16),
    "int32": lambda shape: RNG.integers(-5, 6, shape).astype(np.int32),
    "int64": lambda shape: RNG.integers(-5, 6, shape),
    "bool": lambda shape: RNG.random(shape) < 0.5,
    "uint8": lambda shape: RNG.integers(0, 256, shape).astype(np.uint8),
}
# opset, input types by name (a to c have the shapes above), lowest opset, and the nodes, whose result is y.
CASES = {
    "expand_larger": (13, {"s": "float"}, 7, "k = Constant<value_ints=[2,3,4]>() y = Expand(s, k)"),
    "expand_same_rank": (
        13,
        {"a": "int64"},
        7,
        "k = Constant<value_ints=[1]>() h = ReduceSum(a, k) t = Constant<value_ints=[1,3,1]>() "
        "y = Expand(h, t)",
    ),
    "expand_to_fewer_axes": (13, {"a": "float"}, 7, "k = Constant<value_ints=[4]>() y = Expand(a, k)"),
    "expand_by_shape": (13, {"s": "float", "a": "float"}, 7, "k = Shape(a) y = Expand(s, k)"),
    "where_int": (16, {"a": "int64", "b": "int64"}, 7, "l = Greater(a, b) y = Where(l, a, b)"),
    "where_bool": (16, {"a": "bool", "b": "bool"}, 7, "y = Where(a, b, a)"),
    "mod": (13, {"a": "int32"}, 7, "k = Constant<value=int32 {3}>() y = Mod(a, k)"),
    "mod_of_a_negative": (13, {"a": "int64"}, 7, "k = Constant<value_int=-3>() y = Mod(a, k)"),
    "trilu_upper": (14, {"a": "float"}, 10, "y = Trilu(a)"),
    "trilu_lower": (14, {"a": "int64"}, 10, "k = Constant<value_int=1>() y = Trilu<upper=0>(a, k)"),
    "einsum_matmul": (13, {"a": "float", "m": "float"}, 7, 'y = Einsum<equation="bij,jk->bik">(a, m)'),
    "einsum_turned": (13, {"a": "float", "m": "float"}, 7, 'y = Einsum<equation="bij,jk->kbi">(a, m)'),
    "einsum_batch": (13, {"a": "float", "b": "float"}, 7, 'y = Einsum<equation="bij,bkj->bik">(a, b)'),
    "einsum_two_sums": (13, {"a": "float", "b": "float"}, 7, 'y = Einsum<equation="bij,bij->b">(a, b)'),
    "einsum_product": (13, {"a": "float", "s": "float"}, 7, 'y = Einsum<equation="bij,j->bij">(a, s)'),
    "einsum_outer": (13, {"s": "float", "m": "float"}, 7, 'y = Einsum<equation="i,jk->ijk">(s, m)'),
    "einsum_vector": (13, {"s": "float", "m": "float"}, 7, 'y = Einsum<equation="i,ij->j">(s, m)'),
    "einsum_ellipsis": (13, {"a": "float", "m": "float"}, 7, 'y = Einsum<equation="...j,jk->...k">(a, m)'),
    "einsum_one": (13, {"a": "float"}, 7, 'y = Einsum<equation="bij->jb">(a)'),
    "einsum_implicit": (13, {"a": "float", "m": "float"}, 7, 'y = Einsum<equation="bij,jk">(a, m)'),
    "depth_to_space": (13, {"c": "float"}, 7, 'y = DepthToSpace<blocksize=2, mode="CRD">(c)'),
    "dequantize": (
        13,
        {"a": "uint8"},
        7,
        "k = Constant<value_float=0.5>() z = Constant<value=uint8 {7}>() y = DequantizeLinear(a, k, z)",
    ),
    "dequantize_channels": (
        13,
        {"a": "uint8"},
        7,
        "k = Constant<value_floats=[0.5,1.0,2.0]>() y = DequantizeLinear<axis=-2>(a, k)",
    ),
    "gemm_without_c": (13, {"m": "float"}, 7, "y = Gemm<transB=1>(m, m)"),
    "softmax_in_the_middle": (13, {"a": "float"}, 7, "y = Softmax<axis=1>(a)"),
    "log_softmax_last": (13, {"a": "double"}, 7, "y = LogSoftmax(a)"),
    "hardmax_first": (13, {"a": "float"}, 7, "y = Hardmax<axis=0>(a)"),
    "negative_axes": (
        13,
        {"a": "float"},
        7,
        "k = Constant<value_ints=[-2]>() h = ReduceSum<keepdims=1>(a, k) f = Squeeze(h, k) "
        "g = Unsqueeze(f, k) "
        "i = Concat<axis=-1>(a, a) n, o = Split<axis=-1>(i) q = ReduceMean<axes=[-1], keepdims=1>(n) "
        "r = Mul(q, g) t = Add(o, r) y = Flatten<axis=-1>(t)",
    ),
    "slice_from_the_back": (
        13,
        {"a": "float"},
        7,
        "k = Constant<value_ints=[-3]>() n = Constant<value_ints=[-1]>() f = Constant<value_ints=[-1]>() "
        "y = Slice(a, k, n, f)",
    ),
    "slice_by_indices_of_32_bits": (
        13,
        {"a": "float"},
        7,
        "k = Constant<value=int32[1] {-3}>() n = Constant<value=int32[1] {-1}>() y = Slice(a, k, n, n)",
    ),
    "gather_from_the_back": (
        13,
        {"a": "float"},
        7,
        "k = Constant<value_ints=[-1,0]>() h = Shape(a) l = Gather(h, k) f = Gather<axis=1>(a, k) "
        "i = Cast<to=1>(l) n = ReduceSum<keepdims=0>(i) y = Add(f, n)",
    ),
    "pad_of_some_axes": (
        18,
        {"a": "float"},
        7,
        "k = Constant<value_ints=[1,2]>() v = Constant<value_float=0.5>() x = Constant<value_ints=[-1]>() "
        "y = Pad(a, k, v, x)",
    ),
    "pad_of_some_axes_by_values": (
        18,
        {"a": "float"},
        11,
        "h = Shape(a) i = Shape(h) k = Concat<axis=0>(i, i) x = Constant<value_ints=[1]>() "
        "y = Pad(a, k, , x)",
    ),
    "shape_of_a_part": (15, {"a": "float"}, 7, "y = Shape<start=-2, end=3>(a)"),
    "reduce_over_nothing": (18, {"a": "float"}, 7, "y = ReduceSumSquare<noop_with_empty_axes=1>(a)"),
    "reduce_l1_over_nothing": (18, {"a": "float"}, 7, "y = ReduceL1<noop_with_empty_axes=1>(a)"),
    "reduce_of_booleans": (20, {"a": "bool"}, 9, "k = Constant<value_ints=[1]>() y = ReduceMax(a, k)"),
    "reduce_min_of_booleans": (20, {"a": "bool"}, 9, "k = Constant<value_ints=[1]>() y = ReduceMin(a, k)"),
    "clip_by_values": (13, {"a": "float"}, 8, "h = ReduceMax<keepdims=0>(a) l = Neg(h) y = Clip(a, l, h)"),
    "clip_of_doubles": (
        13,
        {"a": "double"},
        8,
        "l = Constant<value=double {-0.1}>() h = Constant<value=double {0.3}>() y = Clip(a, l, h)",
    ),
    "clip_of_integers": (
        13,
        {"a": "int64"},
        7,
        "l = Constant<value_int=-2>() h = Constant<value_int=3>() y = Clip(a, l, h)",
    ),
    "max_of_integers": (13, {"a": "int64", "b": "int64"}, 7, "y = Max(a, b, a)"),
    "min_of_integers": (13, {"a": "int32", "b": "int32"}, 7, "y = Min(a, b)"),
    "pow_of_another_type": (13, {"a": "float"}, 7, "k = Constant<value_int=2>() y = Pow(a, k)"),
    "equal_floats": (13, {"a": "float"}, 9, "k = Ceil(a) l = Add(a, k) y = Equal(l, a)"),
    "greater_integers": (13, {"a": "int64", "b": "int64"}, 7, "y = Greater(a, b)"),
    "less_or_equal": (16, {"a": "float", "b": "float"}, 9, "y = LessOrEqual(a, b)"),
    "top_k_smallest": (
        11,
        {"a": "float"},
        7,
        "k = Constant<value=int64[1] {2}>() y, i = TopK<largest=0>(a, k)",
    ),
    "cast_like": (19, {"a": "float", "b": "float16"}, 7, "y = CastLike(a, b)"),
    "hard_swish": (14, {"a": "float"}, 7, "y = HardSwish(a)"),
    "layer_normalization": (
        17,
        {"a": "float"},
        8,
        "k = Constant<value_floats=[1.0,2.0,3.0,4.0]>() y = LayerNormalization<axis=-1>(a, k)",
    ),
    "layer_normalization_with_broadcast_inputs": (
        17,
        {"a": "float"},
        7,
        "k = Constant<value=float[3,1] {1, -2, 3}>() y = LayerNormalization<axis=1>(a, k, k)",
    ),
    "rms_normalization": (
        23,
        {"a": "float"},
        7,
        "k = Constant<value_floats=[1.0,2.0,3.0,4.0]>() y = RMSNormalization(a, k)",
    ),
    "rms_normalization_of_two_axes": (
        23,
        {"a": "float16", "s": "float16"},
        7,
        "y = RMSNormalization<axis=1, epsilon=0.1>(a, s)",
    ),
    "gelu": (20, {"a": "float"}, 9, 'y = Gelu<approximate="tanh">(a)'),
    "mish": (18, {"a": "float"}, 7, "y = Mish(a)"),
    "range": (
        13,
        {"s": "int64"},
        6,
        "k = Constant<value_int=0>() n = Constant<value_int=7>() d = Constant<value_int=2>() "
        "y = Range(k, n, d)",
    ),
    "split_unequally": (18, {"a": "float"}, 7, "y, n = Split<axis=2, num_outputs=2>(a)"),
    "split_three": (18, {"a": "float"}, 7, "k, y, n = Split<axis=2, num_outputs=3>(a)"),
    "resize_whole": (
        13,
        {"c": "float"},
        7,
        'k = Constant<value_floats=[1.0,1.0,2.0,3.0]>() y = Resize<mode="nearest", nearest_mode="floor", '
        'coordinate_transformation_mode="asymmetric">(c, , k)',
    ),
    "resize_half_pixel": (
        13,
        {"c": "float"},
        7,
        'k = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize<mode="nearest">(c, , k)',
    ),
    "resize_to_sizes": (
        13,
        {"c": "float"},
        7,
        'k = Constant<value_ints=[2,8,6,10]>() y = Resize<mode="linear", '
        'coordinate_transformation_mode="asymmetric">(c, , , k)',
    ),
    "resize_of_some_axes": (
        18,
        {"c": "float"},
        11,
        'k = Constant<value_floats=[2.0,3.0]>() y = Resize<mode="linear", axes=[2,3]>(c, , k)',
    ),
    "resize_of_the_last_axis": (
        18,
        {"c": "float"},
        11,
        'k = Constant<value_floats=[2.0,3.0]>() y = Resize<mode="linear", axes=[2,-1]>(c, , k)',
    ),
    "resize_nothing": (
        11,
        {"c": "float"},
        9,
        "k = Constant<value=float[4]{1,1,1,1}>() r = Constant<value=float[0]{}>() y = Resize(c, r, k)",
    ),
    "dropout": (13, {"a": "float"}, 7, "k = Constant<value_float=0.3>() y = Dropout(a, k)"),
    "constants": (
        13,
        {"s": "float"},
        7,
        "k = Constant<value_floats=[1.0,2.0,3.0,4.0]>() n = Constant<value_int=2>() h = Cast<to=1>(n) "
        "f = Mul(s, k) y = Add(f, h)",
    ),
    "constant_strings": (12, {"s": "float"}, 7, 'y = Constant<value_strings=["a","b"]>()'),
    "constant_of_shape": (9, {"a": "float"}, 7, "k = Shape(a) y = ConstantOfShape<value=int64[1] {3}>(k)"),
    "sum_that_broadcasts": (13, {"a": "float", "s": "float"}, 7, "y = Sum(a, s, a)"),
    "mean_that_broadcasts": (13, {"a": "float", "s": "float"}, 7, "y = Mean(a, s)"),
    "quantize_to_a_type": (
        21,
        {"a": "float"},
        10,
        "k = Constant<value_float=0.5>() y = QuantizeLinear<output_dtype=3>(a, k)",
    ),
    "scan_of_one_batch": (
        11,
        {"a": "float"},
        8,
        "k = Constant<value=float[3,4] {0,0,0,0,0,0,0,0,0,0,0,0}>() n, y = Scan<num_scan_inputs=1, "
        "scan_input_directions=[1], scan_input_axes=[-3], scan_output_axes=[-3], body=g"
        "(float[3,4] v, float[3,4] x) => (float[3,4] w, float[3,4] z) { w = Add(v, x) z = Neg(w) }>(k, a)",
    ),
}
REFUSED = {
    "where_float": (
        16,
        {"a": "float", "b": "float"},
        8,
        "l = Greater(a, b) y = Where(l, a, b)",
        "choose between",
    ),
    "split_less_than_nothing": (
        18,
        {"c": "float"},
        13,
        "y, k, l, m = Split<axis=3, num_outputs=4>(c)",
        "leave less than none",
    ),
    "slice_steps": (
        13,
        {"s": "float"},
        9,
        "k = Constant<value_ints=[0]>() n = Constant<value_ints=[4]>() d = Constant<value_ints=[2]>() "
        "y = Slice(s, k, n, k, d)",
        "Slice-1 has no steps",
    ),
    "axes_that_are_computed": (
        13,
        {"a": "float", "s": "int64"},
        12,
        "y = ReduceSum(a, s)",
        "its axes are not constant",
    ),
    "wrap": (
        19,
        {"s": "float"},
        18,
        'k = Constant<value_ints=[1,1]>() y = Pad<mode="wrap">(s, k)',
        "mode='wrap'",
    ),
    "last_index": (12, {"a": "float"}, 11, "y = ArgMax<select_last_index=1>(a)", "select_last_index=1"),
    "antialias": (
        18,
        {"c": "float"},
        17,
        'k = Constant<value_floats=[1.0,1.0,0.5,0.5]>() y = Resize<mode="linear", antialias=1>(c, , k)',
        "antialias=1",
    ),
    "half_pixel_linear": (
        13,
        {"c": "float"},
        10,
        'k = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize<mode="linear">(c, , k)',
        "coordinate_transformation_mode='half_pixel'",
    ),
    "round": (11, {"a": "float"}, 10, "y = Round(a)", "does not exist before opset 11"),
    "integers": (14, {"a": "uint8"}, 13, "y = Add(a, a)", r"Add-13 does not take tensor\(uint8\)"),
    "training": (
        13,
        {"a": "float"},
        11,
        "k = Constant<value_float=0.3>() t = Constant<value=bool {1}>() y = Dropout(a, k, t)",
        "training_mode",
    ),
}


def build(opset: int, inputs: dict[str, str], nodes: str, dims: str) -> onnx.ModelProto:
    """Return the model of a case, in the IR version of its opset."""
    declared = []
    for name, kind in inputs.items():
        sizes = [str(size) if dims == "static" else f"{name}{axis}" for axis, size in enumerate(SHAPES[name])]
        declared.append(f"{kind}[{','.join(sizes)}] {name}")
    head = f'<ir_version: {6 if opset < 13 else 10}, opset_import: ["" : {opset}]>'
    model = onnx.parser.parse_model(f"{head} g ({', '.join(declared)}) => (float y) {{ {nodes} }}")
    model.graph.output[0].type.Clear()
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    assert inferred.graph.output[0].type.WhichOneof("value")
    return inferred


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_an_adapted_node_computes_the_same_at_every_lower_opset(name: str, dims: str) -> None:
    opset, inputs, lowest, nodes = CASES[name]
    model = build(opset, inputs, nodes, dims)
    feeds = {each: KINDS[kind](SHAPES[each]) for each, kind in inputs.items()}
    expected = outcomes(model, feeds, slowly=True)
    if not expected and "axes=[2,-1]" in nodes and newest_opset() < 24:
        pytest.skip("onnxruntime before 1.24 runs no Resize of a negative axis")
    assert expected
    seen = set()
    for target in range(opset - 1, lowest - 1, -1):
        work = ir.from_proto(model)
        refused = outcome_of(work, target)
        if refused and dims == "symbolic":
            assert "known" in refused, refused
            return
        assert not refused
        converted = ir.to_proto(work)
        onnx.shape_inference.infer_shapes(converted, check_type=True, strict_mode=True)
        if (what := meaning_of(converted)) in seen:
            continue
        seen.add(what)
        found = outcomes(converted, feeds, slowly=True)
        assert set(found) & set(expected), target
        for engine in set(found) & set(expected):
            assert same(found[engine], expected[engine]), (target, engine)


def outcome_of(model: ir.Model, target: int) -> str:
    """Convert; gives why not if that is refused."""
    try:
        convert_opset(model, target)
    except OpsetError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_without_an_older_form_is_refused_by_name(name: str) -> None:
    opset, inputs, target, nodes, reason = REFUSED[name]
    work = ir.from_proto(build(opset, inputs, nodes, "static"))
    before = ir.to_proto(work).SerializeToString(deterministic=True)
    with pytest.raises(OpsetError, match=rf"\(output 'y'\): .*{reason}.*ask for opset"):
        convert_opset(work, target)
    assert ir.to_proto(work).SerializeToString(deterministic=True) == before


def test_a_node_that_an_adapter_wrote_is_refused_with_the_node_behind_it() -> None:
    work = ir.from_proto(build(20, {"a": "float"}, "y = Gelu(a)", "static"))
    with pytest.raises(
        OpsetError,
        match=r"^Erf node 'Gelu_Erf', written for unnamed Gelu node \(output 'y'\): Erf-9 does not",
    ):
        convert_opset(work, 8)


def test_the_type_of_a_named_cast_is_declared() -> None:
    own = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2, 3] x) => (double[2] y)
        { k = Constant<value_ints=[1]>() d = Cast<to = 11>(x) e = Exp(d) y = ReduceSum<keepdims = 0>(e, k) }
    """)
    convert_opset(own, 5)
    # onnx's inference does not read the type that Cast-1 names, and refuses a sum of it without.
    onnx.checker.check_model(ir.to_proto(own), full_check=True)


def test_unknown_indices_of_gathers_are_noted_once() -> None:
    nodes = "k = Constant<value_ints=[1,-1]>() i = Gather(s, k) h = Gather(a, i) y = Gather(h, i)"
    work = ir.from_proto(build(12, {"a": "float", "s": "int64"}, nodes, "static"))
    report = convert_opset(work, 9)
    assert [note for note in report.notes if "Gather" in note] == [
        "before opset 11 the indices of Gather must not be negative: computed ones are assumed not to be"
    ]


def test_known_indices_of_gathers_are_not_noted() -> None:
    work = ir.from_proto(
        build(12, {"a": "float"}, "k = Constant<value_ints=[1,-1]>() y = Gather(a, k)", "static")
    )
    assert convert_opset(work, 9).notes == []


def test_a_mask_that_a_trilu_makes_runs_on_onnxruntime() -> None:
    """It has no Where of bools."""
    model = build(14, {"a": "bool"}, "y = Trilu (a)", "static")
    own = ir.from_proto(model)
    convert_opset(own, 13)
    result = rnnlower.verify(model, ir.to_proto(own))
    assert result
    assert result.engines["candidate"] == "onnxruntime"


def test_computed_sizes_of_reshapes_that_allow_zeros_are_noted_once() -> None:
    """PyTorch's exporter writes allowzero=1 into every Reshape."""
    text = """
        main (float[N, T, 4] x) => (float[N, 4, T] y, float[N, A, B] z) {
            sizes = Shape (x)
            order = Constant <value_ints = [0, 2, 1]> ()
            moved = Gather (sizes, order)
            y = Reshape <allowzero = 1> (x, moved)
            back = Gather (moved, order)
            z = Reshape <allowzero = 1> (y, back)
        }
    """
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 14]> {text}')
    own = ir.from_proto(model)
    assert convert_opset(own, 13).notes == [COMPUTED_SIZES]
    assert rnnlower.verify(model, ir.to_proto(own))


@pytest.mark.parametrize("target", [12, 15, 17, 18])
def test_an_operator_newer_than_the_opset_has_its_first_version(target: int) -> None:
    """onnxruntime's optimizer writes operators that the opset of the file does not have yet."""
    source = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2, 3] x, float[3] scale) => (float[2, 3] y) {
            y = LayerNormalization <epsilon = 0.1> (x, scale)
        }
    """)
    own = ir.from_proto(source)
    note = "opset 13 has no LayerNormalization: it is taken as that of opset 17"
    assert note in convert_opset(own, target).notes
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    ops = {node.op_type for node in result.graph.node}
    assert ("LayerNormalization" in ops) == (target >= 17)
    feeds = {"x": np.array([[1, 2, 4], [0, -1, 3]], np.float32), "scale": np.array([1, 2, 3], np.float32)}
    np.testing.assert_allclose(run(result, feeds)["y"], run(source, feeds)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mask", "stays"), [("4, 10", True), ("4, 9", False), ("4, S", False)])
def test_attention_whose_mask_covers_the_past_stays(mask: str, stays: bool) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["": 24]> g (float[2, 3, 4, 8] q, float[2, 3, 4, 8] k, '
        f"float[{mask}] m, float[2, 3, 6, 8] p) => (float[2, 3, 4, 8] y, float[2, 3, 10, 8] a, "
        "float[2, 3, 10, 8] b) { y, a, b = Attention(q, k, k, m, p, p) }"
    )
    nodes = rnnlower.convert(model, opset=23).graph.node
    assert ([node.op_type for node in nodes] == ["Attention"]) == stays


@pytest.mark.parametrize(("mask", "keys", "stays"), [("L", "L", True), ("M", "L", False), ("?", "?", False)])
def test_attention_whose_mask_is_as_long_as_the_keys_stays(mask: str, keys: str, stays: bool) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 24]> g (float[2, 3, 4, 8] q, float[2, 3, {keys}, 8] k, '
        f"float[4, {mask}] m) => (float[2, 3, 4, 8] y) {{ y = Attention(q, k, k, m) }}"
    )
    nodes = rnnlower.convert(model, opset=23).graph.node
    assert ([node.op_type for node in nodes] == ["Attention"]) == stays


def test_branches_declare_the_shapes_that_they_have() -> None:
    """Runtimes compare the declared ones below opset 11, and PyTorch writes wrong ones."""
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        main (bool c, float[2] x) => (float[N] y) {
            y = If (c) <
                then_branch = first () => (float[3] a) { a = Neg (x) },
                else_branch = second () => (float[2] b) { b = Exp (x) }
            >
        }""")
    (node,) = rnnlower.convert(source, opset=9).graph.node
    results = [branch.g.output[0].type.tensor_type.shape.dim for branch in node.attribute]
    assert [[dim.dim_value for dim in shape] for shape in results] == [[2], [2]]
