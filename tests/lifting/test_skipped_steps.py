"""Rows that skip any steps, by a mask: Keras's Masking and Embedding, loops over padded rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from support.grids import pairs_of
from support.judge import all_nodes, recurrent_left, run

import rnnlower

HEADER = """<ir_version: 9, opset_import: ["" : OPSET]>
main (float[T, N, 3] X, bool[MASK] mask, float[N, 3] given) => (RESULTS)
<float[3, 3] R = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}, int64 i0 = {0}, int64 i1 = {1},
 int64[1] s1 = {1}, int64[1] three = {3}, float zero = {0}, bool go = {1}> {
    sizes = Shape (X) T = Gather (sizes, i0) rows = Gather (sizes, s1)
    state = Concat <axis = 0> (rows, three) h0 = ConstantOfShape (state)
"""
LOOP = """last, Y = Loop (T, go, START) <body = each (int64 t, bool goes, float[N, 3] h) => (
    bool on, float[N, 3] next, float[N, 3] y) {
    on = Identity (goes) x = Gather (X, PLACE) m = Gather <axis = AXIS> (mask, PLACE) STEP }> }"""
SCAN = """last, Y = Scan <num_scan_inputs = 2, scan_input_axes = [0, AXIS],
    scan_input_directions = DIRECTIONS, body = each (float[N, 3] h, float[N, 3] x, bool[N, 1] m) => (
    float[N, 3] next, float[N, 3] y) { STEP }> (START, X, mask) }"""
FRAMES = {"Loop": LOOP, "Scan": SCAN}
CELLS = {
    "RNN": "hr = MatMul (h, R) sum = Add (x, hr) new = Tanh (sum)",
    "GRU": """hr = MatMul (h, R) sum = Add (x, hr) z = Sigmoid (sum) n = Tanh (sum)
        kept = Mul (z, h) one = Constant <value_float = 1.0> () rest = Sub (one, z) fresh = Mul (rest, n)
        new = Add (kept, fresh)""",
}
CHOICES = {
    "going": "next = Where (m, new, h)",
    "skipping": "next = Where (m, h, new)",
    "not skipping": "off = Not (m) next = Where (off, h, new)",
    "products": """f = Cast <to = 1> (m) off = Not (m) g = Cast <to = 1> (off)
        taken = Mul (new, f) skipped = Mul (g, h) next = Add (skipped, taken)""",
}
RESULTS = {
    "held": "y = Identity (next)",
    "zeros": "y = Where (m, next, zero)",
    "new": "y = Where (m, new, zero)",
}
ORDERS = {"in order": "t", "backward": "back"}


def make_model(
    frame: str, step: str, *, order: str = "t", axis: int = 0, start: str = "h0", opset: int = 18
) -> onnx.ModelProto:
    """Return a Loop or Scan whose rows take steps by a mask ``[T, N, 1]``, or ``[N, T, 1]`` for axis 1."""
    backward = order == "back"
    text = HEADER + frame
    given = {
        "STEP": step,
        "PLACE": order,
        "AXIS": str(axis),
        "START": start,
        "OPSET": str(opset),
        "MASK": "N, T, 1" if axis else "T, N, 1",
        "RESULTS": "float[N, 3] last, float[T, N, 3] Y",
        "DIRECTIONS": "[1, 1]" if backward else "[0, 0]",
    }
    if backward and frame is LOOP:
        text = text.replace(
            "on = Identity (goes)", "on = Identity (goes) end = Sub (T, i1) back = Sub (end, t)"
        )
    for name, value in given.items():
        text = text.replace(name, value)
    return onnx.parser.parse_model(text)


def inputs(rng: np.random.Generator, axis: int, features: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield inputs of several sizes, with rows that take all steps, none, the first, the last and others."""
    for steps, rows in itertools.product((1, 2, 5, 50), (1, 2, 5)):
        every = np.ones((steps, rows, 1), bool)
        first = np.arange(steps).reshape(-1, 1, 1) < rng.integers(0, steps + 1, (1, rows, 1))
        for mask in (every, ~every, first, ~first, rng.random(every.shape) < 0.5):
            yield {
                "X": rng.normal(size=(steps, rows, features)).astype(np.float32),
                "mask": np.swapaxes(mask, 0, axis),
                "given": rng.normal(size=(rows, 3)).astype(np.float32),
            }


def compare(model: onnx.ModelProto, op_types: list[str], axis: int = 0, features: int = 3) -> None:
    """Lift a model, and check what is left and that it computes the same."""
    onnx.checker.check_model(model, full_check=True)
    lifted = rnnlower.lift(model)
    onnx.checker.check_model(lifted, full_check=True)
    assert recurrent_left(lifted) == op_types
    names = [value.name for value in model.graph.input]
    for given in inputs(np.random.default_rng(0), axis, features):
        feeds = {name: given[name] for name in names}
        actual = run(lifted, feeds)
        for name, array in run(model, feeds).items():
            np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("frame", "choice", "cell"), pairs_of(FRAMES, CHOICES, CELLS))
def test_rows_take_steps_by_a_mask(frame: str, choice: str, cell: str) -> None:
    compare(make_model(FRAMES[frame], f"{CELLS[cell]} {CHOICES[choice]} y = Identity (next)"), [cell])


@pytest.mark.parametrize(("frame", "result", "order", "axis"), pairs_of(FRAMES, RESULTS, ORDERS, [0, 1]))
def test_skipped_steps_return_the_state_or_zeros(frame: str, result: str, order: str, axis: int) -> None:
    step = f"{CELLS['GRU']} {CHOICES['going']} {RESULTS[result]}"
    compare(make_model(FRAMES[frame], step, order=ORDERS[order], axis=axis), ["GRU"], axis)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("frame", [LOOP, SCAN], ids=["Loop", "Scan"])
def test_rows_without_steps_return_the_initial_state(frame: str, order: str) -> None:
    step = f"{CELLS['RNN']} {CHOICES['going']} y = Identity (next)"
    compare(make_model(frame, step, order=order, start="given"), ["RNN"])


@pytest.mark.parametrize(
    "result",
    [
        "y = Identity (new)",
        "y = Where (m, zero, next)",
        "other = Where (m, new, x) y = Identity (other)",
        "y = Add (next, new)",
    ],
    ids=["the new state", "zeros at steps that are taken", "an input", "a sum"],
)
def test_other_results_of_skipped_steps_are_not_lifted(result: str) -> None:
    model = make_model(LOOP, f"{CELLS['RNN']} {CHOICES['going']} {result}")
    compare(model, [])


def test_operators_of_old_opsets_do_not_skip_steps() -> None:
    """CumSum came with opset 11."""
    step = f"{CELLS['RNN']} {CHOICES['going']} y = Identity (next)"
    compare(make_model(LOOP, step, opset=11), ["RNN"])
    compare(make_model(LOOP, step, opset=10), [])


def test_a_mask_by_feature_is_not_lifted() -> None:
    step = f"{CELLS['RNN']} {CHOICES['going']} y = Identity (next)"
    text = onnx.printer.to_text(make_model(LOOP, step)).replace("bool[T,N,1] mask", "bool[T,N,3] mask")
    lifted = rnnlower.lift(onnx.parser.parse_model(text))
    assert recurrent_left(lifted) == []
    assert "Loop" in {node.op_type for node in lifted.graph.node}


LSTM = """<ir_version: 9, opset_import: ["" : 17]>
main (float[T, N, 2] X, bool[T, N, 1] mask) => (float[N, 2] last, float[N, 2] c_last, float[T, N, 2] Y)
<float[2, 2] R = {0.1, 0.2, 0.3, 0.4}, int64 i0 = {0}, int64[1] s1 = {1}, int64[1] two = {2}, bool go = {1}> {
    sizes = Shape (X) T = Gather (sizes, i0) rows = Gather (sizes, s1)
    state = Concat <axis = 0> (rows, two) h0 = ConstantOfShape (state) p0 = ConstantOfShape (state)
    p_last, last, c_last, Y = Loop (T, go, p0, h0, h0) <body = each (
        int64 t, bool goes, float[N, 2] p, float[N, 2] h, float[N, 2] c) => (
        bool on, float[N, 2] p_next, float[N, 2] next, float[N, 2] c_next, float[N, 2] y) {
        on = Identity (goes) x = Gather (X, t) m = Gather (mask, t)
        hr = MatMul (h, R) sum = Add (x, hr) i = Sigmoid (sum) g = Tanh (sum) kept = Mul (i, c)
        fresh = Mul (i, g) c_new = Add (kept, fresh) squashed = Tanh (c_new) new = Mul (i, squashed)
        p_next = Where (m, new, p) next = Where (m, new, h) c_next = Where (m, c_new, c)
        y = Identity (p_next) }> }"""


def test_an_output_that_is_carried_beside_an_equal_state_is_that_state() -> None:
    """Keras carries the last output for steps that are skipped."""
    compare(onnx.parser.parse_model(LSTM), ["LSTM"], features=2)


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ("p0 = ConstantOfShape (state)", "p0 = ConstantOfShape <value = float[1] {1}> (state)", []),
        ("p_next = Where (m, new, p)", "p_next = Where (m, p, new)", []),
        ("p_next = Where (m, new, p)", "p_next = Where (m, c_new, p)", []),
        # This is H of the next step, whatever the last output was.
        ("p_next = Where (m, new, p)", "p_next = Where (m, new, h)", ["LSTM"]),
    ],
    ids=["another start", "other steps", "another value", "the other state"],
)
def test_states_that_differ_stay_apart(before: str, after: str, left: list[str]) -> None:
    assert before in LSTM
    compare(onnx.parser.parse_model(LSTM.replace(before, after)), left, features=2)


@pytest.mark.parametrize(
    ("states", "after", "result"),
    [
        ("P p, P h", "P p_next, P next", "p_next = Identity (next) y = Identity (p_next)"),
        ("P h, P p", "P next, P p_next", "p_next = Identity (next) y = Identity (p_next)"),
        ("P h, P p", "P next, P next", "y = Identity (next)"),
        ("P h, P p, P q", "P next, P q, P p", "y = Identity (next)"),
    ],
    ids=["a copy first", "a copy last", "the same", "exchanged"],
)
def test_equal_states_may_be_copies_of_each_other(states: str, after: str, result: str) -> None:
    count = states.count(",") + 1
    frame = LOOP.replace("last, Y", ", ".join([*("last", "p_last", "q_last")[:count], "Y"]))
    frame = frame.replace("float[N, 3] h)", states.replace("P ", "float[N, 3] ") + ")").replace(
        "float[N, 3] next,", after.replace("P ", "float[N, 3] ") + ","
    )
    step = f"{CELLS['RNN']} {CHOICES['going']} {result}"
    compare(make_model(frame, step, start=", ".join(["h0"] * count)), ["RNN"])


def test_lengths_may_exceed_32_bits() -> None:
    step = (
        f"less = Less (t, n) m = Unsqueeze (less, s1) {CELLS['RNN']} {CHOICES['going']} y = Identity (next)"
    )
    text = HEADER.replace("bool[MASK] mask", "int64[N] n") + LOOP.replace(
        "m = Gather <axis = AXIS> (mask, PLACE)", ""
    )
    for name, value in {"STEP": step, "PLACE": "t", "START": "h0", "OPSET": "18"}.items():
        text = text.replace(name, value)
    model = onnx.parser.parse_model(text.replace("RESULTS", "float[N, 3] last, float[T, N, 3] Y"))
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == ["RNN"]
    X = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
    feeds = {"X": X, "n": np.array([2**32 + 1, -(2**33) + 3, 2**31, 2]), "given": X[0]}
    feeds = {name: feeds[name] for name in (value.name for value in model.graph.input)}
    for name, array in run(model, feeds).items():
        np.testing.assert_allclose(run(lifted, feeds)[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("rows", ["1, N", "N"])
def test_a_mask_may_keep_the_axis_of_time(rows: str) -> None:
    """It has as many axes as the state, or else it would give the state one more."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[T, N, 3] X, bool[T, N, 1] mask, float[{rows}, 3] start) => (float[T, 1, N, 3] Y)
        <float[3, 3] R = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}}, int64 i0 = {{0}},
         int64[1] s0 = {{0}}, bool go = {{1}}> {{
            sizes = Shape (X) T = Gather (sizes, i0)
            last, Y = Loop (T, go, start) <body = each (int64 t, bool goes, float[{rows}, 3] h) => (
                bool on, float[1, N, 3] next, float[1, N, 3] y) {{
                on = Identity (goes) place = Unsqueeze (t, s0) x = Gather (X, place)
                m = Gather (mask, place) {CELLS["RNN"]} {CHOICES["going"]} y = Identity (next) }}> }}""")
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == (["RNN"] if rows == "1, N" else [])
    for given in inputs(np.random.default_rng(0), 0, 3) if rows == "1, N" else ():
        feeds = {"X": given["X"], "mask": given["mask"], "start": given["given"][np.newaxis]}
        np.testing.assert_allclose(run(lifted, feeds)["Y"], run(model, feeds)["Y"], rtol=1e-4, atol=1e-5)


def test_a_target_without_loops_gets_the_operator_if_it_can_move_steps() -> None:
    """A Scan skips steps as a Loop does; onnx2torch has no CumSum, and gets a straight line."""
    source = make_model(LOOP, f"{CELLS['GRU']} {CHOICES['going']} y = Identity (next)")
    for target, expected in (("tract", {"Scan"}), ("iree", {"ScatterElements"}), ("onnx2torch", set())):
        dims = {} if target == "tract" else {"T": 3, "N": 2}
        lowered = rnnlower.lower(source, target=target, dims=dims)
        ops = {node.op_type for node in all_nodes(lowered)}
        assert {"Loop", "Scan", "ScatterElements"} & ops == expected
        assert rnnlower.verify(source, lowered)


def test_a_target_with_a_loop_keeps_it() -> None:
    source = make_model(LOOP, f"{CELLS['GRU']} {CHOICES['going']} y = Identity (next)")
    kept = rnnlower.lower(source, target="onnxruntime")
    assert "Loop" in {node.op_type for node in all_nodes(kept)}
