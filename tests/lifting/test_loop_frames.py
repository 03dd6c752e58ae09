"""Loops in the forms in which TensorFlow's exporter writes them, and others with faults."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.judge import all_nodes, recurrent_left, run

import rnnlower

T, B, FEATURES, H = 5, 2, 3, 4
STEP = """
    xw = MatMul (x, W)
    hr = MatMul (h, R)
    sum = Add (xw, hr)
    biased = Add (sum, bias)
    new = Tanh (biased)
"""
GRU = """
    xz = MatMul (x, Wz)  hz = MatMul (h, Rz)  az = Add (xz, hz)  bz = Mul (az, fifth)  cz = Add (bz, half)
    dz = Min (cz, unit)  z = Max (dz, none)
    xr = MatMul (x, Wr)  hr = MatMul (h, Rr)  ar = Add (xr, hr)  br = Mul (ar, fifth)  cr = Add (br, half)
    dr = Min (cr, unit)  r = Max (dr, none)
    xn = MatMul (x, Wn)  rh = Mul (r, h)  hn = MatMul (rh, Rn)  cand = Add (xn, hn)
    rest = Sub (unit, z)  fresh = Mul (rest, cand)  kept = Mul (z, h)  new = Add (kept, fresh)
"""
RELU6 = GRU.replace("fifth)  bz", "unit)  bz")
for gate in "zr":
    old = f"b{gate} = Mul (a{gate}, fifth)  c{gate} = Add (b{gate}, half)"
    RELU6 = RELU6.replace(old, f"b{gate} = Add (a{gate}, three)  c{gate} = Clip (b{gate}, none, six)")
    RELU6 = RELU6.replace(
        f"d{gate} = Min (c{gate}, unit)  {gate} = Max (d{gate}, none)", f"{gate} = Mul (c{gate}, sixth)"
    )


def replace_text(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


LERP = replace_text(
    GRU,
    (
        "rest = Sub (unit, z)  fresh = Mul (rest, cand)  kept = Mul (z, h)  new = Add (kept, fresh)",
        "far = Sub (h, cand)  is_low = Less (z, half)  way = Mul (z, far)  under = Add (cand, way)"
        "  rest = Sub (unit, z)  part = Mul (far, rest)  over = Sub (h, part)"
        "  new = Where (is_low, under, over)",
    ),
)
LOOP = """
    main (float[N, TIME, 3] X, float[2, 4] h0) => (OUTPUTS)
    <int64 most = {9223372036854775807}, bool on = {1}, int32 zero = {0}, int32 one = {1}, int32 end = {5},
     int64 by = {1}, int64 last_one = {4}, int64 steps = {5}, int64[1] front = {0},
     int64[1] after = {1}, float fifth = {0.2}, float half = {0.5}, float unit = {1}, float none = {0},
     float three = {3}, float six = {6}, float sixth = {0.16666667},
     int64 two = {2}, int64[1] back = {-1}, int64[1] low = {-9223372036854775807}> {
        x_time = Transpose <perm = [1, 0, 2]> (X)
        BEFORE
        LOOP
        AFTER
    }
"""
BODY = """
        time_end, last, Y = Loop (most, on, zero, h0) <body = step (
            int64 n, bool go, int32 time, float[2, 4] h
        ) => (bool goes, int32 next, float[2, 4] after_h, float[2, 4] y) {
            next = Add (time, one)
            x = Gather (x_time, time)
            goes = Less (next, end)
            STEP
            after_h = Identity (new)
            y = Identity (new)
        }>
"""
SIZES = (
    {"W": (FEATURES, H), "R": (H, H), "bias": (H,)}
    | {f"W{g}": (FEATURES, H) for g in "zrn"}
    | {f"R{g}": (H, H) for g in "zrn"}
)
BOTH = "float[T, 2, 4] Y, float[2, 4] last"


def make_model(
    loop: str = BODY,
    *,
    step: str = STEP,
    before: str = "",
    after: str = "",
    outputs: str = BOTH,
    time: str = "5",
) -> onnx.ModelProto:
    text = LOOP.replace("LOOP", loop).replace("STEP", step).replace("BEFORE", before).replace("TIME", time)
    text = text.replace("AFTER", after).replace("OUTPUTS", outputs)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    read = {name for node in itertools.chain(model.graph.node, *_bodies(model)) for name in node.input}
    rng = np.random.default_rng(0)
    for name, shape in SIZES.items():
        value = (rng.normal(size=shape) * 0.5).astype(np.float32)
        if name in read:
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def _bodies(model: onnx.ModelProto) -> list[list[onnx.NodeProto]]:
    return [list(a.g.node) for node in model.graph.node for a in node.attribute if a.HasField("g")]


def random_inputs(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {
        value.name: [dim.dim_value or B for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def lift_and_compare(model: onnx.ModelProto) -> list[str]:
    """Return the recurrent operators of the lifted model, which computes the same."""
    onnx.checker.check_model(model)
    result, report = rnnlower.lift.with_report(model)
    onnx.checker.check_model(result, full_check=True)
    for seed in range(2):
        inputs = random_inputs(model, seed)
        expected, actual = run(model, inputs), run(result, inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(
                actual[name], array, rtol=1e-4, atol=1e-5, err_msg=f"{name} {report.nodes}"
            )
    return recurrent_left(result)


def loop_with_sequences(axis: int = 0) -> Mapping[str, str]:
    return {
        "before": "pieces = SplitToSequence <axis = 0, keepdims = 0> (x_time) "
        "empty = SequenceEmpty <dtype = 1> ()",
        "loop": replace_text(
            BODY,
            ("time_end, last, Y", "time_end, last, filled"),
            ("(most, on, zero, h0)", "(most, on, zero, h0, empty)"),
            ("float[2, 4] h\n", "float[2, 4] h, seq(float[2, 4]) made\n"),
            ("float[2, 4] y)", "seq(float[2, 4]) y)"),
            ("Gather (x_time, time)", "SequenceAt (pieces, time)"),
            ("y = Identity (new)", "y = SequenceInsert (made, new)"),
        ),
        "after": f"Y = ConcatFromSequence <axis = {axis}, new_axis = 1> (filled)",
    }


def measure(name: str) -> str:
    return (
        f"{name}_sizes = Shape <start = 0, end = 1> (x_time) {name}_long = Squeeze ({name}_sizes) "
        f"{name}_size = Cast <to = 6> ({name}_long)"
    )


def second_layer(place: str) -> str:
    """Return a Loop that reads the steps of another from its list, at a place of their own."""
    return f"""
        count = SequenceLength (filled)
        end_state, Y = Loop (count, on, h0) <body = layer (
            int64 k, bool on_in, float[2, 4] g
        ) => (bool on_in, float[2, 4] g_out, float[2, 4] y_out) {{
            {place}
            element = SequenceAt (filled, at)
            left = MatMul (element, R)
            right = MatMul (g, R)
            added = Add (left, right)
            g_out = Tanh (added)
            y_out = Identity (g_out)
        }}>
    """


def loop_counting_down(step: str) -> Mapping[str, str]:
    """Return a Loop over ``range(T - 1, -1, step)``, whose steps TorchScript counts in floats."""
    return {
        "before": f"minus = Neg (by) by_step = Constant <value_int = {step}> () sizes = Shape (X) "
        "length = Gather (sizes, by) final = Sub (length, by) below = Sub (minus, final) "
        f"far = Cast <to = 1> (below) number = Constant <value_float = {step}.0> () "
        "part = Div (far, number) whole = Ceil (part) turns = Cast <to = 7> (whole)",
        "time": "T",
        "outputs": BOTH.replace("T", "M"),
        "loop": replace_text(
            BODY,
            ("(most, on, zero, h0)", "(turns, on, zero, h0)"),
            (
                "x = Gather (x_time, time)",
                "moved = Mul (n, by_step) p = Add (final, moved) x = Gather (x_time, p)",
            ),
            ("goes = Less (next, end)", "goes = Identity (go)"),
        ),
    }


SCATTER_ND = "spot = Unsqueeze (placed, front) y = ScatterND (made, spot, row)"
SCATTER_ELEMENTS = (
    "size = Shape (row) spot = Expand (placed, size) y = ScatterElements <axis = -3> (made, spot, row)"
)


def loop_with_scatter(index: str = "time", scatter: str = SCATTER_ND) -> Mapping[str, str]:
    return {
        "before": "space = ConstantOfShape (buffer_shape)",
        "loop": replace_text(
            BODY,
            ("(most, on, zero, h0)", "(most, on, zero, h0, space)"),
            ("float[2, 4] h\n", "float[2, 4] h, float[5, 2, 4] made\n"),
            ("float[2, 4] y)", "float[5, 2, 4] y)"),
            (
                "y = Identity (new)",
                f"place = Cast <to = 7> ({index}) placed = Reshape (place, front_one) "
                f"row = Unsqueeze (new, front) {scatter}",
            ),
        ),
    }


def loop_with_concat(
    join: str = "made, row", start: str = "none_yet", end: str = "new = Tanh (biased)"
) -> Mapping[str, str]:
    """Return a Loop that joins each new state to those before it."""
    return {
        "before": "none_yet = ConstantOfShape (empty_shape) e = Exp (h0) one_yet = Unsqueeze (e, front)",
        "outputs": BOTH.replace("T", "M"),
        "loop": replace_text(
            BODY,
            ("(most, on, zero, h0)", f"(most, on, zero, h0, {start})"),
            ("float[2, 4] h\n", "float[2, 4] h, float[K, 2, 4] made\n"),
            ("float[2, 4] y)", "float[L, 2, 4] y)"),
            ("y = Identity (new)", f"row = Unsqueeze (new, front) y = Concat <axis = 0> ({join})"),
            ("STEP", STEP.replace("new = Tanh (biased)", end)),
        ),
    }


def loop_with_scatter_behind_rows(grid: str = "rows") -> Mapping[str, str]:
    """Return a Loop that writes ``buffer[:, t]``."""
    return {
        "before": "space = ConstantOfShape (row_buffer_shape)",
        "loop": replace_text(
            BODY,
            ("time_end, last, Y", "time_end, last, filled"),
            ("(most, on, zero, h0)", "(most, on, zero, h0, space)"),
            ("float[2, 4] h\n", "float[2, 4] h, float[2, 5, 4] made\n"),
            ("float[2, 4] y)", "float[2, 5, 4] y)"),
            (
                "y = Identity (new)",
                "place = Cast <to = 7> (time) all = Expand (place, rows_shape) "
                f"spot = Concat <axis = -1> ({grid}, all) row = Unsqueeze (new, after) "
                "y = ScatterND (made, spot, row)",
            ),
        ),
        "after": "Y = Transpose <perm = [1, 0, 2]> (filled)",
    }


FRAMES: dict[str, tuple[Mapping[str, str], list[str]]] = {
    "a counter": ({}, ["RNN"]),
    "hard gates and a linear candidate": ({"step": GRU}, ["GRU"]),
    "the iteration number": (
        {"loop": replace_text(BODY, ("Gather (x_time, time)", "Gather (x_time, n)"))},
        ["RNN"],
    ),
    "an index of one element": (
        {
            "loop": replace_text(
                BODY,
                (
                    "x = Gather (x_time, time)",
                    "u = Unsqueeze (time, front) g = Gather (x_time, u) x = Squeeze (g, front)",
                ),
            )
        },
        ["RNN"],
    ),
    "time in the second axis": (
        {"loop": replace_text(BODY, ("Gather (x_time, time)", "Gather <axis = 1> (X, time)"))},
        ["RNN"],
    ),
    "from the end": (
        {
            "loop": replace_text(
                BODY, ("x = Gather (x_time, time)", "p = Sub (last_one, n) x = Gather (x_time, p)")
            )
        },
        ["RNN"],
    ),
    "from the end, by negative positions": (
        {
            "loop": replace_text(
                BODY, ("x = Gather (x_time, time)", "p = Sub (minus, n) x = Gather (x_time, p)")
            ),
            "before": "minus = Neg (by)",
        },
        ["RNN"],
    ),
    "a range that falls": (loop_counting_down("-1"), ["RNN"]),
    "a counter that falls": (
        {
            "loop": replace_text(
                BODY,
                ("(most, on, zero, h0)", "(steps, on, four, h0)"),
                ("Add (time, one)", "Sub (time, one)"),
                ("goes = Less (next, end)", "goes = Identity (go)"),
            ),
            "before": "four = Sub (end, one)",
        },
        ["RNN"],
    ),
    "two counters and two conditions": (
        {
            "loop": replace_text(
                BODY,
                (
                    "goes = Less (next, end)",
                    (
                        "long = Cast <to = 1> (next) limit = Cast <to = 1> (end) "
                        "a = Less (long, limit) b = Less (next, end) goes = And (a, b)"
                    ),
                ),
            )
        },
        ["RNN"],
    ),
    "PyTorch's lerp, a choice of equals": ({"step": LERP}, ["GRU"]),
    "gates by Relu6": ({"step": RELU6}, ["GRU"]),
    "an open length": (
        {
            "time": "T",
            "before": "sizes = Shape (X) int_sizes = Cast <to = 6> (sizes) "
            "length = Slice (int_sizes, after, second, front) limit = Squeeze (length, front) "
            "most_steps = Cast <to = 7> (limit) none_yet = Cast <to = 1> (limit) any = Less (none, none_yet)",
            "loop": replace_text(
                BODY,
                ("(most, on, zero, h0)", "(most_steps, any, zero, h0)"),
                (
                    "goes = Less (next, end)",
                    "long = Cast <to = 1> (next) number = Cast <to = 1> (n) "
                    "last_step = Cast <to = 1> (limit) "
                    "a = Less (number, last_step) b = Less (long, last_step) goes = And (a, b)",
                ),
            ),
        },
        ["RNN"],
    ),
    "a part of a state as weights": (
        {
            "step": STEP.replace("(h, R)", "(h, V)").replace(
                "hr =", "V = Slice (both, front, fourth, after) hr ="
            ),
            "loop": replace_text(
                BODY,
                ("time_end, last, Y", "time_end, last, both_end, Y"),
                ("(most, on, zero, h0)", "(most, on, zero, h0, wide)"),
                ("float[2, 4] h\n", "float[2, 4] h, float[4, 8] both\n"),
                ("float[2, 4] after_h,", "float[2, 4] after_h, float[4, 8] both_again,"),
                ("after_h = Identity (new)", "after_h = Identity (new) both_again = Identity (both)"),
            ),
        },
        ["RNN"],
    ),
    "a part of the steps": ({"loop": replace_text(BODY, ("(most, on", "(two, on"))}, ["RNN"]),
    "steps from the second on": (
        {
            "loop": replace_text(
                BODY, ("Gather (x_time, time)", "Gather (x_time, next)"), ("(most, on", "(two, on")
            )
        },
        ["RNN"],
    ),
    "a Slice of one step": (
        {
            "loop": replace_text(
                BODY,
                (
                    "x = Gather (x_time, time)",
                    (
                        "from = Unsqueeze (time, front) till = Unsqueeze (next, front) "
                        "axes = Cast <to = 6> (front) "
                        "g = Slice (x_time, from, till, axes) x = Squeeze (g, front)"
                    ),
                ),
            )
        },
        ["RNN"],
    ),
    "X and the weights as states": (
        {
            "loop": replace_text(
                BODY,
                ("time_end, last, Y", "time_end, last, x_end, w_end, Y"),
                ("(most, on, zero, h0)", "(most, on, zero, h0, x_time, W)"),
                ("float[2, 4] h\n", "float[2, 4] h, float[5, N, 3] xs, float[3, 4] V\n"),
                ("float[2, 4] after_h,", "float[2, 4] after_h, float[5, N, 3] xs, float[3, 4] V,"),
                ("Gather (x_time, time)", "Gather (xs, time)"),
            ),
            "step": replace_text(STEP, ("(x, W)", "(x, V)")),
        },
        ["RNN"],
    ),
    "ones of the input's shape": (
        {
            "step": replace_text(
                STEP,
                (
                    "xw = MatMul (x, W)",
                    "s = Shape (x) o = Expand (unit, s) m = Mul (x, o) xw = MatMul (m, W)",
                ),
            )
        },
        ["RNN"],
    ),
    "weights in front of columns": (
        {
            "step": """
                xt = Transpose (x) xw = Gemm <transA = 1, beta = 0.0> (W, xt, none)
                hr = Gemm <transA = 1, transB = 2, alpha = 0.5> (R, h) sum = Add (xw, hr)
                columns = Transpose (sum) row = Reshape (bias, one_four) full = Expand (row, two_four)
                all = Slice (full, no_place, two_four, both_axes) biased = Add (columns, all)
                new = Tanh (biased)
            """
        },
        ["RNN"],
    ),
    "products by Einsum": (
        {
            "step": replace_text(
                STEP,
                ("MatMul (x, W)", 'Einsum <equation = "kh,bk->bh"> (W, x)'),
                ("hr = MatMul (h, R)", 'hc = Einsum <equation = "bk, hk -> hb"> (h, R) hr = Transpose (hc)'),
            )
        },
        ["RNN"],
    ),
    "products by Einsum without a result": (
        {
            "step": replace_text(
                STEP,
                ("MatMul (x, W)", 'Einsum <equation = "bk, kh"> (x, W)'),
                ("hr = MatMul (h, R)", 'hc = Einsum <equation = "zk,ka"> (h, R) hr = Transpose (hc)'),
            )
        },
        ["RNN"],
    ),
    "two cells, the states of which are cast to their type": (
        {
            "step": """
                lx = MatMul (x, W) lr = MatMul (low, R) ls = Add (lx, lr) low_new = Tanh (ls)
                xw = MatMul (low_new, R) hr = MatMul (h, R) sum = Add (xw, hr) new = Tanh (sum)
            """,
            "loop": replace_text(
                BODY,
                ("time_end, last, Y", "time_end, last, low_last, Y"),
                ("(most, on, zero, h0)", "(most, on, zero, h0, h0)"),
                ("float[2, 4] h\n", "float[2, 4] h, float[2, 4] low\n"),
                ("float[2, 4] after_h,", "float[2, 4] after_h, float[2, 4] after_low,"),
                (
                    "after_h = Identity (new)",
                    "after_h = Cast <to = 1> (new) after_low = Cast <to = 1> (low_new)",
                ),
            ),
        },
        ["RNN", "RNN"],
    ),
    "zeros by Tile and ReduceSum": (
        {
            "before": (
                "s = Shape (X) like = ConstantOfShape (s) "
                "total = ReduceSum <keepdims = 0> (like, rest_axes) "
                "row = Unsqueeze (total, after) begin = Tile (row, one_four)"
            ),
            "loop": replace_text(BODY, ("(most, on, zero, h0)", "(most, on, zero, begin)")),
        },
        ["RNN"],
    ),
    "sequences": (loop_with_sequences(), ["RNN"]),
    "sequences of open length": (
        {
            "before": "pieces = SplitToSequence <axis = 0, keepdims = 0> (x_time, by) "
            "count = SequenceLength (pieces) empty = SequenceEmpty <dtype = 1> ()",
            "time": "T",
            "loop": replace_text(
                loop_with_sequences()["loop"],
                ("(most, on, zero, h0, empty)", "(count, on, zero, h0, empty)"),
                ("goes = Less (next, end)", "goes = Identity (go)"),
                ("SequenceAt (pieces, time)", "SequenceAt (pieces, n)"),
            ),
            "after": loop_with_sequences()["after"],
        },
        ["RNN"],
    ),
    "sequences, joined in the second axis": (
        {**loop_with_sequences(1), "outputs": "float[2, T, 4] Y, float[2, 4] last"},
        ["RNN"],
    ),
    "a while-loop of PyTorch, which measures its input anew": (
        {
            "before": f"{measure('before')} begins = Less (zero, before_size)",
            "time": "T",
            "outputs": "float[2, 4] last",
            "loop": replace_text(
                BODY,
                ("(most, on, zero, h0)", "(most, begins, zero, h0)"),
                ("goes = Less (next, end)", f"{measure('again')} goes = Less (next, again_size)"),
            ),
        },
        ["RNN"],
    ),
    "a sequence that a layer reads": (
        {**loop_with_sequences(), "after": second_layer("at = Identity (k)")},
        ["RNN", "RNN"],
    ),
    "a sequence that a layer reads from its end": (
        {
            **loop_with_sequences(),
            "after": second_layer("all = SequenceLength (filled) top = Sub (all, by) at = Sub (top, k)"),
        },
        ["RNN", "RNN"],
    ),
    "a buffer": (loop_with_scatter(), ["RNN"]),
    "a buffer, element by element": (loop_with_scatter(scatter=SCATTER_ELEMENTS), ["RNN"]),
    "a tensor that grows": (loop_with_concat(), ["RNN"]),
    "a tensor that grows at its start": (loop_with_concat("row, made"), ["RNN"]),
    "a buffer behind whole rows": (loop_with_scatter_behind_rows(), ["RNN"]),
    "the last state alone": ({"outputs": "float[2, 4] last"}, ["RNN"]),
    "all states alone": ({"outputs": "float[T, 2, 4] Y"}, ["RNN"]),
    "reversed before and after": (
        {
            "before": "turned = Slice (x_time, back, low, front, back)",
            "loop": replace_text(
                BODY, ("Gather (x_time, time)", "Gather (turned, time)"), ("last, Y =", "last, steps_back =")
            ),
            "after": "Y = Slice (steps_back, back, low, front, back)",
        },
        ["RNN"],
    ),
    "ReverseSequence before and after": (
        {
            "before": "turned = ReverseSequence <time_axis = 0, batch_axis = 1> (x_time, lengths)",
            "loop": replace_text(
                BODY, ("Gather (x_time, time)", "Gather (turned, time)"), ("last, Y =", "last, steps_back =")
            ),
            "after": "Y = ReverseSequence <time_axis = 0, batch_axis = 1> (steps_back, lengths)",
        },
        ["RNN"],
    ),
    "ReverseSequence of computed lengths": (
        {
            "before": "turned = ReverseSequence <time_axis = 0, batch_axis = 1> (x_time, lengths)",
            "loop": replace_text(
                BODY, ("Gather (x_time, time)", "Gather (turned, time)"), ("last, Y =", "last, steps_back =")
            ),
            "after": "seen = Shape (steps_back)  t_end = Gather (seen, front)"
            "  of_rows = Gather (seen, front_one)  spread = Expand (t_end, of_rows)"
            "  Y = ReverseSequence <time_axis = 0, batch_axis = 1> (steps_back, spread)",
        },
        ["RNN"],
    ),
}
CONSTANTS = {
    "rest_axes": np.array([1, 2]),
    "one_four": np.array([1, H]),
    "two_four": np.array([B, H]),
    "no_place": np.array([0, 0]),
    "both_axes": np.array([0, 1]),
    "lengths": np.full(B, T),
    "buffer_shape": np.array([T, B, H]),
    "empty_shape": np.array([0, B, H]),
    "row_buffer_shape": np.array([B, T, H]),
    "rows": np.arange(B).reshape(B, 1, 1),
    "rows_shape": np.array([B, 1, 1]),
    "front_one": np.array([1]),
    "second": np.array([2]),
    "fourth": np.array([4]),
    "wide": np.linspace(-0.5, 0.5, 2 * H * H, dtype=np.float32).reshape(H, 2 * H),
}


def add_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    read = {name for node in itertools.chain(model.graph.node, *_bodies(model)) for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in CONSTANTS.items() if n in read)
    return model


@pytest.mark.parametrize("name", FRAMES)
def test_a_loop_is_lifted(name: str) -> None:
    parts, becomes = FRAMES[name]
    assert lift_and_compare(add_constants(make_model(**parts))) == becomes  # type: ignore[arg-type]


def test_reversals_of_all_steps_become_the_direction() -> None:
    parts, _ = FRAMES["ReverseSequence of computed lengths"]
    lifted = rnnlower.lift(add_constants(make_model(**parts)))  # type: ignore[arg-type]
    assert not {"ReverseSequence", "Slice"} & {node.op_type for node in all_nodes(lifted)}


def change_body(*pairs: tuple[str, str], step: str = STEP, **parts: str) -> Mapping[str, str]:
    return {"loop": replace_text(BODY, *pairs), "step": step, **parts}


def wrap_loop(before: str, after: str) -> Mapping[str, str]:
    """Return a Loop over a tensor, whose outputs go through an operator."""
    pairs = ("Gather (x_time, time)", "Gather (taken, time)"), ("last, Y =", "last, ends =")
    return change_body(*pairs, before=f"taken = {before}", after=f"Y = {after}")


GATHER, FULL = "x = Gather (x_time, time)", "(most, on, zero, h0)"
REVERSE_ROWS = "ReverseSequence <time_axis = 0, batch_axis = 1>"
FAULTS: dict[str, Mapping[str, str]] = {
    "a step to the side": change_body((GATHER, "p = Mod (next, end) x = Gather (x_time, p)")),
    "every other step": change_body(
        (GATHER, "p = Add (time, time) x = Gather (x_time, p)"), (FULL, "(two, on, zero, h0)")
    ),
    "one step for all": change_body((GATHER, "x = Gather (x_time, one)")),
    "the step that is not there": change_body((GATHER, "p = Sub (time, one) x = Gather (x_time, p)")),
    "a series that the body computes": change_body((GATHER, "v = Neg (x_time) x = Gather (v, time)")),
    "a series of which the body writes elements": change_body(
        (FULL, "(most, on, zero, h0, x_time)"),
        ("time_end, last, Y", "time_end, last, x_end, Y"),
        ("float[2, 4] h\n", "float[2, 4] h, float[5, 2, 3] v\n"),
        ("float[2, 4] after_h,", "float[2, 4] after_h, float[5, 2, 3] v2,"),
        (
            GATHER,
            "q = Reshape (n, place_shape) u = Gather (x_time, last_one) w = Unsqueeze (u, front)"
            " v2 = ScatterND (v, q, w) x = Gather (v, time)",
        ),
    ),
    "a counter that starts later": change_body((FULL, "(most, on, one, h0)")),
    "a counter of two": change_body(("Add (time, one)", "Add (time, pair)"), before="pair = Add (one, one)"),
    "a condition one step late": change_body(
        ("Less (next, end)", "Less (time, four)"), before="four = Sub (end, one)"
    ),
    "a condition one step early": change_body(
        ("goes = Less (next, end)", "more = Add (next, one) goes = Less (more, end)")
    ),
    "a condition on the state": change_body(
        ("goes = Less (next, end)", ""),
        (
            "after_h = Identity (new)",
            "m = ReduceMax <keepdims = 0> (new) goes = Less (m, none) after_h = Identity (new)",
        ),
        (FULL, "(two, on, zero, h0)"),
    ),
    "two inputs in different orders": change_body(
        (GATHER, "p = Sub (last_one, n) q = Gather (x_time, p) v = Gather (x_time, time) x = Add (q, v)")
    ),
    "one end turned": wrap_loop("Slice (x_time, back, low, front, back)", "Identity (ends)"),
    "the other end turned": wrap_loop("Identity (x_time)", "Slice (ends, back, low, front, back)"),
    "all steps but the last turned": wrap_loop(
        f"{REVERSE_ROWS} (x_time, short)", f"{REVERSE_ROWS} (ends, short)"
    ),
    "rows turned by different lengths": wrap_loop(
        f"{REVERSE_ROWS} (x_time, uneven)", f"{REVERSE_ROWS} (ends, uneven)"
    ),
    "turned without the last step": change_body(
        ("Gather (x_time, time)", "Gather (taken, time)"),
        (FULL, "(two, on, zero, h0)"),
        before="taken = Slice (x_time, nearly, low, front, back)",
    ),
    "a buffer that is written in part": {
        **loop_with_scatter(),
        "loop": loop_with_scatter()["loop"].replace("(most, on,", "(two, on,"),
    },
    "a tensor that grows from a row": loop_with_concat(start="one_yet"),
    "a tensor that grows by itself": loop_with_concat("made, made", start="one_yet"),
    "a tensor that grows and is read": loop_with_concat(
        end="whole = ReduceSum <keepdims = 0> (made, front) more = Add (biased, whole) new = Tanh (more)"
    ),
    "a buffer with its rows turned": loop_with_scatter_behind_rows("turned_rows"),
    "a buffer that is written from the end": loop_with_scatter("p").copy()
    | {"loop": loop_with_scatter("p")["loop"].replace("place = Cast", "p = Sub (last_one, n) place = Cast")},
    "a buffer of ones": {
        **loop_with_scatter(),
        "before": "room = ConstantOfShape (buffer_shape) space = Exp (room)",
    },
    "a sequence in the other order": {
        **loop_with_sequences(),
        "loop": loop_with_sequences()["loop"].replace(
            "SequenceInsert (made, new)", "SequenceInsert (made, new, first_place)"
        ),
    },
    "the old state is written": change_body(("y = Identity (new)", "y = Identity (h)")),
    "a state that decays": change_body(("after_h = Identity (new)", "after_h = Mul (new, half)")),
    "a state with its rows turned": change_body(
        ("after_h = Identity (new)", "after_h = Slice (new, back, low, front, back)")
    ),
    "a state with its units turned": change_body(
        ("after_h = Identity (new)", "after_h = Slice (new, back, low, after, back)")
    ),
    "the candidate's gate turned": {"step": GRU.replace("Mul (rest, cand)", "Mul (z, cand)")},
    "a choice of others": {"step": LERP.replace("Sub (h, part)", "Sub (cand, part)")},
    "another factor of the gate": {"step": GRU.replace("Mul (ar, fifth)", "Mul (ar, half)")},
    "another bound of the gate": {"step": GRU.replace("Max (dr, none)", "Max (dr, fifth)")},
    "two clips in the other order": {
        "step": GRU.replace(
            "dz = Min (cz, unit)  z = Max (dz, none)", "dz = Max (cz, none)  z = Min (dz, unit)"
        )
    },
    "rounding": {
        "step": STEP.replace("new = Tanh (biased)", "q = Tanh (biased) w = Round (q) new = Mul (w, half)")
    },
    "a product over the rows": {
        "step": STEP.replace(
            "new = Tanh (biased)",
            'v = Einsum <equation = "kb,kh->bh"> (h, rows_to_units) w = Slice (v, front, second, front) '
            "more = Add (biased, w) new = Tanh (more)",
        )
    },
    "a product of three by Einsum": {
        "step": STEP.replace("hr = MatMul (h, R)", 'hr = Einsum <equation = "bk,kh,h->bh"> (h, R, decay)')
    },
    "an Einsum of the diagonal": {
        "step": STEP.replace("hr = MatMul (h, R)", 'hr = Einsum <equation = "bk,kk->bk"> (h, R)')
    },
    "a range of every second step": loop_counting_down("-2"),
    "an Einsum with an ellipsis": {
        "step": STEP.replace("hr = MatMul (h, R)", 'hr = Einsum <equation = "...k,kh->...h"> (h, R)')
    },
    "a sum over the rows": {
        "step": STEP.replace("hr = MatMul (h, R)", 'hr = Einsum <equation = "bk,kh->h"> (h, R)')
    },
    "a bias for each row": {
        "step": STEP.replace("(sum, bias)", "(sum, full)").replace(
            "biased =", "full = Expand (row_bias, two_four) biased ="
        )
    },
    "rows that end": change_body(
        ("after_h = Identity (new)", "go_on = Less (time, ends_at) after_h = Where (go_on, new, h)")
    ),
    "a mean over rows": {
        "step": STEP.replace(
            "new = Tanh (biased)", "m = ReduceMean <axes = [0]> (biased) new = Add (m, biased)"
        )
    },
    "weights that change": change_body(
        ("time_end, last, Y", "time_end, last, w_end, Y"),
        (FULL, "(most, on, zero, h0, R)"),
        ("float[2, 4] h\n", "float[2, 4] h, float[4, 4] V\n"),
        ("float[2, 4] after_h,", "float[2, 4] after_h, float[4, 4] V2,"),
        ("after_h = Identity (new)", "after_h = Identity (new) V2 = Mul (V, half)"),
        step=STEP.replace("(h, R)", "(h, V)"),
    ),
}
CONSTANTS |= {
    "short": np.full(B, T - 1),
    "uneven": np.array([T, 2]),
    "nearly": np.array([-2]),
    "first_place": np.array(0),
    "place_shape": np.array([1, 1]),
    "turned_rows": np.array([[[1]], [[0]]]),
    "rows_to_units": np.linspace(-0.5, 0.5, B * H, dtype=np.float32).reshape(B, H),
    "decay": np.linspace(0.2, 0.8, H, dtype=np.float32),
    "row_bias": np.array([[0.5], [-0.5]], np.float32),
    "ends_at": np.array([[T], [2]], np.int32),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_changed_loop_is_not_lifted_wrongly(name: str) -> None:
    model = add_constants(make_model(**FAULTS[name]))
    try:
        onnx.checker.check_model(model, full_check=True)
        run(model, random_inputs(model, 0))
    except Exception as error:
        pytest.fail(f"onnxruntime does not run the source: {error}")
    lift_and_compare(model)


def test_whole_slices_with_attributes_are_skipped() -> None:
    cut = "w = Slice <starts = [0, 0], ends = [2147483647, 9223372036854775807]> (x_time)"
    model = make_model(replace_text(BODY, (GATHER, f"{cut} x = Gather (w, time)")))
    model.opset_import[0].version = 9
    assert lift_and_compare(model) == ["RNN"]


def test_a_number_of_steps_fixes_an_open_length() -> None:
    """A Loop of 5 steps reads 5 elements of any X, and so does its node: it can be unrolled, and priced."""
    model = make_model(time="LONG")
    (node,) = rnnlower.inspect(rnnlower.lift(model))
    assert node.seq_len == T
    assert recurrent_left(rnnlower.unroll(model)) == []


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize("start", ["given", "zero"])
def test_one_row_of_an_open_batch_broadcasts_to_the_rows_of_the_state(start: str, rows: int) -> None:
    """Keras exports stateful layers with a constant state, and with any number of rows in X."""
    model = make_model()
    if start == "zero":
        del model.graph.input[1]
        model.graph.initializer.append(numpy_helper.from_array(np.zeros((B, H), np.float32), "h0"))
    inputs = random_inputs(model, 0)
    inputs["X"] = inputs["X"][:rows]
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == ["RNN"]
    expected, actual = run(model, inputs), run(lifted, inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", [("g", "h"), ("h", "g")], ids=" ".join)
@pytest.mark.parametrize("rows", [1, 2])
def test_layers_of_other_rows_read_what_they_did(order: tuple[str, str], rows: int) -> None:
    """Two layers read X, a third one H of the first; the states of some have 2 rows, and X may have one."""
    shapes = {"g": "float[2, 3]", "h": "float[C, 3]"}
    starts, states = (", ".join(f"{shapes[name]} {name}{end}" for name in order) for end in ("0", ""))
    names = {end: ", ".join(f"{name}{end}" for name in order) for end in ("0", "_end")}
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[T, C, 3] X, float[2, 3] k0, {starts}) => (float[T, A, 3] Y, float[T, D, 3] Z)
        <float[3, 3] W = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, float[3, 3] R = {{3, 2, 1, 6, 5, 4, 9, 8, 7}}> {{
            {names["_end"]}, k_end, Y, Z = Scan <num_scan_inputs = 1, body = step ({states}, float[2, 3] k,
            float[C, 3] x) => (float[A, 3] {order[0]}_new, float[D, 3] {order[1]}_new, float[E, 3] k_new,
            float[A, 3] y, float[D, 3] z) {{
                a = MatMul (x, W)
                gr = MatMul (g, R) gs = Add (a, gr) g_new = Tanh (gs)
                hr = MatMul (h, R) hs = Add (a, hr) h_new = Tanh (hs)
                b = MatMul (h_new, W)
                kr = MatMul (k, R) ks = Add (b, kr) k_new = Tanh (ks)
                y = Identity (g_new) z = Identity (k_new)
            }}> ({names["0"]}, k0, X)
        }}""".replace("{.9", "{0.9").replace(", .", ", 0.")
    )
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == ["RNN"] * 3
    random = np.random.default_rng(0)
    sizes = {"X": (4, rows, 3), "k0": (2, 3), "g0": (2, 3), "h0": (rows, 3)}
    inputs = {name: random.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    expected, actual = run(model, inputs), run(lifted, inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5)


def test_no_rows_are_broadcast_where_their_number_is_known() -> None:
    model = make_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = B
    assert "Expand" not in {node.op_type for node in rnnlower.lift(model).graph.node}


def test_an_update_of_another_rank_is_not_lifted() -> None:
    scatter = SCATTER_ELEMENTS.replace("spot, row)", "spot, deep)")
    model = make_model(**loop_with_scatter(scatter=f"deep = Unsqueeze (row, front) {scatter}"))
    _, report = rnnlower.lift.with_report(add_constants(model))
    assert any("positions that are not known" in note for note in report.notes)


def test_a_state_that_never_changes_is_read_after_the_last_step() -> None:
    loop = replace_text(
        BODY,
        ("time_end, last, Y", "time_end, last, same, Y"),
        ("(most, on, zero, h0)", "(most, on, zero, h0, h0)"),
        ("float[2, 4] h\n", "float[2, 4] h, float[2, 4] given\n"),
        ("float[2, 4] after_h", "float[2, 4] after_h, float[2, 4] kept"),
        ("y = Identity (new)", "y = Identity (new) kept = Identity (given)"),
    )
    outputs = f"{BOTH}, float[2, 4] same, float[2, 4] twice"
    assert lift_and_compare(make_model(loop, after="twice = Add (same, same)", outputs=outputs)) == ["RNN"]
