"""Dynamic sizes of graph inputs, values that inputs decide, and the options that fix both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from rnnlower import wording
from rnnlower.graph.loop_signature import LoopSignature
from rnnlower.graph.operator_kinds import SHAPE_READERS
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import subgraph_owners, subgraphs_of

_EXAMPLE = 16


@dataclasses.dataclass(frozen=True)
class SizeOptions:
    """The options that fix the sizes of inputs.

    Attributes:
        dims: Sizes for named dimensions; `N` stands for a size to fill in.
        input_shapes: Shapes of inputs with an unnamed dynamic size, where `N` stands for the same.
    """

    dims: Mapping[str, int | str]
    input_shapes: Mapping[str, Sequence[int | str]]

    def __str__(self) -> str:
        """Write the options in the style of the command line or of Python."""
        words = [wording.dims(self.dims)] if self.dims else []
        words += [wording.input_shapes(self.input_shapes)] if self.input_shapes else []
        return wording.several(words)


def has_dynamic_size(value: ir.Value) -> bool:
    """Return whether a size of a tensor is dynamic."""
    if not isinstance(value.type, ir.TensorType | None):
        return False
    return value.shape is None or any(not isinstance(dim, int) or dim < 0 for dim in value.shape)


def options_for_sizes(inputs: Iterable[ir.Value], example: int | str = _EXAMPLE) -> SizeOptions:
    """Return the options that fix the dynamic sizes of these inputs; an unknown rank is taken as 3."""
    dims: dict[str, int | str] = {}
    shapes: dict[str, Sequence[int | str]] = {}
    for value in inputs:
        if not has_dynamic_size(value):
            continue
        if value.shape is None:
            shapes[str(value.name)] = [2, 3, 4]
            continue
        names = [dim_name(dim) for dim in value.shape if not isinstance(dim, int)]
        if all(names) and not any(isinstance(dim, int) and dim < 0 for dim in value.shape):
            dims |= {str(name): example for name in names}
        else:
            shapes[str(value.name)] = [_size(dim, example) for dim in value.shape]
    return SizeOptions(dims, shapes)


def _size(dim: int | ir.SymbolicDim, example: int | str) -> int | str:
    if isinstance(dim, int):
        return dim if dim >= 0 else "N"
    return example if dim_name(dim) else "N"


def describe_deciding_option(model: ir.Model, node: ir.Node) -> str:
    """Return the options that make constants of what a node depends on; ``""`` if there are none."""
    if node.op_type == "If":
        return describe_deciding_inputs(model, node.inputs[0])
    for value in node.inputs:
        # The shape of a Reshape, the ends of a Slice.
        if value is None or value.dtype is None or not value.dtype.is_integer():
            continue
        if value.is_graph_input() and value.is_initializer():
            return f"{wording.option('freeze', True)} makes a constant of input {value.name!r}"
    return ""


def or_padded(options: SizeOptions) -> str:
    """Return these options, or padding where they are about named dimensions, which may be lengths."""
    more = ", or pad sequences of any length to a maximum (`{}`)" if options.dims else ""
    return f"{options}{more.format(wording.call('pad'))}"


def describe_deciding_inputs(
    model: ir.Model, *values: ir.Value | None, of_loop: bool = False, of_shapes: bool = False
) -> str:
    """Return which inputs determine the values (or their shapes), with the options that set them."""
    data, sizes = _inputs_that_determine(model, values, of_shapes)
    inputs = list(model.graph.inputs)
    parts = [
        f"input {each.name!r} decides it" + (f": {wording.sets(str(each.name))}" if _is_setting(each) else "")
        for each in inputs
        if each in data
    ]
    for each in inputs:
        if each in sizes and has_dynamic_size(each):
            options = options_for_sizes([each], "N")
            text = or_padded(options) if of_loop else str(options)
            parts.append(f"the sizes of input {each.name!r} decide it: {text}")
    return "; ".join(parts)


def describe_branch_inputs(model: ir.Model, node: ir.Node) -> str:
    """Return which inputs determine whether a node in branches of Ifs runs, in words."""
    holders = subgraph_owners(model.graph)
    conditions: list[ir.Value | None] = []
    inner: ir.Node | None = node
    while inner is not None and (inner := holders.get(inner.graph)) is not None:
        if inner.op_type == "If" and not inner.domain:
            conditions.append(inner.inputs[0])
    return describe_deciding_inputs(model, *conditions)


def _is_setting(value: ir.Value) -> bool:
    """Return whether a user may set an input once and for all: it is a setting rather than data."""
    exact = value.dtype is not None and not value.dtype.is_floating_point()
    return exact or (value.shape is not None and all(dim == 1 for dim in value.shape))


def _inputs_that_determine(
    model: ir.Model, values: Sequence[ir.Value | None], of_shapes: bool
) -> tuple[set[ir.Value], set[ir.Value]]:
    """Return the graph inputs whose data the values depend on, and those of which only the shape matters."""
    data: set[ir.Value] = set()
    sizes: set[ir.Value] = set()
    holders = subgraph_owners(model.graph)
    met: set[tuple[ir.Value, bool]] = set()
    pending = [(value, of_shapes) for value in values]
    while pending:
        this, of_shape = pending.pop()
        if this is None or (this, of_shape) in met:
            continue
        met.add((this, of_shape))
        node = this.producer()
        if node is None:
            (sizes if of_shape else data).add(this)
            owner = holders.get(this.graph)
            pending += [(used, of_shape) for used in _sources_of_body_input(owner, this)]
            continue
        reads_shape = of_shape or (node.op_type in SHAPE_READERS and not node.domain)
        pending += [(used, reads_shape) for used in node.inputs]
        pending += [(out, of_shape) for graph in subgraphs_of(node) for out in graph.outputs]
    return data, sizes


def _sources_of_body_input(owner: ir.Node | None, value: ir.Value) -> list[ir.Value | None]:
    """Return the sources of a body's input: the input of the enclosing node, and the loop-carried value."""
    body = owner.attributes.get("body") if owner is not None else None
    if owner is None or body is None or body.is_ref() or not value.is_graph_input():
        return []
    graph = body.as_graph()
    index = graph.inputs.index(value)
    found = list(owner.inputs[index : index + 1])
    # A Loop hands on its condition, too.
    is_loop = owner.op_type == "Loop"
    if 0 <= (handed_on := index - is_loop) < LoopSignature(owner).count + is_loop:
        found.append(graph.outputs[handed_on])
    return found
