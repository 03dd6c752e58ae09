"""Sequence lengths as numbers, where nodes are to be unrolled; what to do where they are none."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.walk import Located, dim_name, sources
from rnnlower.passes.static_shapes import StaticShapesPass
from rnnlower.recurrent.node import ResolvedNode, Semantics
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets import Target

__all__ = ["with_static_lengths"]

_MOST_STEPS = 200_000
_NODES_A_STEP = 10
_BYTES_A_STEP = 350
# Inputs that say what shape something gets.
_SHAPES = {("Reshape", 1), ("Expand", 1), ("Tile", 1), ("ConstantOfShape", 0)}


def with_static_lengths(
    model: ir.Model, current: Sequence[Located], target: Target | None, semantics: Semantics
) -> tuple[list[Located], list[Located], list[Located]]:
    """The nodes to be unrolled, each of which then has a static length; the unreachable, the impossible.

    Raises:
        UnsupportedModelError: A length is not static.
    """

    def dynamic(nodes: Sequence[Located]) -> list[Located]:
        return [located for located in nodes if parse_recurrent(located, semantics).seq_length is None]

    is_static = target is not None and target.shapes.static
    if not dynamic(current) and not is_static:
        _check_cost([(located, parse_recurrent(located, semantics)) for located in current])
        return list(current), [], []
    analysis = StaticShapesPass(current)
    analysis(model)
    gone = analysis.unreachable + analysis.impossible
    current = [located for located in current if located not in gone]
    for located in dynamic(current):
        raise UnsupportedModelError(_no_length(located, model, target))
    _check_cost([(located, parse_recurrent(located, semantics)) for located in current])
    return current, analysis.unreachable, analysis.impossible


def _check_cost(nodes: Sequence[tuple[Located, ResolvedNode]]) -> None:
    """Refuses to unroll what would take all memory long before it is a file."""
    for located, node in nodes:
        steps = (node.seq_length or 0) * node.num_directions
        if steps > _MOST_STEPS:
            raise UnsupportedModelError(
                f"{located.label}: unrolling {steps:,} steps makes about "
                f"{steps * _NODES_A_STEP:,} nodes and {steps * _BYTES_A_STEP / 1e9:,.1f} GB; "
                f"the limit is {_MOST_STEPS:,} steps. Use `rnnlower scan`, which makes one"
            )


def _no_length(located: Located, model: ir.Model, target: Target | None) -> str:
    node = located.node
    X = node.inputs[0]
    layout = node.attributes.get_int("layout", 0)
    dim = X.shape[layout] if X is not None and X.shape is not None else None
    name = dim_name(dim)
    length = repr(name) if name else "unknown"
    remedy = f"--dim {name}=16" if name else _input_remedy(model, X)
    needy = "unrolling" if target is None else f"target {target.name}"
    problem = f"{located.label}: its sequence length is {length}, and {needy} needs a number"
    other_way = "keep it dynamic with `rnnlower scan`"
    if target is not None:
        other_way = "choose a target that has Scan or Loop"
    if not remedy:
        way = other_way[0].upper() + other_way[1:]
        return f"{problem}, which the shapes of the inputs do not tell. {way}"
    return f"{problem}. Give it one ({remedy}), or {other_way}"


def _input_remedy(model: ir.Model, X: ir.Value | None) -> str:
    """Options that fix what is dynamic about the inputs that lead to X; "" if nothing is, or none can."""
    inputs = [value for value in model.graph.inputs if X is None or value in sources(X)]
    inputs = inputs or list(model.graph.inputs)
    remedies: dict[str, None] = {}
    if any((user.op_type, place) in _SHAPES for value in inputs for user, place in value.uses()):
        # Sizes are elements of an input, not its shape.
        return ""
    for value in inputs:
        dims = list(value.shape or ())
        names = [dim_name(dim) for dim in dims if isinstance(dim, ir.SymbolicDim)]
        remedies.update({f"--dim {name}=16": None for name in names if name})
        if None in names or any(isinstance(dim, int) and dim < 0 for dim in dims):
            shape = ",".join(str(dim) if isinstance(dim, int) and dim >= 0 else "N" for dim in dims)
            remedies[f"--input-shape {value.name}:{shape}"] = None
        if value.shape is None:
            remedies[f"--input-shape {value.name}:2,3,4"] = None
    return " or ".join(remedies)
