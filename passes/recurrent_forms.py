"""Passes that give recurrent nodes another form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.rewiring import remove_orphans
from rnnlower.graph.walk import LocatedNode, default_opset
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.lowering.replacing import EMITTED, LoweredNode, replace_node
from rnnlower.passes.base import Pass, no_function_is_recurrent
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode, Semantics
from rnnlower.recurrent.operators import MAX_INPUTS
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.sonnx import LSTM_VERSION, find_departures, shared_length
from rnnlower.targets.adapting import AdaptedNode, find_changes
from rnnlower.targets.native import NativeCheck
from rnnlower.targets.target import Target
from rnnlower.targets.vocabulary import ADAPTABLE

_PER_AXIS = 13
"""The first opset whose DequantizeLinear has a scale for each row."""
_LINEAR, _FIRST_LINEAR = "linear_before_reset", 3
"""The attribute of GRU, and the first opset that has it."""


def _adapted_nodes_are_gone(model: ir.Model, adapting: AdaptRecurrentPass) -> bool:
    return all(located.node.graph is None for located in adapting.replaced)


@dataclasses.dataclass(eq=False)
class AdaptRecurrentPass(Pass):
    """Adapts nodes that a target does not run as they are to a form that it runs, where its data allows that.

    Undeclared types (`InferTypesPass`) and functions (`InlineFunctionsPass`) are handled by
    other passes. A node that cannot be adapted stays as it is.

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

    Args:
        target: The target; the key ``adapt`` of its rules lists what may be adapted.
        nodes: The nodes, with the changes that were chosen for each; ``None``: every recurrent node of the
            model that can be adapted.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.

    Attributes:
        adapted: Reports on the adapted nodes.
        replaced: Those nodes, which are no longer in the model.
    """

    REQUIRES = (no_function_is_recurrent,)
    ENSURES = (_adapted_nodes_are_gone,)

    target: Target
    nodes: Mapping[LocatedNode, frozenset[str]] | None = None
    semantics: Semantics = "ort"
    adapted: list[LoweredNode] = field(init=False, default_factory=list)
    replaced: list[LocatedNode] = field(init=False, default_factory=list)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Adapt the nodes.

        Raises:
            InvalidModelError: A node breaks the ONNX spec.
        """
        emitters = Emitters(model, self.target)
        chosen = self.nodes
        if chosen is None:
            checks = [NativeCheck(each, self.target, self.semantics) for each in find_recurrent(model)]
            chosen = {check.located: changes for check in checks if (changes := find_changes(check))}
        for located, changes in chosen.items():
            node = parse_recurrent(located, self.semantics, lenient=True)
            assert node.dtype is not None
            form = AdaptedNode(emitters.at(located.name, node.dtype), node, changes)
            replace_node(node.node, form.emit(), form.e.nodes, mark=True)
            for each in form.recurrent:
                # It is the target's own operator, and judged as such.
                del each.meta[EMITTED]
            self.replaced.append(located)
            done = ", ".join(words for name, words in ADAPTABLE.items() if name in changes)
            reason = f"{self.target.name} runs its own operator: {done}"
            how = node.direction, "adapt", node.seq_length
            self.adapted.append(LoweredNode(*located.origin, *how, len(form.e.nodes), reason))
        return ir.passes.PassResult(model, modified=bool(self.adapted))


def _nodes_conform(model: ir.Model, conforming: ConformSonnxPass) -> bool:
    nodes = find_recurrent(model) if conforming._nodes is None else conforming._nodes
    there = [located for located in nodes if located.node.graph is not None]
    return not any(departure.level == "error" for located in there for departure in find_departures(located))


class ConformSonnxPass(Pass):
    """Makes LSTM nodes of the main graph and its subgraphs conform to SONNX, or refuses them by name.

    Computed constants (`FoldWeightsPass`), undeclared types
    (`InferTypesPass`), functions (`InlineFunctionsPass`) and opsets below 14 (`ConvertOpsetPass`) are handled
    by other passes.

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

    Args:
        nodes: The nodes; ``None``: every recurrent node of the model.

    Attributes:
        conformed: Reports on the nodes that departed from the profile.
    """

    REQUIRES = (no_function_is_recurrent,)
    ENSURES = (_nodes_conform,)

    def __init__(self, nodes: Sequence[LocatedNode] | None = None) -> None:
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
            found = [departure for departure in find_departures(located) if departure.level == "error"]
            if not found:
                continue
            if located.node.op_type == "LSTM" and default_opset(model) >= LSTM_VERSION:
                # Parsed only now: an input may be an output of a node that has just been replaced.
                node = parse_recurrent(located)
                if node.dtype is not None and node.inputs["X"].shape is not None:
                    e = emitters.at(located.name, node.dtype)
                    located = dataclasses.replace(located, node=_ConformingNode(e, node).replace(mark=True))
                    how = node.direction, "conform", node.seq_length
                    reason = "the profile keeps the operator"
                    self.conformed.append(LoweredNode(*located.origin, *how, len(e.nodes), reason))
            refused += [str(left) for left in find_departures(located) if left.level == "error"]
        if refused:
            raise UnsupportedModelError("\n".join(refused))
        return ir.passes.PassResult(model, modified=bool(self.conformed))


class _ConformingNode(AdaptedNode):
    """An LSTM to emit, with all that the profile requires written out, as far as the sizes are known."""

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

    def _is_wanted(self, name: str) -> bool:
        return super()._is_wanted(name) and (name != "Y_h" or shared_length(self._node) is None)

    def _emit(self, inputs: Mapping[str, ir.Value], direction: str, directions: int) -> dict[str, ir.Value]:
        outputs = super()._emit(inputs, direction, directions)
        if self._node.used("Y_h") and shared_length(self._node) is not None:
            outputs["Y_h"] = _emit_last_state(self.e, self._node, outputs["Y"])
        return outputs


def _emit_last_state(e: Emitter, node: ResolvedNode, Y: ir.Value) -> ir.Value:
    """Emit Y_h from Y, whose rows all have the same length."""
    steps = shared_length(node)
    assert steps is not None
    lanes = []
    for direction, reverse in enumerate(node.reversed_directions):
        last = 0 if reverse else steps - 1
        lanes.append(e.slice(Y, [last, direction], [last + 1, direction + 1], [0, 1]))
    batch = e.dim(Y, 2) if node.batch_size is None else node.batch_size
    return e.squeeze(e.concat(lanes, axis=1), 0, [node.num_directions, batch, node.hidden_size])


def _nodes_are_floats(model: ir.Model, dequantizing: DequantizeRecurrentPass) -> bool:
    nodes = find_recurrent(model) if dequantizing._nodes is None else dequantizing._nodes
    return all(not located.node.domain for located in nodes)


class DequantizeRecurrentPass(Pass):
    """Turns DynamicQuantizeLSTM nodes of the main graph and its subgraphs into LSTM nodes.

    X and H are no longer rounded to 8 bits, so the results are more precise.

    Before::

        (float[3, 1, 1] X) => (float[3, 1, 1, 1] Y)
        <int8[1, 1, 4] W = {1, 2, 3, 4}, int8[1, 1, 4] R = {4, 3, 2, 1}, float[1] s = {0.5},
         int8[1] z = {0}> {
            Y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1> (X, W, R, , , , , , s, z, s, z)
        }

    After ``DequantizeRecurrentPass()``::

        (float[3, 1, 1] X) => (float[3, 1, 1, 1] Y)
        <int8[1, 4, 1] Wq = {1, 2, 3, 4}, float scale = {0.5}, int8[1, 4, 1] Rq = {4, 3, 2, 1}> {
            W = DequantizeLinear (Wq, scale)
            R = DequantizeLinear (Rq, scale)
            Y = LSTM <hidden_size = 1> (X, W, R)
        }

    Args:
        nodes: The nodes; those that are not quantized are left alone. ``None``: every recurrent node.
        keep_integers: Whether constant weights stay integers before a DequantizeLinear.
    """

    REQUIRES = (no_function_is_recurrent,)
    ENSURES = (_nodes_are_floats,)

    def __init__(self, nodes: Sequence[LocatedNode] | None = None, *, keep_integers: bool = True) -> None:
        self._nodes = nodes
        self._keep_integers = keep_integers

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Dequantize the nodes.

        Raises:
            InvalidModelError: A node breaks the ONNX spec.
        """
        found = find_recurrent(model) if self._nodes is None else self._nodes
        resolved = [(located, parse_recurrent(located)) for located in found]
        quantized = [(located, node) for located, node in resolved if node.is_quantized]
        emitters = Emitters(model)
        keep_integers = self._keep_integers and default_opset(model) >= _PER_AXIS
        for located, node in quantized:
            e = emitters.at(located.name, ir.DataType.FLOAT)
            weights = [_emit_weight(e, node, name, keep_integers) for name in "WR"]
            e.insert_before(located.node)
            _turn_into_lstm(located.node, weights)
        return ir.passes.PassResult(model, modified=bool(quantized))


def _turn_into_lstm(node: ir.Node, weights: Sequence[ir.Value]) -> None:
    """Turn the node into an LSTM with these weights; it keeps its name, its outputs and its other inputs."""
    old = [value for value in (*node.inputs[1:3], *node.inputs[MAX_INPUTS:]) if value is not None]
    node.resize_inputs(MAX_INPUTS)
    for index, weight in enumerate(weights, 1):
        node.replace_input_with(index, weight)
    node.domain, node.op_type = "", "LSTM"
    remove_orphans(old)


def _emit_weight(e: Emitter, node: ResolvedNode, name: str, keep_integers: bool) -> ir.Value:
    """Emit W or R in the layout of LSTM, ``[num_directions, 4 * hidden_size, columns]``."""
    parts = [node.inputs[part] for part in (name, f"{name}_scale", f"{name}_zero_point")]
    tensors = [constant_of(value) for value in parts]
    known = [tensor.numpy() for tensor in tensors if tensor is not None]
    if len(known) < len(parts):
        return _dequantize_at_run_time(e, *parts)
    values, scale, zero_point = known
    values = np.ascontiguousarray(values.transpose(0, 2, 1))
    if not keep_integers:
        centered = values.astype(np.float32) - _as_columns(zero_point.astype(np.float32))
        return e.constant(centered * _as_columns(scale), name=parts[0].name or "")
    lanes = [
        _emit_dequantized(e, values[[d]], scale[d], zero_point[d], parts[0].name or "")
        for d in range(len(values))
    ]
    return e.concat(lanes, axis=0)


def _as_columns(array: np.ndarray) -> np.ndarray:
    """Return scales or zero points in a shape that broadcasts to the weights of LSTM."""
    return array.reshape(len(array), -1, 1)


def _emit_dequantized(
    e: Emitter, values: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, name: str
) -> ir.Value:
    """Emit one direction's weights; a scale and a zero point for all of it, or for each row."""
    operands = [e.constant(values, name=name), e.constant(np.asarray(scale))]
    if np.any(zero_point):
        operands.append(e.constant(np.asarray(zero_point)))
    return e.op("DequantizeLinear", *operands, axis=1) if scale.ndim else e.op("DequantizeLinear", *operands)


def _dequantize_at_run_time(e: Emitter, values: ir.Value, scale: ir.Value, zero_point: ir.Value) -> ir.Value:
    center = e.reshape(e.cast(zero_point, e.dtype), [0, 1, -1])
    centered = e.op("Sub", e.cast(values, e.dtype), center)
    product = e.op("Mul", centered, e.reshape(scale, [0, 1, -1]))
    return e.transpose(product, [0, 2, 1])


def _every_gru_is_linear(model: ir.Model, assuming: AssumeLinearBeforeResetPass) -> bool:
    nodes = [located.node for located in find_recurrent(model) if located.node.op_type == "GRU"]
    return all(node.attributes.get_int(_LINEAR, 0) == 1 for node in nodes)


class AssumeLinearBeforeResetPass(Pass):
    """Gives linear_before_reset=1 to every GRU of the model, functions included.

    torch's newer exporter with onnxscript before 0.7.1 left it at its default, 0 (pytorch/pytorch#189225).

    Before::

        (float[5, 1, 2] X, float[1, 3, 2] W, float[1, 3, 1] R) => (float[5, 1, 1, 1] Y) {
            Y = GRU <hidden_size = 1> (X, W, R)
        }

    After ``AssumeLinearBeforeResetPass()``::

        (float[5, 1, 2] X, float[1, 3, 2] W, float[1, 3, 1] R) => (float[5, 1, 1, 1] Y) {
            Y = GRU <hidden_size = 1, linear_before_reset = 1> (X, W, R)
        }

    Attributes:
        changed: Number of nodes that had another form.
    """

    ENSURES = (_every_gru_is_linear,)

    changed = 0

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Set the attribute.

        Raises:
            UnsupportedModelError: A GRU is older than the attribute.
        """
        self.changed = 0
        for located in find_recurrent(model):
            node = located.node
            if node.op_type != "GRU":
                continue
            if located.opset < _FIRST_LINEAR:
                raise UnsupportedModelError(
                    f"GRU-1 has no {_LINEAR}, so it cannot be set",
                    node=located,
                    remedy=f"convert the model first: `{wording.call('convert', opset=_FIRST_LINEAR)}`",
                )
            given = node.attributes.get(_LINEAR)
            if given is None or given.is_ref() or given.as_int() != 1:
                node.attributes[_LINEAR] = ir.AttrInt64(_LINEAR, 1)
                self.changed += 1
        return ir.passes.PassResult(model, modified=bool(self.changed))
