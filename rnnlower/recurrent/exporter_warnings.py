"""Warnings about legal but suspicious models: exporters' faults, and unknown recurrent operators."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

import onnx_ir as ir

from rnnlower.graph.constants import constant_of
from rnnlower.graph.walk import Located, walk
from rnnlower.recurrent.finding import find_recurrent, is_recurrent
from rnnlower.recurrent.parsing import parse_recurrent

__all__ = ["Suspicion", "find_suspicions"]

_RECURRENT_NAME = re.compile(r"LSTM|GRU|RNN|Lstm|Gru|Rnn|(^|_)(lstm|gru|rnn)(_|$)")
_LINEAR = "--assume-linear-before-reset"


@dataclasses.dataclass(frozen=True)
class Suspicion:
    """A part of the model that a user should look at.

    Attributes:
        node: The node's operator, name and place.
        what: The finding.
        why: Why it is suspicious, with references to bug reports.
        remedy: What the user can do.
    """

    node: str
    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.node}: {self.what}; {self.why}. {self.remedy[:1].upper()}{self.remedy[1:]}"


def find_suspicions(model: ir.Model) -> list[Suspicion]:
    """List everything suspicious, in the order of the nodes."""
    found = [*_unknown_operators(model)]
    for located in find_recurrent(model):
        for check in _CHECKS:
            found += check(model, located)
    return found


def _unknown_operators(model: ir.Model) -> Iterator[Suspicion]:
    """Yield operators with the name of a recurrence that are left as they are."""
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
                f"operator {node.domain or 'ai.onnx'}.{node.op_type} has the name of a recurrence",
                "it is not a known operator and stays as it is",
                "export the model with LSTM, GRU or RNN if its target lacks the operator",
            )


def _reset_before_product(model: ir.Model, located: Located) -> Iterator[Suspicion]:
    """Yield a PyTorch GRU whose reset gate is applied before the product."""
    linear = located.node.attributes.get("linear_before_reset")
    is_linear = linear is not None and (linear.is_ref() or linear.as_int() != 0)
    if located.node.op_type == "GRU" and not is_linear and (model.producer_name or "").lower() == "pytorch":
        yield Suspicion(
            located.label,
            "linear_before_reset is 0",
            "PyTorch's GRU is the form with 1, but some exporters left the attribute out (torch with "
            "dynamo=True and onnxscript before 0.7.1: pytorch/pytorch#189225, microsoft/onnxscript#2852), "
            "so the model most likely does not compute what was trained",
            f"export it again with a newer onnxscript, or fix it with {_LINEAR}",
        )


def _activations_left_out(model: ir.Model, located: Located) -> Iterator[Suspicion]:
    """Yield a bidirectional layer of Keras, whose activations tf2onnx drops."""
    node = located.node
    is_both = parse_recurrent(located, lenient=True).direction == "bidirectional"
    if is_both and "tf2onnx" in (model.producer_name or "") and "activations" not in node.attributes:
        yield Suspicion(
            located.label,
            "it is bidirectional and has the default activations",
            "tf2onnx drops those of a Bidirectional layer (onnx/tensorflow-onnx#2211)",
            "if the layer has activations other than tanh and sigmoid, the model is wrong: "
            "compare it with Keras",
        )


def _baked_batch(model: ir.Model, located: Located) -> Iterator[Suspicion]:
    """Yield a constant initial state of several rows where the batch of X is dynamic."""
    node = located.node
    layout = parse_recurrent(located, lenient=True).layout
    X = node.inputs[0]
    batch = X.shape[1 - layout] if X is not None and X.shape is not None and len(X.shape) == 3 else 0
    for index, name in ((5, "initial_h"), (6, "initial_c")):
        value = node.inputs[index] if index < len(node.inputs) else None
        tensor = constant_of(value)
        if tensor is None or isinstance(batch, int) or len(tensor.shape) != 3:
            continue
        rows = tensor.shape[1 - layout]
        yield Suspicion(
            located.label,
            f"{name} is a constant of {rows} row(s), but the batch of X is dynamic",
            "an exporter has fixed the batch of its example (pytorch/pytorch#45653, onnx/onnx#3182), "
            "so the model only runs with that batch",
            f"fix the batch to {rows} (--dim, --input-shape), or export the initial states as inputs",
        )


_CHECKS: tuple[Callable[[ir.Model, Located], Iterator[Suspicion]], ...] = (
    _reset_before_product,
    _activations_left_out,
    _baked_batch,
)
