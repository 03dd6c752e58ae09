"""Forms: equal equations have equal forms, whichever operators compute them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnlower
from rnnlower.lifting.affine_forms import (
    AffineForm,
    Atoms,
    NotLiftableError,
    add_forms,
    concat_forms,
    constant_form,
    multiply_matrix,
)
from rnnlower.lifting.symbolic_evaluation import reshape_form
from rnnlower.recurrent.node import Activation

RNG = np.random.default_rng(0)


def minus(first: AffineForm, second: AffineForm) -> AffineForm:
    return add_forms(first, second.scale(-1.0))


def polynomials(atoms: Atoms, form: AffineForm) -> list[dict[tuple[int, ...], float]]:
    flat = form.flatten().simplify()
    return [atoms.polynomial(flat, place) for place in range(flat.constant.size)]


def test_the_two_spellings_of_a_gru_are_one_polynomial() -> None:
    atoms = Atoms()
    tags = ("B", "")
    h, x = (atoms.variables((1, 3), tags) for _ in "hx")
    z = atoms.apply(Activation("Sigmoid"), x)
    n = atoms.apply(Activation("Tanh"), add_forms(x, h))
    one = constant_form(np.ones((1, 3)))
    kept = atoms.multiply(minus(one, z), n)
    long = add_forms(kept, atoms.multiply(z, h))
    short = add_forms(n, atoms.multiply(z, minus(h, n)))
    assert polynomials(atoms, long) == polynomials(atoms, short)


def test_a_matrix_product_multiplies_the_coefficients() -> None:
    atoms = Atoms()
    x = atoms.variables((1, 3), ("B", ""))
    first, second = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 2))
    twice = multiply_matrix(multiply_matrix(x, first), second)
    at_once = multiply_matrix(x, first @ second)
    np.testing.assert_allclose(twice.coefs, at_once.coefs)
    assert (twice.ids == at_once.ids).all()


def test_a_part_of_a_concat_is_the_part() -> None:
    atoms = Atoms()
    x, y = (atoms.variables((1, 2), ("B", "")) for _ in "xy")
    together = concat_forms([x, y], 1, ("B", ""))
    part = together.rearrange(lambda array: array[:, 2:], ("B", ""))
    assert polynomials(atoms, part) == polynomials(atoms, y)


def test_terms_that_cancel_are_dropped() -> None:
    atoms = Atoms()
    x = atoms.variables((1, 3), ("B", ""))
    assert minus(x, x).is_constant


def test_rows_do_not_become_features() -> None:
    x = Atoms().variables((1, 4), ("B", ""))
    assert reshape_form(x, (2, 4), (1, 2, 4)).tags == ("", "B", "")
    with pytest.raises(NotLiftableError, match="rows"):
        reshape_form(x, (2, 4), (4, 2))


def test_time_and_rows_merge_and_split() -> None:
    x = Atoms().variables((1, 1, 4), ("T", "B", ""))
    flat = reshape_form(x, (5, 2, 4), (10, 4))
    assert flat.tags == ("TB", "")
    assert reshape_form(flat, (10, 4), (5, 2, 2, 2), [2]).tags == ("T", "B", "", "")
    for form, before in ((x, (5, 2, 4)), (flat, (10, 4))):
        with pytest.raises(NotLiftableError, match="rows"):
            reshape_form(form, before, (2, 5, 4), [2])


@pytest.mark.parametrize(
    "step",
    [
        "one = Clip (x, low, high) all = Expand (one, shape) input = Clip (all, low, half)",
        "one = Exp (x) all = Expand (one, shape) more = Add (all, high) input = Log (more)",
    ],
)
def test_an_activation_of_one_element_may_be_expanded(step: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[T, 2, 1] X, float[2, 4] h0) => (float[T, 2, 4] Y)
        <float[4, 4] R = {{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}}, int64[2] shape = {{2, 4}},
         float low = {{0}}, float half = {{0.5}}, float high = {{1}}> {{
            last, Y = Scan <num_scan_inputs = 1, body = step (float[2, 4] h, float[2, 1] x)
            => (float[2, 4] new, float[2, 4] y) {{
                {step} product = MatMul (h, R) sum = Add (product, input) new = Tanh (sum) y = Identity (new)
            }}> (h0, X) }}""")
    _, report = rnnlower.lift.with_report(model)
    assert "the equations of the step" in str(report.nodes[0].reason)


def test_constants_in_the_type_of_another_value_are_constants() -> None:
    """As onnxscript writes numbers: counters, limits and `1 - z`; a state may be cast as well."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        main (float[B, T, 2] X, float[B, 3] S) => (float[B, 3] h)
        <float[2, 9] W = {1, -1, 2, 0, 1, 3, 1, -2, 1, 2, 1, 0, 1, -1, 1, 0, 2, 1},
         float[3, 9] R = {1, 0, 2, -1, 1, 1, 0, 2, 1, 1, 1, 0, 1, -1, 2, 0, 1, 1, 2, 1, 0, 0, 1, 1, -1, 1, 2}>
        {
            size = Shape <start = 1, end = 2> (X)  axis = Constant <value_ints = [0]> ()
            steps = Squeeze (size, axis)  start = Constant <value_int = 0> ()  more = Less (start, steps)
            last, h = Loop (, more, start, S) <body = step (int64 n, bool go, int64 i, float[B, 3] s)
                => (bool again, int64 next, float[B, 3] s3) {
                x = Gather <axis = 1> (X, i)  xw = MatMul (x, W)  sr = MatMul (s, R)
                xz, xr, xn = Split <num_outputs = 3, axis = 1> (xw)
                sz, sr0, sn = Split <num_outputs = 3, axis = 1> (sr)
                zs = Add (xz, sz)  z = Sigmoid (zs)  rs = Add (xr, sr0)  r = Sigmoid (rs)
                rn = Mul (r, sn)  ns = Add (xn, rn)  new = Tanh (ns)
                one = Constant <value_int = 1> ()  one_like = CastLike (one, z)  rest = Sub (one_like, z)
                fresh = Mul (rest, new)  kept = Mul (z, s)  s2 = Add (fresh, kept)  s3 = CastLike (s2, s)
                one_more = CastLike (one, i)  next = Add (i, one_more)  again = Less (next, steps)
            }>
        }"""
    )
    onnx.checker.check_model(model)
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["GRU"]
    assert rnnlower.verify(model, lifted)


def test_a_first_state_may_have_fewer_axes() -> None:
    """Zeros by Expand, two states that each unit scales: the zero itself is taken for the first state."""
    steps = "  ".join(
        f"""ga{k} = Mul (h{k}, u)  gb{k} = Mul (g{k}, v)  a{k} = Sub (ga{k}, gb{k})  x{k} = Gather (X, t{k})
        p{k} = MatMul (x{k}, W)  h{k + 1} = Add (a{k}, p{k})  gc{k} = Mul (g{k}, u)  hd{k} = Mul (h{k}, v)
        c{k} = Add (gc{k}, hd{k})  g{k + 1} = Add (c{k}, p{k})"""
        for k in range(3)
    )
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[3, B, 2] X) => (float[B, 3] h3, float[B, 3] g3)
        <float[2, 3] W = {{1, -1, 2, 0, 1, 3}}, float[3] u = {{0.5, 0.25, 1}}, float[3] v = {{0.5, 0.5, 0.1}},
         float zero = {{0}}, int64[1] units = {{3}}, int64 t0 = {{0}}, int64 t1 = {{1}}, int64 t2 = {{2}}> {{
            rows = Shape <start = 1, end = 2> (X)  sizes = Concat <axis = 0> (rows, units)
            h0 = Expand (zero, sizes)  g0 = Identity (h0)  {steps}
        }}""")
    lifted, _ = rnnlower.lift.with_report(model)
    assert rnnlower.verify(model, lifted)
