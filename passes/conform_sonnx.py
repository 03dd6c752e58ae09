"""LSTM nodes in the form of the SONNX profile, which keeps the operator and makes everything explicit.

Before::

    (float[3, 1, 1] X) => (float[3, 1, 1, 1] Y)
    <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {1, 2, 3, 4}> {
        Y = LSTM <hidden_size = 1> (X, W, R)
    }

After ``ConformSonnxPass()``::

    (float[3, 1, 1] X) => (float[3, 1, 1, 1] Y)
    <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {1, 2, 3, 4},
     float[1, 8] B = {0, 0, 0, 0, 0, 0, 0, 0}, float[1, 3] P = {0, 0, 0},
     float[1, 1, 1] zero = {0}, int32[1] lens = {3}> {
        Y = LSTM <
            hidden_size = 1, activations = ["Sigmoid", "Tanh", "Tanh"], input_forget = 0, layout = 0
        > (X, W, R, B, lens, zero, zero, P)
    }
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.walk import Located, default_opset
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.replacing import Emitters, LoweredNode, replace_node
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import no_function_is_recurrent
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.sonnx import FIRST_OPSET, departures, last_steps
from rnnlower.targets.adapting import AdaptedNode


def _nodes_conform(model: ir.Model, conforming: ConformSonnxPass) -> bool:
    nodes = find_recurrent(model) if conforming._nodes is None else conforming._nodes
    there = [located for located in nodes if located.node.graph is not None]
    return not any(departure.level == "error" for located in there for departure in departures(located))


class ConformSonnxPass(Pass):
    """Makes LSTM nodes of the main graph and its subgraphs conform, or refuses them by name.

    Computed constants (`FoldWeightsPass`), undeclared types
    (`InferTypesPass`), functions (`InlineFunctionsPass`) and opsets below 14 (`ConvertOpsetPass`) are handled
    by other passes.

    Args:
        nodes: The nodes; ``None``: every recurrent node of the model.

    Attributes:
        conformed: Reports on the nodes that departed from the profile.
    """

    REQUIRES = (no_function_is_recurrent,)
    ENSURES = (_nodes_conform,)

    def __init__(self, nodes: Sequence[Located] | None = None) -> None:
        super().__init__()
        self._nodes = nodes
        self.conformed: list[LoweredNode] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Make the nodes conform.

        Raises:
            InvalidModelError: A node breaks the ONNX spec.
            UnsupportedModelError: A node departs from the profile in a way that cannot be corrected.
        """
        nodes = find_recurrent(model) if self._nodes is None else self._nodes
        emitters = Emitters(model)
        refused = []
        for located in nodes:
            found = [departure for departure in departures(located) if departure.level == "error"]
            if not found:
                continue
            if located.node.op_type == "LSTM" and default_opset(model) >= FIRST_OPSET:
                # Located again: an input may be an output of a node that has just been replaced.
                node = parse_recurrent(located)
                if node.dtype is not None and node.inputs["X"].shape is not None:
                    e = emitters.at(located.name, node.dtype)
                    located = dataclasses.replace(located, node=_conform(e, node))
                    reason = "the profile keeps the operator"
                    self.conformed.append(
                        LoweredNode.of(
                            located, "conform", len(e.nodes), reason, node.direction, node.seq_length
                        )
                    )
            refused += [str(left) for left in departures(located) if left.level == "error"]
        if refused:
            raise UnsupportedModelError("\n".join(refused))
        return ir.passes.PassResult(model, modified=bool(self.conformed))


def _conform(e: Emitter, node: ResolvedNode) -> ir.Node:
    """Replace a node by one without correctable departures."""
    form = _ConformingNode(e, node)
    results = form.emit()
    (lstm,) = form.recurrent
    lstm.name, lstm.doc_string = node.node.name, node.node.doc_string
    lstm.metadata_props.update(node.node.metadata_props)
    replace_node(node.node, results, e.nodes, mark=True)
    return lstm


class _ConformingNode(AdaptedNode):
    """An LSTM with all that the profile wants written out, as far as the sizes are known, to be emitted."""

    def __init__(self, e: Emitter, node: ResolvedNode) -> None:
        states = () if node.batch_size is None else node.state_names
        super().__init__(e, node, ["Y", "B", *states])

    def _inputs(self) -> dict[str, ir.Value]:
        e, node, given = self.e, self._node, super()._inputs()
        if "P" not in given:
            given["P"] = e.zeros([node.num_directions, 3 * node.hidden_size])
        if "sequence_lens" not in given and node.batch_size is not None and node.seq_length is not None:
            given["sequence_lens"] = e.constant(np.full(node.batch_size, node.seq_length, np.int32))
        return given

    def _attributes(self, direction: str) -> list[ir.Attr]:
        node = self._node
        names = [activation.name for functions in node.activations for activation in functions]
        written = {
            "activations": ir.AttrStrings("activations", names),
            "hidden_size": ir.AttrInt64("hidden_size", node.hidden_size),
            "input_forget": ir.AttrInt64("input_forget", int(node.input_forget)),
            "layout": ir.AttrInt64("layout", 0),
        }
        return [*{**node.node.attributes, **written}.values()]

    def _wants(self, name: str) -> bool:
        return super()._wants(name) and (name != "Y_h" or last_steps(self._node) is None)

    def _run(self, inputs: Mapping[str, ir.Value], direction: str, directions: int) -> dict[str, ir.Value]:
        outputs = super()._run(inputs, direction, directions)
        if self._node.used("Y_h") and last_steps(self._node) is not None:
            outputs["Y_h"] = _last_state(self.e, self._node, outputs["Y"])
        return outputs


def _last_state(e: Emitter, node: ResolvedNode, Y: ir.Value) -> ir.Value:
    """Emit Y_h from Y, whose rows all have the same length."""
    steps = last_steps(node)
    assert steps is not None
    lanes = []
    for direction, reverse in enumerate(node.reversed_directions):
        last = 0 if reverse else steps - 1
        lanes.append(e.slice(Y, [last, direction], [last + 1, direction + 1], [0, 1]))
    batch = e.dim(Y, 2) if node.batch_size is None else node.batch_size
    return e.squeeze(e.concat(lanes, axis=1), 0, [node.num_directions, batch, node.hidden_size])
