"""Warnings about legal but suspicious models.

Faults of exporters, unknown recurrent operators, and recurrence that cannot be lowered: cells written out as
a Loop or Scan, and states lost between calls.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.graph.evaluation import Dim
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.loop_signature import LoopSignature
from rnnlower.graph.operator_kinds import REARRANGING, SHAPE_READERS
from rnnlower.graph.walk import (
    LocatedNode,
    captured_values,
    display_name,
    is_read,
    node_names,
    place_name,
    reachable,
    subgraphs_of,
    values_read_by,
    walk,
    walk_all,
)
from rnnlower.recurrent.finding import find_recurrent, is_recurrent
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import RECURRENT_OPS, STATE_INPUTS
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.state_operators import is_state_operator, parse_state_operators

_RECURRENT_NAME = re.compile(r"LSTM|GRU|RNN|Lstm|Gru|Rnn|(^|_)(lstm|gru|rnn)(_|$)")


@dataclasses.dataclass(frozen=True)
class Suspicion:
    """A part of the model that a user should look at.

    Attributes:
        node: The node's operator, name and place.
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
    nodes = [(located, parse_recurrent(located, lenient=True)) for located in find_recurrent(model)]
    found += _missing_lengths(model, nodes)
    for located, node in nodes:
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
            f"{node.op_type} node {place_name(path, display_name(node))!r}",
            f"operator {node.domain or 'ai.onnx'}.{node.op_type} has the name of a recurrence",
            "it is not a known operator and stays as it is",
            "export the model with LSTM, GRU or RNN if its target lacks the operator",
        )


def _missing_lengths(
    model: ir.Model, nodes: Sequence[tuple[LocatedNode, ResolvedNode]]
) -> Iterator[Suspicion]:
    """Yield the first node if none has sequence_lens, and nothing reads an input that may hold lengths."""
    if not nodes or any("sequence_lens" in node.inputs for _, node in nodes):
        return
    for value in model.graph.inputs:
        is_integer = value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
        size = value.shape[0] if value.shape is not None and len(value.shape) == 1 else 1
        if is_integer and size != 1 and not is_read(value) and value.name not in model.graph.initializers:
            yield Suspicion(
                nodes[0][0].label,
                f"nothing reads input {value.name!r}, and no node has sequence_lens",
                "paddle2onnx 2.1.0 drops sequence_length, so that all rows have as many steps as X",
                "compare the model with the framework's on rows of different lengths",
            )


def _reset_before_product(model: ir.Model, located: LocatedNode, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a GRU whose reset gate is applied before the product, against its framework."""
    linear = located.node.attributes.get("linear_before_reset")
    if located.node.op_type != "GRU" or (linear is not None and (linear.is_ref() or linear.as_int() != 0)):
        return
    # PyTorch's exporter fills in every default, and lift only this one.
    is_default = linear is None or "layout" in located.node.attributes
    if is_default and (model.producer_name or "").lower() == "pytorch":
        why = (
            "PyTorch's GRU is the form with 1, but some exporters left it at its default (torch with "
            "dynamo=True and onnxscript before 0.7.1: pytorch/pytorch#189225, microsoft/onnxscript#2852)"
        )
    elif _is_exported_by_keras(model) and _has_recurrent_bias(node):
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


def _mixed_directions(model: ir.Model, located: LocatedNode, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a bidirectional node whose directions are merged with the units outside."""
    for reader in _readers_of_y(node):
        perm = reader.attributes.get("perm")
        is_mixed = reader.op_type == "Transpose" and perm is not None and [*perm.as_ints()] == [0, 2, 3, 1]
        if is_mixed and _is_exported_by(model, "pytorch") and node.direction == "bidirectional":
            yield Suspicion(
                located.label,
                f"Transpose node {display_name(reader)!r} moves the directions of Y after its units",
                "PyTorch puts the forward units first and the reverse ones after them, and its exporter "
                "interleaved them (torch up to 0.4.1: pytorch/pytorch#10838), so later nodes read the wrong "
                "features",
                "export it again with a newer torch",
            )


def _unreversed_outputs(model: ir.Model, located: LocatedNode, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a reverse layer of Keras whose sequence stays in processing order."""
    if not _is_exported_by(model, "keras2onnx") or node.direction != "reverse":
        return
    following = reachable(_readers_of_y(node), _readers_of_moved)
    if following and not any(each.op_type in ("ReverseSequence", "Slice", "Gather") for each in following):
        yield Suspicion(
            located.label,
            "it is reverse, and its sequence is not reversed",
            "with go_backwards, Keras returns the last step first, and keras2onnx left the reversal out "
            "(onnx/keras-onnx#523, fixed by onnx/keras-onnx#583)",
            "if the layer has return_sequences, the model is wrong: compare it with Keras",
        )


def _masked_tail(model: ir.Model, located: LocatedNode, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a masked layer of Keras whose Y is used: past the end Keras repeats, ONNX has zeros.

    Where `lift` has put the steps in another order, its results are repeated.
    """
    X = located.node.inputs[0]
    order = None if X is None else X.producer()
    is_lifted = order is not None and order.op_type == "ScatterElements"
    if _is_exported_by_keras(model) and "sequence_lens" in node.inputs and node.used("Y") and not is_lifted:
        yield Suspicion(
            located.label,
            "it has sequence_lens, and its sequence Y is used",
            "a masked layer of Keras repeats its last output after the end of a sequence, where ONNX has "
            "zeros, and skips masked steps anywhere (microsoft/onnxruntime#12492, onnx/tensorflow-onnx#2030)",
            "if steps after the end, or masks elsewhere, matter to later nodes, compare it with Keras",
        )


def _missing_activations(model: ir.Model, located: LocatedNode, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a bidirectional layer of Keras, whose activations tf2onnx drops."""
    is_both = node.direction == "bidirectional"
    if is_both and _is_exported_by(model, "tf2onnx") and "activations" not in located.node.attributes:
        yield Suspicion(
            located.label,
            "it is bidirectional and has the default activations",
            "tf2onnx drops those of a Bidirectional layer (onnx/tensorflow-onnx#2211)",
            "if the layer has activations other than tanh and sigmoid, the model is wrong: "
            "compare it with Keras",
        )


def _constant_batch_size(model: ir.Model, located: LocatedNode, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield a constant initial state of several rows where the batch of X is dynamic."""
    if isinstance(_dim_of_x(node, 1 - node.layout), int):
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


def _constant_lengths(model: ir.Model, located: LocatedNode, node: ResolvedNode) -> Iterator[Suspicion]:
    """Yield constant sequence_lens where the batch or the length of X is dynamic."""
    tensor = constant_of(node.inputs.get("sequence_lens"))
    if tensor is None or all(isinstance(_dim_of_x(node, axis), int) for axis in (0, 1)):
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


def _is_exported_by(model: ir.Model, exporter: str) -> bool:
    return exporter in (model.producer_name or "").lower()


def _is_exported_by_keras(model: ir.Model) -> bool:
    return any(_is_exported_by(model, exporter) for exporter in ("keras2onnx", "tf2onnx"))


def _dim_of_x(node: ResolvedNode, axis: int) -> Dim:
    """Return a size of X, or 0 if its rank is unknown."""
    shape = node.inputs["X"].shape
    return 0 if shape is None else shape[axis]


def _readers_of_y(node: ResolvedNode) -> list[ir.Node]:
    return [use.node for use in node.outputs["Y"].uses()] if "Y" in node.outputs else []


def _readers_of_moved(node: ir.Node) -> list[ir.Node]:
    """Return the readers of what a node returns if it only moves elements."""
    return [use.node for out in node.outputs for use in out.uses()] if node.op_type in REARRANGING else []


_CHECKS: tuple[Callable[[ir.Model, LocatedNode, ResolvedNode], Iterator[Suspicion]], ...] = (
    _reset_before_product,
    _mixed_directions,
    _unreversed_outputs,
    _masked_tail,
    _missing_activations,
    _constant_batch_size,
    _constant_lengths,
)


_PRODUCTS = frozenset(
    (
        *("Conv", "DynamicQuantizeMatMul", "Einsum", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger"),
        *("MatMulIntegerToFloat", "MatMulNBits", "QGemm", "QLinearMatMul"),
    )
)
_STATES = {"initial_h": "Y_h", "initial_c": "Y_c"}


def find_other_recurrences(model: ir.Model, lifted: Collection[tuple[str, str]] = ()) -> list[Suspicion]:
    """List the model's Loop and Scan nodes that are hand-written cells: a state goes through a product.

    Those of the names and paths in `lifted` are left out.
    """
    found, names = [], node_names(model)
    for node, path in walk_all(model):
        if (names[node], path) not in lifted and (states := list(_multiplied_states(node))):
            found.append(_written_out_warning(node, place_name(path, names[node]), states))
    return found


def _written_out_warning(node: ir.Node, name: str, states: list[str]) -> Suspicion:
    carried = f"state{'s' if len(states) > 1 else ''} {', '.join(map(repr, states))}"
    return Suspicion(
        f"{node.op_type} node {name!r}",
        "it is a recurrence in another form, and stays as it is",
        f"its body carries the {carried} through a product from step to step, "
        "which is how exporters write cells for which they have no LSTM, GRU or RNN",
        f"lift it, or read why it stays ({wording.call('lift')}), "
        f"turn it into a straight line ({wording.call('unroll', **{'control-flow': 'unroll'})}), run the "
        f"result on a runtime that has {node.op_type}, or export the layer as an LSTM, GRU or RNN node",
    )


def _multiplied_states(node: ir.Node) -> Iterator[str]:
    """Yield the states of a Loop or Scan whose next value comes from a product with the previous one."""
    if node.domain or node.op_type not in ("Loop", "Scan") or "body" not in node.attributes:
        return
    if any(each.is_ref() for each in node.attributes.values()):
        # The calls of the function decide how its inputs are paired with its body's.
        return
    loop = LoopSignature(node)
    for state in loop.states:
        if state.after in _values_after_products(loop.body, state.before):
            yield state.before.name or ""


def _values_after_products(body: ir.Graph, state: ir.Value) -> set[ir.Value]:
    """Return the values of a body that depend on a product with the state."""
    touched, multiplied = {state}, set[ir.Value]()
    for node in body:
        reads = {value for value in node.inputs if value is not None} | captured_values(node)
        inside = {inner.op_type for graph in subgraphs_of(node) for inner, _ in walk(graph)}
        if reads & touched:
            touched |= {*node.outputs}
            if reads & multiplied or {node.op_type, *inside} & _PRODUCTS:
                multiplied |= {*node.outputs}
    return multiplied


def find_forgotten_states(nodes: Iterable[tuple[LocatedNode, int | None]]) -> list[Suspicion]:
    """List the nodes of one time step that start from scratch in each call; `nodes` are (node, steps)."""
    return [
        _forgotten_state_warning(located)
        for located, steps in nodes
        if steps == 1
        and located.node.domain == ""
        and not any(map(_holds_data, located.node.inputs[min(STATE_INPUTS) : max(STATE_INPUTS) + 1]))
    ]


def find_forgetful_operators(model: ir.Model, facts: Facts) -> list[Suspicion]:
    """List LinearAttention and CausalConvWithState nodes of one time step that start from scratch."""
    nodes = parse_state_operators(find_recurrent(model, is_state_operator), facts, lenient=True)
    return [
        Suspicion(
            node.located.label,
            "it runs one time step and loses its state",
            "no input sets its past_state, and present_state is lost between calls",
            "make past_state an input of the model and present_state an output",
        )
        for node in nodes
        if node.steps == 1 and not _holds_data(node.inputs.get("past_state"))
    ]


def _forgotten_state_warning(located: LocatedNode) -> Suspicion:
    names = RECURRENT_OPS[located.node.op_type].outputs
    written = dict(zip(names, (value.name for value in located.node.outputs), strict=False))
    states = [output for output in _STATES.values() if output in names]
    named = [f"{output} {written[output]!r}" if written.get(output) else output for output in states]
    return Suspicion(
        located.label,
        "it runs one time step and loses its state",
        f"no input sets its state, and the new one ({' and '.join(named)}) is lost between calls",
        f"`{wording.call('stream')}` makes the states inputs and outputs of the model",
    )


def _holds_data(value: ir.Value | None) -> bool:
    """Return whether the content of a graph or body input reaches the value, and not only its shape."""

    def following(this: ir.Value) -> list[ir.Value | None]:
        producer = this.producer()
        return [] if producer is None or producer.op_type in SHAPE_READERS else values_read_by(producer)

    found = [] if value is None else reachable([value], following)
    return any(each.producer() is None and constant_of(each) is None for each in found)
