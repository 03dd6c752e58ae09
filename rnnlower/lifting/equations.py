"""The equations of one step, in the terms of the cells: gates, sums of products with weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from rnnlower.lifting.affine_forms import Atoms, Block, Floats, Form, Ids, NotLiftableError, Polynomial
from rnnlower.lifting.comparison import without
from rnnlower.recurrent.node import Activation, Semantics
from rnnlower.recurrent.parsing import round_to_float32

OPEN = 100.0
"""The argument at which Sigmoid is 1 in every floating-point type."""
_PLAIN = (
    *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid"),
    *("Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)


@dataclasses.dataclass(frozen=True)
class Cell:
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

    def same_as(self, other: Cell | None) -> Cell:
        """Return the cell of another step, which may differ in the rounding of weights; itself for none.

        Raises:
            NotLiftableError: It is another cell.
        """
        if other is None:
            return self
        if self.op_type != other.op_type:
            raise NotLiftableError("its steps are of different cells")
        pairs = [(self.R, other.R), (self.B, other.B), (self.P, other.P)]
        pairs += [(W, other.W.get(key)) for key, W in self.W.items()]
        if self != other or {*self.W} != {*other.W} or not all(_is_close(*pair) for pair in pairs):
            raise NotLiftableError("its steps have different weights")
        return other


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums of atoms, taken apart: one column for each element."""

    given: Mapping[int, Floats]
    constant: Floats
    rest: Sequence[Polynomial]


@dataclasses.dataclass(frozen=True)
class Gate:
    """A gate: an activation of a sum."""

    activation: Activation
    argument: Form
    clip: float | None


def _is_close(first: Floats | None, second: Floats | None) -> bool:
    if first is None or second is None or first is second:
        return first is second
    return first.shape == second.shape and np.allclose(second, first, rtol=1e-6, atol=1e-9)


def differs(name: str, what: str) -> NotLiftableError:
    return NotLiftableError(f"the equations of the step are not those of {name}: {what}")


class Step:
    """The equations of one step.

    Args:
        atoms: The atoms.
        states: The atoms of the states, H first.
        new: The new states, as vectors.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ.
    """

    def __init__(
        self,
        atoms: Atoms,
        states: Sequence[Block],
        new: Sequence[Form],
        semantics: Semantics,
    ) -> None:
        self.atoms, self.states, self.semantics = atoms, states, semantics
        self.new = forms = [form.merged() for form in new]
        self.size = states[0].size
        # Most of what is no cell differs in its first unit: only units that are compared are put together.
        self.polynomial = functools.cache(lambda state, unit: atoms.polynomial(forms[state], unit))

    def function_of(self, atom: int) -> Activation | None:
        return self.atoms.block(atom).function

    def common(self, polynomial: Polynomial, which: int) -> tuple[int, Polynomial] | None:
        """Return the activation that is a factor of every term, and the other factor."""
        keys = iter(polynomial)
        shared = set(next(keys, ()))
        for key in keys:
            shared &= {*key}
        gates = sorted(atom for atom in shared if self.function_of(atom) is not None)
        if not gates:
            return None
        gate = gates[which]
        return gate, {without(key, gate): value for key, value in polynomial.items()}

    def gate(self, ids: Sequence[int], scale: float = 1.0, *, keeps_argument: bool = False) -> Gate:
        """Return the gate whose units are these atoms, times a factor."""
        functions = {self.function_of(atom) for atom in ids}
        if len(functions) != 1:
            raise NotLiftableError("the units of a gate have different activations")
        (function,) = functions
        assert function is not None
        argument, clip = self.atoms.argument(ids).merged(), None
        beta = 1.0
        inner = self.single(argument)
        if inner is not None:
            atoms, factor = inner
            (first, *others) = {self.function_of(atom) for atom in atoms}
            if others or first is None or first.name != "Clip" or first.alpha != -(first.beta or 0):
                raise NotLiftableError("an activation of an activation is not part of a cell")
            argument, clip, beta = self.atoms.argument(atoms).merged(), first.beta, factor
        return self.told(function, scale, beta, argument, clip, keeps_argument)

    def single(self, form: Form) -> tuple[list[int], float] | None:
        """Return the activations that a form consists of, and the factor that they have in common."""
        form = form.merged()
        if len(form.ids) != 1 or form.constant.any():
            return None
        factors = {float(coef) for coef in form.coefs.flat}
        atoms = [int(atom) for atom in np.broadcast_to(form.ids, form.coefs.shape).flat]
        if len(factors) != 1 or any(self.function_of(atom) is None for atom in atoms):
            return None
        return atoms, factors.pop()

    def told(
        self, function: Activation, scale: float, beta: float, argument: Form, clip: float | None, keeps: bool
    ) -> Gate:
        """Return a gate in the terms of the ONNX spec."""
        if function == Activation("Clip", 0.0, np.inf):
            function = Activation("Relu")
        if function == Activation("Clip", 0.0, 1.0):
            if clip is None and not keeps:
                # The default parameters, which more runtimes compute correctly.
                argument = dataclasses.replace(argument, constant=argument.constant - 0.5)
                argument = argument.scaled(np.array(5.0), argument.tags)
                function = Activation("HardSigmoid", 0.2, 0.5)
            else:
                function = Activation("HardSigmoid", 1.0, 0.0)
        if function.name not in _PLAIN:
            raise NotLiftableError(f"{function.name} is no activation of a cell")
        if (scale, beta) != (1.0, 1.0):
            if function.name != "Tanh":
                raise NotLiftableError(f"no cell multiplies the result of {function.name}")
            return Gate(
                Activation("ScaledTanh", round_to_float32(scale), round_to_float32(beta)), argument, clip
            )
        return Gate(function, argument, clip)

    def sums(self, form: Form) -> Sums:
        """Take sums apart."""
        form = form.merged()
        given: dict[int, Floats] = {}
        rest: list[Polynomial] = [{} for _ in range(form.constant.size)]
        for row, coefs in zip(form.ids, form.coefs, strict=True):
            for atom in np.unique(row).tolist():
                where = np.flatnonzero((row == atom) & (coefs != 0))
                if self.atoms.kind(atom) == "given":
                    self.put(given, atom, where, coefs[where])
                    continue
                if len(where) > 1 and any(map(self.function_of, self.atoms.factors(atom))):
                    raise NotLiftableError("several units of a gate read one activation")
                for j in where.tolist():
                    for key, value in self.atoms.expanded(atom, float(coefs[j])).items():
                        rest[j][key] = rest[j].get(key, 0.0) + value
        sums = self.as_sums(rest, given)
        return dataclasses.replace(sums, constant=form.constant + sums.constant)

    def put(self, given: dict[int, Floats], atom: int, units: int | Ids, coefs: float | Floats) -> None:
        """Add coefficients of an atom of an input or a state to its weights in some units."""
        block = self.atoms.block(atom)
        matrix = given.setdefault(block.start, np.zeros((block.size, self.size)))
        matrix[atom - block.start, units] += coefs

    def weights(self, gates: Sequence[Sums]) -> tuple[dict[int, Floats], Floats, Floats]:
        """Return W by input, R and Wb of gates."""
        states = [block.start for block in self.states]
        inputs = {start for gate in gates for start in gate.given} - {*states}
        sizes = {start: self.atoms.block(start).size for start in (*inputs, *states)}

        def stacked(start: int) -> Floats:
            none = np.zeros((sizes[start], self.size))
            return np.concatenate([gate.given.get(start, none).T for gate in gates])

        W = {start: stacked(start) for start in sorted(inputs)}
        return W, stacked(states[0]), np.concatenate([gate.constant for gate in gates])

    def candidate(self, polynomials: Sequence[Polynomial]) -> tuple[Gate, Sequence[Polynomial]]:
        """Return the candidate's activation and the sums behind it."""
        ids = [next(iter(key)) for polynomial in polynomials for key in polynomial if len(key) == 1]
        scales = [value for polynomial in polynomials for value in polynomial.values()]
        functions = {self.function_of(atom) for atom in ids}
        is_gate = all(len(polynomial) == 1 for polynomial in polynomials) and len(ids) == self.size
        if is_gate and None not in functions:
            scale = the_same(scales, "a factor of the candidate")
            if len(functions) == 1 and (self.function_of(ids[0]) or Activation("")).name != "Clip":
                gate = self.gate(ids, scale)
                argument = gate.argument.merged()
                return gate, [self.atoms.polynomial(argument, j) for j in range(self.size)]
        return self._linear_gate(polynomials)

    def _linear_gate(self, polynomials: Sequence[Polynomial]) -> tuple[Gate, Sequence[Polynomial]]:
        """Return Affine, with a clip behind it if there is one, and the sums behind it."""
        clips: list[int] = []
        for polynomial in polynomials:
            found = [
                key[0]
                for key in polynomial
                if len(key) == 1 and (self.function_of(key[0]) or Activation("")).name == "Clip"
            ]
            if len(found) == 1 and {*polynomial} <= {(), (found[0],)}:
                clips.append(found[0])
        if len(clips) == self.size:
            alpha = the_same([p[(atom,)] for p, atom in zip(polynomials, clips, strict=True)], "a factor")
            beta = the_same([p.get((), 0.0) for p in polynomials], "a constant")
            block = self.function_of(clips[0])
            assert block is not None
            if block.alpha != -(block.beta or 0):
                raise NotLiftableError("a clip of a cell has one bound for both signs")
            argument = self.atoms.argument(clips).merged()
            gate = Gate(
                Activation("Affine", round_to_float32(alpha), round_to_float32(beta)), argument, block.beta
            )
            return gate, [self.atoms.polynomial(argument, j) for j in range(self.size)]
        argument = self.new[0]
        return Gate(Activation("Affine", 1.0, 0.0), argument, None), polynomials

    def as_sums(self, polynomials: Sequence[Polynomial], given: dict[int, Floats] | None = None) -> Sums:
        given = {} if given is None else given
        constant = np.zeros(self.size)
        rest: list[Polynomial] = []
        for j, polynomial in enumerate(polynomials):
            rest.append({})
            for key, value in polynomial.items():
                if not key:
                    constant[j] = value
                elif len(key) == 1 and self.atoms.kind(key[0]) == "given":
                    self.put(given, key[0], j, value)
                else:
                    rest[-1][key] = value
        return Sums(given, constant, rest)

    def as_form(self, polynomials: Sequence[Polynomial]) -> Form:
        keys = sorted({key for polynomial in polynomials for key in polynomial if key})
        if any(len(key) > 1 for key in keys):
            raise differs("LSTM", "the argument of a gate is not a sum of products with weights")
        coefs = np.array([[p.get(key, 0.0) for p in polynomials] for key in keys])
        coefs = coefs.reshape(len(keys), len(polynomials))
        constant = np.array([p.get((), 0.0) for p in polynomials])
        ids = np.array([key[0] for key in keys], np.int64).reshape(-1, 1)
        return Form(ids, coefs, constant, ("",))


def the_same(values: Sequence[float], what: str) -> float:
    if not np.allclose(values, values[0], rtol=1e-6, atol=0):
        raise NotLiftableError(f"{what} differs from unit to unit")
    return values[0]


def one_clip(gates: Sequence[Gate]) -> float | None:
    clips = {gate.clip for gate in gates}
    if len(clips) != 1:
        raise NotLiftableError("some gates are clipped and others are not")
    return clips.pop()
