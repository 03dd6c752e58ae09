"""Loops and Scans that stay, and operators with a state: what they carry is a state of the stream."""

from __future__ import annotations

import onnx
import pytest
from support.streamed import model, stream, streamed_and_metadata

import rnnlower

STEP = "a = MatMul (st, R) b = Add (a, x) st2 = Tanh (b) y = Relu (st2)"
START = "start = Constant <value = float[1, 4] {0.5, 0, 0, 1}> ()"
SCAN = f"""(float[1, n, 4] X) => (float[1, n, 4] Y, float[1, 4] F) {{
    {START}
    F, Y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        body = b (float[1, 4] st, float[1, 4] x) => (float[1, 4] st2, float[1, 4] y) {{ {STEP} }}> (start, X)
}}"""
LOOP = f"""(float[n, 1, 4] X) => (float[n, 1, 4] Y, float[1, 4] F) {{
    {START}
    steps = Shape <start = 0, end = 1> (X)
    count = Squeeze (steps)
    true = Constant <value = bool {{1}}> ()
    F, Y = Loop <body = b (int64 i, bool c, float[1, 4] st) => (bool c2, float[1, 4] st2, float[1, 4] y) {{
        c2 = Identity (c)
        x = Gather <axis = 0> (X, i)
        {STEP}
    }}> (count, true, start)
}}"""
ATTENTION = """(float[2, n, 16] Q, float[2, n, 16] K, float[2, n, 16] V{more})
    => (float[2, n, 16] Y, float[2, 2, 8, 8] S) {{
    k = Tanh (K)
    Y, S = {domain}LinearAttention <q_num_heads = 2, kv_num_heads = 2, update_rule = "{rule}"> ({inputs})
}}"""
CONVOLUTION = """(float[b, 5, n] X) => (float[b, 5, n] Y) {{
    Y, S = {domain}CausalConvWithState <activation = "silu"> (X, K)
}}"""
DOMAINS = pytest.mark.parametrize(("domain", "opset"), [("", 27), ("com.microsoft.", 17)])


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_a_scan_over_time_carries_its_state(chunk: int | None) -> None:
    metadata = stream(model(SCAN, R=(4, 4)), {"X": 1}, chunk=chunk, lift=False)
    assert metadata["start"] == {"Scan_0_st_in": [[0.5, 0.0, 0.0, 1.0]]}


@pytest.mark.parametrize(("text", "axis"), [(SCAN, 1), (LOOP, 0)])
def test_the_time_axis_leads_to_a_loop_if_no_node_is_recurrent(text: str, axis: int) -> None:
    assert stream(model(text, R=(4, 4)), {}, lift=False)["inputs"] == {"X": axis}


def test_the_time_axis_leads_to_a_recurrent_node_rather_than_to_a_loop() -> None:
    """The Scan is over rows of another input."""
    source = model(
        """(float[n, 1, 4] X, float[3, 4] Z) => (float[n, 1, 1, 4] Y, float[4] F) {
            Y = RNN <hidden_size = 4> (X, W, R)
            start = Constant <value = float[4] {0, 0, 0, 0}> ()
            F = Scan <num_scan_inputs = 1, body = b (float[4] st, float[4] z) => (float[4] st2) {
                st2 = Add (st, z)
            }> (start, Z)
        }""",
        W=(1, 4, 4),
        R=(1, 4, 4),
    )
    assert stream(source, {}, lift=False)["inputs"] == {"X": 0}


def test_a_loop_that_loses_the_time_axis_is_named() -> None:
    text = SCAN.replace("y = Relu (st2)", "m = ReduceMean <axes = [1], keepdims = 0> (X) y = Add (st2, m)")
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"axis 1 of 'X' ends where Scan .* reads 'X'"):
        rnnlower.stream(model(text, R=(4, 4)), lift=False)


def test_a_scan_behind_a_delay() -> None:
    text = SCAN.replace(START, START + "c = Conv <pads = [1, 1]> (X, K)").replace("(start, X)", "(start, c)")
    text = text.replace("(float[1, n, 4] X)", "(float[1, 1, n] X)").replace(
        "scan_input_axes = [1]", "scan_input_axes = [2]"
    )
    text = text.replace("float[1, 4] x)", "float[1, 1] x)").replace(
        "=> (float[1, n, 4] Y, float[1, 4] F)", "=> (float[1, n, 4] Y)"
    )
    assert (
        stream(model(text, R=(4, 4), K=(1, 1, 3)), {"X": 2}, chunk=3, allow_delay=True, lift=False)["delay"]
        == 3
    )


def test_a_loop_that_carries_its_sequence_as_a_state_that_never_changes() -> None:
    """As jax2onnx writes what lax.scan scans."""
    text = LOOP.replace("float[1, 4] st) =>", "float[1, 4] st, float[n, 1, 4] all) =>")
    text = text.replace(
        "float[1, 4] st2, float[1, 4] y) {", "float[1, 4] st2, float[n, 1, 4] same, float[1, 4] y) {"
    )
    text = text.replace("F, Y = Loop", "F, unused, Y = Loop").replace(
        "(count, true, start)", "(count, true, start, X)"
    )
    text = text.replace("Gather <axis = 0> (X, i)", "Gather <axis = 0> (all, i)  same = Identity (all)")
    metadata = stream(model(text, R=(4, 4)), {"X": 0}, chunk=2, lift=False)
    assert metadata["start"] == {"Loop_0_st_in": [[0.5, 0.0, 0.0, 1.0]]}


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_a_loop_that_ends_by_a_condition_on_its_counter(chunk: int | None) -> None:
    """As tf2onnx writes Keras's RNN of a cell that is no operator."""
    text = LOOP.replace("true = Constant <value = bool {1}> ()", "zero = Constant <value_int = 0> ()")
    text = text.replace("true = ", "").replace("(count, true, start)", "(count, begins, zero, start)")
    text = text.replace("F, Y = Loop", "begins = Less (zero, count)  counted, F, Y = Loop")
    text = text.replace("bool c, float", "bool c, int64 t, float").replace(
        "(bool c2, f", "(bool c2, int64 u, f"
    )
    text = text.replace(
        "c2 = Identity (c)", "one = Constant <value_int = 1> () u = Add (t, one)  c2 = Less (u, count)"
    )
    text = text.replace("Gather <axis = 0> (X, i)", "Gather <axis = 0> (X, t)")
    metadata = stream(model(text, R=(4, 4)), {"X": 0}, chunk=chunk, lift=False)
    assert metadata["start"] == {"Loop_0_st_in": [[0.5, 0.0, 0.0, 1.0]]}


def test_a_scan_from_the_end_is_refused() -> None:
    text = SCAN.replace("scan_input_axes", "scan_input_directions = [1], scan_input_axes")
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"Scan.*begins with the last step"):
        rnnlower.stream(model(text, R=(4, 4)), time_axes={"X": 1}, lift=False)


def test_a_scan_over_features_is_refused() -> None:
    text = SCAN.replace("scan_input_axes = [1]", "scan_input_axes = [2]").replace("n, 4] X", "4, n] X")
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"Scan.*another axis than time"):
        rnnlower.stream(model(text, R=(4, 4)), time_axes={"X": 1}, lift=False)


def test_a_body_that_reads_the_sequence_is_refused() -> None:
    text = SCAN.replace("y = Relu (st2)", "m = ReduceMean <axes = [1], keepdims = 0> (X) y = Add (st2, m)")
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"Scan.*reads 'X', which is over time"):
        rnnlower.stream(model(text, R=(4, 4)), time_axes={"X": 1}, lift=False)


@pytest.mark.parametrize("chunk", [1, 3, None])
@pytest.mark.parametrize("steps", ["n", "12"])
def test_a_loop_over_time_carries_its_state(steps: str, chunk: int | None) -> None:
    source = model(LOOP.replace("[n, 1, 4]", f"[{steps}, 1, 4]"), R=(4, 4))
    if steps == "12" and chunk is None:
        return
    assert "Loop_0_st_in" in stream(source, {"X": 0}, chunk=chunk, lift=False)["start"]


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("chunk", [1, 3, None])
def test_a_loop_of_torchscript_appends_to_a_sequence_and_slices_whole_axes(
    chunk: int | None, axis: int
) -> None:
    text = f"""(float[2, n, 4] X) => (float[2, a, b] Y) {{
        start = Constant <value = float[2, 4] {{0.5, 0, 0, 1, 1, 0, 0, 0}}> ()
        at = Constant <value_int = 1> ()
        sizes = Shape (X)
        count = Gather (sizes, at)
        true = Constant <value = bool {{1}}> ()
        none = SequenceEmpty ()
        F, all = Loop <body = b (int64 i, bool c, float[2, 4] st, seq(float) s)
            => (bool c2, float[2, 4] st2, seq(float) s2) {{
            c2 = Identity (c)
            first = Constant <value_ints = [0]> ()
            last = Constant <value_ints = [9223372036854775807]> ()
            step = Constant <value_ints = [1]> ()
            whole = Slice (X, first, last, first, step)
            x = Gather <axis = 1> (whole, i)
            {STEP}
            s2 = SequenceInsert (s, y)
        }}> (count, true, start, none)
        Z = ConcatFromSequence <axis = {axis}, new_axis = 1> (all)
        Y = Transpose <perm = [0, {"1, 2" if axis == 1 else "2, 1"}]> (Z)
    }}"""
    assert "Loop_0_st_in" in stream(model(text, R=(4, 4)), {"X": 1}, chunk=chunk, lift=False)["start"]


def test_a_loop_in_a_function_appends_to_a_sequence() -> None:
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        main (float[n, 2, 4] X) => (float[m, 2, 4] Y) { Y = own.layer (X) }
        <domain: "own", opset_import: ["" : 17]>
        layer (X) => (Y) {
            start = Constant <value = float[2, 4] {0.5, 0, 0, 1, 1, 0, 0, 0}> ()
            steps = Shape <start = 0, end = 1> (X)
            count = Squeeze (steps)
            none = SequenceEmpty ()
            F, all = Loop <body = b (int64 i, bool c, float[2, 4] st, seq(float) s)
                => (bool c, float[2, 4] st2, seq(float) s2) {
                x = Gather (X, i)
                a = Mul (st, st)
                b = Add (a, x)
                st2 = Tanh (b)
                s2 = SequenceInsert (s, st2)
            }> (count, , start, none)
            Y = ConcatFromSequence <axis = 0, new_axis = 1> (all)
        }""")
    assert stream(source, {"X": 0}, chunk=3, lift=False)["start"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Gather <axis = 0> (X, i)", "Gather <axis = 0> (X, j)", "number of the iteration"),
        ("y = Relu (st2)", "y = Cast <to = 1> (i)", "number of the iteration"),
        ("c2 = Identity (c)", "c2 = Not (c)", "condition that it computes"),
        ("y = Relu (st2)", "z = ReduceMax <keepdims = 0> (X) y = Add (st2, z)", "reads 'X'"),
    ],
)
def test_a_loop_that_is_not_step_by_step_is_refused(old: str, new: str, problem: str) -> None:
    text = LOOP.replace(old, new)
    if "Cast" in new:
        text = text.replace("float[n, 1, 4] Y", "float[n] Y").replace("float[1, 4] y", "float y")
    if "j)" in new:
        text = text.replace(
            "x = Gather", "k = Constant <value_int = -1> () m = Add (i, k) j = Abs (m) x = Gather"
        )
    with pytest.raises(rnnlower.UnsupportedModelError, match=rf"Loop.*{problem}"):
        rnnlower.stream(model(text, R=(4, 4)), time_axes={"X": 0}, lift=False)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("joined", ["", "grown = Concat <axis = 0> (st, row) st2 = Abs (grown)"])
def test_a_state_that_grows_is_refused(first: int, joined: str) -> None:
    source = model(
        """(float[n, 1, 4] X) => (float[m, 1, 4] Y) {
            steps = Shape <start = 0, end = 1> (X)
            count = Squeeze (steps)
            true = Constant <value = bool {1}> ()
            sizes = Constant <value_ints = [0, 1, 4]> ()
            empty = ConstantOfShape (sizes)
            Y = Loop <body = b (int64 i, bool c, float[k, 1, 4] st) => (bool c2, float[l, 1, 4] st2) {
                c2 = Identity (c)
                x = Gather <axis = 0> (X, i)
                axes = Constant <value_ints = [0]> ()
                row = Unsqueeze (x, axes)
                STEP
            }> (count, true, empty)
        }""".replace("[0, 1, 4]", f"[{first}, 1, 4]").replace(
            "STEP", joined or "st2 = Concat <axis = 0> (st, row)"
        )
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"Loop.*'st' that grows"):
        rnnlower.stream(source, time_axes={"X": 0}, lift=False)


@DOMAINS
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_carries_its_state(domain: str, opset: int, chunk: int, rule: str) -> None:
    more, inputs = "", "Q, k, V"
    if rule != "linear":
        more = ", float[2, n, 2] D, float[2, n, 2] E"
        gates = {"gated": ", , d", "delta": ", , , e", "gated_delta": ", , d, e"}[rule]
        inputs = f"Q, k, V{gates}"
    text = ATTENTION.format(domain=domain, rule=rule, more=more, inputs=inputs)
    if rule != "linear":
        text = text.replace("k = Tanh (K)", "k = Tanh (K) n1 = Softplus (D) d = Neg (n1) e = Sigmoid (E)")
    metadata = stream(model(text, opset), {"Q": 1, "K": 1, "V": 1}, chunk=chunk)
    assert "LinearAttention_0_state_in" in metadata["start"]


def test_a_past_state_of_the_model_stays_its_input() -> None:
    text = ATTENTION.format(domain="", rule="linear", more=", float[2, 2, 8, 8] past", inputs="Q, k, V, past")
    assert stream(model(text, 27), {"Q": 1}, chunk=3)["start"] == {"past": 0.0}


@DOMAINS
@pytest.mark.parametrize("chunk", [1, 3])
def test_a_causal_convolution_with_a_state(domain: str, opset: int, chunk: int) -> None:
    source = model(CONVOLUTION.format(domain=domain), opset, K=(5, 1, 4))
    assert "CausalConvWithState_0_state_in" in stream(source, {"X": 2}, chunk=chunk)["start"]


def test_a_streamed_linear_attention_can_be_lowered() -> None:
    text = ATTENTION.format(domain="", rule="linear", more="", inputs="Q, k, V")
    source = model(text, 27)
    streamed = rnnlower.stream(source, chunk=2, strategy="unroll")
    assert rnnlower.verify(source, streamed)
    assert "LinearAttention" not in {node.op_type for node in streamed.graph.node}


VIEWS = {
    "an axis": "h = Unsqueeze (h0, first)",
    "a shape": "h = Reshape (h0, shape)",
    "two": "g = Squeeze (h0, third)  h = Unsqueeze (g, first)",
}


@pytest.mark.parametrize("rows", ["N", "2"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_state_in_another_shape_gets_an_output_in_the_shape_of_its_input(view: str, rows: str) -> None:
    one = ", 1" if view == "two" else ""
    source = model(
        f"""
        (float[T, {rows}, 3] x, float[{rows}, 8{one}] h0) => (float[T, {rows}, 8] y)
        <int64[1] first = {{0}}, int64[1] third = {{2}}, int64[1] at = {{1}},
         int64[3] shape = {{1, -1, 8}}> {{
            {VIEWS[view]}
            Y = GRU <hidden_size = 8> (x, W, R, , , h)
            y = Squeeze (Y, at)
        }}""",
        W=(1, 24, 3),
        R=(1, 24, 8),
    )
    streamed, metadata = streamed_and_metadata(source, {"x": 0}, chunk=4)
    assert metadata["start"] == {"h0": 0.0}
    values = {value.name: value.type for value in (*streamed.graph.input, *streamed.graph.output)}
    assert values["h0_out"] == values["h0"]


def test_a_state_that_another_node_reads_is_refused() -> None:
    source = model(
        """
        (float[T, 2, 3] x, float[2, 8] h0) => (float[T, 2, 8] y, float[2, 8] z)
        <int64[1] first = {0}, int64[1] second = {1}> {
            h = Unsqueeze (h0, first)
            Y = GRU <hidden_size = 8> (x, W, R, , , h)
            y = Squeeze (Y, second)
            z = Tanh (h0)
        }""",
        W=(1, 24, 3),
        R=(1, 24, 8),
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="input 'h0', and no output of the model"):
        rnnlower.stream(source, time_axes={"x": 0})


def test_a_step_of_which_only_the_shape_is_read() -> None:
    """As Keras's layers with a mask make the zeros before the first step."""
    source = model(
        f"""(float[b, n, 4] X) => (float[b, n, 4] Y) {{
            zero = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            first = Slice (X, zero, one, one)
            flat = Squeeze (first, one)
            product = MatMul (flat, R)
            shape = Shape (product)
            start = ConstantOfShape (shape)
            sizes = Shape <start = 1, end = 2> (X)
            count = Squeeze (sizes)
            S = Transpose <perm = [1, 0, 2]> (X)
            F, T = Loop <body = b
                (int64 i, bool c, float[b, 4] st) => (bool c2, float[b, 4] st2, float[b, 4] y)
            {{
                c2 = Identity (c)
                x = Gather <axis = 0> (S, i)
                {STEP}
            }}> (count, , start)
            Y = Transpose <perm = [1, 0, 2]> (T)
        }}""",
        R=(4, 4),
    )
    message = "takes the first steps of the sequence; fix dynamic dimensions other than time"
    with pytest.raises(rnnlower.UnsupportedModelError, match=message):
        rnnlower.stream(source, time_axes={"X": 1}, lift=False)
    stream(source, {"X": 1}, chunk=1, lift=False, dims={"b": 2})
