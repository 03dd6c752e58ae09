"""The LSTM restrictions of the SONNX profile, ONNX for safety-critical use.

Source: SONNX, informal specification of operator LSTM, section "SONNX restrictions" and the signature. The
profile requires everything to be explicit: constant inputs, zero tensors for unused ones, all attributes.
Where it leaves something open, it is read as follows:

- sequence_lens "to batch_size if not used" means a tensor of shape ``[batch_size]`` that holds
  seq_length, since this is the meaning of an absent sequence_lens.
- input_forget may be 1, because the profile gives its equation. layout must be 0, the layout it uses.
- The signature has Y as its only output, so nothing may read Y_h and Y_c.
- GRU and RNN are not described.
- A batch of more than one row needs an implementation that supports batches: a note, not a departure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Literal

from rnnlower import wording
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.walk import LocatedNode, origin
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.parsing import parse_recurrent

LSTM_VERSION = 14
"""The first version of LSTM with all the attributes that must be written out, and its opset."""

_ALLOWED_ACTIVATIONS = (("Sigmoid", "Tanh", "Tanh"), ("Relu", "Tanh", "Tanh"))
_CONSTANT_INPUTS = ("W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_MISSING = {
    "sequence_lens": "is left out; it must be a constant, seq_length for every row if not used",
    **dict.fromkeys(
        ("B", "initial_h", "initial_c", "P"), "is left out; it must be a tensor of zeros if not used"
    ),
}


@dataclasses.dataclass(frozen=True)
class Departure:
    """A departure of a node from the profile.

    Attributes:
        node: The node's name and place.
        subject: The input, output or attribute concerned.
        remedy: What the user can do.
        level: ``error``, or ``note`` for what only some implementations refuse.
    """

    node: str
    subject: str
    what: str
    remedy: str
    level: Literal["error", "note"] = "error"

    def __str__(self) -> str:
        return f"{self.node}: {self.subject} {self.what}; {self.remedy}"


Finding = tuple[str, str] | tuple[str, str, Literal["note"]]
"""The fault, the remedy, and whether it is only a note."""

Check = Callable[[ResolvedNode], Finding | None]
"""A function that returns how an LSTM node breaks a rule, or nothing."""


def _lowering(what: str) -> str:
    return f"`{wording.call('lower', target='sonnx')}` {what}"


def _sizes(joint: str) -> str:
    return wording.option("dim") + joint + wording.option("input-shape")


def find_departures(located: LocatedNode) -> Iterator[Departure]:
    """Yield every departure of a recurrent node.

    Raises:
        InvalidModelError: The node breaks the ONNX spec of its operator.
        UnsupportedModelError: The node has an unknown activation, or a clip that is not positive.
    """
    node = parse_recurrent(located, lenient=True)
    label = located.label
    if located.node.op_type != "LSTM":
        yield Departure(
            label,
            "operator",
            "is not LSTM, the only recurrent operator that the profile describes",
            f"rewrite it into primitive operators with `{wording.call('unroll', node=located.name)}`",
        )
        return
    for subject, check in RULES.items():
        finding = check(node)
        if finding is not None:
            yield Departure(label, subject, *finding)


def _constant(name: str, node: ResolvedNode) -> Finding | None:
    value = node.inputs.get(name)
    if value is None:
        return _missing(node, name)
    kind = origin(value)
    if kind == "computed":
        return "is computed from constants; it must be a constant itself", _lowering("writes it")
    if kind == "runtime" and value.is_initializer():
        return "can be overridden, being a graph input too", "take it off the graph's inputs"
    if kind == "runtime":
        return "comes at run time; it must be a constant", "make it an initializer of the model"
    return None


def _missing(node: ResolvedNode, name: str) -> Finding:
    sizes = {"sequence_lens": (node.batch_size, node.seq_length)}
    states = dict.fromkeys(("initial_h", "initial_c"), (node.batch_size,))
    if None in {**sizes, **states}.get(name, ()):
        return _MISSING[name], f"fix the symbolic sizes of X ({_sizes(', ')}) so that it can be written"
    return _MISSING[name], _lowering("writes it")


def _batch_size(node: ResolvedNode) -> Finding | None:
    if node.batch_size is None:
        return "is not a number", f"fix it with {_sizes(' or ')}, to 1 where batches are not supported"
    if node.batch_size != 1:
        return f"is {node.batch_size}", "it must be 1 for an implementation without batches", "note"
    return None


def _activations(node: ResolvedNode) -> Finding | None:
    given = [tuple(activation.name for activation in names) for names in node.activations]
    for names in given:
        if names not in _ALLOWED_ACTIVATIONS:
            allowed = " or ".join(", ".join(names) for names in _ALLOWED_ACTIVATIONS)
            return f"are {', '.join(names)}; allowed are {allowed}", "train with these, or lower the node"
    written = node.node.attributes.get("activations")
    flat = [name for names in given for name in names]
    if written is None or (not written.is_ref() and list(written.as_strings()) != flat):
        return f"are not written out as {', '.join(flat)}", _lowering("writes it")
    return None


def _written(name: str, node: ResolvedNode) -> Finding | None:
    return None if name in node.node.attributes else ("is not written out", _lowering("writes it"))


def _layout(node: ResolvedNode) -> Finding | None:
    if node.layout:
        return "is 1; it must be 0", _lowering("converts it with Transposes")
    if node.version < LSTM_VERSION:
        return f"does not exist in LSTM-{node.version}", f"`{wording.call('convert', opset=LSTM_VERSION)}`"
    return _written("layout", node)


def _only_y(name: str, node: ResolvedNode) -> Finding | None:
    if not node.used(name):
        return None
    what = "is read, but Y is the only output that the profile describes"
    if name == "Y_c":
        return what, "leave it out: nothing else gives the cell's last state"
    if shared_length(node) is None:
        return (
            what,
            "take the last step of each row from Y: the lengths of the rows are not known, or differ",
        )
    return what, _lowering("takes it from Y")


def shared_length(node: ResolvedNode) -> int | None:
    """Return the length of every row, or ``None`` if it is unknown, 0, or differs between rows."""
    lens = node.inputs.get("sequence_lens")
    if lens is None:
        return node.seq_length or None
    tensor = constant_of(lens)
    if tensor is None:
        return None
    lengths = set(tensor.numpy().tolist())
    return int(lengths.pop()) or None if len(lengths) == 1 else None


RULES: Mapping[str, Check] = {
    "batch_size": _batch_size,
    **{name: partial(_constant, name) for name in _CONSTANT_INPUTS},
    "activations": _activations,
    "hidden_size": partial(_written, "hidden_size"),
    "input_forget": partial(_written, "input_forget"),
    "layout": _layout,
    "Y_h": partial(_only_y, "Y_h"),
    "Y_c": partial(_only_y, "Y_c"),
}
"""The restrictions, each by the input, output or attribute that it concerns."""
