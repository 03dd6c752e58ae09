"""Recurrence that cannot be lowered: cells written out as a Loop or Scan, and states lost between calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from rnnlower import wording
from rnnlower.graph.constants import constant_of
from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import Located, called, captured, reached, read_by, subgraphs_of, walk, walk_all
from rnnlower.recurrent.exporter_warnings import Suspicion
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.operators import OUTPUT_NAMES, STATE_INPUTS
from rnnlower.recurrent.state_operators import is_state_operator, parse_state_operators

_PRODUCTS = frozenset(
    (
        *("Conv", "DynamicQuantizeMatMul", "Einsum", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger"),
        *("MatMulIntegerToFloat", "MatMulNBits", "QGemm", "QLinearMatMul"),
    )
)
# These operators read the shape of a value, not its content.
_SHAPE_READERS = frozenset(["Shape", "Size"])
_STATES = {"initial_h": "Y_h", "initial_c": "Y_c"}


def other_recurrences(model: ir.Model, lifted: Collection[tuple[str | None, str]] = ()) -> list[Suspicion]:
    """List the model's Loop and Scan nodes that are hand-written cells: a state goes through a product.

    Those of the names and paths in `lifted` are left out.
    """
    found = []
    for node, path in walk_all(model):
        if (node.name, path) not in lifted and (states := list(_multiplied_states(node))):
            name = called(node)
            found.append(_written_out(node, f"{path}/{name}" if path else name, states))
    return found


def _written_out(node: ir.Node, name: str, states: list[str]) -> Suspicion:
    carried = f"state{'s' if len(states) > 1 else ''} {', '.join(map(repr, states))}"
    return Suspicion(
        f"{node.op_type} node {name!r}",
        "it is a recurrence in another form, and stays as it is",
        f"its body carries the {carried} through a product from step to step, "
        "which is how exporters write cells for which they have no LSTM, GRU or RNN",
        f"turn it into a straight line with {wording.option('control-flow', 'unroll')}, run the result on a "
        f"runtime that has {node.op_type}, or export the layer as an LSTM, GRU or RNN node",
    )


def _multiplied_states(node: ir.Node) -> Iterator[str]:
    """Yield the states of a Loop or Scan whose next value comes from a product with the previous one."""
    if node.domain or node.op_type not in ("Loop", "Scan") or "body" not in node.attributes:
        return
    body = node.attributes["body"].as_graph()
    if node.op_type == "Loop":
        pairs = zip(body.inputs[2:], body.outputs[1:], strict=False)
    else:
        count = len(body.inputs) - node.attributes.get_int("num_scan_inputs", 0)
        pairs = zip(body.inputs[:count], body.outputs[:count], strict=False)
    for before, after in pairs:
        if after in _behind_products(body, before):
            yield before.name or ""


def _behind_products(body: ir.Graph, state: ir.Value) -> set[ir.Value]:
    """Return the values of a body that depend on a product with the state."""
    touched, behind = {state}, set[ir.Value]()
    for node in body:
        reads = {value for value in node.inputs if value is not None} | captured(node)
        inside = {inner.op_type for graph in subgraphs_of(node) for inner, _ in walk(graph)}
        if reads & touched:
            touched |= {*node.outputs}
            if reads & behind or {node.op_type, *inside} & _PRODUCTS:
                behind |= {*node.outputs}
    return behind


def forgotten_states(nodes: Iterable[tuple[Located, int | None]]) -> list[Suspicion]:
    """List the nodes of one time step that start from scratch in each call; `nodes` are (node, steps)."""
    return [
        _forgetful(located)
        for located, steps in nodes
        if steps == 1
        and located.node.domain == ""
        and not any(map(_holds_data, located.node.inputs[min(STATE_INPUTS) : max(STATE_INPUTS) + 1]))
    ]


def forgetful_operators(model: ir.Model, facts: Facts) -> list[Suspicion]:
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


def _forgetful(located: Located) -> Suspicion:
    names = OUTPUT_NAMES if located.node.op_type == "LSTM" else OUTPUT_NAMES[:2]
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
        return [] if producer is None or producer.op_type in _SHAPE_READERS else read_by(producer)

    found = [] if value is None else reached([value], following)
    return any(each.producer() is None and constant_of(each) is None for each in found)
