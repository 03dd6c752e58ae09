"""The recurrent nodes of a model, described as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import LocatedNode, count_ops, is_read, op_types, origin
from rnnlower.recurrent.finding import find_recurrent, infer_input_types, is_recurrent, is_stateful
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import INPUT_NAMES, OUTPUT_NAMES
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.state_operators import (
    ATTRIBUTE_DEFAULTS,
    STATE_OUTPUTS,
    ConvolutionNode,
    StateNode,
    parse_state_operators,
)
from rnnlower.recurrent.suspicions import (
    Suspicion,
    find_forgetful_operators,
    find_forgotten_states,
    find_other_recurrences,
    find_suspicions,
)

if TYPE_CHECKING:
    from rnnlower.lifting.lifted_nodes import LiftedNode


@dataclasses.dataclass(frozen=True)
class Port:
    """A graph input or output.

    Attributes:
        dtype: NumPy's name for its type; ONNX's if it is no tensor; ``None`` if none is declared.
        shape: A number, a dimension's name or ``None`` for each axis; ``None`` if no rank is declared.
        default: Whether it is an input with an initializer.
    """

    name: str
    dtype: str | None
    shape: Sequence[int | str | None] | None
    default: bool


@dataclasses.dataclass(frozen=True)
class ModelSummary:
    """The interface and the contents of a model.

    Attributes:
        ops: The number of nodes by operator, including subgraphs and functions.
    """

    inputs: Sequence[Port]
    outputs: Sequence[Port]
    ops: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class RecurrentNode:
    """A node that carries a state over time, as it stands in the model.

    Attributes:
        name: Its name. An unnamed node gets one made of its operator and a number; ``--node`` accepts it.
        domain: The operator's domain; ``""`` is the default domain.
        op_type: LSTM, GRU or RNN, the operator of another domain that wraps one, LinearAttention or
            CausalConvWithState.
        path: ``""`` for the main graph, ``If_12/then_branch`` for a subgraph, ``function:domain::name`` for a
            function.
        direction: forward, reverse or bidirectional.
        hidden_size: Units, or ``None`` if the caller of a function sets them; of LinearAttention and
            CausalConvWithState the elements of a row's state.
        input_size: Features of X, or of the first input; ``None`` if they are not known.
        seq_len: Time steps: a number, a dimension's name, or ``None``.
        batch: Rows: a number, a dimension's name, or ``None``.
        dtype: NumPy's name for the type of X, or ``None``.
        layout: 0 or 1.
        inputs: The operator's names of the inputs that are present.
        outputs: The operator's names of the outputs that something reads.
        attributes: Attributes that differ from the defaults; ``@name`` refers to a function's parameter.
        weights: ``constant``, ``computed`` (from constants) or ``runtime``: the least constant of W, R, B and
            P, or of weight and bias. ``constant`` where there are none.
    """

    name: str
    domain: str
    op_type: str
    path: str
    direction: str
    hidden_size: int | None
    input_size: int | None
    seq_len: int | str | None
    batch: int | str | None
    dtype: str | None
    layout: int
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]
    weights: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of JSON types."""
        return dataclasses.asdict(self)


def summarize(model: ir.Model) -> ModelSummary:
    """Return the interface and the contents of the model."""
    graph = model.graph
    return ModelSummary([*map(_port, graph.inputs)], [*map(_port, graph.outputs)], count_ops(model))


def _port(value: ir.Value) -> Port:
    dtype = None if value.type is None or value.dtype == ir.DataType.UNDEFINED else str(value.type)
    if dtype is not None and isinstance(value.type, ir.TensorType):
        dtype = str(value.type.dtype.numpy()) if value.type.dtype != ir.DataType.STRING else "string"
    shape = value.shape
    dims = None if shape is None else [_dimension(shape, axis) for axis in range(len(shape))]
    return Port(str(value.name), dtype, dims, value.is_initializer() and value.is_graph_input())


def inspect_model(model: ir.Model) -> list[RecurrentNode]:
    """List every recurrent node of the model, functions included. The model may be changed in the process.

    Raises:
        InvalidModelError: A node breaks the ONNX spec of its operator.
        UnsupportedModelError: A node has an unknown activation, or a clip that is not positive.
    """
    infer_input_types(model)
    found = find_recurrent(model, is_stateful)
    states = parse_state_operators(
        [each for each in found if not is_recurrent(each.node)], Facts(model), lenient=True
    )
    described = {state.located.node: _describe_state(state) for state in states}
    return [described.get(located.node) or _describe(located) for located in found]


def find_liftable(model: ir.Model) -> list[LiftedNode]:
    """List the Loops, Scans, Convs with a state and straight lines that `lift` would replace, and by what.

    Straight lines in functions are left out.
    """
    if not {"Conv", "Gemm", "Loop", "MatMul", "Scan"} & op_types(model):
        return []
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass

    trial = model.clone()
    found: list[LiftedNode] = []
    loops = LiftRecurrentPass(lines=False, zero_pasts=False)
    for lifting in (loops, LiftRecurrentPass(frames=False, convolutions=False)):
        lifting(trial)
        found += lifting.lifted
    return [node for node in found if node.op_type is not None]


def find_warnings(model: ir.Model, liftable: Sequence[LiftedNode]) -> list[Suspicion]:
    """Return what a user should know about the model's recurrence; call `inspect_model` first.

    A Loop or Scan that is liftable does not stay as it is.
    """
    steps = [(each, parse_recurrent(each, lenient=True).seq_length) for each in find_recurrent(model)]
    forgetful = [*find_forgotten_states(steps), *find_forgetful_operators(model, Facts(model))]
    lifted = {(node.name, node.path) for node in liftable}
    return [*find_suspicions(model), *forgetful, *find_other_recurrences(model, lifted)]


def _describe(located: LocatedNode) -> RecurrentNode:
    node = located.node
    resolved = parse_recurrent(located, lenient=True)
    X = node.inputs[0]
    shape = X.shape if X is not None else None
    return RecurrentNode(
        name=located.name,
        domain=node.domain,
        op_type=node.op_type,
        path=located.path,
        direction=resolved.direction,
        hidden_size=resolved.hidden_size or None,
        input_size=resolved.input_size,
        seq_len=_dimension(shape, resolved.layout),
        batch=_dimension(shape, 1 - resolved.layout),
        dtype=str(resolved.dtype.numpy()) if resolved.dtype is not None else None,
        layout=resolved.layout,
        inputs=[name for name in INPUT_NAMES if name in resolved.inputs],
        outputs=[name for name in OUTPUT_NAMES if resolved.used(name)],
        attributes=_attributes(resolved),
        weights=_least_constant(resolved.inputs.get(name) for name in ("W", "R", "B", "P")),
    )


def _describe_state(state: StateNode) -> RecurrentNode:
    """Return the description of a LinearAttention or CausalConvWithState."""
    located, node = state.located, state.located.node
    first = next(iter(state.inputs.values()))
    is_first = isinstance(state, ConvolutionNode) and not state.channels_last
    used = zip(STATE_OUTPUTS, node.outputs, strict=False)
    return RecurrentNode(
        name=located.name,
        domain=node.domain,
        op_type=node.op_type,
        path=located.path,
        direction="forward",
        hidden_size=state.state_size,
        input_size=state.features,
        seq_len=state.steps or _dimension(first.shape, 2 if is_first else 1),
        batch=state.batch or _dimension(first.shape, 0),
        dtype=None if state.dtype is None else str(state.dtype.numpy()),
        layout=0,
        inputs=[*state.inputs],
        outputs=[name for name, out in used if is_read(out)],
        attributes=_changed(node, ATTRIBUTE_DEFAULTS[node.op_type]),
        weights=_least_constant(state.inputs.get(name) for name in ("weight", "bias")),
    )


def _dimension(shape: ir.Shape | None, axis: int) -> int | str | None:
    if shape is None or axis >= len(shape):
        return None
    dim = shape[axis]
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim.value


def _attributes(resolved: ResolvedNode) -> dict[str, Any]:
    """Return the attributes that differ from the operator's defaults."""
    defaults = {
        "direction": "forward",
        "input_forget": 0,
        "layout": 0,
        "linear_before_reset": 0,
        "output_sequence": 0,
        "activations": [*resolved.cell.activations] * resolved.num_directions,
    }
    return _changed(resolved.node, defaults)


def _changed(node: ir.Node, defaults: Mapping[str, Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            attributes[name] = f"@{attribute.ref_attr_name}"
            continue
        value = list(attribute.value) if isinstance(attribute.value, tuple | list) else attribute.value
        if name != "hidden_size" and value != defaults.get(name):
            attributes[name] = value
    return attributes


def _least_constant(values: Iterable[ir.Value | None]) -> str:
    ranks = ("constant", "computed", "runtime")
    found = (origin(value) for value in values if value is not None)
    return max(found, key=ranks.index, default="constant")
