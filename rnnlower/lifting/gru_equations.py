"""The comparison of a step with the equations of GRU and RNN."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rnnlower.lifting.affine_forms import Floats, NotLiftableError, Polynomial
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

_MIN_GATE = 0.01
"""The least constant gate, and the least rest: closer to 0 or 1, Sigmoid in float32 rounds too much."""


def match_rnn(step: StepEquations) -> CellParameters:
    single = step.atoms.as_activations(step.new[0])
    if single is None:
        return _match_linear_rnn(step)
    gate = step.gate(*single)
    parts = step.split(gate.argument)
    if any(parts.rest):
        raise mismatch("RNN", "the argument of the activation is not a sum of products with weights")
    W, R, B = step.stack_weights([parts])
    if not R.any():
        raise mismatch("RNN", "the new state does not depend on the old one")
    return CellParameters("RNN", W, R, B, (gate.activation,), gate.clip)


def _match_linear_rnn(step: StepEquations) -> CellParameters:
    """Return the RNN without an activation, if units read each other: running sums are none."""
    parts = step.split_polynomials([step.polynomial(0, j) for j in range(step.size)])
    W, R, B = step.stack_weights([parts])
    if any(parts.rest) or not W or not R.any():
        raise mismatch("LSTM, GRU or RNN", "a new state is neither gated nor an activation")
    if not (R - np.diag(R.diagonal())).any():
        raise NotLiftableError(
            "each unit adds to a multiple of its own state alone, where an RNN has a matrix"
        )
    return CellParameters("RNN", W, R, B, (Activation("Affine", 1.0, 0.0),), None)


def match_gru(step: StepEquations) -> CellParameters:
    (h,) = step.states
    if (leaky := _match_constant_gate(step)) is not None:
        return leaky
    units = [_match_update_gate(step, step.polynomial(0, j), h.start + j) for j in range(step.size)]
    z_ids, scales, candidates, swapped = zip(*units, strict=True)
    if len({*swapped}) > 1:
        raise mismatch("GRU", "units differ in whether the update gate is z or 1 - z")
    scale = common_value(scales, "a factor of the update gate")
    update = step.gate(z_ids, scale)
    z = step.split(update.argument)
    if swapped[0]:
        if update.activation.name != "Sigmoid":
            raise mismatch("GRU", f"1 - {update.activation.name} is not an activation")
        z = Preactivation({key: -value for key, value in z.weights.items()}, -z.bias, z.rest)
    new, inner = step.candidate(candidates)
    reset, r, n, recurrent, is_linear = _match_reset(step, inner, scale)
    if any(z.rest) or any(r.rest) or any(n.rest):
        raise mismatch("GRU", "the argument of a gate is not a sum of products with weights")
    if reset is not None and reset.activation != update.activation:
        raise mismatch("GRU", "the gates have different activations")
    if reset is None and update.activation.name != "Sigmoid":
        raise mismatch("GRU", "it has no reset gate")
    clip = common_clip([gate for gate in (update, reset, new) if gate is not None])
    if reset is None and clip is not None:
        raise mismatch("GRU", "it has a clip but no reset gate")
    W, R, B = step.stack_weights([z, r, n])
    size = step.size
    if recurrent is not None:
        R[2 * size :] += recurrent.weights.get(h.start, np.zeros((size, size))).T
        B[5 * size :] = recurrent.bias
    activations = (update.activation, new.activation)
    return CellParameters("GRU", W, R, B, activations, clip, linear_before_reset=is_linear)


def _match_constant_gate(step: StepEquations) -> CellParameters | None:
    """Return the GRU of ``z h + (1 - z) act(W x + R h + b)`` with a constant z, if the step is that."""
    (h,) = step.states
    own = [(h.start + j,) for j in range(step.size)]
    units = [step.polynomial(0, j) for j in range(step.size)]
    z = np.array([unit.get(key, 0.0) for unit, key in zip(units, own, strict=True)])
    if (z < _MIN_GATE).any() or (z > 1 - _MIN_GATE).any():
        return None
    rest = [
        {each: value / (1 - kept) for each, value in unit.items() if each != key}
        for unit, key, kept in zip(units, own, z, strict=True)
    ]
    if all(len(unit) == 1 and np.allclose([*unit.values()], 1.0, rtol=1e-6) for unit in rest):
        rest = [dict.fromkeys(unit, 1.0) for unit in rest]
    new, inner = step.candidate(rest)
    n = step.split_polynomials(inner)
    if new.activation.name == "Affine" or new.clip is not None or any(n.rest):
        return None
    none: list[Polynomial] = [{} for _ in own]
    gates = [
        Preactivation({}, np.log(z / (1 - z)), none),
        Preactivation({}, np.full(step.size, OPEN), none),
        n,
    ]
    W, R, B = step.stack_weights(gates)
    return CellParameters("GRU", W, R, B, (Activation("Sigmoid"), new.activation))


def _match_update_gate(
    step: StepEquations, polynomial: Polynomial, own: int
) -> tuple[int, float, Polynomial, bool]:
    """Return the update gate of a unit, its factor, the candidate, and whether the gate is 1 - z."""
    for key in polynomial:
        if len(key) != 2 or own not in key or step.activation(divide(key, own)[0]) is None:
            continue
        gate, factor = divide(key, own)[0], polynomial[key]
        free = {each: value for each, value in polynomial.items() if gate not in each}
        gated = {divide(each, gate): value / factor for each, value in polynomial.items() if gate in each}
        keys = {*free, *gated}
        whole = drop_zeros({each: free.get(each, 0.0) + gated.get(each, 0.0) for each in keys})
        if is_close(whole, {(own,): 1.0}):
            return gate, factor, free, False
        if is_close(free, {(own,): 1.0}) and factor == -1:
            # h + z (n - h)
            term = {each: free.get(each, 0.0) - gated.get(each, 0.0) for each in keys}
            return gate, 1.0, drop_zeros(term), True
    raise mismatch("GRU", "the new state is not (1 - z) n + z h")


def _match_reset(
    step: StepEquations, candidates: Sequence[Polynomial], scale: float
) -> tuple[Gate | None, Preactivation, Preactivation, Preactivation | None, bool]:
    """Return the reset gate, its argument, the candidate's, what the gate multiplies, and the form."""
    (h,) = step.states
    size = step.size
    own = range(h.start, h.start + h.size)
    plain = [
        {key: value for key, value in p.items() if len(key) < 2 and not any(map(step.activation, key))}
        for p in candidates
    ]
    gated = [
        {key: value / scale for key, value in p.items() if key not in rest}
        for p, rest in zip(candidates, plain, strict=True)
    ]
    if not any(gated):
        opened = Preactivation({}, np.full(size, OPEN), [{} for _ in range(size)])
        return None, opened, step.split_polynomials(plain), None, False
    before = _match_reset_before_product(step, gated, own)
    if before is not None and not any((i,) in p for p in plain for i in own):
        ids, R = before
        gate = step.gate(ids, scale)
        parts = step.split_polynomials(plain)
        candidate = dataclasses.replace(parts, weights={**parts.weights, h.start: R})
        return gate, step.split(gate.argument), candidate, None, False
    ids, inner = [], []
    for polynomial in gated:
        found = step.factor_out_gate(polynomial, 0)
        if found is None:
            raise mismatch("GRU", "the reset gate does not multiply a function of the state")
        ids.append(found[0])
        inner.append(found[1])
    gate = step.gate(ids, scale)
    recurrent = step.split_polynomials(inner)
    is_more = any(recurrent.rest) or {*recurrent.weights} - {h.start}
    if is_more or any((i,) in p for p in plain for i in own):
        raise mismatch("GRU", "the reset gate multiplies more than the product with the state")
    return gate, step.split(gate.argument), step.split_polynomials(plain), recurrent, True


def _match_reset_before_product(
    step: StepEquations, gated: Sequence[Polynomial], own: range
) -> tuple[list[int], Floats] | None:
    """Return the reset gate of each unit of H, and R, if the gate multiplies H before the product."""
    gates: dict[int, int] = {}
    R = np.zeros((len(own), step.size))
    for j, polynomial in enumerate(gated):
        for key, value in polynomial.items():
            units = [atom for atom in key if atom in own]
            if len(key) != 2 or len(units) != 1:
                return None
            gate = divide(key, units[0])[0]
            if step.activation(gate) is None or gates.setdefault(units[0], gate) != gate:
                return None
            R[units[0] - own.start, j] = value
    if len(gates) < step.size:
        return None
    return [gates[atom] for atom in own], R
