"""A runtime's own LSTM, GRU or RNN, with what the runtime lacks of it put around it.

Before::

    (float[5, 1, 1] X) => (float[5, 1, 1, 1] Y)
    <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {4, 3, 2, 1}> {
        Y = LSTM <hidden_size = 1, direction = "reverse"> (X, W, R)
    }

After ``AdaptRecurrentPass(find_target("opencv"))``::

    (float[5, 1, 1] X) => (float[5, 1, 1, 1] Y)
    <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {4, 3, 2, 1},
     int64[5] last_first = {4, 3, 2, 1, 0}> {
        turned = Gather <axis = 0> (X, last_first)
        y = LSTM <hidden_size = 1> (turned, W, R)
        Y = Gather <axis = 0> (y, last_first)
    }
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.cleanup import detach
from rnnlower.graph.constants import constant_of
from rnnlower.graph.initializers import InitializerPool, ScratchPool
from rnnlower.graph.names import NameSource, Scope, names_in
from rnnlower.graph.walk import Located, default_opset
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.replacing import EMITTED, LoweredNode, replace_node
from rnnlower.passes.contracts import Condition, no_function_is_recurrent
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode, Semantics
from rnnlower.recurrent.operators import INPUT_NAMES, OUTPUT_NAMES
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets.native import lacking, native_misfits
from rnnlower.targets.plan import dialect
from rnnlower.targets.target import RecurrentRule, Target
from rnnlower.targets.validation import ADAPTABLE

__all__ = ["AdaptRecurrentPass"]

_TURN_BACK = {"Y": [2, 0, 1, 3], "Y_h": [1, 0, 2], "Y_c": [1, 0, 2]}
_DIRECTION_AXIS = {"Y": 1, "Y_h": 0, "Y_c": 0}


def _adapted_nodes_are_gone(model: ir.Model, adapting: AdaptRecurrentPass) -> bool:
    return all(located.node.graph is None for located in adapting.gone)


class AdaptRecurrentPass(ir.passes.InPlacePass):
    """Adapts the nodes that a target does not run as they are to what it runs, where its data allows that.

    Types that the model does not write down (`InferTypesPass`) and functions (`InlineFunctionsPass`) are
    other passes' business. A node that cannot be adapted stays as it is.

    Args:
        target: The target; the key ``adapt`` of its rules says what may be adapted.
        nodes: The nodes; ``None``: every recurrent node of the model.
        semantics: Which reading wins where the text and onnxruntime differ.

    Attributes:
        adapted: What became of the nodes that were adapted.
        gone: Those nodes, which are no longer in the model.
    """

    REQUIRES: ClassVar[Sequence[Condition]] = (no_function_is_recurrent,)
    ENSURES: ClassVar[Sequence[Condition]] = (_adapted_nodes_are_gone,)

    def __init__(
        self, target: Target, nodes: Sequence[Located] | None = None, semantics: Semantics = "ort"
    ) -> None:
        super().__init__()
        self._target = target
        self._nodes = nodes
        self._semantics = semantics
        self.adapted: list[LoweredNode] = []
        self.gone: list[Located] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Adapts.

        Raises:
            InvalidModelError: A node breaks the operator's text.
        """
        names = NameSource(names_in(model))
        pool = InitializerPool(model, names)
        for located in find_recurrent(model) if self._nodes is None else self._nodes:
            if not native_misfits(located, self._target, self._semantics):
                continue
            node = parse_recurrent(located, self._semantics, lenient=True)
            found = self._changes(located, node)
            if found is None:
                continue
            rule, changes = found
            form = _Form(self._emitter(default_opset(model), located, node, names, pool), node, changes)
            replace_node(node.node, form.emit(), form.e.nodes, mark=True)
            for each in form.recurrent:
                # It is the target's own operator, and judged as that.
                del each.meta[EMITTED]
            self.gone.append(located)
            self.adapted.append(self._report(located, node, rule, changes, len(form.e.nodes)))
        return ir.passes.PassResult(model, modified=bool(self.adapted))

    def _changes(self, located: Located, node: ResolvedNode) -> tuple[RecurrentRule, frozenset[str]] | None:
        """What is to be changed for the target to run the node, and by which rule it does then.

        ``None``: nothing that may be changed is enough.
        """
        if node.is_quantized or node.dtype is None or node.inputs["X"].shape is None:
            return None
        rules = (rule for rule in self._target.recurrent if node.node.op_type in rule.ops and rule.adapt)
        found = ((rule, self._changes_for(located, node, rule)) for rule in rules)
        return next(((rule, changes) for rule, changes in found if changes is not None), None)

    def _changes_for(
        self, located: Located, node: ResolvedNode, rule: RecurrentRule
    ) -> frozenset[str] | None:
        """The same, for one rule: what the node lacks is changed, then what the result still lacks."""
        changes: frozenset[str] = frozenset()
        lacks = lacking(located, rule, self._semantics)
        while lacks:
            if lacks <= changes or not lacks <= {*rule.adapt}:
                return None
            changes |= lacks
            names = NameSource(str(value.name) for value in node.inputs.values())
            e = self._emitter(located.opset, located, node, names, ScratchPool(names))
            form = _Form(e, node, changes)
            try:
                form.emit()
                places = [dataclasses.replace(located, node=each) for each in form.recurrent]
                lacks = frozenset[str]().union(*(lacking(each, rule, self._semantics) for each in places))
            except (OpsetError, MissingOperatorError):
                return None
            finally:
                detach(e.everything)
        return changes

    def _emitter(
        self, opset: int, located: Located, node: ResolvedNode, names: NameSource, pool: InitializerPool
    ) -> Emitter:
        assert node.dtype is not None
        return Emitter(opset, Scope(names, f"{located.name}/"), node.dtype, pool, dialect(self._target))

    def _report(
        self,
        located: Located,
        node: ResolvedNode,
        rule: RecurrentRule,
        changes: Collection[str],
        count: int,
    ) -> LoweredNode:
        done = ", ".join(words for name, words in ADAPTABLE.items() if name in changes)
        speed = f"; {rule.measured}" if rule.measured else ""
        return LoweredNode(
            name=located.name,
            op_type=located.node.op_type,
            path=located.path,
            direction=node.direction,
            strategy="adapt",
            steps=node.seq_length,
            emitted_ops=count,
            reason=f"{self._target.name} runs its own operator: {done}{speed}",
        )


class _Form:
    """A node with changes, emitted.

    Args:
        e: The emitter.
        node: The node.
        changes: What is to be changed, each by the key of `lacking`. What cannot be changed stays.

    Attributes:
        recurrent: The recurrent nodes of the form.
    """

    def __init__(self, e: Emitter, node: ResolvedNode, changes: Collection[str]) -> None:
        self.e = e
        self.recurrent: list[ir.Node] = []
        self._node = node
        self._changes = changes
        self._turned = bool(node.layout) and "layout" in changes
        own = all(
            [each.name for each in functions] == [*node.cell.activations] for functions in node.activations
        )
        self._own_activations = own

    def emit(self) -> dict[str, ir.Value]:
        """Emits; gives a new value for each output of the node that is used."""
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
            lanes.append(self._run(lane, direction, 1 if splits else node.num_directions))
        results = {
            name: self.e.concat([lane[name] for lane in lanes], _DIRECTION_AXIS[name])
            for name in lanes[0]
            if node.used(name)
        }
        if self._turned:
            results = {name: self.e.transpose(value, _TURN_BACK[name]) for name, value in results.items()}
        return results

    def _inputs(self) -> dict[str, ir.Value]:
        """The node's inputs, with what is to be written out."""
        node, e = self._node, self.e
        given = dict(node.inputs)
        if self._turned:
            for name in ("X", *node.state_names):
                if name in given:
                    given[name] = self._transposed(given[name])
        if "sequence_lens" in self._changes and self._is_full(given.get("sequence_lens")):
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
        turned = self.e.transpose(value, [1, 0, 2])
        turned.type = value.type
        if value.shape is not None:
            turned.shape = ir.Shape([value.shape[axis] for axis in (1, 0, 2)])
        return turned

    def _is_full(self, lengths: ir.Value | None) -> bool:
        """Whether every row is known to be as long as X."""
        tensor = constant_of(lengths)
        return tensor is not None and bool(np.all(tensor.numpy() == self._node.seq_length))

    def _lane(self, name: str, value: ir.Value, index: int) -> ir.Value:
        """What one direction has of an input."""
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

    def _run(self, inputs: Mapping[str, ir.Value], direction: str, directions: int) -> dict[str, ir.Value]:
        """The outputs of a recurrent node, in forward order of time."""
        turns = direction == "reverse" and "reverse" in self._changes and "sequence_lens" not in inputs
        if turns:
            inputs = {**inputs, "X": self._turn(inputs["X"])}
            direction = "forward"
        order = [inputs.get(name) for name in INPUT_NAMES]
        while order[-1] is None:
            order.pop()
        made = ir.Node(
            "", self._node.node.op_type, order, self._attributes(direction), outputs=self._outputs(directions)
        )
        made.name = self.e.names.fresh(direction)
        self.e.nodes.append(made)
        self.e.everything.append(made)
        self.recurrent.append(made)
        outputs = {name: value for name, value in zip(OUTPUT_NAMES, made.outputs, strict=False) if value.name}
        if turns and self._node.used("Y"):
            outputs["Y"] = self._turn(outputs["Y"])
        return outputs

    def _turn(self, value: ir.Value) -> ir.Value:
        """The value with its first axis, time, from end to start."""
        steps = self._node.seq_length
        if steps is None:
            turned = self.e.flip(value, 0)
        else:
            turned = self.e.op("Gather", value, self.e.integers(*reversed(range(steps))), axis=0)
        turned.type, turned.shape = value.type, value.shape
        return turned

    def _attributes(self, direction: str) -> list[ir.Attr]:
        node = self._node
        dropped = {"direction", "hidden_size", *(("layout",) if self._turned else ())}
        if self._own_activations:
            dropped |= {"activations", "activation_alpha", "activation_beta"}
        kept = [attribute for name, attribute in node.node.attributes.items() if name not in dropped]
        return [
            *([] if direction == "forward" else [ir.AttrString("direction", direction)]),
            ir.AttrInt64("hidden_size", node.hidden_size),
            *kept,
        ]

    def _outputs(self, directions: int) -> list[ir.Value]:
        """Those that are used or have to be there; others before them have no name."""
        node = self._node
        names = OUTPUT_NAMES[: 3 if node.op_type == "LSTM" else 2]
        wanted = [node.used(name) or name in self._changes for name in names]
        while not wanted[-1]:
            wanted.pop()
        X = node.inputs["X"].shape
        assert X is not None
        steps, rows = (X[1], X[0]) if node.layout else (X[0], X[1])
        made = []
        for name, want in zip(names, wanted, strict=False):
            value = ir.Value(name=self.e.names.fresh(name) if want else "")
            if want and node.dtype is not None:
                value.type = ir.TensorType(node.dtype)
                if self._turned or not node.layout:
                    lane = [directions, rows, node.hidden_size]
                    value.shape = ir.Shape([steps, *lane] if name == "Y" else lane)
            made.append(value)
        return made
