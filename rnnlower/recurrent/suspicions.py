"""What looks wrong although it is legal: exporters' faults, and recurrent operators that are unknown here."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

import onnx_ir as ir

from rnnlower.graph.walk import Located, walk
from rnnlower.recurrent.finding import find_recurrent, is_recurrent
from rnnlower.recurrent.parsing import parse_recurrent

__all__ = ["Suspicion", "find_suspicions"]

_RECURRENT_NAME = re.compile(r"LSTM|GRU|RNN|Lstm|Gru|Rnn|(^|_)(lstm|gru|rnn)(_|$)")
_LINEAR = "--assume-linear-before-reset"


@dataclasses.dataclass(frozen=True)
class Suspicion:
    """Something that a user should look at.

    Attributes:
        node: The node's operator, name and place.
        what: What about it.
        why: Why that is suspicious, with the reports of it.
        remedy: What to do.
    """

    node: str
    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.node}: {self.what}; {self.why}. {self.remedy[:1].upper()}{self.remedy[1:]}"


def find_suspicions(model: ir.Model) -> list[Suspicion]:
    """Everything suspicious, in the order of the nodes."""
    found = [*_unknown_operators(model)]
    for located in find_recurrent(model):
        for check in _CHECKS:
            found += check(model, located)
    return found


def _unknown_operators(model: ir.Model) -> Iterator[Suspicion]:
    """Operators that are called like a recurrence, and stay as they are."""
    graphs: list[tuple[ir.Graph | ir.Function, str]] = [(model.graph, "")]
    for function in model.functions.values():
        graphs.append((function, f"function:{function.domain}::{function.name}"))
    for graph, start in graphs:
        for node, path in walk(graph, start):
            known = is_recurrent(node) or node.op_identifier() in model.functions
            if known or not _RECURRENT_NAME.search(node.op_type):
                continue
            name = node.name or next((out.name for out in node.outputs if out.name), None) or "(unnamed)"
            yield Suspicion(
                f"{node.op_type} node {'/'.join(filter(None, (path, name)))!r}",
                f"operator {node.domain or 'ai.onnx'}.{node.op_type} is called like a recurrence",
                "it is not known here and stays as it is",
                "export the model with LSTM, GRU or RNN if its target lacks the operator",
            )


def _reset_before_product(model: ir.Model, located: Located) -> Iterator[Suspicion]:
    """A GRU of PyTorch whose reset gate does not stand behind the product."""
    linear = located.node.attributes.get("linear_before_reset")
    is_linear = linear is not None and (linear.is_ref() or linear.as_int() != 0)
    if located.node.op_type == "GRU" and not is_linear and (model.producer_name or "").lower() == "pytorch":
        yield Suspicion(
            located.label,
            "linear_before_reset is 0",
            "PyTorch's GRU is the form with 1, and exporters wrote it without (torch with dynamo=True and "
            "onnxscript before 0.7.1: pytorch/pytorch#189225, microsoft/onnxscript#2852), so the model most "
            "likely does not compute what was trained",
            f"export it again with a newer onnxscript, or mend it with {_LINEAR}",
        )


def _activations_left_out(model: ir.Model, located: Located) -> Iterator[Suspicion]:
    """A bidirectional layer of Keras, whose activations tf2onnx drops."""
    node = located.node
    is_both = parse_recurrent(located, lenient=True).direction == "bidirectional"
    if is_both and "tf2onnx" in (model.producer_name or "") and "activations" not in node.attributes:
        yield Suspicion(
            located.label,
            "it is bidirectional and has the default activations",
            "tf2onnx drops those of a Bidirectional layer (onnx/tensorflow-onnx#2211)",
            "if the layer has others than tanh and sigmoid, the model is wrong: compare it with Keras",
        )


def _baked_batch(model: ir.Model, located: Located) -> Iterator[Suspicion]:
    """A constant initial state of several rows below an X of any number of rows."""
    node = located.node
    layout = parse_recurrent(located, lenient=True).layout
    X = node.inputs[0]
    batch = X.shape[1 - layout] if X is not None and X.shape is not None and len(X.shape) == 3 else 0
    for index, name in ((5, "initial_h"), (6, "initial_c")):
        value = node.inputs[index] if index < len(node.inputs) else None
        tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
        if tensor is None or isinstance(batch, int) or len(tensor.shape) != 3:
            continue
        rows = tensor.shape[1 - layout]
        yield Suspicion(
            located.label,
            f"{name} is a constant of {rows} row(s), and X has any number of rows",
            "an exporter has written down the batch of its example (pytorch/pytorch#45653, onnx/onnx#3182), "
            "so the model runs with that batch only",
            f"fix the batch to {rows} (--dim, --input-shape), or export the initial states as inputs",
        )


_CHECKS: tuple[Callable[[ir.Model, Located], Iterator[Suspicion]], ...] = (
    _reset_before_product,
    _activations_left_out,
    _baked_batch,
)
