"""LinearAttention and CausalConvWithState of ai.onnx and com.microsoft: operators that take and give a state.

com.microsoft's operators are wider: heads of queries and keys may be fewer than those of values, inputs that
the update rule does not read are ignored, and a convolution may be dilated or have its channels last.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from rnnlower.errors import InvalidModelError, UnsupportedModelError
from rnnlower.graph.evaluation import Dims
from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import LocatedNode

LINEAR_ATTENTION = "LinearAttention"
CAUSAL_CONV = "CausalConvWithState"
STATE_OPERATORS_OPSET = 27
"""The opset that brought both operators."""
UPDATE_RULES = ("linear", "gated", "delta", "gated_delta")

_INPUTS = {
    LINEAR_ATTENTION: ("query", "key", "value", "past_state", "decay", "beta"),
    CAUSAL_CONV: ("input", "weight", "bias", "past_state"),
}
STATE_OPERATORS = frozenset(_INPUTS)
_REQUIRED = {LINEAR_ATTENTION: 3, CAUSAL_CONV: 2}
_ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {
    LINEAR_ATTENTION: {
        "chunk_size": 64,
        "kv_num_heads": 0,
        "q_num_heads": 0,
        "scale": 0.0,
        "update_rule": "gated_delta",
    },
    CAUSAL_CONV: {"activation": "none"},
}
_OF_MICROSOFT: Mapping[str, Mapping[str, int]] = {
    LINEAR_ATTENTION: {"state_window": 0},
    CAUSAL_CONV: {
        "channels_last": 0,
        "dilation": 1,
        "input_channel_offset": 0,
        "input_channels": 0,
        "ndim": 1,
        "state_channels_last": -1,
        "state_length": 0,
        "state_update_capacity": 0,
        "state_window": 0,
    },
}
ATTRIBUTE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    op_type: {**_ATTRIBUTES[op_type], **_OF_MICROSOFT[op_type]} for op_type in _INPUTS
}
STATE_OUTPUTS = ("output", "present_state")
_DONE = ("channels_last", "dilation")
_ACTIVATIONS = ("none", "silu", "swish")
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_RANKS = {"past_state": 4, "bias": 1}


@dataclasses.dataclass(frozen=True)
class StateNode:
    """A node of either operator, read and checked.

    Attributes:
        inputs: The inputs that are present and read.
        dtype: The type of the first input; ``None`` if it is not known.
        state_dtype: The type of the states.
        batch: Number of rows, or ``None``.
        steps: Number of time steps, or ``None``.
        output_dims: The sizes of the outputs, as far as they are known.
        features: Features of a time step of the first input, or ``None``.
    """

    located: LocatedNode
    inputs: Mapping[str, ir.Value]
    dtype: ir.DataType | None
    state_dtype: ir.DataType | None
    batch: int | None
    steps: int | None
    output_dims: tuple[Dims, Dims]
    features: int | None

    @property
    def state_size(self) -> int | None:
        """Elements of the state of a row."""
        sizes = [dim if isinstance(dim, int) else None for dim in self.output_dims[1][1:]]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)


@dataclasses.dataclass(frozen=True)
class AttentionNode(StateNode):
    """A LinearAttention node. A size that is not known is 0.

    Attributes:
        update_rule: linear, gated, delta or gated_delta.
        query_heads, key_heads, heads: Heads of the queries, of the keys, and of the values and states.
        key_size, value_size: The sizes of a head's state.
        decay_per_key: Whether each row of the state has a decay of its own.
        beta_per_head: Whether each head has a rate of its own.
        scale: Factor of the output; 0 where it follows from an unknown `key_size`.
    """

    update_rule: str
    query_heads: int
    key_heads: int
    heads: int
    key_size: int
    value_size: int
    decay_per_key: bool
    beta_per_head: bool
    scale: float


@dataclasses.dataclass(frozen=True)
class ConvolutionNode(StateNode):
    """A CausalConvWithState node. A size that is not known is 0.

    Attributes:
        channels: Channels, each with a kernel of its own.
        width: Taps of a kernel.
        dilation: Steps from tap to tap.
        activation: Whether ``x * Sigmoid(x)`` follows.
        channels_last: Whether the values are ``[batch, steps, channels]``.
    """

    channels: int
    width: int
    dilation: int
    activation: bool
    channels_last: bool


def is_state_operator(node: ir.Node) -> bool:
    """Return whether the node is a LinearAttention or CausalConvWithState of either domain."""
    return node.op_type in STATE_OPERATORS and node.domain in ("", "com.microsoft")


def parse_state_operators(
    nodes: Iterable[LocatedNode], facts: Facts, *, lenient: bool = False
) -> list[StateNode]:
    """Parse the nodes, which are in the order of their graph; tell `facts` what they compute.

    Sizes that are not known are 0; `require_sizes` refuses them. An attribute that refers to a function's
    parameter counts as its default.

    Args:
        lenient: Take unsupported attributes as absent, and tensors of other ranks as unknown.

    Raises:
        InvalidModelError: A node breaks the spec of its operator.
        UnsupportedModelError: A node uses a feature that is not supported.
    """
    found: list[StateNode] = []
    for located in nodes:
        parser = _Parser(located, facts, lenient)
        node = parser.attention() if located.node.op_type == LINEAR_ATTENTION else parser.convolution()
        found.append(node)
        types = (node.dtype, node.state_dtype)
        for value, dims, dtype in zip(located.node.outputs, node.output_dims, types, strict=False):
            if value.type is None and dtype is not None:
                value.type = ir.TensorType(dtype)
            facts.assume(value, dims)
    return found


def has_sizes(node: StateNode) -> bool:
    """Return whether all that a lowering needs is known of a node."""
    return not _unknown_sizes(node)


def _unknown_sizes(node: StateNode) -> str:
    if node.dtype is None or node.state_dtype is None:
        return "the types of its inputs are"
    if isinstance(node, AttentionNode) and not (node.key_size and node.value_size):
        return "the sizes of its heads are"
    if isinstance(node, ConvolutionNode) and not (node.channels and node.width):
        return "the shape of its weight is"
    return ""


def require_sizes(node: StateNode) -> None:
    """Refuse a node that cannot be lowered because its type or sizes are not known.

    Raises:
        UnsupportedModelError: Something is not known.
    """
    if not has_sizes(node):
        raise UnsupportedModelError(
            f"{_unknown_sizes(node)} not known",
            node=node.located,
            remedy="declare types and shapes of the model's inputs",
        )


class _Parser:
    """A parser of one node."""

    def __init__(self, located: LocatedNode, facts: Facts, lenient: bool) -> None:
        self.located, self.node, self.facts, self.lenient = located, located.node, facts, lenient
        names = _INPUTS[self.node.op_type]
        self.inputs = {
            name: value for name, value in zip(names, self.node.inputs, strict=False) if value is not None
        }
        for name in names[: _REQUIRED[self.node.op_type]]:
            if name not in self.inputs:
                raise self.invalid(f"input {name} is missing")
        self._check_attributes()
        first = self.node.outputs[1] if len(self.node.outputs) > 1 else None
        self.dtype = self._dtype(self.inputs[names[0]])
        past = self._dtype(self.inputs.get("past_state")) or self._dtype(first)
        self.state_dtype = past if past is not None and self.node.op_type == LINEAR_ATTENTION else self.dtype

    def invalid(self, what: str) -> InvalidModelError:
        return InvalidModelError(what, node=self.located)

    def attention(self) -> AttentionNode:
        rule = self._attribute("update_rule")
        if rule not in UPDATE_RULES:
            raise self.invalid(f"update_rule is {rule!r}; it must be one of {', '.join(UPDATE_RULES)}")
        self._select("decay", "gated" in rule, rule)
        self._select("beta", "delta" in rule, rule)
        queries, heads = map(self._number_of_heads, ("q_num_heads", "kv_num_heads"))
        if queries % heads and (not self.node.domain or heads % queries):
            raise self.invalid(f"q_num_heads is {queries}, which is not a multiple of kv_num_heads, {heads}")
        dims = {name: self._dims(name, _RANKS.get(name, 3)) for name in _INPUTS[LINEAR_ATTENTION]}
        past = dims["past_state"]
        key_size = self._head_size("query", dims["query"][2], queries) or _number(past[2])
        if not key_size and not self.node.domain:
            key_size = self._head_size("key", dims["key"][2], heads)
        value_size = self._head_size("value", dims["value"][2], heads) or _number(past[3])
        keys = self._head_count(dims["key"][2], key_size, heads)
        decays, betas = _number(dims["decay"][2]), _number(dims["beta"][2])
        if decays and key_size and decays not in (heads, heads * key_size):
            raise self.invalid(f"decay has {decays} features; it must have {heads} or {heads * key_size}")
        if betas and betas not in (1, heads):
            raise self.invalid(f"beta has {betas} features; it must have 1 or {heads}")
        batch, steps = self._common(dims, 0, 1)
        self._check_state(past, (batch, heads, key_size, value_size))
        scale = self._attribute("scale") or (1 / math.sqrt(key_size) if key_size else 0.0)
        outer = max(queries, heads)
        output = batch, steps, outer * value_size or None
        dims_out = output, (batch, heads, key_size or None, value_size or None)
        return AttentionNode(
            *(self.located, self.inputs, self.dtype, self.state_dtype, _size(batch), _size(steps), dims_out),
            features=queries * key_size or None,
            update_rule=rule,
            query_heads=queries,
            key_heads=keys,
            heads=heads,
            key_size=key_size,
            value_size=value_size,
            decay_per_key=decays > heads,
            beta_per_head=betas > 1,
            scale=scale,
        )

    def convolution(self) -> ConvolutionNode:
        activation = self._attribute("activation")
        if activation not in _ACTIVATIONS:
            raise self.invalid(f"activation is {activation!r}; it must be one of {', '.join(_ACTIVATIONS)}")
        dilation, last = self._attribute("dilation"), bool(self._attribute("channels_last"))
        if dilation < 1:
            raise self.invalid(f"attribute dilation is {dilation}; it must be at least 1")
        signal, weight = self._dims("input", 3), self._dims("weight", 3)
        past, bias = self._dims("past_state", 3), self._dims("bias", 1)
        channel, time = (2, 1) if last else (1, 2)
        known = [_number(dim) for dim in (weight[0], signal[channel], past[channel], bias[0])]
        channels, width = max(known), _number(weight[2])
        if {*known} - {0, channels}:
            raise self.invalid(
                f"weight, input, past_state and bias have {', '.join(map(str, known))} channels"
            )
        batch = signal[0] if isinstance(signal[0], int) else past[0] or signal[0]
        length = (width - 1) * dilation if width else None
        given = _number(past[time])
        if "past_state" in self.inputs and given and length is not None and given != length:
            raise self.invalid(f"past_state has {given} steps; it must have {length}")
        sizes = [
            (batch, steps, channels or None) if last else (batch, channels or None, steps)
            for steps in (signal[time], length)
        ]
        common = self.located, self.inputs, self.dtype, self.state_dtype, _size(batch), _size(signal[time])
        of_state = (*common, (sizes[0], sizes[1]), channels or None)
        return ConvolutionNode(*of_state, channels, width, dilation, activation != "none", last)

    def _check_attributes(self) -> None:
        op_type = self.node.op_type
        wider = _OF_MICROSOFT[op_type] if self.node.domain else {}
        known = {**_ATTRIBUTES[op_type], **wider}
        for name, attribute in self.node.attributes.items():
            if name not in known:
                raise self.invalid(f"unknown attribute {name!r}; it has {', '.join(sorted(known))}")
            if not attribute.is_ref() and not isinstance(attribute.value, type(known[name])):
                wanted = {int: "INT", float: "FLOAT", str: "STRING"}[type(known[name])]
                raise self.invalid(f"attribute {name!r} has type {attribute.type.name}; it must be {wanted}")
            if self.lenient or name not in wider or name in _DONE:
                continue
            if self._attribute(name) != wider[name]:
                raise UnsupportedModelError(
                    f"attribute {name} is {self._attribute(name)}, which is not supported",
                    node=self.located,
                    remedy=f"export the model with {name} {wider[name]}",
                )

    def _number_of_heads(self, name: str) -> int:
        """Return a number of heads; 1 for a parameter of a function."""
        count: int = self._attribute(name)
        given = self.node.attributes.get(name)
        if count < 1 and not (given is not None and given.is_ref()):
            raise self.invalid(f"attribute {name} is {count}; it must be at least 1")
        return max(count, 1)

    def _attribute(self, name: str) -> Any:
        """Return the attribute's value, or its default."""
        default = ATTRIBUTE_DEFAULTS[self.node.op_type][name]
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else attribute.value

    def _select(self, name: str, needed: bool, rule: str) -> None:
        """Refuse a missing input of the rule, and one that the rule does not have."""
        if needed and name not in self.inputs:
            raise self.invalid(f"update_rule {rule} needs input {name}")
        if not needed and self.inputs.pop(name, None) is not None and not self.node.domain:
            raise self.invalid(f"update_rule {rule} has no input {name}")

    def _dtype(self, value: ir.Value | None) -> ir.DataType | None:
        type_ = self.facts.type(value)
        if type_ is None or type_.dtype == ir.DataType.UNDEFINED:
            return None
        if type_.dtype not in _FLOATS:
            raise self.invalid(f"type {type_.dtype.name} is not one of float, float16 and bfloat16")
        return type_.dtype

    def _dims(self, name: str, rank: int) -> Dims:
        dims = self.facts.dims(self.inputs.get(name))
        if dims is not None and len(dims) != rank and self.lenient:
            dims = None
        elif dims is not None and len(dims) != rank:
            raise self.invalid(f"input {name} has rank {len(dims)}; it must be {rank}")
        return (None,) * rank if dims is None else dims

    def _head_size(self, name: str, width: Any, heads: int) -> int:
        if _number(width) % heads:
            raise self.invalid(f"input {name} has {width} features, which is not a multiple of {heads} heads")
        return _number(width) // heads

    def _head_count(self, width: Any, size: int, heads: int) -> int:
        """Return the number of the key's heads."""
        if not _number(width) or not size:
            return heads
        count = _number(width) // size
        if count * size != width or count < 1 or heads % count or (count != heads and not self.node.domain):
            raise self.invalid(f"input key has {width} features; it must have {heads * size}")
        return count

    def _common(self, dims: Mapping[str, Dims], *axes: int) -> list[Any]:
        """Return the sizes of axes that inputs share: a number where one is known."""
        found = []
        for axis in axes:
            sizes = [dims[name][axis] for name in ("query", "key", "value")]
            sizes += [dims["past_state"][0]] if axis == 0 else []
            numbers = {size for size in sizes if isinstance(size, int)}
            if len(numbers) > 1:
                different = " and ".join(map(str, sorted(numbers)))
                raise self.invalid(f"query, key, value and past_state have {different} in axis {axis}")
            found.append(next(iter(numbers), sizes[0]))
        return found

    def _check_state(self, past: Dims, sizes: tuple[Any, ...]) -> None:
        pairs = zip(past, sizes, strict=True)
        if any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int) and b):
            raise self.invalid(f"past_state has shape {[*past]}; it must have {[*sizes]}")


def _number(dim: Any) -> int:
    """Return a size, or 0 for one that is not known."""
    return dim if isinstance(dim, int) else 0


def _size(dim: Any) -> int | None:
    return dim if isinstance(dim, int) else None
