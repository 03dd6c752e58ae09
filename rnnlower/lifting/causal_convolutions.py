"""Causal convolutions: past and input joined along time, a depthwise Conv, SiLU, and the last steps as state.

Without a past, the Conv pads the start, or both ends; then a Slice removes the steps past the input's end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource
from rnnlower.graph.slicing import AxisSlice, axis_slices
from rnnlower.graph.walk import LocatedNode, producer_of, required_input
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.lifted_nodes import LiftedNode, emit_state_operator, open_emitter, replace_lifted
from rnnlower.recurrent.state_operators import CAUSAL_CONV

_TIME, _SWAPPED = 2, (0, 2, 1)


@dataclasses.dataclass(frozen=True)
class _JoinedInput:
    """A past and an input, joined along an axis.

    Attributes:
        parts: The values that are joined.
        axis: The axis along which they are joined.
        transposed: Whether a Transpose moves time to the end.
        wholes: The joined value, and its transpose if there is one.
    """

    parts: Sequence[ir.Value]
    axis: int
    transposed: bool
    wholes: Sequence[ir.Value]

    @property
    def is_over_time(self) -> bool:
        """True if the parts are joined along time."""
        return self.axis == (1 if self.transposed else _TIME)


def find_convolutions(facts: Facts, graph: ir.Graph, *, with_past: bool) -> list[ir.Node]:
    """Return the Convs over one axis whose input is joined of parts, and those that pad it.

    With a past, those that pad it, with zeros or otherwise, are left out.
    """
    return [node for node in graph if _is_candidate(facts, node, with_past)]


def _is_candidate(facts: Facts, node: ir.Node, with_past: bool) -> bool:
    if node.domain or node.op_type != "Conv" or len(facts.dims(node.inputs[1]) or ()) != 3:
        return False
    joined = _find_join(node)
    if joined is not None and with_past and facts.is_zero(joined.parts[0]):
        return False
    if joined is not None:
        return joined.is_over_time or node.attributes.get_int("group", 1) > 1
    is_depthwise = node.attributes.get_int("group", 1) == (facts.dims(node.inputs[1]) or ())[0]
    return not with_past and is_depthwise and node.attributes.get_ints("pads", (0, 0))[0] > 0


def lift_convolution(facts: Facts, names: NameSource, located: LocatedNode) -> LiftedNode:
    """Replace a Conv and its Concat, SiLU and Slices by a CausalConvWithState (com.microsoft's up to 26).

    Raises:
        NotLiftableError: It computes something else; nothing has changed.
    """
    conv = located.node
    channels, width, dilation = _parse_kernel(facts, conv)
    span = (width - 1) * dilation
    joined, pads = _find_join(conv), tuple(conv.attributes.get_ints("pads", (0, 0)))
    signal, weight, *bias = conv.inputs
    assert signal is not None
    output, past, tails = conv.outputs[0], None, []
    if joined is not None:
        past, signal = _split_join(facts, joined, span, pads)
        tails = list(_find_tails(facts, joined, conv, span))
    elif pads == (span, span):
        output = _find_trimmed_output(facts, conv, signal, span)
    elif pads != (span, 0):
        raise NotLiftableError(f"it pads {pads[0]} steps, and its kernel looks back {span}")
    output, has_silu = _find_silu(output)
    with open_emitter(facts, names, located, ir.DataType.FLOAT) as e:
        if joined is not None and joined.transposed:
            signal = e.transpose(signal, _SWAPPED)
            past = None if past is None else e.transpose(past, _SWAPPED)
        attributes = [ir.AttrString("activation", "silu")] if has_silu else []
        attributes += [ir.AttrInt64("dilation", dilation)] if dilation != 1 else []
        # ai.onnx's operator has no dilation.
        made, present = emit_state_operator(
            e, located.name, CAUSAL_CONV, [signal, weight, *(bias or [None]), past], attributes, dilation == 1
        )
        replaced = [(output, made)]
        for tail, is_transposed in tails:
            replaced.append((tail, e.transpose(present, _SWAPPED) if is_transposed else present))
    graph = conv.graph
    assert graph is not None
    replace_lifted(facts, located, conv, e.nodes, replaced)
    # The last steps may be read before the Conv.
    graph.sort()
    return LiftedNode(located.name, located.path, "line", CAUSAL_CONV, "forward", channels * span)


def _find_join(conv: ir.Node) -> _JoinedInput | None:
    """Return the Concat that makes a Conv's input, if there is one."""
    value = required_input(conv)
    transposed, wholes = producer_of(value, "Transpose"), [value]
    if transposed is not None and transposed.inputs[0] is not None:
        if tuple(transposed.attributes.get_ints("perm", (2, 1, 0))) != _SWAPPED:
            return None
        wholes = [transposed.inputs[0], value]
    join = producer_of(wholes[0], "Concat")
    if join is None or len(join.inputs) < 2:
        return None
    axis = join.attributes.get_int("axis", 1) % 3
    return _JoinedInput([part for part in join.inputs if part is not None], axis, len(wholes) > 1, wholes)


def _parse_kernel(facts: Facts, conv: ir.Node) -> tuple[int, int, int]:
    """Return the channels, taps and dilation of a Conv; refuse kernels of other operators."""
    channels, features, width = facts.dims(conv.inputs[1]) or ()
    group = conv.attributes.get_int("group", 1)
    if not isinstance(channels, int) or not isinstance(width, int):
        raise NotLiftableError("the sizes of its kernel are not known")
    if group != channels or features != 1:
        raise NotLiftableError(f"it has {group} groups for {channels} channels, and not one for each")
    if conv.attributes.get_ints("strides", (1,)) != (1,):
        raise NotLiftableError("it does not compute every step")
    if conv.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NotLiftableError("its padding depends on the size of its input")
    if width == 1:
        raise NotLiftableError("its kernel does not look back")
    if facts.dtype(conv.inputs[0]) != ir.DataType.FLOAT:
        raise NotLiftableError("it is not float32, in which a CausalConvWithState computes")
    return channels, width, conv.attributes.get_ints("dilations", (1,))[0]


def _split_join(
    facts: Facts, joined: _JoinedInput, span: int, pads: tuple[int, ...]
) -> tuple[ir.Value | None, ir.Value]:
    """Return the past, ``None`` for zeros, and the input."""
    if not joined.is_over_time:
        raise NotLiftableError(f"its input is joined along axis {joined.axis}, which is not time")
    if len(joined.parts) != 2:
        raise NotLiftableError(
            f"its input is joined of {len(joined.parts)} parts, not of a past and an input"
        )
    if any(pads):
        raise NotLiftableError("it pads a past and an input")
    past, signal = joined.parts
    steps = (facts.dims(past) or (None,) * 3)[joined.axis]
    if steps != span:
        known = steps if isinstance(steps, int) else "an unknown number of"
        raise NotLiftableError(f"its past has {known} steps, and its kernel looks back {span}")
    return None if facts.is_zero(past) else past, signal


def _find_tails(
    facts: Facts, joined: _JoinedInput, conv: ir.Node, span: int
) -> Iterator[tuple[ir.Value, bool]]:
    """Yield the Slices of the last steps of past and input, and whether they have the transposed layout."""
    for whole in joined.wholes:
        axis = _TIME if whole is conv.inputs[0] else joined.axis
        if whole.is_graph_output():
            raise NotLiftableError(f"{whole.name!r}, its past and input, is an output")
        for reader, _ in whole.uses():
            if reader is conv or reader.op_type == "Shape" or reader.outputs[0] in joined.wholes:
                continue
            if reader.op_type != "Slice" or reader.domain or reader.graph is not conv.graph:
                raise NotLiftableError(f"its past and input are read by {reader.op_type}")
            cut, size = _only_cut(facts, reader, axis), (facts.dims(whole) or (None,) * 3)[axis]
            last = -span if size is None else size - span
            if cut is None or cut.start not in (-span, last) or not cut.is_to_end(size):
                raise NotLiftableError(f"other steps are kept than the last {span}")
            yield reader.outputs[0], whole is not conv.inputs[0]


def _find_trimmed_output(facts: Facts, conv: ir.Node, signal: ir.Value, span: int) -> ir.Value:
    """Return the Slice that removes the steps past the end of the input from a Conv that pads both ends."""
    output, (size,) = conv.outputs[0], (facts.dims(signal) or (None,) * 3)[_TIME:]
    readers = [reader for reader, _ in output.uses()]
    cut = _only_cut(facts, readers[0], _TIME) if len(readers) == 1 and not output.is_graph_output() else None
    if cut is not None and cut.start == 0 and cut.end is not None and cut.end in (-span, size):
        return readers[0].outputs[0]
    raise NotLiftableError("it sees steps past the end of the input")


def _only_cut(facts: Facts, node: ir.Node, axis: int) -> AxisSlice | None:
    """Return the cut of a Slice on an axis; ``None`` if it cuts other axes, or has a stride."""
    cuts = axis_slices(node, facts.sizes) or []
    return cuts[0] if [(cut.axis % 3, cut.step) for cut in cuts] == [(axis, 1)] else None


def _find_silu(value: ir.Value) -> tuple[ir.Value, bool]:
    """Return the SiLU of a value and ``True``, or the value and ``False`` if there is none."""
    readers = {reader for reader, _ in value.uses()}
    if value.is_graph_output():
        return value, False
    for reader in readers:
        if reader.op_type == "Swish" and not reader.domain and len(readers) == 1:
            is_silu = reader.attributes.get_float("alpha", 1.0) == 1
            return (reader.outputs[0], True) if is_silu else (value, False)
        gate = reader.outputs[0]
        if reader.op_type != "Sigmoid" or gate.is_graph_output() or len(readers) != 2:
            continue
        (product,) = readers - {reader}
        is_own = {each for each, _ in gate.uses()} == {product} and product.op_type == "Mul"
        if is_own and {*product.inputs} == {value, gate}:
            return product.outputs[0], True
    return value, False
