"""The emission of a recurrent operator in the place of a frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.lifting.analysis import Found, Source
from rnnlower.lifting.cells import Cell
from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.forms import Floats
from rnnlower.lifting.hoisting import hoisted, is_selection
from rnnlower.lifting.surroundings import Result, lengths_of
from rnnlower.lowering.emitter import Emitter
from rnnlower.recurrent.operators import RECURRENT_OPS, SPEC_PARAMETERS


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The outputs of a direction of a node: Y as ``[T, B, H]``, the last states as ``[B, H]``."""

    Y: ir.Value
    last: Sequence[ir.Value]


@dataclasses.dataclass(frozen=True)
class Input:
    """One part of X, ``[T, B, size]``, with its weights and its share of the bias."""

    X: ir.Value
    W: Floats
    bias: Floats


def inputs_of(
    e: Emitter,
    facts: Facts,
    found: Found,
    before: Sequence[Outputs],
    ready: dict[tuple[ir.Value, int], ir.Value],
) -> list[Input]:
    """Emit the parts of X; `ready` are those that exist, by their source and its axis of time."""
    parts: dict[ir.Value, Input] = {}
    bare: dict[ir.Value, tuple[bool, Source, Floats, Floats]] = {}
    for start, W in found.cell.W.items():
        source, bias = found.sources[start], np.zeros(len(W))
        if source.series is None:
            assert source.cell is not None
            Y = before[source.cell].Y
            parts[Y] = Input(Y, W, bias)
            continue
        series = source.series
        product = hoisted(facts, series, source.tags) if is_selection(W) else None
        if product is None:
            key = series.outer, series.axis
            ready[key] = ready.get(key) or as_series(e, *key, source.tags)
            parts[series.outer] = Input(ready[key], W, bias)
            continue
        base, W, bias = product.base, W @ product.matrix.T, W @ product.bias
        if base in bare:
            W, bias = W + bare[base][2], bias + bare[base][3]
        bare[base] = (product.has_rows, source, W, bias)
    for base, (has_rows, _, W, bias) in bare.items():
        tags = ("B", "") if has_rows else ("",)
        ready[base, 0] = ready.get((base, 0)) or as_series(e, base, 0, tags)
        parts[base] = Input(ready[base, 0], W, bias)
    return list(parts.values())


def as_series(e: Emitter, value: ir.Value, axis: int, tags: Sequence[str]) -> ir.Value:
    """Emit a series as ``[T, B, features]``; `tags` are those of its elements."""
    rank = len(tags) + 1
    rest = [each for each in range(rank) if each != axis]
    row = next((each for each, tag in zip(rest, tags, strict=True) if tag), None)
    perm = [axis, *([] if row is None else [row]), *(each for each in rest if each != row)]
    if perm != list(range(rank)):
        value = e.transpose(value, perm)
    if rank == 3:
        return value
    if row is not None:
        return e.op("Reshape", value, e.integers(0, 0, -1), since=5)
    return e.op("Reshape", value, e.integers(0, 1, -1), since=5)


def emit_cell(
    e: Emitter, facts: Facts, founds: Sequence[Found], inputs: Sequence[Sequence[Input]], name: str
) -> list[Outputs]:
    """Emit one node for a cell, or for the two directions of one; return the outputs of each direction."""
    cell, states = founds[0].cell, founds[0].states
    gates = len(RECURRENT_OPS[cell.op_type].gates)
    size, dtype = cell.hidden_size, e.dtype.numpy()
    X = e.concat([part.X for part in inputs[0]], 2)
    W = np.stack([np.concatenate([part.W for part in parts], 1) for parts in inputs])
    R = np.stack([found.cell.R for found in founds])
    B = np.stack([found.cell.B for found in founds])
    for direction, parts in enumerate(inputs):
        B[direction, : gates * size] += sum(part.bias for part in parts)
    operands: list[ir.Value | None] = [X]
    for array, role in ((W, "W"), (R, "R"), (B, "B")):
        cast = array.astype(dtype)
        if not np.isfinite(cast.astype(np.float64)).all():
            raise NotLiftableError("a weight is too large for the type")
        operands.append(None if role == "B" and not cast.any() else e.constant(cast, name=f"{name}/{role}"))
    mask = founds[0].mask
    lengths = None if mask is None else lengths_of(facts, mask)
    operands.append(e.constant(lengths) if isinstance(lengths, np.ndarray) else lengths)
    operands += [_initial(e, facts, founds, number) for number in range(len(states))]
    if any(found.cell.P is not None for found in founds):
        P = [np.zeros(3 * size) if found.cell.P is None else found.cell.P for found in founds]
        operands += [None] * (7 - len(operands))
        operands.append(e.constant(np.stack(P).astype(dtype), name=f"{name}/P"))
    while operands[-1] is None:
        operands.pop()
    outputs = _node(e, founds, operands, name, len(states))
    if len(founds) == 1:
        Y = e.squeeze(outputs[0], 1, [])
        return [Outputs(Y, [e.squeeze(value, 0, []) for value in outputs[1:]])]
    Ys = e.split(outputs[0], [1, 1], 1)
    lasts = [e.split(value, [1, 1], 0) for value in outputs[1:]]
    return [Outputs(e.squeeze(Ys[d], 1, []), [e.squeeze(last[d], 0, []) for last in lasts]) for d in range(2)]


def _initial(e: Emitter, facts: Facts, founds: Sequence[Found], number: int) -> ir.Value | None:
    """Emit initial_h or initial_c, unless it is zero."""
    starts = [found.states[number].start for found in founds]
    constants = [facts.constant(start) for start in starts]
    if all(constant is not None and not constant.any() for constant in constants):
        return None
    parts = []
    for found, start in zip(founds, starts, strict=True):
        tags = found.tags
        if len(tags) == 3 and not tags[0]:
            parts.append(start)
        elif len(tags) == 2:
            parts.append(e.unsqueeze(start, 0, []))
        else:
            parts.append(e.op("Reshape", start, e.integers(1, -1, found.cell.hidden_size), since=5))
    return e.concat(parts, 0)


def _node(
    e: Emitter, founds: Sequence[Found], operands: Sequence[ir.Value | None], name: str, states: int
) -> Sequence[ir.Value]:
    cell = founds[0].cell
    attributes = [ir.AttrInt64("hidden_size", cell.hidden_size)]
    if len(founds) == 2:
        attributes.append(ir.AttrString("direction", "bidirectional"))
    elif founds[0].reverse:
        attributes.append(ir.AttrString("direction", "reverse"))
    attributes += _activations([found.cell for found in founds])
    if cell.clip is not None:
        attributes.append(ir.AttrFloat32("clip", cell.clip))
    if cell.input_forget:
        attributes.append(ir.AttrInt64("input_forget", 1))
    if cell.linear_before_reset:
        attributes.append(ir.AttrInt64("linear_before_reset", 1))
    outputs = [ir.Value(name=e.names.fresh(role)) for role in ("Y", "Y_h", "Y_c")[: states + 1]]
    node = ir.Node("", cell.op_type, operands, attributes, outputs=outputs, name=e.names.source.fresh(name))
    e.nodes.append(node)
    e.everything.append(node)
    return outputs


def _activations(cells: Sequence[Cell]) -> list[ir.Attr]:
    """Return the attributes of the activations, where they are not the defaults."""
    defaults = RECURRENT_OPS[cells[0].op_type].activations
    used = [activation for cell in cells for activation in cell.activations]
    names = [activation.name for activation in used]
    alphas = [activation.alpha for activation in used]
    betas = [activation.beta for activation in used]
    if tuple(names) == defaults * len(cells):
        return []
    made = [ir.AttrStrings("activations", names)]
    for attribute, given in (("activation_alpha", alphas), ("activation_beta", betas)):
        known = [getattr(SPEC_PARAMETERS[name], attribute.removeprefix("activation_")) for name in names]
        # The n-th number belongs to the n-th function that has the parameter.
        numbers = [number for number, default in zip(given, known, strict=True) if default is not None]
        if numbers:
            made.append(ir.AttrFloat32s(attribute, [0.0 if number is None else number for number in numbers]))
    return made


def emit_result(e: Emitter, result: Result, Y: ir.Value, size: int, *, is_reverse: bool) -> ir.Value:
    """Emit Y in the shape of a value that it replaces."""
    if result.reverse != is_reverse:
        Y = e.flip(Y, 0)
    return _laid_out(e, Y, ("T", "B"), result.tags, result.shape, size)


def emit_state(e: Emitter, found: Found, value: ir.Value) -> ir.Value:
    """Emit a last state in the shape of the state of a step."""
    return _laid_out(e, value, ("B",), found.tags, found.shape, found.cell.hidden_size)


def _laid_out(
    e: Emitter, value: ir.Value, axes: Sequence[str], tags: Sequence[str], shape: Sequence[int], size: int
) -> ir.Value:
    """Emit a value with these axes, and its features at the end, in another layout."""
    if "TB" in tags:
        value, axes = e.op("Reshape", value, e.integers(-1, size), since=5), ("TB",)
    features = max(axis for axis, tag in enumerate(tags) if not tag and shape[axis] == size)
    wanted = [tag or ("H" if axis == features else "") for axis, tag in enumerate(tags)]
    if "B" in axes and "B" not in wanted:
        # The axis of a batch of one row has no tag, or is missing.
        free = [axis for axis, each in enumerate(wanted[:features]) if not each]
        if free:
            wanted[free[-1]] = "B"
        else:
            value = e.squeeze(value, list(axes).index("B"), [])
            axes = [axis for axis in axes if axis != "B"]
    order = [each for each in wanted if each]
    now = [*axes, "H"]
    if order != now:
        value = e.transpose(value, [now.index(each) for each in order])
    ones = [axis for axis, each in enumerate(wanted) if not each]
    return e.with_axes("Unsqueeze", value, ones) if ones else value


def dtype_of(facts: Facts, found: Found) -> ir.DataType:
    """Return the type of the state."""
    type_ = facts.type(found.states[0].start)
    if not isinstance(type_, ir.TensorType):
        raise NotLiftableError("the type of the state is not known")
    return type_.dtype


def mergeable(
    first: Found, second: Found, inputs: Mapping[int, Sequence[Input]], numbers: tuple[int, int]
) -> bool:
    """Return whether two cells are the directions of one node."""
    one, other = first.cell, second.cell
    return (
        not first.reverse
        and second.reverse
        and (one.op_type, one.hidden_size, one.clip, one.input_forget, one.linear_before_reset)
        == (other.op_type, other.hidden_size, other.clip, other.input_forget, other.linear_before_reset)
        and [part.X for part in inputs[numbers[0]]] == [part.X for part in inputs[numbers[1]]]
        and (first.mask and first.mask.outer) is (second.mask and second.mask.outer)
    )
