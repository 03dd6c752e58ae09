"""The step equations of LSTM, GRU and RNN: one time step of one direction.

A step gets the hoisted input products ``X W^T + bias`` of its gates, each ``[batch, gates * hidden_size]``,
or X itself (under the name ``X``), and the state, each ``[batch, hidden_size]``, or all as the axes have it;
a state of ``None`` is zero and costs nothing. Gates that share an activation stand in one group, so that one
product and one activation serve them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from rnnlower.lowering.activations import ACTIVATIONS, emit_activation
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.timeseries import Axes
from rnnlower.recurrent.node import Activation, ResolvedNode

__all__ = ["CELLS", "LAST_OPS", "CellParameters", "CellStep", "GateGroup", "gate_groups", "state_groups"]

_IOFC, _ZRH = "iofc", "zrh"


@dataclasses.dataclass(frozen=True)
class GateGroup:
    """Neighbouring gates that share an activation; `first` and `last` count rows in units of hidden_size."""

    gates: str
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class CellParameters:
    """What the steps of one direction share.

    Attributes:
        node: The recurrent node.
        activations: f, g, h of this direction.
        R: Recurrence weights by group, each ``[gates * hidden_size, hidden_size]``; where the step multiplies
            X, ``[W R]``, ``[gates * hidden_size, input_size + hidden_size]``; where values have an axis of
            directions, with that axis in front, and transposed unless the values stand upright.
        recurrent_bias: GRU's ``Rbh``, ``[hidden_size]``, where it has to stay inside the reset product.
        peepholes: LSTM's P by gate, each ``[hidden_size]``.
        axes: How values lie; unless they are ``[batch, width]``, vectors lie as they do.
        W: Input weights, where the step multiplies X apart from the state.
        bias: By group, where the step multiplies X.
    """

    node: ResolvedNode
    activations: Sequence[Activation]
    R: Mapping[str, ir.Value]
    recurrent_bias: ir.Value | None
    peepholes: Mapping[str, ir.Value]
    axes: Axes
    W: Mapping[str, ir.Value] = dataclasses.field(default_factory=dict)
    bias: Mapping[str, ir.Value] = dataclasses.field(default_factory=dict)

    def activate(self, e: Emitter, index: int, x: ir.Value, *, clipped: bool = True) -> ir.Value:
        """The direction's activation number `index` (0 is f), behind the clip where the node has one."""
        if clipped and self.node.clip is not None:
            x = e.clip(x, -self.node.clip, self.node.clip)
        return emit_activation(e, self.activations[index], x, self.node.semantics)

    def operand(self, e: Emitter, x: Mapping[str, ir.Value], h: ir.Value | None) -> ir.Value | None:
        """What R multiplies: h, beside X where R is ``[W R]``."""
        if "X" not in x:
            return h
        assert h is not None
        return e.concat([x["X"], h], axis=1)

    def addend(self, e: Emitter, group: str, x: Mapping[str, ir.Value]) -> ir.Value:
        """What is added to the product with R."""
        if group in x:
            return x[group]
        return e.gemm(x["X"], self.W[group], self.bias[group]) if group in self.W else self.bias[group]

    def product(self, e: Emitter, group: str, x: Mapping[str, ir.Value], h: ir.Value | None) -> ir.Value:
        """``h R^T + x`` for a group of gates."""
        addend = self.addend(e, group, x)
        return addend if h is None else self.recurrent(e, group, h, addend)

    def recurrent(self, e: Emitter, group: str, h: ir.Value, addend: ir.Value | None) -> ir.Value:
        """``h R^T + addend`` for a group of gates."""
        if self.axes.directions:
            R = self.R[group]
            product = e.op("MatMul", R, h) if self.axes.upright else e.op("MatMul", h, R)
            return product if addend is None else e.op("Add", product, addend)
        if self.axes.upright:
            return e.gemm(self.R[group], h, addend, transposed=False)
        return e.gemm(h, self.R[group], addend)

    def gates(
        self, e: Emitter, index: int, letters: str, x: Mapping[str, ir.Value], h: ir.Value | None
    ) -> dict[str, ir.Value]:
        """Gates that share the activation number `index`, whether they stand in one group or apart."""
        if letters in x or letters in self.bias:
            values = e.split_evenly(
                self.activate(e, index, self.product(e, letters, x, h)),
                len(letters),
                self.axes.units_axis,
                self.node.hidden_size,
            )
        else:
            values = [self.activate(e, index, self.product(e, letter, x, h)) for letter in letters]
        return {letter: e.label(value, letter) for letter, value in zip(letters, values, strict=True)}


CellStep = Callable[
    [Emitter, CellParameters, Mapping[str, ir.Value], Sequence[ir.Value | None]], list[ir.Value]
]
"""``(emitter, parameters, input products by group or X, state) -> new state``.

The state's first value is H(t).
"""


def gate_groups(node: ResolvedNode, *, most_apart: int = 1, joint: bool = False) -> tuple[GateGroup, ...]:
    """The groups of gates of a node. The coupled forget gate (``input_forget``) has none: ``f = 1 - i``.

    Args:
        node: The node.
        most_apart: Groups of no more gates become groups of one.
        joint: One group for all gates of an LSTM, whatever their activations: fewer products, but nothing to
            fuse them with.
    """
    if node.op_type == "LSTM":
        letters = ["io" if node.input_forget else "iof", "c"]
        if joint and not node.input_forget:
            letters = [_IOFC]
    else:
        letters = ["zr", "h"] if node.op_type == "GRU" else ["i"]
    # Peepholes are added to single gates in front of the products.
    if "P" in node.inputs:
        letters = list("".join(letters))
    else:
        letters = [part for group in letters for part in (group if len(group) <= most_apart else [group])]
    order = node.cell.gates
    return tuple(
        GateGroup(group, order.index(group[0]), order.index(group[0]) + len(group)) for group in letters
    )


def state_groups(node: ResolvedNode, groups: Sequence[GateGroup], *, joint: bool) -> Sequence[GateGroup]:
    """The groups of gates that share a product with H. Joint: those of a GRU's second form do."""
    return (GateGroup(_ZRH, 0, 3),) if joint and node.linear_before_reset else groups


def lstm_step(
    e: Emitter, p: CellParameters, x: Mapping[str, ir.Value], state: Sequence[ir.Value | None]
) -> list[ir.Value]:
    """``C = f C + i g(..)``, ``H = o h(C)`` (LSTM-1 to 22)."""
    h, c = state
    letters = "io" if p.node.input_forget else "iof"
    if _IOFC in p.R:
        parts = e.split(
            p.product(e, _IOFC, x, h), [3 * p.node.hidden_size, p.node.hidden_size], p.axes.units_axis
        )
        x, h = dict(zip((letters, "c"), parts, strict=True)), None
    h = p.operand(e, x, h)

    def peephole(gate: ir.Value, letter: str, cell_state: ir.Value | None) -> ir.Value:
        if cell_state is None:
            return gate
        return e.op("Add", gate, e.op("Mul", cell_state, p.peepholes[letter]))

    if p.peepholes:
        # In front of the product, which takes them as its third operand.
        gate = {
            letter: p.gates(e, 0, letter, {letter: peephole(p.addend(e, letter, x), letter, c)}, h)[letter]
            for letter in letters
            if letter != "o"
        }
    else:
        gate = p.gates(e, 0, letters, x, h)
    new_c = e.op("Mul", gate["i"], p.gates(e, 1, "c", x, h)["c"])
    if c is not None:
        f = e.op("Sub", e.scalar(1.0), gate["i"]) if p.node.input_forget else gate["f"]
        new_c = e.op("Add", e.op("Mul", f, c), new_c)
    if p.peepholes:
        gate["o"] = p.gates(e, 0, "o", {"o": peephole(p.addend(e, "o", x), "o", new_c)}, h)["o"]
    # The text clips the input of every activation; onnxruntime leaves C(t) in front of h as it is.
    squashed = p.activate(e, 2, new_c, clipped=p.node.semantics == "spec")
    return [e.op("Mul", gate["o"], squashed), new_c]


def gru_step(
    e: Emitter, p: CellParameters, x: Mapping[str, ir.Value], state: Sequence[ir.Value | None]
) -> list[ir.Value]:
    """``H = (1 - z) h~ + z H`` (GRU-1 to 22), with the reset gate before or after the product with R."""
    (h,) = state
    linear = None
    if _ZRH in p.R and h is not None:
        sizes = [2 * p.node.hidden_size, p.node.hidden_size]
        zr, linear = e.split(p.recurrent(e, _ZRH, h, None), sizes, p.axes.units_axis)
        linear = linear if p.recurrent_bias is None else e.op("Add", linear, p.recurrent_bias)
        gate = p.gates(e, 0, "zr", {"zr": e.op("Add", zr, x["zr"])}, None)
    else:
        gate = p.gates(e, 0, "zr", x, p.operand(e, x, h))
    z, r = gate["z"], gate["r"]
    if p.node.linear_before_reset:
        hidden = p.addend(e, "h", x)
        if linear is None:
            linear = p.recurrent_bias if h is None else p.recurrent(e, "h", h, p.recurrent_bias)
        if linear is not None:
            hidden = e.op("Add", hidden, e.op("Mul", r, linear))
    else:
        hidden = p.product(e, "h", x, None if h is None else p.operand(e, x, e.op("Mul", r, h)))
    candidate = p.activate(e, 1, hidden)
    if h is None:
        return [e.op("Mul", e.op("Sub", e.scalar(1.0), z), candidate)]
    if ACTIVATIONS[p.activations[1].name].bounded:
        return [e.op("Add", candidate, e.op("Mul", z, e.op("Sub", h, candidate)))]
    # A large candidate would swallow H in the shorter form's difference.
    kept = e.op("Mul", e.op("Sub", e.scalar(1.0), z), candidate)
    return [e.op("Add", kept, e.op("Mul", z, h))]


def rnn_step(
    e: Emitter, p: CellParameters, x: Mapping[str, ir.Value], state: Sequence[ir.Value | None]
) -> list[ir.Value]:
    """``H = f(X W^T + H R^T + Wb + Rb)`` (RNN-1 to 22)."""
    (h,) = state
    return [p.activate(e, 0, p.product(e, "i", x, p.operand(e, x, h)))]


CELLS: Mapping[str, CellStep] = {"LSTM": lstm_step, "GRU": gru_step, "RNN": rnn_step}

LAST_OPS: Mapping[str, str] = {"LSTM": "Mul", "GRU": "Add"}
"""The operator of two tensors that ends a step and gives H, for cells that have one."""
