"""The step equations of LSTM, GRU and RNN: one time step of a lane (one direction, or both), and activations.

A cell gets its gates from `Products` and returns the new state. A state of ``None`` is zero and costs
nothing. Gates that share an activation are requested together, so that one activation op can serve them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from rnnlower.errors import MissingOperatorError
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.forms import PLAIN, Form, StepWeights
from rnnlower.lowering.masks import condition_type, emit_where
from rnnlower.lowering.timeseries import States
from rnnlower.recurrent.node import Activation, ResolvedNode, Semantics

_Emit = Callable[[Emitter, ir.Value, float, float, Semantics], ir.Value]
"""``(emitter, x, alpha, beta, semantics) -> value``."""

_SHARED: Mapping[str, Sequence[str]] = {"iofc": ("iof", "c"), "zrh": ("zr", "h")}
"""Groups of gates with more than one activation, and the parts they are split into."""


@dataclasses.dataclass(frozen=True)
class CellParameters:
    """The values that the steps of one direction share.

    Attributes:
        activations: f, g, h of this direction.
        weights: The weights that the products read.
        recurrent_bias: GRU's ``Rbh``, ``[hidden_size]``, if it is added before the reset gate.
        peepholes: LSTM's P by gate, each ``[hidden_size]``.
        form: Decides the layout of values and how products are emitted.
        direction: ``forward`` or ``reverse``, or ``""`` if the steps are those of both.
    """

    node: ResolvedNode
    activations: Sequence[Activation]
    weights: StepWeights
    recurrent_bias: ir.Value | None
    peepholes: Mapping[str, ir.Value]
    form: Form = PLAIN
    direction: str = ""

    def announce(self, e: Emitter, value: ir.Value, role: str) -> ir.Value:
        """Tell the emitter's listener the role of a value of this direction."""
        return e.announce(value, role, self.direction)

    def activate(self, e: Emitter, index: int, x: ir.Value, *, clipped: bool = True) -> ir.Value:
        """Emit the direction's activation number `index` (0 is f), after the clip if the node has one."""
        if clipped and self.node.clip is not None:
            x = e.clip(x, -self.node.clip, self.node.clip)
        activation = self.activations[index]
        role = "h" if self.node.op_type == "RNN" else f"{'fgh'[index]} {activation.name}"
        return self.announce(e, _emit_activation(e, activation, x, self.node.semantics), role)


@dataclasses.dataclass(frozen=True)
class NewState:
    """The result of a step.

    Attributes:
        values: The new state, H first.
        operands: The operands of the last operator (see `LAST_OPS`), whose result is H.
    """

    values: list[ir.Value]
    operands: tuple[ir.Value, ...] = ()


class Products:
    """The matrix products of one step, and the gates computed from them.

    Args:
        p: The values that all steps share.
        x: The input products by group of gates, or X itself (under the name ``X``).
        h: H(t-1); ``None`` is zero.
    """

    def __init__(self, e: Emitter, p: CellParameters, x: Mapping[str, ir.Value], h: ir.Value | None) -> None:
        self.e, self.p, self.x, self.h = e, p, x, h
        self._pieces: dict[str, ir.Value] = {}
        self._beside: dict[ir.Value, ir.Value] = {}

    def gates(self, index: int, letters: str, more: ir.Value | None = None) -> dict[str, ir.Value]:
        """Emit the gates that share activation number `index`; `more` is added to their sum before it."""
        e = self.e
        gates: dict[str, ir.Value] = {}
        for group, value in self._sums(letters, more).items():
            activated = self.p.activate(e, index, value)
            axis = len(self.p.form.lead) + 1
            parts = e.split_evenly(activated, len(group), axis, self.p.node.hidden_size)
            gates |= {letter: e.label(part, letter) for letter, part in zip(group, parts, strict=True)}
        return gates

    def sum(self, group: str, h: ir.Value | None, more: ir.Value | None = None) -> ir.Value:
        """Emit ``h R^T + X W^T + bias + more`` for a group."""
        addend = self.multiplied_input(group)
        if more is not None:
            addend = self.e.op("Add", addend, more)
        total = addend if h is None else self.recurrent(group, h, addend)
        return self.p.announce(self.e, total, f"sum {group}")

    def multiplied_input(self, group: str) -> ir.Value:
        """Emit ``X W^T + bias`` for a group."""
        return self.p.form.multiplied_input(self, group)

    def recurrent(self, group: str, h: ir.Value, addend: ir.Value | None) -> ir.Value:
        """Emit ``h R^T + addend`` for a group."""
        if group in self.p.weights.R:
            return self.p.form.multiply(self, group, h, addend)
        shared = _enclosing_group(group, self.p.weights.R)
        if group not in self._pieces:
            self._split_group(shared, self.p.form.multiply(self, shared, h, None))
        piece = self._pieces[group]
        if addend is None:
            return piece
        return self.e.op("Add", piece, self.p.announce(self.e, addend, "addend"))

    def joined_input(self, h: ir.Value) -> ir.Value:
        """Emit ``[X h]``."""
        if h not in self._beside:
            self._beside[h] = self.e.concat([self.x["X"], h], axis=1)
        return self._beside[h]

    def _sums(self, letters: str, more: ir.Value | None) -> dict[str, ir.Value]:
        """Return the sums of gates by group: together, or one by one."""
        names = self.p.weights.bias or self.x
        if letters in names:
            return {letters: self.sum(letters, self.h, more)}
        if letters[0] in names:
            return {letter: self.sum(letter, self.h, more) for letter in letters}
        if letters not in self._pieces:
            shared = _enclosing_group(letters, names)
            self._split_group(shared, self.sum(shared, self.h))
        return {letters: self._pieces[letters]}

    def _split_group(self, shared: str, total: ir.Value) -> None:
        parts, form = _SHARED[shared], self.p.form
        sizes = [len(part) * self.p.node.hidden_size for part in parts]
        self._pieces |= dict(zip(parts, self.e.split(total, sizes, len(form.lead) + 1), strict=True))


def _enclosing_group(group: str, names: Mapping[str, ir.Value]) -> str:
    """Return the larger group that contains a group."""
    return next(name for name in names if name in _SHARED and group in _SHARED[name])


Inputs = Mapping[str, ir.Value]
"""The input products of a step by group, or X."""

CellStep = Callable[[Emitter, CellParameters, Inputs, States], NewState]


def lstm_step(e: Emitter, p: CellParameters, x: Inputs, state: States) -> NewState:
    """Emit ``C = f C + i g(..)``, ``H = o h(C)`` (LSTM-1 to 22)."""
    h, c = state
    products = Products(e, p, x, h)
    letters = "io" if p.node.input_forget else "iof"

    def peephole(letter: str, cell_state: ir.Value | None) -> ir.Value | None:
        if cell_state is None:
            return None
        factor = p.announce(e, p.peepholes[letter], "addend")
        return p.announce(e, e.op("Mul", cell_state, factor), "peephole")

    gate: dict[str, ir.Value] = {}
    if p.peepholes:
        for letter in letters.replace("o", ""):
            gate |= products.gates(0, letter, peephole(letter, c))
    else:
        gate = products.gates(0, letters)
    new_c = p.announce(e, e.op("Mul", gate["i"], products.gates(1, "c")["c"]), "i*c~")
    if c is not None:
        f = gate["f"] if not p.node.input_forget else _emit_one_minus(e, p, gate["i"])
        new_c = e.op("Add", p.announce(e, e.op("Mul", f, c), "f*c"), new_c)
    new_c = p.announce(e, new_c, "c")
    if p.peepholes:
        gate |= products.gates(0, "o", peephole("o", new_c))
    # The spec clips the input of every activation; onnxruntime passes C(t) to h unclipped.
    squashed = p.activate(e, 2, new_c, clipped=p.node.semantics == "spec")
    new_h = p.announce(e, e.op("Mul", gate["o"], squashed), "h")
    return NewState([new_h, new_c], (gate["o"], squashed))


def gru_step(e: Emitter, p: CellParameters, x: Inputs, state: States) -> NewState:
    """Emit ``H = (1 - z) h~ + z H`` (GRU-1 to 22), with the reset gate before or after the product with R."""
    (h,) = state
    products = Products(e, p, x, h)
    gate = products.gates(0, "zr")
    z, r = gate["z"], gate["r"]
    if p.node.linear_before_reset:
        hidden = products.multiplied_input("h")
        if h is not None:
            hidden = e.op("Add", hidden, p.form.reset(products, r, h))
        elif p.recurrent_bias is not None:
            bias = p.announce(e, p.recurrent_bias, "addend")
            hidden = e.op("Add", hidden, p.announce(e, e.op("Mul", r, bias), "r*sum"))
        hidden = p.announce(e, hidden, "sum h")
    else:
        hidden = products.sum("h", None if h is None else p.announce(e, e.op("Mul", r, h), "r*h"))
    candidate = p.activate(e, 1, hidden)
    if h is None:
        return NewState([p.announce(e, e.op("Mul", _emit_one_minus(e, p, z), candidate), "h")])
    if p.activations[1].name in _BOUNDED:
        difference = p.announce(e, e.op("Sub", h, candidate), "h-n")
        operands = (candidate, p.announce(e, e.op("Mul", z, difference), "z*(h-n)"))
    else:
        # With a large candidate, the difference of the shorter form would lose H by rounding.
        kept = p.announce(e, e.op("Mul", _emit_one_minus(e, p, z), candidate), "(1-z)*n")
        operands = (kept, p.announce(e, e.op("Mul", z, h), "z*h"))
    return NewState([p.announce(e, e.op("Add", *operands), "h")], operands)


def rnn_step(e: Emitter, p: CellParameters, x: Inputs, state: States) -> NewState:
    """Emit ``H = f(X W^T + H R^T + Wb + Rb)`` (RNN-1 to 22)."""
    (h,) = state
    return NewState([Products(e, p, x, h).gates(0, "i")["i"]])


def _emit_one_minus(e: Emitter, p: CellParameters, gate: ir.Value) -> ir.Value:
    """Emit ``1 - gate``."""
    one = p.announce(e, e.scalar(1.0), "addend")
    return p.announce(e, e.op("Sub", one, gate), f"1-f {p.activations[0].name}")


CELLS: Mapping[str, CellStep] = {"LSTM": lstm_step, "GRU": gru_step, "RNN": rnn_step}

LAST_OPS: Mapping[str, str] = {"LSTM": "Mul", "GRU": "Add"}
"""The binary operator that ends a step and computes H, for cells that have one."""


def _emit_activation(e: Emitter, activation: Activation, x: ir.Value, semantics: Semantics) -> ir.Value:
    """Emit ``activation(x)``, of the shape of x."""
    alpha = 0.0 if activation.alpha is None else activation.alpha
    beta = 0.0 if activation.beta is None else activation.beta
    try:
        return ACTIVATIONS[activation.name](e, x, alpha, beta, semantics)
    except MissingOperatorError as error:
        raise error.needed_by("attribute activations") from None


def _unary(op_type: str) -> _Emit:
    return lambda e, x, *_: e.op(op_type, x)


def _emit_softplus(e: Emitter, x: ir.Value, alpha: float, beta: float, semantics: Semantics) -> ir.Value:
    """Emit a Softplus; in onnxruntime's kernels it is infinite where exp overflows in float32."""
    if semantics == "spec":
        return e.op("Softplus", x)
    if e.dtype == ir.DataType.FLOAT16:
        wide = e.with_dtype(ir.DataType.FLOAT)
        return e.cast(_emit_softplus(wide, e.cast(x, ir.DataType.FLOAT), alpha, beta, semantics), e.dtype)
    return e.op("Log", e.op("Add", e.op("Exp", x), e.scalar(1.0)))


def _emit_thresholded_relu(
    e: Emitter, x: ir.Value, alpha: float, _beta: float, semantics: Semantics
) -> ir.Value:
    if alpha == 0 and condition_type(e) != ir.DataType.BOOL:
        return e.op("Relu", x)
    threshold = e.scalar(alpha)
    if semantics == "ort":
        return emit_where(e, e.op("Greater", x, threshold), x, e.scalar(0.0))
    return emit_where(e, e.op("Less", x, threshold), e.scalar(0.0), x)


ACTIVATIONS: Mapping[str, _Emit] = {
    "Affine": lambda e, x, alpha, beta, _: e.op("Add", e.op("Mul", x, e.scalar(alpha)), e.scalar(beta)),
    "Elu": lambda e, x, alpha, *_: e.op("Elu", x, alpha=alpha),
    "HardSigmoid": lambda e, x, alpha, beta, _: e.op("HardSigmoid", x, alpha=alpha, beta=beta),
    "LeakyRelu": lambda e, x, alpha, *_: e.op("LeakyRelu", x, alpha=alpha),
    "Relu": _unary("Relu"),
    "ScaledTanh": lambda e, x, alpha, beta, _: e.op(
        "Mul", e.op("Tanh", e.op("Mul", x, e.scalar(beta))), e.scalar(alpha)
    ),
    "Sigmoid": _unary("Sigmoid"),
    "Softplus": _emit_softplus,
    "Softsign": _unary("Softsign"),
    "Tanh": _unary("Tanh"),
    "ThresholdedRelu": _emit_thresholded_relu,
}
"""The emission of each activation: the ONNX spec of LSTM, GRU and RNN lists the same ones in all versions."""

_BOUNDED = ("HardSigmoid", "Sigmoid", "Softsign", "Tanh")
"""The functions whose values stay within a few units for every x."""
