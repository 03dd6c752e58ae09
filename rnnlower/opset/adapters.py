"""Rows of the table of version steps, and the adapters that several operator families share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import onnx
import onnx_ir as ir

from rnnlower.graph.inlining import resolve_references
from rnnlower.graph.versions import function_body
from rnnlower.graph.walk import trim_omitted, walk_values
from rnnlower.opset.step import VersionStep
from rnnlower.opset.value_types import ValueTypes

Adapter = Callable[[VersionStep], None]


def describe_adapter(adapter: Adapter) -> str:
    """Return an adapter's description of itself, in one line."""
    return " ".join(str(adapter.__doc__).split("\n\n")[0].split()).rstrip(".")


@dataclasses.dataclass(frozen=True)
class Row:
    """A version step that is more than a widening of types.

    `operators` are the operators' names, `low` and `high` the two versions, `up` and `down` the adapters of
    each direction (``None``: the general rule decides). `low` 0 means that `high` is the first version.
    """

    operators: str
    low: int
    high: int
    why: str
    up: Adapter | None = None
    down: Adapter | None = None

    def change(self, *, up: bool) -> str:
        """Return how a report describes a node that was rewritten at this step."""
        return self.why if up or self.down is None else describe_adapter(self.down)


def refuse_unless(name: str, allowed: Iterable[Any], reason: str) -> Adapter:
    """Return an adapter that accepts a node if its attribute `name` has one of the values `allowed`."""
    values = tuple(allowed)

    def adapter(step: VersionStep) -> None:
        if step.attr(name) not in values:
            step.refuse(f"{name}={step.attr(name)!r}: {reason}")

    known = ", ".join(str(value) for value in values if value is not None) or "left out"
    adapter.__doc__ = f"only with `{name}` {known}: {reason}"
    return adapter


def only(
    operators: str, low: int, high: int, why: str, name: str, allowed: Iterable[Any], reason: str
) -> Row:
    """Return a row that lets a node step down if its attribute `name` has one of the values `allowed`."""
    return Row(operators, low, high, why, down=refuse_unless(name, allowed, reason))


def both(*adapters: Adapter) -> Adapter:
    """Return an adapter that applies one adapter after the other."""

    def adapter(step: VersionStep) -> None:
        for each in adapters:
            each(step)

    adapter.__doc__ = "; ".join(str(each.__doc__) for each in adapters)
    return adapter


def positive_axis(step: VersionStep, axis: int, rank: int | None = None) -> int:
    """Return `axis` counted from the front; refuse if the rank is needed and not known."""
    if axis >= 0:
        return axis
    return axis + (step.known_rank(step.required_input()) if rank is None else rank)


def nonnegative_axis(step: VersionStep) -> None:
    """A negative axis is counted from the front, if the rank is known."""
    axis = step.attr("axis")
    if axis is not None and axis < 0:
        step.set("axis", positive_axis(step, axis))


def nonnegative_axes(step: VersionStep) -> None:
    """Negative axes are counted from the front, if the rank is known."""
    axes = step.attr("axes")
    if axes is not None and any(axis < 0 for axis in axes):
        step.set("axes", [positive_axis(step, axis) for axis in axes])


def expand_to_body(step: VersionStep) -> None:
    """onnx defines the operator as a function of older ones: its body replaces the node."""
    step.opset = step.source_opset
    proto = function_body(step.node, step.opset, step.known_dtype, step.shape)
    if proto is None or not proto.node:
        step.refuse("onnx defines it for inputs of known rank only", "declare their shapes in value_info")
    positions = _drop_missing_outputs(proto)
    function = ir.serde.deserialize_function(proto)
    attributes, outputs = _attributes(step), list(function.outputs)
    for node in list(function.graph.all_nodes()):
        resolve_references(node, attributes)
    inputs = [*trim_omitted(step.node.inputs), *[None] * len(function.inputs)]
    actuals = dict(zip(function.inputs, inputs, strict=False))
    for formal, actual in actuals.items():
        if actual is not None:
            formal.type, formal.shape = ir.TensorType(step.known_dtype(actual)), step.shape(actual)
    function.graph.opset_imports[""] = step.opset
    body = ir.Model(function.graph, ir_version=10)
    step.conversion.types.adopt(ValueTypes(body))
    for value in walk_values(function.graph):
        value.name = (
            step.conversion.names.fresh(f"{step.node.name or step.node.op_type}_{value.name}")
            if value.name
            else ""
        )
    for formal, actual in actuals.items():
        for user, position in list(formal.uses()):
            user.replace_input_with(position, actual)
    nodes = list(function)
    function.graph.outputs.clear()
    function.graph.remove(nodes)
    for node in nodes:
        node.name = step.conversion.names.fresh(f"{step.node.name or step.node.op_type}_{node.op_type}")
        step.place(node)
    made = [actuals.get(value, value) for value in outputs]
    step.replace(*[None if position is None else made[position] for position in positions])


def _drop_missing_outputs(proto: onnx.FunctionProto) -> list[int | None]:
    """Remove outputs that the body does not compute; return the new position of each output."""
    made = {name for node in proto.node for name in node.output} | set(proto.input)
    names = list(proto.output)
    left = [name for name in names if name in made]
    del proto.output[:]
    proto.output.extend(left)
    return [left.index(name) if name in made else None for name in names]


def _attributes(step: VersionStep) -> dict[str, ir.Attr]:
    found = {
        name: ir.convenience.convert_attribute(name, attribute.default)
        for name, attribute in step.old.attributes.items()
        if attribute.default is not None
    }
    for name in step.node.attributes:
        step.attr(name)
    return {**found, **step.node.attributes}
