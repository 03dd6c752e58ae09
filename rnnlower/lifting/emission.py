"""The emission of a recurrent operator in the place of a frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Dim
from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import trim_omitted
from rnnlower.lifting.affine_forms import Floats, NotLiftableError
from rnnlower.lifting.cell_search import FoundCell, StepCondition, require_rows, tagged_shape, without_time
from rnnlower.lifting.equations import CellParameters
from rnnlower.lifting.hoisting import InputPart
from rnnlower.lifting.results import Result
from rnnlower.lifting.row_masks import TakenSteps
from rnnlower.lowering.emitter import Emitter
from rnnlower.recurrent.operators import RECURRENT_OPS, SPEC_PARAMETERS


@dataclasses.dataclass(frozen=True)
class EmittedNode:
    """A node that was emitted for cells.

    Attributes:
        cells: The cell of each direction, with all of W under the key 0.
        Y: Its first output as ``[T, B, H]``.
        last: The final states as ``[B, H]``.
        taken: Which steps rows take, ``[T, B, 1]``, if Y repeats for the others what the last one returned.
    """

    node: ir.Node
    cells: Sequence[CellParameters]
    Y: ir.Value
    last: Sequence[ir.Value]
    taken: ir.Value | None = None


def emit_input(
    e: Emitter, facts: Facts, parts: Sequence[InputPart], ready: dict[object, ir.Value], rows: Dim
) -> tuple[ir.Value, Floats, Floats]:
    """Emit X; return it with its weights and its summand of the bias.

    A step broadcasts one row of X to the rows of the states, but an operator does not.
    """
    joined: dict[object, tuple[Floats, Floats]] = {}
    inputs: dict[object, ir.Value] = {}
    for part in parts:
        key: object = part.value
        if not isinstance(part.value, int):
            key = part.value, part.axis, part.direction if "D" in part.tags else None, part.window
            if key not in ready:
                ready[key] = emit_series(e, *_emit_direction(e, facts, part))
        if key not in inputs:
            inputs[key] = _emit_rows(e, facts, part, ready[key], rows)
        W, bias = joined.get(key, (0.0, 0.0))
        joined[key] = W + part.W, bias + part.bias
    X = e.concat([*inputs.values()], 2)
    Ws, biases = zip(*joined.values(), strict=True)
    return X, np.concatenate(Ws, 1), sum(biases)


def _rows(facts: Facts, value: ir.Value, tags: Sequence[str], axis: int | None = None) -> Dim:
    """Return the number of rows of a state, or of a series with time on an axis."""
    dims = facts.dims(value)
    if dims is None or "B" not in tags or len(dims) != len(tags) + (axis is not None):
        return None
    place = tags.index("B")
    return dims[place + (axis is not None and axis <= place)]


def _emit_rows(e: Emitter, facts: Facts, part: InputPart, series: ir.Value, rows: Dim) -> ir.Value:
    """Emit a series of one row, or of these rows, as one of these rows."""
    if not isinstance(rows, int) or rows == 1:
        return series
    steps: Dim = None
    if isinstance(part.value, ir.Value):
        if _rows(facts, part.value, part.tags, part.axis) == rows:
            return series
        dims = facts.dims(part.value)
        steps = dims[part.axis] if dims is not None else None
        steps = part.window[1] - part.window[0] if part.window is not None else steps
    value = e.op("Expand", series, e.integers(1, rows, 1), since=8)
    value.type, value.shape = ir.TensorType(e.dtype), ir.Shape([steps, rows, part.W.shape[1]])
    return value


def _emit_direction(e: Emitter, facts: Facts, part: InputPart) -> tuple[ir.Value, int, tuple[str, ...]]:
    """Emit the direction that a part reads; return it, its axis of time and the axes of its elements."""
    value, axis, tags = part.value, part.axis, part.tags
    assert isinstance(value, ir.Value)
    if part.window is not None:
        (start, end), type_, dims = part.window, facts.type(value), facts.dims(value)
        value = e.slice(value, [start], [end], [axis])
        if dims is not None:
            # A shorter sequence would have been an error of the steps themselves.
            sizes = [end - start if at == axis else dim for at, dim in enumerate(dims)]
            value.type, value.shape = type_, ir.Shape(sizes)
    if "D" not in tags:
        return value, axis, tags
    place = tags.index("D")
    lead = place + (axis <= place)
    value = e.op("Gather", value, e.constant(np.array(part.direction, np.int64)), axis=lead)
    return value, axis - (lead < axis), (*tags[:place], *tags[place + 1 :])


def emit_series(e: Emitter, value: ir.Value, axis: int, tags: Sequence[str]) -> ir.Value:
    """Emit a series as ``[T, B, features]``; `tags` are those of its elements."""
    rank = len(tags) + 1
    rest = [each for each in range(rank) if each != axis]
    row = next((each for each, tag in zip(rest, tags, strict=True) if tag), None)
    perm = [axis, *([] if row is None else [row]), *(each for each in rest if each != row)]
    if perm != list(range(rank)):
        value = e.transpose(value, perm)
    if rank == 3:
        return value
    return e.reshape(value, [0, 1 if row is None else 0, -1])


def emit_cell(
    e: Emitter, facts: Facts, found: FoundCell, ready: dict[object, ir.Value], name: str
) -> EmittedNode:
    """Emit the node of a cell; `ready` has Y of earlier cells by their indices, and emitted inputs."""
    nonzero = [state.start for state in found.states if not facts.is_zero(state.start)]
    # Zeros without rows are zeros for each row.
    tags = found.tags if nonzero or "B" in found.tags else found.parts[0].tags
    for each in found.parts:
        require_rows(each.tags, tags)
    for start in nonzero:
        require_rows(tagged_shape(facts, start, found.direction)[0], tags)
    rows = next(
        (rows for each in found.states if isinstance(rows := _rows(facts, each.start, found.tags), int)), None
    )
    X, W, added = emit_input(e, facts, found.parts, ready, rows)
    bias = found.cell.B + np.pad(added, (0, found.cell.B.size // 2))
    cell = dataclasses.replace(found.cell, W={0: W}, B=bias)
    starts = [_emit_initial(e, facts, found, state.start) for state in found.states]
    lengths, taken = found.lengths, None
    if found.taken is not None:
        taken = _emit_taken(e, found, found.taken, e.dim(X, 0))
        X, lengths = taken.compact(e, e.flip(X, 0) if found.reverse else X), taken.lengths
    elif isinstance(lengths, ir.Value) and facts.dtype(lengths) != ir.DataType.INT32:
        lengths = e.cast(lengths, ir.DataType.INT32)
    given = [X, lengths, *starts]
    node = emit_node(e, [cell], "reverse" if found.reverse and taken is None else "forward", given, name)
    Y, *last = (e.squeeze(value, axis, []) for axis, value in zip((1, 0, 0), node.outputs, strict=False))
    if taken is None:
        return EmittedNode(node, [cell], Y, last)
    # onnxruntime's operators return zeros for rows without steps.
    last = [taken.keep(e, value, start) for value, start in zip(last, starts, strict=True)]
    Y = taken.repeat(e, Y, e.zeros([1, e.dim(Y, 1), cell.hidden_size]) if starts[0] is None else starts[0])
    Y, mask = (e.flip(value, 0) if found.reverse else value for value in (Y, taken.taken))
    return EmittedNode(node, [cell], Y, last, mask)


def _emit_taken(e: Emitter, found: FoundCell, condition: StepCondition, steps: ir.Value) -> TakenSteps:
    """Emit the steps that rows take, the first one that is computed first."""
    mask = condition.mask
    if isinstance(mask, ir.Value):
        numbers, lengths = (e.cast(value, ir.DataType.INT64) for value in (e.arange(steps), mask))
        is_taken = e.op("Less", e.reshape(numbers, [-1, 1, 1]), e.reshape(lengths, [1, -1, 1]))
        return TakenSteps.emit(e, is_taken)
    going = emit_series(e, mask.outer, mask.axis, without_time(mask, found.tags))
    going = e.flip(going, 0) if mask.reverse else going
    return TakenSteps.emit(e, going if condition.is_going else e.op("Not", going))


def emit_node(
    e: Emitter,
    cells: Sequence[CellParameters],
    direction: str,
    given: Sequence[ir.Value | np.ndarray | None],
    name: str,
) -> ir.Node:
    """Emit a node; `given` are X, the lengths and the initial states.

    Raises:
        NotLiftableError: A weight is infinite in the node's type.
    """
    cell, dtype = cells[0], e.dtype.numpy()
    weights = {role: np.stack([getattr(each, role) for each in cells]) for role in "RB"}
    weights["W"] = np.stack([each.W[0] for each in cells])
    if any(each.P is not None for each in cells):
        none = np.zeros(3 * cell.hidden_size)
        weights["P"] = np.stack([none if each.P is None else each.P for each in cells])
    roles: dict[str, ir.Value | None] = {"X": None, "W": None, "R": None, "B": None}
    for role, array in weights.items():
        cast = array.astype(dtype)
        if not np.isfinite(cast.astype(np.float64)).all():
            raise NotLiftableError("a weight is too large for the type")
        if role != "B" or cast.any():
            roles[role] = e.constant(cast, name=f"{name}/{role}")
    X, *rest = (e.constant(each) if isinstance(each, np.ndarray) else each for each in given)
    operands = trim_omitted([X, roles["W"], roles["R"], roles["B"], *rest, roles.get("P")])
    attributes = [ir.AttrInt64("hidden_size", cell.hidden_size)]
    if direction != "forward":
        attributes.append(ir.AttrString("direction", direction))
    attributes += _activations(cells)
    if cell.clip is not None:
        attributes.append(ir.AttrFloat32("clip", cell.clip))
    if cell.input_forget:
        attributes.append(ir.AttrInt64("input_forget", 1))
    # A GRU of PyTorch that does not say 0 is taken for an exporter's fault.
    if cell.op_type == "GRU" and (cell.linear_before_reset or e.opset >= 3):
        attributes.append(ir.AttrInt64("linear_before_reset", int(cell.linear_before_reset)))
    outputs = [ir.Value(name=e.names.fresh(role)) for role in RECURRENT_OPS[cell.op_type].outputs]
    node = ir.Node("", cell.op_type, operands, attributes, outputs=outputs, name=e.names.source.fresh(name))
    e.add(node)
    return node


def _emit_initial(e: Emitter, facts: Facts, found: FoundCell, start: ir.Value) -> ir.Value | None:
    """Emit initial_h or initial_c, unless it is zero."""
    if facts.is_zero(start):
        return None
    if found.direction is not None:
        return e.slice(start, [found.direction], [found.direction + 1], [0])
    if len(found.tags) == 3 and not found.tags[0]:
        return start
    if len(found.tags) == 2:
        return e.unsqueeze(start, 0, [])
    return e.reshape(start, [1, -1, found.cell.hidden_size])


def _activations(cells: Sequence[CellParameters]) -> list[ir.Attr]:
    """Return the attributes of the activations, unless they are the defaults."""
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


def emit_result(e: Emitter, found: FoundCell, result: Result, emitted: EmittedNode) -> ir.Value:
    """Emit Y in the layout of the value that it replaces."""
    Y = emitted.Y
    if result.is_zeroed and emitted.taken is not None:
        Y = e.op("Where", emitted.taken, Y, e.zeros([]))
    if result.reverse != found.reverse:
        Y = e.flip(Y, 0)
    return _lay_out(e, Y, ("T", "B"), result.tags, result.shape, found.cell.hidden_size)


def emit_state(e: Emitter, found: FoundCell, value: ir.Value) -> ir.Value:
    """Emit a final state in the layout of the step's state."""
    return _lay_out(e, value, ("B",), found.tags, found.shape, found.cell.hidden_size)


def _lay_out(
    e: Emitter, value: ir.Value, axes: Sequence[str], tags: Sequence[str], shape: Sequence[int], size: int
) -> ir.Value:
    """Emit a value with these axes, and its features at the end, in another layout."""
    if "TB" in tags:
        value, axes = e.reshape(value, [-1, size]), ("TB",)
    features = max(axis for axis, tag in enumerate(tags) if not tag and shape[axis] == size)
    wanted = ["" if tag == "D" else tag or ("H" if axis == features else "") for axis, tag in enumerate(tags)]
    if "B" in axes and "B" not in wanted:
        # The axis of a batch of one has no tag, or is missing.
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
