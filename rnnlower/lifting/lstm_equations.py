"""The comparison of a step with the equations of LSTM."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rnnlower.lifting.affine_forms import Floats, Polynomial
from rnnlower.lifting.equations import (
    OPEN,
    CellParameters,
    Gate,
    Preactivation,
    StepEquations,
    common_clip,
    common_value,
    divide,
    drop_zeros,
    is_close,
    mismatch,
)
from rnnlower.recurrent.node import Activation
from rnnlower.recurrent.parsing import round_to_float32


@dataclasses.dataclass(frozen=True)
class _Unit:
    """A unit, ``c = f c + i g`` and ``h = o t``: the atoms of its gates, their factor, and g and t times it.

    The form is ``f``, ``f = 1``, ``f = 1 - i``, or ``i = 1 - f``, which has the atom of f as that of i.
    """

    form: str
    i: int
    o: int
    f: int | None
    scale: float
    g: Polynomial
    t: Polynomial


def match_lstm(step: StepEquations, which_input: int, which_output: int) -> CellParameters:
    """Return the LSTM; if several factors may be the input or output gate, these indices pick one."""
    units = [_match_unit(step, j, which_input, which_output) for j in range(step.size)]
    form = units[0].form
    if any(unit.form != form for unit in units):
        raise mismatch("LSTM", "units differ in their forget gate")
    scale = common_value([unit.scale for unit in units], "a factor of the forget gate")
    i, o = step.gate([unit.i for unit in units], scale), step.gate([unit.o for unit in units], scale)
    f_ids = [unit.f for unit in units if unit.f is not None]
    f = step.gate(f_ids, scale) if f_ids else None
    g = _input_activation(step, [{key: v / scale for key, v in unit.g.items()} for unit in units])
    t = [{key: v / scale for key, v in unit.t.items()} for unit in units]
    activation = _output_activation(step, t, i.clip)
    if form == "f = 1 - i" and i.activation.name == "Sigmoid":
        # More runtimes compute this than input_forget.
        f, form = _complement(i), "f"
    if form == "i = 1 - f":
        i = _complement(i)
    gates = [gate for gate in (i, o, f, g) if gate is not None]
    if any(gate.activation != i.activation for gate in (o, f) if gate is not None):
        raise mismatch("LSTM", "the gates have different activations")
    clip = common_clip(gates)
    if form == "f = 1" and (clip is not None or i.activation.name != "Sigmoid"):
        raise mismatch("LSTM", "it has no forget gate")
    activations = (i.activation, g.activation, activation)
    return _make_cell(step, (i, o, f, g), activations, clip, coupled=form == "f = 1 - i")


def _match_unit(step: StepEquations, j: int, which_input: int, which_output: int) -> _Unit:
    cell, own = step.polynomial(1, j), step.states[1].start + j
    kept = {key: value for key, value in cell.items() if own in key}
    rest = {key: value for key, value in cell.items() if own not in key}
    added = step.factor_out_gate(rest, which_input)
    if added is None:
        raise mismatch("LSTM", "no input gate multiplies what is added to the cell state")
    form, f, (i, g), scale = "f = 1", None, added, 1.0
    keys = [key for key in kept if len(key) == 2]
    if len(kept) == 1 and keys:
        form, f, scale = "f", divide(keys[0], own)[0], kept[keys[0]]
        free = {key: value for key, value in rest.items() if f not in key}
        gated = {divide(key, f): -value for key, value in rest.items() if f in key}
        if free and scale == 1 and is_close(free, gated):
            form, i, g = "i = 1 - f", f, free
    elif len(kept) == 2 and len(keys) == 1 and kept.get((own,)) == 1.0:
        form, i, scale = "f = 1 - i", divide(keys[0], own)[0], -kept[keys[0]]
        if any(i not in key for key in rest):
            raise mismatch("LSTM", "the cell state is not f c + i g")
        g = {divide(key, i): value for key, value in rest.items()}
    elif {*kept} != {(own,)} or kept[(own,)] != 1.0:
        raise mismatch("LSTM", "the cell state is not f c + i g")
    output = step.factor_out_gate(step.polynomial(0, j), which_output)
    if output is None:
        raise mismatch("LSTM", "the state is not o act(c)")
    return _Unit(form, i, output[0], f, scale, g, output[1])


def _complement(gate: Gate) -> Gate:
    """Return 1 minus a gate; refuse a gate for which that is another activation."""
    if gate.activation.name != "Sigmoid":
        raise mismatch("LSTM", f"1 - {gate.activation.name} is not an activation")
    return dataclasses.replace(gate, argument=gate.argument.scale(-1.0))


def _input_activation(step: StepEquations, polynomials: Sequence[Polynomial]) -> Gate:
    gate, inner = step.candidate(polynomials)
    if gate.activation.name == "Affine":
        # The step has no form for a linear argument.
        return dataclasses.replace(gate, argument=step.as_form(inner))
    return gate


def _output_activation(
    step: StepEquations, polynomials: Sequence[Polynomial], clip: float | None
) -> Activation:
    """Return the activation of the cell state in H."""
    cells = [step.polynomial(1, j) for j in range(step.size)]
    single = [next(iter(p)) for p in polynomials if len(p) == 1]
    if len(single) == step.size and all(
        len(key) == 1 and step.activation(key[0]) is not None for key in single
    ):
        ids = [key[0] for key in single]
        scale = common_value([next(iter(p.values())) for p in polynomials], "a factor of the output")
        gate = step.gate(ids, scale, keeps_argument=True)
        if gate.clip is not None and (gate.clip != clip or step.semantics != "spec"):
            raise mismatch("LSTM", "the cell state is clipped before its activation")
        argument = gate.argument.simplify()
        inner = [step.atoms.polynomial(argument, j) for j in range(step.size)]
        if gate.clip is None and clip is not None and step.semantics == "spec":
            raise mismatch("LSTM", "the cell state is not clipped before its activation")
        if gate.activation.name == "HardSigmoid" and gate.clip is None:
            slope, shift = gate.activation.alpha or 0.0, gate.activation.beta or 0.0
            alpha, beta = _affine(inner, cells)
            parameters = round_to_float32(slope * alpha), round_to_float32(slope * beta + shift)
            return Activation("HardSigmoid", *parameters)
        beta = common_value(_cell_factors(inner, cells), "a factor of the cell state")
        if abs(beta - 1) < 1e-7:
            return gate.activation
        if gate.activation.name not in ("Tanh", "ScaledTanh"):
            raise mismatch("LSTM", "the cell state is scaled before its activation")
        alpha = 1.0 if gate.activation.alpha is None else gate.activation.alpha
        return Activation("ScaledTanh", alpha, round_to_float32(beta * (gate.activation.beta or 1.0)))
    if clip is not None and step.semantics == "spec":
        raise mismatch("LSTM", "the cell state is not clipped before its activation")
    alpha, beta = _affine(polynomials, cells)
    return Activation("Affine", round_to_float32(alpha), round_to_float32(beta))


def _affine(polynomials: Sequence[Polynomial], cells: Sequence[Polynomial]) -> tuple[float, float]:
    """Return the factor of the cell state and the constant of which the polynomials consist."""
    alphas = _cell_factors([{key: v for key, v in p.items() if key} for p in polynomials], cells)
    betas = [polynomial.get((), 0.0) for polynomial in polynomials]
    return common_value(alphas, "a factor"), common_value(betas, "a constant")


def _cell_factors(polynomials: Sequence[Polynomial], cells: Sequence[Polynomial]) -> list[float]:
    """Return the ratio of each polynomial to the cell state."""
    factors = []
    for polynomial, cell in zip(polynomials, cells, strict=True):
        key = next(iter(cell), None)
        factor = polynomial.get(key, 0.0) / cell[key] if key is not None else 0.0
        scaled = {each: value / factor for each, value in polynomial.items()} if factor else {}
        if not factor or not is_close(drop_zeros(scaled), drop_zeros(cell)):
            raise mismatch("LSTM", "the state is not o act(c)")
        factors.append(factor)
    return factors


def _make_cell(
    step: StepEquations,
    gates: tuple[Gate, Gate, Gate | None, Gate],
    activations: tuple[Activation, ...],
    clip: float | None,
    *,
    coupled: bool,
) -> CellParameters:
    size, c = step.size, step.states[1].start
    none = np.zeros((size, size))
    peepholes: list[Floats] = []
    preactivations = []
    for letter, gate in zip("iofc", gates, strict=True):
        if gate is None:
            constant = np.full(size, 0.0 if coupled else OPEN)
            preactivations.append(Preactivation({}, constant, [{} for _ in range(size)]))
            peepholes.append(np.zeros(size))
            continue
        parts = step.split(gate.argument)
        if letter == "o":
            parts, peephole = _extract_peephole(step, parts)
        else:
            matrix = parts.weights.get(c, none)
            peephole = matrix.diagonal().copy()
            if (matrix - np.diag(peephole)).any() or (letter == "c" and peephole.any()):
                raise mismatch("LSTM", "a gate reads the cell states of other units")
        if any(parts.rest):
            raise mismatch("LSTM", "the argument of a gate is not a sum of products with weights")
        peepholes.append(peephole)
        preactivations.append(
            dataclasses.replace(parts, weights={k: v for k, v in parts.weights.items() if k != c})
        )
    W, R, B = step.stack_weights(preactivations)
    P = np.concatenate(peepholes[:3])
    return CellParameters("LSTM", W, R, B, activations, clip, P if P.any() else None, input_forget=coupled)


def _extract_peephole(step: StepEquations, parts: Preactivation) -> tuple[Preactivation, Floats]:
    """Split the new cell state, times a peephole, off the argument of the output gate."""
    c = step.states[1]
    peephole = np.zeros(step.size)
    given = {key: value.copy() for key, value in parts.weights.items()}
    matrix = given.setdefault(c.start, np.zeros((step.size, step.size)))
    rest = []
    for j, polynomial in enumerate(parts.rest):
        cell = step.polynomial(1, j)
        key = next((key for key in cell if len(key) > 1 and key in polynomial), None)
        if key is not None:
            peephole[j] = polynomial[key] / cell[key]
        left = dict(polynomial)
        for each, value in cell.items() if peephole[j] else ():
            if len(each) == 1 and step.atoms.kind(each[0]) == "variable":
                step.add_coefficients(given, each[0], j, -peephole[j] * value)
            else:
                left[each] = left.get(each, 0.0) - peephole[j] * value
        largest = max([abs(value) for value in polynomial.values()], default=1.0)
        rest.append({key: value for key, value in left.items() if abs(value) > 1e-6 * largest})
    if np.abs(matrix).max(initial=0.0) > 1e-6 * max(1.0, np.abs(peephole).max(initial=0.0)):
        raise mismatch("LSTM", "the output gate reads the old cell state")
    return Preactivation({k: v for k, v in given.items() if k != c.start}, parts.bias, rest), peephole
