"""Straight lines in which rows skip steps, as Keras 3 writes Masking on PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from support.judge import recurrent_left, run

import rnnlower
from rnnlower.passes import LiftRecurrentPass

STEPS = 4
GOING = "m{step} = Unsqueeze (g{step}, last_axis)", "Where (m{step}, {new}, {old})", "Greater"
CUT = "j{step} = Constant <value_ints = [{time}]> () k{step} = Add (j{step}, one_axis) "
CUT += "m{step} = Slice (cell, j{step}, k{step}, one_axis)"
CHOICES = {
    "the mask of a column": (CUT, "Where (m{step}, {new}, {old})", "Greater"),
    "the old state first": (GOING[0], "Where (m{step}, {old}, {new})", "LessOrEqual"),
    "the old state first, by a column": (CUT, "Where (m{step}, {old}, {new})", "LessOrEqual"),
    "a Not of its own": (
        f"{CUT} q{{step}} = Not (m{{step}}) r{{step}} = Not (m{{step}})",
        "Where ({not}{step}, {new}, {old})",
        "LessOrEqual",
    ),
}
"""What makes the condition of a step, the choice by it, and the comparison of all inputs."""


def make_line(
    *,
    ended: str = "p",
    backward: bool = False,
    start: str = "zeros",
    choice: tuple[str, str, str] = GOING,
) -> onnx.ModelProto:
    """Return an RNN of steps that a row skips where its inputs are zero, and the state at every step."""
    kept, (mask, where, comparison) = "zeros" if ended == "x" else "p{step}", choice
    text = [
        "zeros = ConstantOfShape <value = float[1] {0}> (shape) p0 = Identity (zeros)",
        f"h0 = Identity ({start})",
    ]
    for step in range(STEPS):
        time = STEPS - 1 - step if backward else step
        names = {"step": step, "time": time, "new": f"n{step}"}
        h = where.format(**names, old=f"h{step}", **{"not": "q"})
        p = where.format(**names, old=kept.format(step=step), **{"not": "r"})
        text.append(f"""i{step} = Constant <value = int64 {{{time}}}> ()
            x{step} = Gather <axis = 1> (X, i{step}) g{step} = Gather <axis = 1> (cell, i{step})
            {mask.format(**names)}
            a{step} = MatMul (x{step}, W) b{step} = MatMul (h{step}, R)
            s{step} = Add (a{step}, b{step}) n{step} = Tanh (s{step})
            h{step + 1} = {h} p{step + 1} = {p}
            u{step + 1} = Unsqueeze (p{step + 1}, one_axis)""")
    last = "H" if ended == "x" else f"{ended}{STEPS}"
    stacked = ", ".join(f"u{step + 1}" for step in range(STEPS))
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[B, {STEPS}, 2] X, float[B, 3] H) => (float[B, 3] last, float[B, {STEPS}, 3] Y)
        <float[2, 3] W = {{1, -2, 0.5, 0.3, 2, -1}},
         float[3, 3] R = {{0.5, -1, 0.2, 1, 0.4, -0.6, -0.3, 0.8, 1}},
         int64[1] last_axis = {{-1}}, int64[1] one_axis = {{1}},
         int64[1] features = {{3}}, float zero = {{0}}> {{
            count = Shape <end = 1> (X) shape = Concat <axis = 0> (count, features)
            sums = ReduceL1 <axes = [2], keepdims = 0> (X) cell = {comparison} (sums, zero)
            {" ".join(text)}
            last = Identity ({last}) Y = Concat <axis = 1> ({stacked}) }}""")


def inputs(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Return rows of which one skips no step, one skips all and the others some."""
    rng = np.random.default_rng(seed)
    taken = rng.random((rows, STEPS)) < 0.5
    taken[0], taken[-1] = True, rows == 1
    X = rng.normal(size=(rows, STEPS, 2)) * taken[..., np.newaxis]
    return {"X": X.astype(np.float32), "H": rng.normal(size=(rows, 3)).astype(np.float32)}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("ended", ["h", "p", "x"])
def test_rows_skip_steps_of_a_straight_line(*, ended: str, backward: bool) -> None:
    """What keeps the last output and the state, from zeros on, keeps one value; others are zeros."""
    compare(make_line(ended=ended, backward=backward))


@pytest.mark.parametrize("choice", CHOICES)
def test_steps_choose_by_masks_of_any_form(choice: str) -> None:
    compare(make_line(choice=CHOICES[choice]))


def compare(model: onnx.ModelProto) -> None:
    """Check that a line becomes an RNN which computes the same."""
    lifted = rnnlower.lift(model)
    assert [node.op_type for node in lifted.graph.node if node.op_type in ("RNN", "Tanh")] == ["RNN"]
    onnx.checker.check_model(lifted, full_check=True)
    for rows, seed in [(1, 0), (2, 1), (6, 2)]:
        fed = inputs(rows, seed)
        for name, array in run(model, fed).items():
            np.testing.assert_allclose(run(lifted, fed)[name], array, atol=1e-6, err_msg=name)


def test_an_output_that_starts_elsewhere_is_no_state() -> None:
    model = make_line(start="H")
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == []
    fed = inputs(5, 3)
    for name, array in run(model, fed).items():
        np.testing.assert_allclose(run(lifted, fed)[name], array, atol=1e-6, err_msg=name)
    _, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == [None]


def test_steps_stay_in_their_order_without_gaps() -> None:
    model = ir.serde.deserialize_model(make_line())
    assert not LiftRecurrentPass(gaps=False)(model).modified
