"""The equations of one step in the terms of the cells: gates, weights and biases; their comparison."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rnnlower.lifting.affine_forms import (
    AffineForm,
    Atoms,
    Block,
    Floats,
    Ids,
    Monomial,
    NotLiftableError,
    Polynomial,
)
from rnnlower.recurrent.node import Activation, Semantics
from rnnlower.recurrent.parsing import round_to_float32

LOG_OF_EXP = Activation("LogOfExp")
"""``log(1 + exp(x))``, as onnxruntime's operators compute Softplus: infinite for a large x."""
OPEN = 100.0
"""The argument at which Sigmoid is 1 in every floating-point type."""
_ACTIVATIONS = (
    *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid"),
    *("Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)


@dataclasses.dataclass(frozen=True)
class CellParameters:
    """A recurrent operator's attributes and weights, for one direction.

    Attributes:
        op_type: ``LSTM``, ``GRU`` or ``RNN``.
        W: The weights of each input, ``[gates * hidden_size, size]``, by the first of its atoms.
        R: ``[gates * hidden_size, hidden_size]``.
        B: Wb and Rb, ``[2 * gates * hidden_size]``.
        P: The peepholes, ``[3 * hidden_size]``.
        activations: f, g and h.
        clip: The threshold of the cell clip.
        input_forget: Whether ``f = 1 - i``.
        linear_before_reset: GRU's second form.

    Cells are equal if they differ in weights only.
    """

    op_type: str
    W: Mapping[int, Floats] = dataclasses.field(compare=False)
    R: Floats = dataclasses.field(compare=False)
    B: Floats = dataclasses.field(compare=False)
    activations: tuple[Activation, ...]
    clip: float | None = None
    P: Floats | None = dataclasses.field(default=None, compare=False)
    input_forget: bool = False
    linear_before_reset: bool = False

    @property
    def hidden_size(self) -> int:
        """The number of units."""
        return int(self.R.shape[1])

    def unify_with(self, other: CellParameters | None) -> CellParameters:
        """Return the cell of another step, equal up to the rounding of weights, or this one if there is none.

        Raises:
            NotLiftableError: It is another cell.
        """
        if other is None:
            return self
        if self.op_type != other.op_type:
            raise NotLiftableError("its steps are of different cells")
        pairs = [(self.R, other.R), (self.B, other.B), (self.P, other.P)]
        pairs += [(W, other.W.get(key)) for key, W in self.W.items()]
        if self != other or {*self.W} != {*other.W} or not all(_is_close_array(*pair) for pair in pairs):
            raise NotLiftableError("its steps have different weights")
        return other


@dataclasses.dataclass(frozen=True)
class Preactivation:
    """The argument of an activation: a sum of products with weights, and other terms.

    Attributes:
        weights: A matrix for each block of variables, by its first atom; a column for each unit.
        bias: The constant of each unit.
        rest: All other terms of each unit.
    """

    weights: Mapping[int, Floats]
    bias: Floats
    rest: Sequence[Polynomial]


@dataclasses.dataclass(frozen=True)
class Gate:
    """An activation, its argument, and the bound to which the argument is clipped."""

    activation: Activation
    argument: AffineForm
    clip: float | None


def _is_close_array(first: Floats | None, second: Floats | None) -> bool:
    if first is None or second is None or first is second:
        return first is second
    return first.shape == second.shape and np.allclose(second, first, rtol=1e-6, atol=1e-9)


def mismatch(name: str, what: str) -> NotLiftableError:
    return NotLiftableError(f"the equations of the step are not those of {name}: {what}")


class StepEquations:
    """The equations of one step.

    Args:
        states: The atoms of the states, H first.
        new: The new states, as vectors.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ.
    """

    def __init__(
        self, atoms: Atoms, states: Sequence[Block], new: Sequence[AffineForm], semantics: Semantics
    ) -> None:
        self.atoms, self.states, self.semantics = atoms, states, semantics
        self.new = forms = [form.simplify() for form in new]
        self.size = states[0].size
        # Most mismatches show in the first unit: polynomials are computed only for the units compared.
        self.polynomial = functools.cache(lambda state, unit: atoms.polynomial(forms[state], unit))

    def activation(self, atom: int) -> Activation | None:
        return self.atoms.block(atom).function

    def factor_out_gate(self, polynomial: Polynomial, which: int) -> tuple[int, Polynomial] | None:
        """Return an activation that divides every term, and the quotient; `which` picks among several."""
        keys = iter(polynomial)
        shared = set(next(keys, ()))
        for key in keys:
            shared &= {*key}
        gates = sorted(atom for atom in shared if self.activation(atom) is not None)
        if not gates:
            return None
        gate = gates[which]
        return gate, {divide(key, gate): value for key, value in polynomial.items()}

    def gate(self, ids: Sequence[int], scale: float = 1.0, *, keeps_argument: bool = False) -> Gate:
        """Return the gate whose units are these activations, times a factor."""
        functions = {self.activation(atom) for atom in ids}
        (function, *others) = functions
        if others:
            raise NotLiftableError("the units of a gate have different activations")
        if function is None:
            raise NotLiftableError("a gate is not an activation")
        argument, clip = self.atoms.arguments(ids).simplify(), None
        beta = 1.0
        inner = self.atoms.as_activations(argument)
        if inner is not None:
            atoms, factor = inner
            (first, *others) = {self.activation(atom) for atom in atoms}
            if others or first is None or first.name != "Clip" or first.alpha != -(first.beta or 0):
                raise NotLiftableError("an activation of an activation is not part of a cell")
            argument, clip, beta = self.atoms.arguments(atoms).simplify(), first.beta, factor
        if function == Activation("Clip", 0.0, np.inf):
            function = Activation("Relu")
        if function.name == "Clip" and clip is None and (bounded := _bounded_gate(function, argument, scale)):
            return bounded
        if function == Activation("Clip", 0.0, 1.0):
            if clip is None and not keeps_argument:
                # More runtimes compute the default parameters correctly.
                argument = dataclasses.replace(argument, constant=argument.constant - 0.5)
                argument = argument.scale(5.0)
                function = Activation("HardSigmoid", 0.2, 0.5)
            else:
                function = Activation("HardSigmoid", 1.0, 0.0)
        if function == LOG_OF_EXP:
            function = Activation("Softplus")
        elif function.name == "Softplus" and self.semantics == "ort":
            raise NotLiftableError("onnxruntime's operators overflow in Softplus, where the step does not")
        if function.name == "Clip":
            bounds = f"from {function.alpha:g} to {function.beta:g}"
            raise NotLiftableError(f"no activation of a cell returns its argument {bounds} alone")
        if function.name not in _ACTIVATIONS:
            raise NotLiftableError(f"{function.name} is not an activation of a cell")
        if (scale, beta) != (1.0, 1.0):
            if function.name != "Tanh":
                raise NotLiftableError(f"no cell scales the result of {function.name}")
            return Gate(
                Activation("ScaledTanh", round_to_float32(scale), round_to_float32(beta)), argument, clip
            )
        return Gate(function, argument, clip)

    def split(self, form: AffineForm) -> Preactivation:
        """Split a vector into weights, biases and other terms."""
        form = form.simplify()
        weights: dict[int, Floats] = {}
        rest: list[Polynomial] = [{} for _ in range(form.constant.size)]
        for row, coefs in zip(form.ids, form.coefs, strict=True):
            for atom in np.unique(row).tolist():
                where = np.flatnonzero((row == atom) & (coefs != 0))
                if self.atoms.kind(atom) == "variable":
                    self.add_coefficients(weights, atom, where, coefs[where])
                    continue
                if len(where) > 1 and any(map(self.activation, self.atoms.factors(atom))):
                    raise NotLiftableError("several units of a gate read one activation")
                for j in where.tolist():
                    for key, value in self.atoms.expand(atom, float(coefs[j])).items():
                        rest[j][key] = rest[j].get(key, 0.0) + value
        parts = self.split_polynomials(rest, weights)
        return dataclasses.replace(parts, bias=form.constant + parts.bias)

    def add_coefficients(
        self, weights: dict[int, Floats], atom: int, units: int | Ids, coefs: float | Floats
    ) -> None:
        """Add coefficients of a variable to its weights in some units."""
        block = self.atoms.block(atom)
        if block.start not in weights:
            weights[block.start] = np.zeros((block.size, self.size))
        weights[block.start][atom - block.start, units] += coefs

    def stack_weights(self, gates: Sequence[Preactivation]) -> tuple[dict[int, Floats], Floats, Floats]:
        """Stack the gates; return W by input, R, and B with zeros as Rb."""
        states = [block.start for block in self.states]
        inputs = {start for gate in gates for start in gate.weights} - {*states}
        sizes = {start: self.atoms.block(start).size for start in (*inputs, *states)}

        def stacked(start: int) -> Floats:
            none = np.zeros((sizes[start], self.size))
            return np.concatenate([gate.weights.get(start, none).T for gate in gates])

        W = {start: stacked(start) for start in sorted(inputs)}
        biases = [gate.bias for gate in gates]
        return W, stacked(states[0]), np.concatenate([*biases, *map(np.zeros_like, biases)])

    def candidate(self, polynomials: Sequence[Polynomial]) -> tuple[Gate, Sequence[Polynomial]]:
        """Return the gate of a candidate state, and its argument unit by unit."""
        ids = [next(iter(key)) for polynomial in polynomials for key in polynomial if len(key) == 1]
        scales = [value for polynomial in polynomials for value in polynomial.values()]
        functions = {self.activation(atom) for atom in ids}
        is_gate = all(len(polynomial) == 1 for polynomial in polynomials) and len(ids) == self.size
        if is_gate and len(functions) == 1 and None not in functions:
            gate = self.gate(ids, common_value(scales, "a factor of the candidate"))
            argument = gate.argument.simplify()
            return gate, [self.atoms.polynomial(argument, j) for j in range(self.size)]
        return Gate(Activation("Affine", 1.0, 0.0), self.new[0], None), polynomials

    def split_polynomials(
        self, polynomials: Sequence[Polynomial], weights: dict[int, Floats] | None = None
    ) -> Preactivation:
        """Split polynomials, one per unit; add the coefficients of variables to `weights`."""
        weights = {} if weights is None else weights
        bias = np.zeros(self.size)
        rest: list[Polynomial] = []
        for j, polynomial in enumerate(polynomials):
            rest.append({})
            for key, value in polynomial.items():
                if not key:
                    bias[j] = value
                elif len(key) == 1 and self.atoms.kind(key[0]) == "variable":
                    self.add_coefficients(weights, key[0], j, value)
                else:
                    rest[-1][key] = value
        return Preactivation(weights, bias, rest)

    def as_form(self, polynomials: Sequence[Polynomial]) -> AffineForm:
        keys = sorted({key for polynomial in polynomials for key in polynomial if key})
        if any(len(key) > 1 for key in keys):
            raise mismatch("LSTM", "the argument of a gate is not a sum of products with weights")
        coefs = np.array([[p.get(key, 0.0) for p in polynomials] for key in keys])
        coefs = coefs.reshape(len(keys), len(polynomials))
        constant = np.array([p.get((), 0.0) for p in polynomials])
        ids = np.array([key[0] for key in keys], np.int64).reshape(-1, 1)
        return AffineForm(ids, coefs, constant, ("",))


def _bounded_gate(clip: Activation, argument: AffineForm, scale: float) -> Gate | None:
    """Return the gate of a clip times a factor, as of Relu6 or Hardtanh: an operator clips the argument."""
    assert clip.alpha is not None
    assert clip.beta is not None
    low, high = clip.alpha * scale, clip.beta * scale
    if scale <= 0 or not 0 < high < np.inf or (low, high) == (0, 1):
        return None
    function = {0.0: Activation("Relu"), -high: Activation("Affine", 1.0, 0.0)}.get(low)
    return None if function is None else Gate(function, argument.scale(scale), round_to_float32(high))


def common_value(values: Sequence[float], what: str) -> float:
    if not np.allclose(values, values[0], rtol=1e-6, atol=0):
        raise NotLiftableError(f"{what} differs from unit to unit")
    return values[0]


def common_clip(gates: Sequence[Gate]) -> float | None:
    clips = {gate.clip for gate in gates}
    if len(clips) != 1:
        raise NotLiftableError("some gates are clipped and others are not")
    return clips.pop()


def are_equivalent(atoms: Atoms, pairs: Iterable[tuple[AffineForm, AffineForm]]) -> bool:
    """Return whether the two forms of each pair are equal, where activations of equal arguments are equal."""
    keys: dict[int, int] = {}
    names: dict[object, int] = {}

    def key(atom: int) -> int:
        if atom not in keys:
            block = atoms.block(atom)
            content: object = atom
            if block.kind == "function" and block.form is not None:
                content = (block.function, terms(block.form, atom - block.start))
            keys[atom] = names.setdefault(content, len(names))
        return keys[atom]

    def terms(form: AffineForm, place: int) -> object:
        found: dict[object, float] = {}
        for monomial, coef in atoms.polynomial(form, place).items():
            term = tuple(sorted(map(key, monomial)))
            found[term] = found.get(term, 0.0) + coef
        return frozenset((term, float(f"{coef:.6g}")) for term, coef in found.items() if coef)

    return all(
        one.constant.shape == other.constant.shape
        and all(terms(one, j) == terms(other, j) for j in range(one.constant.size))
        for one, other in ([form.flatten().simplify() for form in pair] for pair in pairs)
    )


def is_close(first: Mapping[Monomial, float], second: Mapping[Monomial, float]) -> bool:
    """Return whether two polynomials are equal, up to the rounding of their coefficients."""
    keys = {*first, *second}
    return all(math.isclose(first.get(key, 0.0), second.get(key, 0.0), rel_tol=1e-6) for key in keys)


def divide(key: Monomial, atom: int) -> Monomial:
    """Divide a product of atoms by one of them."""
    place = key.index(atom)
    return (*key[:place], *key[place + 1 :])


def drop_zeros(polynomial: Polynomial) -> Polynomial:
    """Drop the terms whose coefficients cancel."""
    return {key: value for key, value in polynomial.items() if abs(value) > 1e-9}
