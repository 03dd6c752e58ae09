"""The plan for replacing a recurrent node, the replacement itself, and the report on it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.rewiring import remove_orphans, take_place_of
from rnnlower.graph.walk import LocatedNode
from rnnlower.lowering.forms import PLAIN, Form

Gates = Literal["auto", "fused", "separate"]
"""Whether gates share products; ``auto`` picks what runs fastest."""

EMITTED = "rnnlower.emitted"
"""Key in the `meta` of nodes that were emitted for a target."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The decision how to lower a node, with its reasons.

    Attributes:
        strategy: unroll, scan or loop.
        unroll_factor: Time steps per iteration of a Scan or Loop.
        reason: The reason for the strategy.
        prices: The estimated cost of each candidate, in microseconds per run; empty if there was no choice.
        needs: The opset that each of its operators needs, if the model's is too low.
    """

    strategy: str
    unroll_factor: int = 1
    reason: str = "asked for"
    form: Form = PLAIN
    prices: Mapping[str, float] = dataclasses.field(default_factory=dict)
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LoweredNode:
    """The report on one lowered node.

    Attributes:
        name: Name of the node that was lowered.
        op_type: LSTM, GRU or RNN.
        path: The subgraph or function that held it.
        direction: forward, reverse or bidirectional.
        strategy: unroll, scan or loop; conform or adapt if the operator stays, with ops around it.
        steps: Static number of time steps, or ``None``.
        emitted_ops: Number of nodes in its place, including those in bodies.
        reason: The reason for the strategy.
        form: The form of a step.
        prices: The estimated cost of each candidate, in microseconds per run; empty if there was no choice.
    """

    name: str
    op_type: str
    path: str
    direction: str
    strategy: str
    steps: int | None
    emitted_ops: int
    reason: str
    form: str = ""
    prices: Mapping[str, float] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def located_errors(located: LocatedNode, remedy: str = "") -> Iterator[None]:
    """Name the node in errors about operators that its replacement needs."""
    try:
        yield
    except MissingOperatorError as error:
        raise error.at(located) from None
    except OpsetError as error:
        opset, operator = error.opset, error.operator
        raise OpsetError(str(error), node=located, remedy=remedy, opset=opset, operator=operator) from None


def replace_node(
    old: ir.Node, outputs: Sequence[ir.Value | None], emitted: Sequence[ir.Node], *, mark: bool
) -> None:
    """Put the emitted nodes in the place of the node; its outputs keep their names and types.

    Args:
        outputs: The values that replace its outputs, in their order; ``None`` replaces nothing.
        emitted: The nodes that compute them.
        mark: Whether to mark them as `EMITTED` for later passes, which takes a dictionary for each of them.
    """
    old.prepend(emitted)
    if mark:
        for node in emitted:
            node.meta[EMITTED] = True
    for value, new in zip(old.outputs, outputs, strict=False):
        if new is None:
            continue
        value.type = new.type if value.type is None else value.type
        value.shape = new.shape if value.shape is None else value.shape
        new.doc_string = value.doc_string
        new.metadata_props.update(value.metadata_props)
        new.meta.update(value.meta)
        # The thousands of other nodes in its steps do not get the model's annotations of the node.
        if (made := new.producer()) is not None:
            made.metadata_props.update(old.metadata_props)
            made.doc_string = old.doc_string
        take_place_of(new, value)
    remove_orphans(old.outputs)
