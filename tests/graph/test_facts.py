"""Facts: types, shapes and contents that follow from a model's inputs."""

from __future__ import annotations

import pkgutil
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper
from onnx.backend.test.case import node as tests_of_nodes
from support.opset_cases import node_cases

from rnnlower.errors import InvalidModelError
from rnnlower.graph import node_facts
from rnnlower.graph.dynamic_sizes import describe_deciding_inputs
from rnnlower.graph.evaluation import FOLDABLE, evaluate
from rnnlower.graph.facts import Facts, trip_count
from rnnlower.graph.symbols import is_known
from rnnlower.graph.walk import walk

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def facts_of(text: str, header: str = HEADER) -> tuple[Facts, dict[str, ir.Value]]:
    own = ir.from_onnx_text(header + text)
    values = {str(out.name): out for node, _ in walk(own.graph) for out in node.outputs}
    return Facts(own), values


def test_fused_products_have_the_type_and_turns_of_their_operands() -> None:
    facts, values = facts_of(
        """
        main (float16[3, 2, 4] a, float16[4, 5] b, float16 s, int8[2, 4] i, int8[4, 5] j) => (float16[2, 5] y)
        {
            f = com.microsoft.FusedMatMul <transBatchA = 1> (a, b)
            y = com.microsoft.MatMulIntegerToFloat (i, j, s, s)
        }
        """,
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n',
    )
    found = [(facts.dtype(values[name]), facts.dims(values[name])) for name in "fy"]
    assert found == [(ir.DataType.FLOAT16, (2, 3, 5)), (ir.DataType.FLOAT16, (2, 5))]


@pytest.mark.parametrize("split", [", one", ", ones", ""])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_elements_of_a_sequence_have_the_axes_that_onnxruntime_gives_them(split: str, keepdims: int) -> None:
    text = f"""
        main (float[3, 2, 4] x) => (float[] y)
        <int64 one = {{1}}, int64[2] ones = {{1, 1}}, int64 place = {{1}}> {{
            parts = SplitToSequence <axis = 1, keepdims = {keepdims}> (x{split})
            y = SequenceAt (parts, place)
        }}
    """
    facts, values = facts_of(text)
    model = onnx.parser.parse_model(HEADER + text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (got,) = session.run(None, {"x": np.ones((3, 2, 4), np.float32)})
    assert facts.shape(values["y"]) == got.shape


def test_quantizers_of_onnxruntime_keep_the_shape() -> None:
    facts, values = facts_of(
        """
        main (float[n, 2] x, float s, uint16 z) => (float[n, 2] y)
        {
            w = com.microsoft.QuantizeLinear (x, s, z)
            b = com.microsoft.QuantizeLinear (x, s)
            y = com.microsoft.DequantizeLinear (w, s, z)
        }
        """,
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n',
    )
    found = [(facts.dtype(values[name]), facts.dims(values[name])[1:]) for name in "wby"]  # type: ignore[index]
    assert found == [(dtype, (2,)) for dtype in (ir.DataType.UINT16, ir.DataType.UINT8, ir.DataType.FLOAT)]


def test_attention_has_the_features_of_its_values() -> None:
    facts, values = facts_of(
        """
        main (float[b, 3, 4] q, float[b, 5, 4] k, float[b, 5, 6] v, float[b, 2, 5, 3] h,
              float[b, 3, 2, 3, 4] all)
            => (float[b, 3, 6] y)
        {
            y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)
            z = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, h)
            u = com.microsoft.MultiHeadAttention <num_heads = 2> (all)
        }
        """,
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n',
    )
    assert [facts.dims(values[name])[1:] for name in "yzu"] == [(3, 6), (3, 6), (3, 8)]  # type: ignore[index]


def test_sizes_are_divided_as_div_divides_them() -> None:
    facts, values = facts_of("""
        main (float[n, 2] x) => (int64[5] y)
            <int64[2] less = {0, 9}, int64[2] d = {2, 2}, int64[2] e = {-2, -2}, int64[1] zero = {0}>
        {
            s = Shape (x)
            lower = Sub (s, less)
            y = Div (lower, d)
            z = Div (lower, e)
            u = Div (lower, zero)
        }
    """)
    found = [[str(size) for size in facts.sizes(values[name])] for name in "yzu"]  # type: ignore[union-attr]
    assert found == [["floor(n/2)", "-3"], ["-floor(n/2)", "3"], ["None", "None"]]


def test_sizes_become_numbers_where_the_inputs_have_them() -> None:
    facts, values = facts_of("""
        main (float[2, 12] x) => (float[a, b] y) <int64[1] zero = {0}, int64[1] rest = {-1}>
        {
            s = Shape (x)
            n = Gather (s, zero)
            t = Concat <axis = 0> (n, rest)
            y = Reshape (x, t)
            z = Abs (y)
        }
    """)
    assert facts.constant(values["t"]).tolist() == [2, -1]  # type: ignore[union-attr]
    assert facts.shape(values["z"]) == (2, 12)


def test_a_spectrum_has_one_side_unless_it_is_said_otherwise() -> None:
    facts, values = facts_of("""
        main (float[1, 128, 1] x, float[16] window) => (float[a, b, c, d] y)
        <int64 hop = {8}> { y = STFT (x, hop, window) z = STFT <onesided = 0> (x, hop, window) }
    """)
    assert facts.shape(values["y"]) == (1, 15, 9, 2)
    assert facts.shape(values["z"]) == (1, 15, 16, 2)


def test_an_initializer_that_a_caller_may_override_is_not_constant() -> None:
    facts, values = facts_of("""
        main (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { n = Neg (w)  y = Add (x, n) }
    """)
    assert facts.constant(values["n"]) is None


def test_a_state_that_grows_has_no_shape() -> None:
    facts, values = facts_of("""
        main (float[1] x) => (float[n] y)
        <int64 count = {3}, bool on = {1}>
        {
            y = Loop (count, on, x) <body = b (int64 i, bool c, float[1] h) => (bool c_out, float[k] g) {
                c_out = Identity (c)
                g = Concat <axis = 0> (h, x)
            }>
        }
    """)
    assert facts.shape(values["y"]) == (None,)
    assert facts.constant(values["c_out"]) is None


def test_declared_sizes_of_states_that_grow_one_after_another_are_not_trusted() -> None:
    facts, values = facts_of("""
        main (float[1] x, int64 n) => (float[k] z) {
            y, z = Loop (n, , x, x) <body = b (int64 i, bool c, float[1] h, float[1] late)
                => (bool c_out, float[k] g, float[l] last) {
                c_out = Identity (c)
                g = Concat <axis = 0> (h, x)
                last = Identity (h)
                read = Neg (late)
            }>
        }
    """)
    assert facts.shape(values["read"]) == (None,)


def test_a_scan_over_a_state_that_gets_axes_has_elements_of_no_known_shape() -> None:
    facts, values = facts_of(
        """main (float[3] x, int64 n, int64[1] axes) => (float[k] y)
        {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[k] h) => (bool d, float[k] g) {
                d = Identity (c)  g = Unsqueeze (h, axes)
                sizes = Scan <num_scan_inputs = 1, body = s (float e) => (int64 size) { size = Size (e) }> (h)
            }>
        }"""
    )
    body = facts.model.graph[0].attributes["body"].as_graph()
    elements = body[-1].attributes["body"].as_graph().inputs
    for value in (*body.inputs, *body.outputs, *elements):
        value.shape = None
    assert facts.shape(elements[0]) is None
    assert facts.constant(values["size"]) is None


def test_iterations_are_counted_and_leave_no_trace() -> None:
    facts, values = facts_of("""
        main (float[2] x) => (float[2] y)
        <int64 start = {1}, int32 two = {2}, int64 limit = {20}, bool on = {1}>
        {
            last, y = Loop ( , on, start, x) <body = b
                (int64 i, bool c, int64 k, float[2] h) => (bool more, int64 n, float[2] g) {
                factor = CastLike (two, k)
                n = Mul (k, factor)
                more = Less (n, limit)
                g = Neg (h)
            }>
            z = Abs (y)
        }
    """)
    loop = values["y"].producer()
    assert loop is not None
    assert trip_count(facts, loop) == 5
    assert facts.constant(values["n"]) is None
    assert facts.shape(values["g"]) == (2,)
    assert facts.shape(values["z"]) == (2,)


def test_scans_keep_the_sizes_of_their_states() -> None:
    facts, values = facts_of("""
        main (float[5, 2, 3] x, float[2, 3] h) => (float[a, b] last, float[t, a, b] all)
        {
            last, all = Scan <num_scan_inputs = 1, body = b (float s, float e) => (float o, float p) {
                o = Add (s, e)
                p = Neg (o)
            }> (h, x)
        }
    """)
    assert facts.shape(values["last"]) == (2, 3)
    assert facts.shape(values["all"]) == (5, 2, 3)


def test_sizes_that_are_symbols_are_followed_through_shapes_and_arithmetic() -> None:
    facts, values = facts_of("""
        main (float[T, N, 6] x) => (float[a, b] y)
        <int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] axis = {0}, int64[1] rest = {-1}>
        {
            s = Shape (x)
            t = Gather (s, zero)
            n = Gather (s, one)
            double = Mul (t, two)
            longer = Add (double, one)
            length = Unsqueeze (longer, axis)
            z = ConstantOfShape (length)
            row = Unsqueeze (n, axis)
            sizes = Concat <axis = 0> (row, rest)
            y = Reshape (x, sizes)
        }
    """)
    T, N = ir.SymbolicDim("T"), ir.SymbolicDim("N")
    assert facts.dims(values["z"]) == (2 * T + 1,)
    assert facts.dims(values["y"]) == (N, T * 6)
    assert facts.shape(values["y"]) == (None, None)


def test_no_size_is_negative_but_a_difference_may_be() -> None:
    """PyTorch asks which sizes of an Expand are -1."""
    facts, values = facts_of("""
        main (float[T, N] x) => (int64[2] y, int64[2] z, int64[2] u)
        <int64[1] one = {1}, int64[2] minus = {-1, -1}, int64[2] ones = {1, 1}, int64[2] twos = {2, 2}>
        {
            s = Shape (x)
            e = Equal (s, minus)
            y = Where (e, ones, s)
            d = Sub (s, one)
            f = Equal (d, minus)
            z = Where (f, ones, s)
            g = Equal (s, twos)
            u = Where (g, ones, s)
        }
    """)
    found = [[str(size) for size in facts.sizes(values[name])] for name in "yzu"]  # type: ignore[union-attr]
    assert found == [["T", "N"], ["None", "None"], ["None", "None"]]


def test_unknown_sizes_are_equal_where_a_node_keeps_them() -> None:
    facts, values = facts_of("""
        main (float[a] x) => (float[b] y)
        {
            c = Greater (x, x)
            p = Compress <axis = 0> (x, c)
            y = Abs (p)
            z = Compress <axis = 0> (x, c)
        }
    """)
    assert facts.dims(values["p"]) == facts.dims(values["y"])
    assert facts.dims(values["p"]) != facts.dims(values["z"])
    assert facts.shape(values["y"]) == (None,)


FUNCTION = """
    <ir_version: 10, opset_import: ["" : 17, "f" : 1]>
    main (float[2, 3] x, double[4] z) => (float[3, 2] y, double[1, 4] w)
    {
        y = f.turned <axis = 1> (x)
        w = f.turned <axis = 0> (z)
    }
    <opset_import: ["" : 17], domain: "f">
    turned <axis> (v) => (r)
    {
        flat = Flatten <axis : int = @axis> (v)
        r = Transpose (flat)
    }
"""


def test_an_assumed_shape_replaces_what_would_follow() -> None:
    facts, values = facts_of("""
        main (float[N, 4] x) => (float[a, b] y, int64[2] s) <int64[2] t = {8, 3}>
        { y = Reshape (x, t) s = Shape (y) }
    """)
    facts.assume(values["y"], (2, 12))
    assert facts.shape(values["y"]) == (2, 12)
    content = facts.constant(values["s"])
    assert content is not None
    assert content.tolist() == [2, 12]


def test_each_call_of_a_function_has_its_own_facts() -> None:
    own = ir.from_onnx_text(FUNCTION)
    facts = Facts(own)
    y, w = own.graph.outputs
    y.shape = w.shape = None
    assert facts.dims(y) == (3, 2)
    assert facts.dims(w) == (4, 1)
    (function,) = own.functions.values()
    inside = [facts.type(value) for value in facts.inlined_copies(function[0].outputs[0])]
    assert [type_ and type_.dtype for type_ in inside] == [ir.DataType.FLOAT, ir.DataType.DOUBLE]


def test_a_scan_with_a_batch_axis() -> None:
    own = ir.from_onnx_text("""
        <ir_version: 4, opset_import: ["" : 8]>
        main (float[N, 4] h, float[N, 7, 3, 4] x) => (float[a, b] last, float[c, d, e, f] all)
        {
            last, all = Scan <num_scan_inputs = 1, body = b (float s, float e) => (float o, float p) {
                p = Add (s, e)
                o = Identity (s)
            }> ( , h, x)
        }
    """)
    facts, (last, all_) = Facts(own), own.graph.node(0).outputs
    N = ir.SymbolicDim("N")
    assert facts.dims(last) == (N, 4)
    assert facts.dims(all_) == (N, 7, 3, 4)


def test_a_node_is_visited_when_it_is_asked_for_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, values = facts_of("main (float[2] x) => (float[2] y) { a = Neg (x)  b = Abs (x)  y = Exp (a) }")
    visited: list[str] = []
    visit = Facts._visit
    monkeypatch.setattr(Facts, "_visit", lambda self, node: (visited.append(node.op_type), visit(self, node)))
    for _ in range(2):
        assert facts.shape(values["y"]) == (2,)
    assert visited == ["Neg", "Exp"]
    # A new node is no exception; what is forgotten is derived again.
    new = ir.node("Tanh", [values["y"]])
    facts.model.graph.append(new)
    assert facts.shape(new.outputs[0]) == (2,)
    assert visited == ["Neg", "Exp", "Tanh"]
    facts.model.graph.inputs[0].shape = ir.Shape([5])
    facts.forget()
    assert facts.shape(new.outputs[0]) == (5,)


@pytest.mark.parametrize(("declared", "size"), [(False, None), (True, 9)])
def test_declared_shapes_inside_are_trusted_where_asked(declared: bool, size: int | None) -> None:
    own = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17, "custom" : 1]>
        main (float[2] x) => (float y) <float[9] h> { h = custom.Strange (x)  y = Neg (h) }
    """)
    assert Facts(own, declared=declared).shape(own.graph.outputs[0]) == (None if size is None else (size,))


def test_a_size_below_0_at_which_inference_would_end_the_process_is_refused() -> None:
    facts, values = facts_of("""
        main (float[2, 1, 3] x) => (float[a, b, c] y) <int64[1] zero = {0}, int64[1] one = {1}>
        {
            p = AveragePool <kernel_shape = [9]> (x)
            y = Slice (p, zero, one)
        }
    """)
    assert facts.shape(values["p"]) is None
    for _ in range(2):
        with pytest.raises(InvalidModelError, match="falls below 0"):
            facts.shape(values["y"])


@pytest.mark.filterwarnings("ignore")
def test_evaluated_nodes_agree_with_the_onnx_spec() -> None:
    tried, wrong = set(), []
    names = {name.lower() for name in FOLDABLE - {"Range"}} | {"rangeop"}
    found = (each.name for each in pkgutil.iter_modules(tests_of_nodes.__path__))
    modules = [name for name in found if name.replace("_", "") in names]
    for case in node_cases(modules):
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
    facts = Facts(own)
    squeezed, unsqueezed = (facts.constant(own.graph.node(at).outputs[0]) for at in (0, 1))
    assert squeezed is not None
    assert unsqueezed is not None
    assert squeezed.tolist() == [[1, 2]]
    assert unsqueezed.tolist() == [[[[1, 2]]]]


def test_a_deciding_input_is_found_behind_a_body_with_an_initializer() -> None:
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
    assert "'x'" in (describe_deciding_inputs(own, decided) or "")


@pytest.mark.parametrize("opset", [10, 13])
def test_a_slice_of_a_symbolic_length_does_not_have_that_symbol(opset: int) -> None:
    text = HEADER.replace("17", str(opset))
    model = ir.from_onnx_text(f"""{text} main (float[T, 3] x) => (float[a, 3] y, float[b, 3] z)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] most = {{9223372036854775807}}> {{
            y = Slice (x, zero, one, zero)
            z = Slice (x, zero, most, zero)
        }}""")
    facts = Facts(model)
    part, whole = ((facts.dims(value) or ())[0] for value in model.graph.outputs)
    assert part != ir.SymbolicDim("T")
    assert whole == ir.SymbolicDim("T")


def test_the_largest_end_is_minus_one_in_int32() -> None:
    model = ir.from_onnx_text(f"""{HEADER} main (float[T, 3] x) => (float[a, 3] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] most = {{9223372036854775807}}> {{
            sizes = Shape (x)
            wide = Concat <axis = 0> (most, sizes)
            narrow = Cast <to = 6> (wide)
            again = Cast <to = 7> (narrow)
            end = Slice (again, zero, one)
            y = Slice (x, zero, end, zero)
        }}""")
    (dims,) = (Facts(model).dims(value) for value in model.graph.outputs)
    assert dims is not None
    assert dims[0] != ir.SymbolicDim("T")


@pytest.mark.parametrize(("size", "part"), [("3*N", "N"), ("6*N", "2*N"), ("N", None), ("3*N + 1", None)])
def test_equal_parts_of_a_symbolic_size_are_known(size: str, part: str | None) -> None:
    own = ir.from_onnx_text(f"""{HEADER}
        main (float[n, 2] x) => (float[p, 2] a, float[q, 2] b, float[r, 2] c)
        {{ a, b, c = Split <axis = -2> (x) }}""")
    own.graph.inputs[0].shape = ir.Shape([ir.SymbolicDim(size), 2])
    facts = Facts(own)
    for first, last in (facts.dims(value) or () for value in own.graph.outputs):
        assert last == 2
        assert first == ir.SymbolicDim(part) if part else not is_known(first)


@pytest.mark.parametrize(("more", "part"), [("Identity (sizes)", "T"), ("Add (sizes, more)", None)])
def test_parts_whose_sizes_are_repeated_are_known(more: str, part: str | None) -> None:
    facts, values = facts_of(f"""
        main (float[T, 3, 2] x) => (float[p, 2] a, float[q, 2] b, float[r, 2] c)
        <int64[2] form = {{-1, 2}}, int64[1] zero = {{0}}, int64[1] three = {{3}},
        int64[3] more = {{1, -1, 0}}> {{
            flat = Reshape (x, form)
            shape = Shape (x)
            size = Gather (shape, zero)
            sizes = Expand (size, three)
            each = {more}
            a, b, c = Split (flat, each)
        }}
    """)
    for first, last in (facts.dims(values[name]) or () for name in "abc"):
        assert last == 2
        assert first == ir.SymbolicDim("T") if part else not is_known(first)


def test_a_slice_with_attributes_has_the_same_shape() -> None:
    model = ir.from_onnx_text("""<ir_version: 3, opset_import: ["" : 9]>
        main (float[T, 3] x) => (float[a, 3] y, float[b, 3] z) {
            y = Slice <starts = [0], ends = [1], axes = [0]> (x)
            z = Slice <starts = [0], ends = [2147483647]> (x)
        }""")
    facts = Facts(model)
    part, whole = ((facts.dims(value) or ())[0] for value in model.graph.outputs)
    assert part != ir.SymbolicDim("T")
    assert whole == ir.SymbolicDim("T")


def test_unknown_strides_are_not_taken_for_1() -> None:
    facts, values = facts_of("""
        main (float[T, 3] x, int64[n] by) => (float[a, b] y)
        <int64[1] zero = {0}, int64[1] most = {9223372036854775807}> {
            y = Slice (x, zero, most, zero, by)
        }
    """)
    assert (facts.dims(values["y"]) or ())[0] != ir.SymbolicDim("T")


def test_a_known_size_of_a_shape_is_used_beside_an_unknown_one() -> None:
    facts, values = facts_of("""
        main (float[5, N] x) => (int64[a] steps)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64 none = {0}, int64 by = {1}> {
            shape = Shape (x)
            time = Slice (shape, zero, one, zero)
            rows = Slice (shape, one, two, zero)
            batch = Squeeze (rows)
            steps = Range (none, batch, by)
        }
    """)
    assert facts.constant(values["time"]) == [5]
    assert facts.sizes(values["rows"]) == [ir.SymbolicDim("N")]
    assert facts.dims(values["steps"]) == (ir.SymbolicDim("N"),)


def test_sizes_of_ranges_and_rests_are_followed() -> None:
    facts, values = facts_of("""
        main (float[T] x) => (int64[a] frames, int64[b] last, int64[1] rest, int64[1] sign)
        <int64 none = {0}, int64 hop = {4}, int64 width = {7}, int64 one = {1}, int64[1] by = {8}> {
            shape = Shape (x)
            steps = Squeeze (shape)
            end = Sub (steps, width)
            frames = Range (none, end, hop)
            last = Range (end, steps, one)
            minus = Neg (shape)
            rest = Mod (minus, by)
            sign = Mod <fmod = 1> (minus, by)
        }
    """)
    for length in (8, 11, 12, 50):
        (count,) = facts.dims(values["frames"]) or ()
        assert isinstance(count, ir.SymbolicDim)
        assert count.evaluate({"T": length}) == len(range(0, length - 7, 4))
        rest = facts.sizes(values["rest"])
        assert rest is not None
        assert rest[0].evaluate({"T": length}) == -length % 8
    assert facts.dims(values["last"]) == (7,)
    sign = facts.sizes(values["sign"])
    assert sign is None or sign[0] is None


def test_negative_sizes_are_divided_toward_zero() -> None:
    facts, values = facts_of("""
        main (float[T] x) => (int64[1] rounded, int64[1] back, int64[1] crossing, int64[a] none)
        <int64[1] ten = {10}, int64[1] by = {4}, int64 one = {1}> {
            shape = Shape (x)
            minus = Neg (shape)
            rounded = Div (minus, by)
            less = Sub (shape, ten)
            rest = Sub (less, shape)
            back = Div (rest, by)
            more = Sub (ten, shape)
            crossing = Div (more, by)
            end = Squeeze (less)
            begin = Squeeze (shape)
            none = Range (begin, end, one)
        }
    """)
    (rounded,), (back,), (crossing,) = (
        facts.sizes(values[name])
        for name in ("rounded", "back", "crossing")  # type: ignore[misc]
    )
    assert [rounded.evaluate({"T": length}) for length in (3, 4, 9)] == [0, -1, -2]
    assert (back, crossing) == (-2, None)
    assert facts.dims(values["none"]) == (0,)


def test_what_a_shape_cannot_hold_has_no_size() -> None:
    facts, values = facts_of("""
        main (float[9] x) => (float[a, 4] y, float[b, 3] z)
        <int64[2] four = {-1, 4}, int64[2] three = {-1, 3}> {
            y = Reshape <allowzero = 1> (x, four)
            z = Reshape <allowzero = 1> (x, three)
        }
    """)
    assert facts.shape(values["y"]) == (None, 4)
    assert facts.shape(values["z"]) == (3, 3)


@pytest.mark.parametrize(("starts", "axes"), [("1", "5"), ("1", "1, 2")])
def test_an_invalid_slice_has_no_known_shape(starts: str, axes: str) -> None:
    count = axes.count(",") + 1
    facts, values = facts_of(
        f"""main (float[T, 2, 3] x) => (float[A, B, C] y)
        <int64[1] starts = {{{starts}}}, int64[1] ends = {{9}}, int64[{count}] axes = {{{axes}}}> {{
            y = Slice (x, starts, ends, axes)
        }}"""
    )
    assert facts.shape(values["y"]) is None


def test_a_branch_that_is_never_taken_has_types() -> None:
    facts, values = facts_of(
        """main (float[T, 2] x) => (float[A, B] y) <int64 two = {2}> {
            shape = Shape (x)
            rank = Size (shape)
            is_matrix = Equal (rank, two)
            y = If (is_matrix) <then_branch = matrix () => (float[A, B] a) { a = Identity (x) },
                                else_branch = other () => (float[A, B] b) { c = Abs (x) b = Neg (c) }>
        }"""
    )
    assert facts.shape(values["y"]) == (None, 2)
    undeclared = Facts(facts.model, declared=False)
    type_ = undeclared.type(values["c"])
    assert type_ is not None
    assert type_.dtype == ir.DataType.FLOAT


SUMS = {
    "w = Concat <axis = 2> (p, x)": "T + 3",
    "w = Concat <axis = -1> (x, p, x)": "2*T + 3",
    "h = Concat <axis = 2> (p, x)  w = Conv <group = 2> (h, k)": "T",
    "w = Conv <group = 2, pads = [3, 3]> (x, k)": "T + 3",
    "w = Conv <group = 2, pads = [3, 0], strides = [2]> (x, k)": "floor(T/2 - 1/2) + 1",
    'w = Conv <group = 2, auto_pad = "SAME_LOWER", strides = [3]> (x, k)': "floor(T/3 - 1/3) + 1",
    'w = Conv <group = 2, auto_pad = "VALID"> (x, k)': "T - 3",
    "w = MaxPool <kernel_shape = [3], strides = [2], dilations = [2], pads = [2, 3]> (x)": "floor(T/2) + 1",
    "w = MaxPool <kernel_shape = [3], strides = [2], ceil_mode = 1> (x)": None,
    'w = MaxPool <kernel_shape = [3], dilations = [2], auto_pad = "SAME_UPPER"> (x)': None,
    "w = AveragePool <kernel_shape = [4], pads = [3, 0]> (x)": "T",
    "w = LpPool <kernel_shape = [2], strides = [2]> (x)": "floor(T/2)",
    "w = ConvTranspose <group = 2, strides = [2], pads = [1, 1]> (x, u)": "2*T",
    "w = ConvTranspose <group = 2, strides = [3], dilations = [2], output_padding = [1]> (x, u)": "3*T + 5",
    "h = MaxPool <kernel_shape = [4], strides = [2]> (x)  w = Conv <group = 2> (h, k)": "floor(T/2) - 4",
    "h = Conv <group = 2, pads = [3, 3]> (x, k)  w = Slice (h, zero, end, time)": "T",
    "h = Conv <group = 2, pads = [3, 3]> (x, k)  w = Slice (h, zero, back, time)": "T",
    "h = Concat <axis = 2> (p, x)  w = Slice (h, back, most, time)": "3",
    "h = Concat <axis = 2> (p, x)  w = Slice (h, three, most, time)": "T",
    "h = Concat <axis = 2> (p, x)  w = Slice (h, end, most, time)": "3",
    "h = Concat <axis = 2> (p, x)  w = Slice (h, zero, five, time)": None,
    "w = Slice (x, three, most, time)": None,
    "w = Slice (x, zero, back, time)": None,
    "w = Pad (x, pads)": "T + 3",
}


@pytest.mark.parametrize("text", SUMS)
def test_sums_of_a_symbol_and_a_number_are_known(text: str) -> None:
    facts, values = facts_of(
        """main (float[1, 2, T] x, float[1, 2, 3] p) => (float[A, B, C] w)
        <float[2, 1, 4] k = {1, 2, 3, 4, 5, 6, 7, 8}, float[2, 1, 4] u = {1, 2, 3, 4, 5, 6, 7, 8},
         int64[1] zero = {0}, int64[1] time = {2},
         int64[1] three = {3}, int64[1] five = {5}, int64[1] back = {-3},
         int64[1] most = {9223372036854775807}, int64[6] pads = {0, 0, 3, 0, 0, 0}> {
            s = Shape (x)  end = Gather (s, time) """
        + text
        + "}"
    )
    batch, channels, size = facts.dims(values["w"]) or ()
    assert (batch, channels) == (1, 2)
    own = size if isinstance(size, int) else size.value
    assert str(own) == SUMS[text] or (SUMS[text] is None and "unknown" in str(own))


@pytest.mark.parametrize("opset", [9, 10, 11])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Concat <axis = -1> (x, x)", (2, 3, 2)),
        ("Squeeze <axes = [-1]> (x)", (2, 3)),
        ("Unsqueeze <axes = [-1]> (x)", (2, 3, 1, 1)),
    ],
)
def test_axes_below_0_are_known_in_any_version(text: str, expected: tuple[int, ...], opset: int) -> None:
    """Exporters wrote them before the ONNX spec had them, and runtimes take them."""
    model = ir.from_onnx_text(f"""<ir_version: 4, opset_import: ["" : {opset}]>
        main (float[2, 3, 1] x) => (float y) {{ y = {text} }}""")
    (y,) = model.graph.outputs
    y.shape = None
    assert Facts(model).shape(y) == expected


@pytest.mark.parametrize("name", ["batch size", "0T", "s::T"])
def test_a_size_whose_name_is_no_expression_is_a_symbol(name: str) -> None:
    own = ir.from_onnx_text(
        f"{HEADER} main (float[T, 3] x) => (float[U, 3] y) <int64[1] start = {{1}}, int64[1] end = {{-1}}> "
        "{ y = Slice (x, start, end) }"
    )
    own.graph.inputs[0].shape = ir.Shape([name, 3])
    facts = Facts(own)
    assert facts.dims(own.graph.inputs[0]) == (name, 3)
    assert len(facts.dims(own.graph.outputs[0]) or ()) == 2


@pytest.mark.parametrize("name", ["batch size", "1T", "größe T"])
def test_sizes_follow_from_names_that_are_no_expressions(name: str) -> None:
    model = ir.from_onnx_text(
        f"{HEADER} main (float[T, 2, 3] x) => (float[U, 2, 3] y)"
        "<int64[2] flat = {-1, 3}, int64[3] whole = {-1, 2, 3}> "
        "{ rows = Reshape (x, flat) sum = Abs (rows) y = Reshape (sum, whole) }"
    )
    model.graph.inputs[0].shape = ir.Shape([name, 2, 3])
    facts = Facts(model)
    rows = facts.dims(model.graph[0].outputs[0])
    assert rows is not None
    assert is_known(rows[0])
    assert facts.dims(model.graph.outputs[0]) == (name, 2, 3)


@pytest.mark.parametrize(
    "nodes",
    ["y = Range (zero, many, one)", "n = Range (zero, some, one) m = Unsqueeze (n, first) y = Sub (n, m)"],
)
def test_what_would_take_too_much_memory_is_not_computed(nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ir.from_onnx_text(
        f"{HEADER} main () => (int64[N] y) <int64 zero = {{0}}, int64 one = {{1}}, int64 some = {{20000}}, "
        f"int64 many = {{20000000}}, int64[1] first = {{1}}> {{ {nodes} }}"
    )
    evaluated: list[str] = []

    def note(node: ir.Node, *given: Any, **options: Any) -> Any:
        evaluated.append(node.op_type)
        return evaluate(node, *given, **options)

    monkeypatch.setattr(node_facts, "evaluate", note)
    assert Facts(model).constant(model.graph.outputs[0]) is None
    assert evaluated == ["Range", "Unsqueeze"][: len(model.graph) - 1]
