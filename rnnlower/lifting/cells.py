"""The comparison of a step's equations with those of LSTM, GRU and RNN."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.forms import Atoms, Block, Floats, Form, Function, Polynomial, is_same
from rnnlower.recurrent.node import Activation, Semantics

_OPEN = 100.0
"""The argument at which Sigmoid is 1 in every floating-point type."""
_PLAIN = (
    "Elu",
    "HardSigmoid",
    "LeakyRelu",
    "Relu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
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
    """

    op_type: str
    W: Mapping[int, Floats]
    R: Floats
    B: Floats
    activations: tuple[Activation, ...]
    clip: float | None = None
    P: Floats | None = None
    input_forget: bool = False
    linear_before_reset: bool = False

    @property
    def hidden_size(self) -> int:
        """The number of units."""
        return int(self.R.shape[1])


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Sums of atoms, taken apart: one column for each element."""

    given: Mapping[int, Floats]
    constant: Floats
    rest: Sequence[Polynomial]


@dataclasses.dataclass(frozen=True)
class _Gate:
    """A gate: an activation of a sum."""

    activation: Activation
    argument: Form
    clip: float | None


def match_cell(atoms: Atoms, states: Sequence[Block], new: Sequence[Form], semantics: Semantics) -> Cell:
    """Return the cell that computes these new states, H first.

    Raises:
        NotLiftableError: There is none.
    """
    reasons = []
    for match in (_match_lstm,) if len(states) == 2 else (_match_gru, _match_rnn):
        for choice in itertools.product((0, -1), repeat=2):
            try:
                return match(_Step(atoms, states, new, semantics, choice))
            except NotLiftableError as error:
                reasons.append(str(error))
    raise NotLiftableError(reasons[0])


def _differs(name: str, what: str) -> NotLiftableError:
    return NotLiftableError(f"the equations of the step are not those of {name}: {what}")


class _Step:
    """The equations of one step.

    Args:
        atoms: The atoms.
        states: The atoms of the states, H first.
        new: The new states, as vectors.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ.
        choice: Which of two factors is the gate where both could be one.
    """

    def __init__(
        self,
        atoms: Atoms,
        states: Sequence[Block],
        new: Sequence[Form],
        semantics: Semantics,
        choice: tuple[int, ...],
    ) -> None:
        self.atoms, self.states, self.semantics, self.choice = atoms, states, semantics, choice
        self.new = [form.merged() for form in new]
        self.size = states[0].size
        self.polynomials = [[atoms.polynomial(form, j) for j in range(self.size)] for form in self.new]

    def function_of(self, atom: int) -> Function | None:
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
        return gate, {_without(key, gate): value for key, value in polynomial.items()}

    def gate(self, ids: Sequence[int], scale: float = 1.0, *, keeps_argument: bool = False) -> _Gate:
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
            of = {self.function_of(atom) for atom in atoms}
            (first, *others) = of
            if (
                not others
                and first is not None
                and first.name == "Clip"
                and first.alpha == -(first.beta or 0)
            ):
                argument, clip, beta = self.atoms.argument(atoms).merged(), first.beta, factor
            elif others or first is not None:
                raise NotLiftableError("an activation of an activation is not part of a cell")
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
        self, function: Function, scale: float, beta: float, argument: Form, clip: float | None, keeps: bool
    ) -> _Gate:
        """Return a gate in the terms of the ONNX spec."""
        name = function.name
        if name == "Clip" and (function.alpha, function.beta) == (0.0, np.inf):
            function, name = Function("Relu"), "Relu"
        if name == "Clip" and (function.alpha, function.beta) == (0.0, 1.0):
            if clip is None and not keeps:
                # The default parameters, which more runtimes compute correctly.
                argument = dataclasses.replace(argument, constant=argument.constant - 0.5)
                argument, function = (
                    argument.scaled(np.array(5.0), argument.tags),
                    Function("HardSigmoid", 0.2, 0.5),
                )
            else:
                function = Function("HardSigmoid", 1.0, 0.0)
            name = "HardSigmoid"
        if name not in _PLAIN:
            raise NotLiftableError(f"{name} is no activation of a cell")
        if (scale, beta) != (1.0, 1.0):
            if name != "Tanh":
                raise NotLiftableError(f"no cell multiplies the result of {name}")
            return _Gate(Activation("ScaledTanh", _rounded(scale), _rounded(beta)), argument, clip)
        return _Gate(Activation(name, function.alpha, function.beta), argument, clip)

    def sums(self, form: Form) -> _Sums:
        """Take sums apart."""
        form = form.merged()
        given: dict[int, Floats] = {}
        rest: list[Polynomial] = [{} for _ in range(form.constant.size)]
        for row, coefs in zip(np.broadcast_to(form.ids, form.coefs.shape), form.coefs, strict=True):
            for atom in np.unique(row).tolist():
                where = np.flatnonzero((row == atom) & (coefs != 0))
                block = self.atoms.block(int(atom))
                if block.kind == "given":
                    matrix = given.setdefault(block.start, np.zeros((block.size, form.constant.size)))
                    matrix[int(atom) - block.start, where] += coefs[where]
                    continue
                for j in where.tolist():
                    for key, value in self.atoms.expanded(int(atom), float(coefs[j])).items():
                        rest[j][key] = rest[j].get(key, 0.0) + value
        for unit, polynomial in enumerate(rest):
            for key in [key for key in polynomial if len(key) == 1 and self.atoms.kind(key[0]) == "given"]:
                block = self.atoms.block(key[0])
                matrix = given.setdefault(block.start, np.zeros((block.size, form.constant.size)))
                matrix[key[0] - block.start, unit] += polynomial.pop(key)
        constant = form.constant.copy()
        for unit, polynomial in enumerate(rest):
            constant[unit] += polynomial.pop((), 0.0)
        return _Sums(given, constant, rest)

    def weights(self, gates: Sequence[_Sums]) -> tuple[dict[int, Floats], Floats, Floats]:
        """Return W by input, R and Wb of gates."""
        states = [block.start for block in self.states]
        inputs = {start for gate in gates for start in gate.given} - {*states}
        sizes = {start: self.atoms.block(start).size for start in (*inputs, *states)}

        def stacked(start: int) -> Floats:
            none = np.zeros((sizes[start], self.size))
            return np.concatenate([gate.given.get(start, none).T for gate in gates])

        W = {start: stacked(start) for start in sorted(inputs)}
        return W, stacked(states[0]), np.concatenate([gate.constant for gate in gates])


def _without(key: tuple[int, ...], atom: int) -> tuple[int, ...]:
    place = key.index(atom)
    return (*key[:place], *key[place + 1 :])


def _rounded(number: float) -> float:
    return float(np.float32(number))


def _same(values: Sequence[float], what: str) -> float:
    if not np.allclose(values, values[0], rtol=1e-6, atol=0):
        raise NotLiftableError(f"{what} differs from unit to unit")
    return values[0]


def _match_rnn(step: _Step) -> Cell:
    single = step.single(step.new[0])
    if single is None:
        raise _differs("LSTM, GRU or RNN", "a state is not a gate's product, nor an activation")
    gate = step.gate(*single)
    sums = step.sums(gate.argument)
    if any(sums.rest):
        raise _differs("RNN", "the argument of the activation is not a sum of products with weights")
    W, R, bias = step.weights([sums])
    if not R.any():
        raise _differs("RNN", "the new state does not depend on the old one")
    return Cell("RNN", W, R, np.concatenate([bias, np.zeros_like(bias)]), (gate.activation,), gate.clip)


def _one_clip(gates: Sequence[_Gate]) -> float | None:
    clips = {gate.clip for gate in gates}
    if len(clips) != 1:
        raise NotLiftableError("some gates are clipped and others are not")
    return clips.pop()


def _match_gru(step: _Step) -> Cell:
    name = "GRU"
    (h,) = step.states
    z_ids: list[int] = []
    candidates: list[Polynomial] = []
    scales: list[float] = []
    swapped: set[int] = set()
    for j, polynomial in enumerate(step.polynomials[0]):
        gate, factor, candidate, is_swapped = _update_gate(step, polynomial, h.start + j)
        z_ids.append(gate)
        candidates.append(candidate)
        scales.append(factor)
        if is_swapped:
            swapped.add(j)
    if len(swapped) not in (0, step.size):
        raise _differs(name, "units differ in the sense of the update gate")
    scale = _same(scales, "a factor of the update gate")
    update = step.gate(z_ids, scale)
    z = step.sums(update.argument)
    if swapped:
        if update.activation.name != "Sigmoid":
            raise _differs(name, f"1 - z of {update.activation.name} is no activation")
        z = _Sums({key: -value for key, value in z.given.items()}, -z.constant, z.rest)
    new, inner = _candidate(step, candidates)
    reset, r, n, recurrent, is_linear = _reset(step, inner, scale)
    if any(z.rest) or any(r.rest) or any(n.rest):
        raise _differs(name, "the argument of a gate is not a sum of products with weights")
    if reset is not None and reset.activation != update.activation:
        raise _differs(name, "the gates have different activations")
    if reset is None and update.activation.name != "Sigmoid":
        raise _differs(name, "it has no reset gate")
    clip = _one_clip([gate for gate in (update, reset, new) if gate is not None])
    if reset is None and clip is not None:
        raise _differs(name, "it has no reset gate, and a clip")
    W, R, bias = step.weights([z, r, n])
    size = step.size
    recurrent_bias = np.zeros(3 * size)
    if recurrent is not None:
        R = R.copy()
        R[2 * size :] += recurrent.given.get(h.start, np.zeros((size, size))).T
        recurrent_bias[2 * size :] = recurrent.constant
    activations = (update.activation, new.activation)
    return Cell(
        "GRU", W, R, np.concatenate([bias, recurrent_bias]), activations, clip, linear_before_reset=is_linear
    )


def _update_gate(step: _Step, polynomial: Polynomial, own: int) -> tuple[int, float, Polynomial, bool]:
    """Return the update gate of a unit, its factor, the candidate, and whether the gate is 1 - z."""
    for key in polynomial:
        if len(key) != 2 or own not in key or step.function_of(_without(key, own)[0]) is None:
            continue
        gate, factor = _without(key, own)[0], polynomial[key]
        free = {each: value for each, value in polynomial.items() if gate not in each}
        gated = {_without(each, gate): value / factor for each, value in polynomial.items() if gate in each}
        keys = {*free, *gated}
        if is_same(
            _cleaned({each: free.get(each, 0.0) + gated.get(each, 0.0) for each in keys}), {(own,): 1.0}
        ):
            return gate, factor, free, False
        if is_same(free, {(own,): 1.0}) and factor == -1:
            # h + z (n - h)
            candidate = {each: free.get(each, 0.0) - gated.get(each, 0.0) for each in keys}
            return gate, 1.0, _cleaned(candidate), True
    raise _differs("GRU", "the new state is not (1 - z) n + z h")


def _cleaned(polynomial: Polynomial) -> Polynomial:
    """Return a polynomial without the terms that cancel out."""
    return {key: value for key, value in polynomial.items() if abs(value) > 1e-9}


def _candidate(step: _Step, polynomials: Sequence[Polynomial]) -> tuple[_Gate, Sequence[Polynomial]]:
    """Return the candidate's activation and the sums behind it."""
    ids = [next(iter(key)) for polynomial in polynomials for key in polynomial if len(key) == 1]
    scales = [value for polynomial in polynomials for value in polynomial.values()]
    if (
        all(len(polynomial) == 1 for polynomial in polynomials)
        and len(ids) == step.size
        and all(step.function_of(atom) is not None for atom in ids)
    ):
        scale = _same(scales, "a factor of the candidate")
        if (
            len({step.function_of(atom) for atom in ids}) == 1
            and (step.function_of(ids[0]) or Function("")).name != "Clip"
        ):
            gate = step.gate(ids, scale)
            argument = gate.argument.merged()
            return gate, [step.atoms.polynomial(argument, j) for j in range(step.size)]
    return _linear_gate(step, polynomials)


def _linear_gate(step: _Step, polynomials: Sequence[Polynomial]) -> tuple[_Gate, Sequence[Polynomial]]:
    """Return Affine, with a clip behind it if there is one, and the sums behind it."""
    clips: list[int] = []
    for polynomial in polynomials:
        found = [
            key[0]
            for key in polynomial
            if len(key) == 1 and (step.function_of(key[0]) or Function("")).name == "Clip"
        ]
        if len(found) == 1 and {*polynomial} <= {(), (found[0],)}:
            clips.append(found[0])
    if len(clips) == step.size:
        alpha = _same([p[(atom,)] for p, atom in zip(polynomials, clips, strict=True)], "a factor")
        beta = _same([p.get((), 0.0) for p in polynomials], "a constant")
        block = step.function_of(clips[0])
        assert block is not None
        if block.alpha != -(block.beta or 0):
            raise NotLiftableError("a clip of a cell has one bound for both signs")
        argument = step.atoms.argument(clips).merged()
        gate = _Gate(Activation("Affine", _rounded(alpha), _rounded(beta)), argument, block.beta)
        return gate, [step.atoms.polynomial(argument, j) for j in range(step.size)]
    argument = step.new[0]
    return _Gate(Activation("Affine", 1.0, 0.0), argument, None), polynomials


def _reset(
    step: _Step, candidates: Sequence[Polynomial], scale: float
) -> tuple[_Gate | None, _Sums, _Sums, _Sums | None, bool]:
    """Return the reset gate, its sums, those of the candidate, what the gate multiplies, and the form."""
    (h,) = step.states
    size = step.size
    own = range(h.start, h.start + h.size)
    plain = [
        {key: value for key, value in p.items() if len(key) < 2 and not _has_function(step, key)}
        for p in candidates
    ]
    gated = [
        {key: value for key, value in p.items() if key not in rest}
        for p, rest in zip(candidates, plain, strict=True)
    ]
    gated = [{key: value / scale for key, value in p.items()} for p in gated]
    none = _Sums({}, np.zeros(size), [{} for _ in range(size)])
    if not any(gated):
        return (
            None,
            dataclasses.replace(none, constant=np.full(size, _OPEN)),
            _as_sums(step, plain),
            None,
            False,
        )
    before = _reset_before(step, gated, own)
    if before is not None and not any((i,) in p for p in plain for i in own):
        ids, R = before
        gate = step.gate(ids, scale)
        sums = _as_sums(step, plain)
        return (
            gate,
            step.sums(gate.argument),
            dataclasses.replace(sums, given={**sums.given, h.start: R}),
            None,
            False,
        )
    ids, inner = [], []
    for polynomial in gated:
        found = step.common(polynomial, 0)
        if found is None:
            raise _differs("GRU", "the reset gate does not multiply what follows from the state")
        ids.append(found[0])
        inner.append(found[1])
    gate = step.gate(ids, scale)
    recurrent = _as_sums(step, inner)
    if {*recurrent.given} - {h.start} or any((i,) in p for p in plain for i in own):
        raise _differs("GRU", "the reset gate multiplies more than the product with the state")
    return gate, step.sums(gate.argument), _as_sums(step, plain), recurrent, True


def _has_function(step: _Step, key: tuple[int, ...]) -> bool:
    return any(step.function_of(atom) is not None for atom in key)


def _reset_before(step: _Step, gated: Sequence[Polynomial], own: range) -> tuple[list[int], Floats] | None:
    """Return the reset gate of each unit of H and R, if the gate multiplies H before the product."""
    gates: dict[int, int] = {}
    R = np.zeros((len(own), step.size))
    for j, polynomial in enumerate(gated):
        for key, value in polynomial.items():
            units = [atom for atom in key if atom in own]
            if len(key) != 2 or len(units) != 1:
                return None
            gate = _without(key, units[0])[0]
            if step.function_of(gate) is None or gates.setdefault(units[0], gate) != gate:
                return None
            R[units[0] - own.start, j] = value
    if len(gates) < step.size:
        return None
    return [gates[atom] for atom in own], R


def _as_sums(step: _Step, polynomials: Sequence[Polynomial]) -> _Sums:
    given: dict[int, Floats] = {}
    constant = np.zeros(step.size)
    rest: list[Polynomial] = []
    for j, polynomial in enumerate(polynomials):
        rest.append({})
        for key, value in polynomial.items():
            if not key:
                constant[j] = value
            elif len(key) == 1 and step.atoms.kind(key[0]) == "given":
                block = step.atoms.block(key[0])
                given.setdefault(block.start, np.zeros((block.size, step.size)))[key[0] - block.start, j] = (
                    value
                )
            else:
                rest[-1][key] = value
    return _Sums(given, constant, rest)


def _match_lstm(step: _Step) -> Cell:
    name = "LSTM"
    c = step.states[1]
    f_ids: list[int] = []
    i_ids: list[int] = []
    o_ids: list[int] = []
    g_part: list[Polynomial] = []
    t_part: list[Polynomial] = []
    scales: list[float] = []
    coupled: set[int] = set()
    opposite: set[int] = set()
    for j, polynomial in enumerate(step.polynomials[1]):
        own = c.start + j
        kept = {key: value for key, value in polynomial.items() if own in key}
        rest = {key: value for key, value in polynomial.items() if own not in key}
        added = step.common(rest, step.choice[0])
        if added is None:
            raise _differs(name, "the cell state gets nothing that an input gate multiplies")
        source, part = added
        keys = [key for key in kept if len(key) == 2]
        if len(kept) == 1 and keys:
            f_ids.append(_without(keys[0], own)[0])
            scales.append(kept[keys[0]])
            free = {key: value for key, value in rest.items() if f_ids[-1] not in key}
            gated = {_without(key, f_ids[-1]): -v for key, v in rest.items() if f_ids[-1] in key}
            if free and scales[-1] == 1 and is_same(free, gated):
                # i = 1 - f
                source, part = f_ids[-1], free
                opposite.add(j)
        elif len(kept) == 2 and len(keys) == 1 and kept.get((own,)) == 1.0:
            # f = 1 - i
            source = _without(keys[0], own)[0]
            if any(source not in key for key in rest):
                raise _differs(name, "the cell state is not f c + i g")
            part = {_without(key, source): value for key, value in rest.items()}
            coupled.add(j)
            scales.append(-kept[keys[0]])
        elif {*kept} == {(own,)} and kept[(own,)] == 1.0:
            scales.append(1.0)
        else:
            raise _differs(name, "the cell state is not f c + i g")
        i_ids.append(source)
        g_part.append(part)
        output = step.common(step.polynomials[0][j], step.choice[1])
        if output is None:
            raise _differs(name, "the state is not o act(c)")
        o_ids.append(output[0])
        t_part.append(output[1])
    if any(len(units) not in (0, step.size) for units in (f_ids, coupled, opposite)):
        raise _differs(name, "units differ in their forget gate")
    scale = _same(scales, "a factor of the forget gate")
    i, o = step.gate(i_ids, scale), step.gate(o_ids, scale)
    f = step.gate(f_ids, scale) if f_ids else None
    g = _input_activation(step, [{key: v / scale for key, v in p.items()} for p in g_part])
    activation = _output_activation(step, [{key: v / scale for key, v in p.items()} for p in t_part], i.clip)
    if coupled and i.activation.name == "Sigmoid":
        # More runtimes compute this than input_forget.
        f, coupled = _opposite(i), set()
    if opposite:
        i = _opposite(i)
    gates = [gate for gate in (i, o, f, g) if gate is not None]
    if any(gate.activation != i.activation for gate in (o, f) if gate is not None):
        raise _differs(name, "the gates have different activations")
    clip = _one_clip(gates)
    if f is None and not coupled and (clip is not None or i.activation.name != "Sigmoid"):
        raise _differs(name, "it has no forget gate")
    return _lstm(step, (i, o, f, g), (i.activation, g.activation, activation), clip, coupled=bool(coupled))


def _opposite(gate: _Gate) -> _Gate:
    """Return 1 minus a gate.

    Raises:
        NotLiftableError: That is another activation.
    """
    if gate.activation.name != "Sigmoid":
        raise _differs("LSTM", f"1 minus {gate.activation.name} is no activation")
    return dataclasses.replace(gate, argument=gate.argument.scaled(np.array(-1.0), gate.argument.tags))


def _input_activation(step: _Step, polynomials: Sequence[Polynomial]) -> _Gate:
    gate, inner = _candidate(step, polynomials)
    if gate.activation.name == "Affine" and gate.clip is None:
        # What is linear has no form of its own in the step.
        return dataclasses.replace(gate, argument=_as_form(step, inner))
    return gate


def _as_form(step: _Step, polynomials: Sequence[Polynomial]) -> Form:
    keys = sorted({key for polynomial in polynomials for key in polynomial if key})
    if any(len(key) > 1 for key in keys):
        raise _differs("LSTM", "the argument of a gate is not a sum of products with weights")
    coefs = np.array([[p.get(key, 0.0) for p in polynomials] for key in keys]).reshape(len(keys), -1)
    constant = np.array([p.get((), 0.0) for p in polynomials])
    ids = np.array([key[0] for key in keys], np.int64).reshape(-1, 1)
    return Form(ids, coefs, constant, ("",))


def _output_activation(step: _Step, polynomials: Sequence[Polynomial], clip: float | None) -> Activation:
    """Return the activation of the cell state in H."""
    cells = step.polynomials[1]
    single = [next(iter(p)) for p in polynomials if len(p) == 1]
    if len(single) == step.size and all(
        len(key) == 1 and step.function_of(key[0]) is not None for key in single
    ):
        ids = [key[0] for key in single]
        scale = _same([next(iter(p.values())) for p in polynomials], "a factor of the output")
        gate = step.gate(ids, scale, keeps_argument=True)
        if gate.clip is not None and (gate.clip != clip or step.semantics != "spec"):
            raise _differs("LSTM", "the cell state is clipped before its activation")
        factors = _ratios(step, gate.argument, cells)
        if gate.clip is None and clip is not None and step.semantics == "spec":
            raise _differs("LSTM", "the cell state is not clipped before its activation")
        beta = _same(factors, "a factor of the cell state")
        if abs(beta - 1) < 1e-7:
            return gate.activation
        if gate.activation.name not in ("Tanh", "ScaledTanh"):
            raise _differs("LSTM", "the cell state has a factor in its activation")
        alpha = 1.0 if gate.activation.alpha is None else gate.activation.alpha
        return Activation("ScaledTanh", alpha, _rounded(beta * (gate.activation.beta or 1.0)))
    alphas, betas = [], []
    for polynomial, cell in zip(polynomials, cells, strict=True):
        key = next((key for key in cell if key), None)
        if key is None or key not in polynomial:
            raise _differs("LSTM", "the state is not o act(c)")
        alpha = polynomial[key] / cell[key]
        beta = polynomial.get((), 0.0) - alpha * cell.get((), 0.0)
        expected = {each: alpha * value for each, value in cell.items()}
        expected[()] = expected.get((), 0.0) + beta
        if not is_same(_cleaned(expected), _cleaned(polynomial)):
            raise _differs("LSTM", "the state is not o act(c)")
        alphas.append(alpha)
        betas.append(beta)
    if clip is not None and step.semantics == "spec":
        raise _differs("LSTM", "the cell state is not clipped before its activation")
    return Activation("Affine", _rounded(_same(alphas, "a factor")), _rounded(_same(betas, "a constant")))


def _ratios(step: _Step, argument: Form, cells: Sequence[Polynomial]) -> list[float]:
    """Return the factor by which each argument is a multiple of the cell state."""
    argument = argument.merged()
    factors = []
    for j, cell in enumerate(cells):
        polynomial = step.atoms.polynomial(argument, j)
        key = next(iter(cell), None)
        factor = polynomial.get(key, 0.0) / cell[key] if key is not None else 0.0
        if not factor or not is_same(polynomial, {each: factor * value for each, value in cell.items()}):
            raise _differs("LSTM", "the state is not o act(c)")
        factors.append(factor)
    return factors


def _lstm(
    step: _Step,
    gates: tuple[_Gate, _Gate, _Gate | None, _Gate],
    activations: tuple[Activation, ...],
    clip: float | None,
    *,
    coupled: bool,
) -> Cell:
    size, c = step.size, step.states[1].start
    none = np.zeros((size, size))
    peepholes: list[Floats] = []
    all_sums = []
    for letter, gate in zip("iofc", gates, strict=True):
        if gate is None:
            constant = np.full(size, 0.0 if coupled else _OPEN)
            all_sums.append(_Sums({}, constant, [{} for _ in range(size)]))
            peepholes.append(np.zeros(size))
            continue
        sums = step.sums(gate.argument)
        if letter == "o":
            sums, peephole = _output_peephole(step, sums)
        else:
            matrix = sums.given.get(c, none)
            peephole = matrix.diagonal().copy()
            if (matrix - np.diag(peephole)).any() or (letter == "c" and peephole.any()):
                raise _differs("LSTM", "a gate reads the cell states of other units")
        if any(sums.rest):
            raise _differs("LSTM", "the argument of a gate is not a sum of products with weights")
        peepholes.append(peephole)
        all_sums.append(dataclasses.replace(sums, given={k: v for k, v in sums.given.items() if k != c}))
    W, R, bias = step.weights(all_sums)
    P = np.concatenate(peepholes[:3])
    bias = np.concatenate([bias, np.zeros_like(bias)])
    return Cell("LSTM", W, R, bias, activations, clip, P if P.any() else None, input_forget=coupled)


def _output_peephole(step: _Step, sums: _Sums) -> tuple[_Sums, Floats]:
    """Take the new cell state, times a peephole, out of the sums of the output gate."""
    c = step.states[1]
    peephole = np.zeros(step.size)
    matrix = sums.given.get(c.start, np.zeros((step.size, step.size))).copy()
    given = {key: value.copy() for key, value in sums.given.items()}
    constant, rest = sums.constant.copy(), []
    for j, polynomial in enumerate(sums.rest):
        cell = step.polynomials[1][j]
        key = next((key for key in cell if len(key) > 1 and key in polynomial), None)
        if key is not None:
            peephole[j] = polynomial[key] / cell[key]
        left = dict(polynomial)
        for each, value in cell.items():
            if not peephole[j]:
                break
            if not each:
                constant[j] -= peephole[j] * value
            elif len(each) == 1 and step.atoms.kind(each[0]) == "given":
                block = step.atoms.block(each[0])
                target = (
                    matrix
                    if block.start == c.start
                    else given.setdefault(block.start, np.zeros((block.size, step.size)))
                )
                target[each[0] - block.start, j] -= peephole[j] * value
            else:
                left[each] = left.get(each, 0.0) - peephole[j] * value
        largest = max([abs(value) for value in polynomial.values()], default=1.0)
        rest.append({key: value for key, value in left.items() if abs(value) > 1e-6 * largest})
    if np.abs(matrix).max(initial=0.0) > 1e-6 * max(1.0, np.abs(peephole).max(initial=0.0)):
        raise _differs("LSTM", "the output gate reads the old cell state")
    return _Sums({k: v for k, v in given.items() if k != c.start}, constant, rest), peephole
