"""Cells that are known, but no operator's: they stay, and the reason names them."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from rnnlower.lifting.affine_forms import NotLiftableError, Polynomial
from rnnlower.lifting.equations import StepEquations, divide, is_close
from rnnlower.recurrent.node import Activation


def refuse_other_cells(step: StepEquations) -> None:
    """Refuse products that no cell has.

    Raises:
        NotLiftableError: Values of before the steps multiply a state, or an activation is SiLU.
    """
    own = {atom for block in step.states for atom in range(block.start, block.start + block.size)}
    for polynomial in (step.polynomial(state, 0) for state in range(len(step.new))):
        gates = {atom: _argument(step, atom) for atom in {*chain(*polynomial)} if step.activation(atom)}
        for key in chain(polynomial, *gates.values()):
            if not own.isdisjoint(key) and any(step.atoms.kind(each) == "variable" for each in {*key} - own):
                raise NotLiftableError(
                    "it multiplies a state by values that are computed before the steps, as minGRU, QRNN and "
                    "SRU do, or by flags that restart rows, or by a mask that is not cast from a condition"
                )
        for gate, argument in gates.items():
            if step.activation(gate) == Activation("Sigmoid") and _has_product(polynomial, gate, argument):
                raise NotLiftableError("x * sigmoid(x), SiLU or Swish, is not an activation of a cell")


def _argument(step: StepEquations, atom: int) -> Polynomial:
    """Return the argument of an activation."""
    block = step.atoms.block(atom)
    return {} if block.form is None else step.atoms.polynomial(block.form, atom - block.start)


def _has_product(polynomial: Polynomial, gate: int, argument: Polynomial) -> bool:
    """Return whether a polynomial has a gate times its argument, perhaps times other gates."""
    gated = {divide(key, gate): value for key, value in polynomial.items() if gate in key}
    first = next(iter(argument), ())
    for others in (tuple((Counter(key) - Counter(first)).elements()) for key in gated):
        product = {tuple(sorted(each + others)): value for each, value in argument.items()}
        found = {key: gated.get(key, 0.0) for key in product}
        factor = found.get(tuple(sorted(first + others)), 0.0) / (argument.get(first) or 1.0)
        if factor and is_close(found, {key: factor * value for key, value in product.items()}):
            return True
    return False
