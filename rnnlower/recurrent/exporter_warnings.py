"""Warnings about legal but suspicious models: exporters' faults, and unknown recurrent operators."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.graph.constants import constant_of
from rnnlower.graph.walk import REARRANGING, Located, called, reached, walk_all
from rnnlower.recurrent.finding import find_recurrent, is_recurrent
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.parsing import parse_recurrent

_RECURRENT_NAME = re.compile(r"LSTM|GRU|RNN|Lstm|Gru|Rnn|(^|_)(lstm|gru|rnn)(_|$)")


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
        node = parse_recurrent(located, lenient=True)
        for check in _CHECKS:
            found += check(model, located, node)
    return found


def _unknown_operators(model: ir.Model) -> Iterator[Suspicion]:
    """Yield operators with the name of a recurrence that are left as they are."""
    for node, path in walk_all(model):
        known = is_recurrent(node) or node.op_identifier() in model.functions
        if known or not _RECURRENT_NAME.search(node.op_type):
            continue
        yield Suspicion(
            f"{node.op_type} node {'/'.join(filter(None, (path, called(node))))!r}",
            f"operator {node.domain or 'ai.onnx'}.{node.op_type} has the name of a recurrence",
            "it is not a known operator and stays as it is",
            "export the model with LSTM, GRU or RNN if its target lacks the operator",
        )


def _reset_before_product(model: ir.Model, located: Located, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a GRU whose reset gate is applied before the product, against its framework."""
    linear = located.node.attributes.get("linear_before_reset")
    if located.node.op_type != "GRU" or (linear is not None and (linear.is_ref() or linear.as_int() != 0)):
        return
    if (model.producer_name or "").lower() == "pytorch":
        why = (
            "PyTorch's GRU is the form with 1, but some exporters left the attribute out (torch with "
            "dynamo=True and onnxscript before 0.7.1: pytorch/pytorch#189225, microsoft/onnxscript#2852)"
        )
    elif _is_of_keras(model) and _has_recurrent_bias(node):
        why = (
            "its recurrent bias is not zero: Keras has one only in the form with 1 (reset_after, CuDNNGRU), "
            "and exporters wrote it without (onnx/keras-onnx#33, onnx/tensorflow-onnx#939)"
        )
    else:
        return
    option = wording.option("assume-linear-before-reset", True)
    yield Suspicion(
        located.label,
        "linear_before_reset is 0",
        f"{why}, so the model most likely does not compute what was trained",
        f"export it again with a newer exporter, or fix it with {option}",
    )


def _has_recurrent_bias(node: ResolvedNode) -> bool:
    tensor = constant_of(node.inputs.get("B"))
    if tensor is None:
        return False
    return bool(np.any(np.split(tensor.numpy(), 2, axis=-1)[1]))


def _directions_mixed(model: ir.Model, located: Located, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a bidirectional node whose directions are merged with the units outside."""
    for reader in _readers(node, "Y"):
        perm = reader.attributes.get("perm")
        is_mixed = reader.op_type == "Transpose" and perm is not None and [*perm.as_ints()] == [0, 2, 3, 1]
        if is_mixed and _is_by(model, "pytorch") and node.direction == "bidirectional":
            yield Suspicion(
                located.label,
                f"Transpose node {reader.name or '(unnamed)'!r} moves the directions of Y after its units",
                "PyTorch puts the forward units first and the reverse ones after them, and its exporter "
                "interleaved them (torch up to 0.4.1: pytorch/pytorch#10838), so later nodes read the wrong "
                "features",
                "export it again with a newer torch",
            )


def _not_turned_back(model: ir.Model, located: Located, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a reverse layer of Keras whose sequence stays in processing order."""
    if not _is_by(model, "keras2onnx") or node.direction != "reverse":
        return
    behind = _behind(node, "Y")
    if behind and not any(each.op_type in ("ReverseSequence", "Slice", "Gather") for each in behind):
        yield Suspicion(
            located.label,
            "it is reverse, and its sequence is not reversed",
            "with go_backwards, Keras returns the last step first, and keras2onnx left the reversal out "
            "(onnx/keras-onnx#523, fixed by onnx/keras-onnx#583)",
            "if the layer has return_sequences, the model is wrong: compare it with Keras",
        )


def _masked_tail(model: ir.Model, located: Located, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a masked layer of Keras whose Y is used: past the end Keras repeats, ONNX has zeros."""
    if _is_of_keras(model) and "sequence_lens" in node.inputs and node.used("Y"):
        yield Suspicion(
            located.label,
            "it has sequence_lens, and its sequence Y is used",
            "a masked layer of Keras repeats its last output after the end of a sequence, where ONNX has "
            "zeros, and skips masked steps anywhere (microsoft/onnxruntime#12492, onnx/tensorflow-onnx#2030)",
            "if steps after the end, or masks elsewhere, matter to later nodes, compare it with Keras",
        )


def _activations_left_out(model: ir.Model, located: Located, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a bidirectional layer of Keras, whose activations tf2onnx drops."""
    is_both = node.direction == "bidirectional"
    if is_both and _is_by(model, "tf2onnx") and "activations" not in located.node.attributes:
        yield Suspicion(
            located.label,
            "it is bidirectional and has the default activations",
            "tf2onnx drops those of a Bidirectional layer (onnx/tensorflow-onnx#2211)",
            "if the layer has activations other than tanh and sigmoid, the model is wrong: "
            "compare it with Keras",
        )


def _baked_batch(model: ir.Model, located: Located, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a constant initial state of several rows where the batch of X is dynamic."""
    if isinstance(_size_of_x(node, 1 - node.layout), int):
        return
    for name in ("initial_h", "initial_c"):
        tensor = constant_of(node.inputs.get(name))
        if tensor is None or len(tensor.shape) != 3:
            continue
        rows = tensor.shape[1 - node.layout]
        yield Suspicion(
            located.label,
            f"{name} is a constant of {rows} row(s), but the batch of X is dynamic",
            "an exporter has fixed the batch of its example (pytorch/pytorch#45653, onnx/onnx#3182), "
            "so the model only runs with that batch",
            f"fix the batch to {rows} ({_sizes()}), or export the initial states as inputs",
        )


def _sizes() -> str:
    return f"{wording.option('dim')}, {wording.option('input-shape')}"


def _baked_lengths(model: ir.Model, located: Located, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield constant sequence_lens where the batch or the length of X is dynamic."""
    tensor = constant_of(node.inputs.get("sequence_lens"))
    if tensor is None or all(isinstance(_size_of_x(node, axis), int) for axis in (0, 1)):
        return
    lengths = [*map(int, tensor.numpy().ravel())]
    brief = ", ".join(map(str, lengths[:4])) + (", ..." if len(lengths) > 4 else "")
    yield Suspicion(
        located.label,
        f"sequence_lens is a constant ({brief}), but the batch or the length of X is dynamic",
        "a tracing exporter hard-codes the lengths of its example (pytorch/pytorch#15319), and later steps "
        "are never read",
        f"export the lengths as an input, or fix the sizes of X to the example's ({_sizes()})",
    )


def _is_by(model: ir.Model, exporter: str) -> bool:
    return exporter in (model.producer_name or "").lower()


def _is_of_keras(model: ir.Model) -> bool:
    return any(_is_by(model, exporter) for exporter in ("keras2onnx", "tf2onnx"))


def _size_of_x(node: ResolvedNode, axis: int) -> int | ir.SymbolicDim | None:
    """Return a size of X, or 0 if its rank is unknown."""
    shape = node.inputs["X"].shape
    return 0 if shape is None else shape[axis]


def _readers(node: ResolvedNode, name: str) -> list[ir.Node]:
    return [use.node for use in node.outputs[name].uses()] if name in node.outputs else []


def _behind(node: ResolvedNode, name: str) -> list[ir.Node]:
    """List the readers of an output, also through nodes that only move its elements."""

    def behind(reader: ir.Node) -> list[ir.Node | None]:
        outputs = reader.outputs if reader.op_type in REARRANGING else ()
        return [use.node for out in outputs for use in out.uses()]

    return reached(_readers(node, name), behind)


_CHECKS: tuple[Callable[[ir.Model, Located, ResolvedNode], Iterator[Suspicion]], ...] = (
    _reset_before_product,
    _directions_mixed,
    _not_turned_back,
    _masked_tail,
    _activations_left_out,
    _baked_batch,
    _baked_lengths,
)
