"""A runtime's own recurrent operator, adapted by ops around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.rewiring import detach
from rnnlower.graph.walk import trim_omitted
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.replacing import replace_node
from rnnlower.lowering.sketching import sketch_emitter
from rnnlower.recurrent.node import KEEPS_INITIAL, ResolvedNode
from rnnlower.recurrent.operators import INPUT_NAMES, OUTPUT_NAMES
from rnnlower.targets.format import RecurrentRule
from rnnlower.targets.native import NativeCheck

_BATCH_PERM = {"Y": [2, 0, 1, 3], "Y_h": [1, 0, 2], "Y_c": [1, 0, 2]}
_DIRECTION_AXIS = {"Y": 1, "Y_h": 0, "Y_c": 0}


def find_changes(check: NativeCheck) -> frozenset[str] | None:
    """Return the changes that make the target run the node: none if it runs the node as it is.

    ``None``: no allowed changes suffice.
    """
    if not check.misfits():
        return frozenset()
    node = check.node
    if node.is_quantized or node.dtype is None or node.inputs["X"].shape is None:
        return None
    found = (_changes_for(check, rule) for rule in check.rules if rule.adapt)
    return next((changes for changes in found if changes is not None), None)


def _changes_for(check: NativeCheck, rule: RecurrentRule) -> frozenset[str] | None:
    """Return the changes for one rule: change what violates it, until the result violates nothing."""
    changes: frozenset[str] = frozenset()
    located, node, violated = check.located, check.node, check.violated_keys(rule)
    while violated:
        if violated <= changes or not violated <= {*rule.adapt}:
            return None
        # A Slice of negative steps over an open size does not run everywhere; a Scan takes either order.
        if "reverse" in violated and node.seq_length is None:
            return None
        changes |= violated
        e = sketch_emitter(node, located.opset, check.target)
        form = AdaptedNode(e, node, changes)
        try:
            form.emit()
            inner = [dataclasses.replace(located, node=each) for each in form.recurrent]
            checks = [dataclasses.replace(check, located=each) for each in inner]
            violated = frozenset[str]().union(*(each.violated_keys(rule) for each in checks))
        except (OpsetError, MissingOperatorError):
            return None
        finally:
            detach(e.everything)
    return changes


class AdaptedNode:
    """A runtime's own recurrent operator, adapted by ops around it, to be emitted.

    Args:
        changes: The keys of `NativeCheck.violated_keys` to correct. Those that cannot be corrected stay.

    Attributes:
        recurrent: The emitted recurrent nodes.
    """

    def __init__(self, e: Emitter, node: ResolvedNode, changes: Collection[str]) -> None:
        self.e = e
        self.recurrent: list[ir.Node] = []
        self._node = node
        self._changes = changes
        # The other changes are written for time first.
        self._batch_first = bool(node.layout)
        self._own_activations = all(
            [each.name for each in functions] == [*node.cell.activations] for functions in node.activations
        )

    def emit(self) -> list[ir.Value | None]:
        """Emit the form; return a new value for each output of the node, ``None`` if it is not used."""
        node = self._node
        inputs = self._inputs()
        splits = node.num_directions > 1 and "bidirectional" in self._changes and self._own_activations
        lanes = []
        for index, reverse in enumerate(
            node.reversed_directions if splits else [node.direction == "reverse"]
        ):
            lane = (
                {name: self._lane(name, value, index) for name, value in inputs.items()} if splits else inputs
            )
            direction = ("reverse" if reverse else "forward") if splits else node.direction
            lanes.append(self._emit(lane, direction, 1 if splits else node.num_directions))
        results = {
            name: self.e.concat([lane[name] for lane in lanes], _DIRECTION_AXIS[name])
            for name in lanes[0]
            if node.used(name)
        }
        if self._batch_first:
            results = {name: self.e.transpose(value, _BATCH_PERM[name]) for name, value in results.items()}
        return [results.get(name) for name in OUTPUT_NAMES]

    def replace(self, *, mark: bool) -> ir.Node:
        """Put the form in the place of the node; return its only recurrent node, under the same name."""
        old, results = self._node.node, self.emit()
        (made,) = self.recurrent
        made.name, made.doc_string = old.name, old.doc_string
        made.metadata_props.update(old.metadata_props)
        replace_node(old, results, self.e.nodes, mark=mark)
        return made

    def _inputs(self) -> dict[str, ir.Value]:
        """Return the node's inputs, including the defaults that the changes write out."""
        node, e = self._node, self.e
        given = dict(node.inputs)
        if self._batch_first:
            for name in ("X", *node.state_names):
                if name in given:
                    given[name] = self._transposed(given[name])
        lengths = constant_of(given.get("sequence_lens"))
        are_full = lengths is not None and bool(np.all(lengths.numpy() == node.seq_length))
        if "sequence_lens" in self._changes and are_full:
            del given["sequence_lens"]
        directions, size = node.num_directions, node.hidden_size
        if "B" in self._changes and "B" not in given:
            given["B"] = e.zeros([directions, 2 * len(node.cell.gates) * size])
        for name in node.state_names:
            if name in self._changes and name not in given:
                rows = e.dim(given["X"], 1) if node.batch_size is None else node.batch_size
                given[name] = e.zeros([directions, rows, size])
        return given

    def _transposed(self, value: ir.Value) -> ir.Value:
        tensor = constant_of(value)
        if tensor is not None:
            return self.e.constant(np.ascontiguousarray(tensor.numpy().transpose(1, 0, 2)))
        transposed = self.e.transpose(value, [1, 0, 2])
        transposed.type = value.type
        if value.shape is not None:
            transposed.shape = ir.Shape([value.shape[axis] for axis in (1, 0, 2)])
        return transposed

    def _lane(self, name: str, value: ir.Value, index: int) -> ir.Value:
        """Return one direction's part of an input."""
        if name in ("X", "sequence_lens"):
            return value
        tensor = constant_of(value)
        if tensor is not None:
            return self.e.constant(np.ascontiguousarray(tensor.numpy()[index : index + 1]))
        part = self.e.slice(value, [index], [index + 1], [0])
        part.type = value.type
        if value.shape is not None:
            part.shape = ir.Shape([1, *list(value.shape)[1:]])
        return part

    def _emit(self, inputs: Mapping[str, ir.Value], direction: str, directions: int) -> dict[str, ir.Value]:
        """Emit a recurrent node; return its outputs in forward order of time."""
        reverses = direction == "reverse" and "reverse" in self._changes and "sequence_lens" not in inputs
        if reverses:
            inputs = {**inputs, "X": self._reverse_time(inputs["X"])}
            direction = "forward"
        order = trim_omitted(inputs.get(name) for name in INPUT_NAMES)
        made = ir.Node(
            "", self._node.node.op_type, order, self._attributes(direction), outputs=self._outputs(directions)
        )
        made.name = self.e.names.fresh(direction)
        if KEEPS_INITIAL in self._node.node.meta:
            made.meta[KEEPS_INITIAL] = self._node.node.meta[KEEPS_INITIAL]
        self.e.add(made)
        self.recurrent.append(made)
        outputs = {name: value for name, value in zip(OUTPUT_NAMES, made.outputs, strict=False) if value.name}
        if reverses and self._node.used("Y"):
            outputs["Y"] = self._reverse_time(outputs["Y"])
        return outputs

    def _reverse_time(self, value: ir.Value) -> ir.Value:
        """Return the value with its first axis, time, from end to start."""
        steps = self._node.seq_length
        assert steps is not None
        flipped = self.e.op("Gather", value, self.e.integers(*reversed(range(steps))), axis=0)
        flipped.type, flipped.shape = value.type, value.shape
        return flipped

    def _attributes(self, direction: str) -> list[ir.Attr]:
        node = self._node
        dropped = {"direction", "hidden_size", "layout"}
        if self._own_activations:
            dropped |= {"activations", "activation_alpha", "activation_beta"}
        kept = [attribute for name, attribute in node.node.attributes.items() if name not in dropped]
        return [
            *([] if direction == "forward" else [ir.AttrString("direction", direction)]),
            ir.AttrInt64("hidden_size", node.hidden_size),
            *kept,
        ]

    def _is_wanted(self, name: str) -> bool:
        return self._node.used(name) or name in self._changes

    def _outputs(self, directions: int) -> list[ir.Value]:
        """Return the outputs that are used or required; omitted ones before them have no name."""
        node = self._node
        wanted = [self._is_wanted(name) for name in node.cell.outputs]
        while not wanted[-1]:
            wanted.pop()
        X = node.inputs["X"].shape
        assert X is not None
        steps, rows = (X[1], X[0]) if node.layout else (X[0], X[1])
        made = []
        for name, want in zip(node.cell.outputs, wanted, strict=False):
            value = ir.Value(name=self.e.names.fresh(name) if want else "")
            if want and node.dtype is not None:
                value.type = ir.TensorType(node.dtype)
                lane = [directions, rows, node.hidden_size]
                value.shape = ir.Shape([steps, *lane] if name == "Y" else lane)
            made.append(value)
        return made
