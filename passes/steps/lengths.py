"""Static sequence lengths for nodes to be unrolled, and the remedies if there are none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import InvalidModelError, OptionError, UnsupportedModelError
from rnnlower.graph.facts import Facts
from rnnlower.graph.open_sizes import OpenSizes, open_sizes
from rnnlower.graph.walk import Located, dim_name, sources, walk
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.static_shapes import StaticShapesPass
from rnnlower.recurrent.node import Semantics
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets import Target

_MOST_STEPS = 200_000
_NODES_A_STEP = 10
_BYTES_A_STEP = 350
# Sizes to try: a model of images may be invalid with the first.
_EXAMPLES = (16, 256)


def with_static_lengths(
    model: ir.Model, current: Sequence[Located], target: Target | None, semantics: Semantics, facts: Facts
) -> tuple[list[Located], list[Located], list[Located]]:
    """Return the nodes to be unrolled, each with a static length, the unreachable and the impossible ones.

    Raises:
        UnsupportedModelError: A length is not static.
    """

    def dynamic(nodes: Sequence[Located]) -> list[Located]:
        return [located for located in nodes if parse_recurrent(located, semantics).seq_length is None]

    is_static = target is not None and target.shapes.static
    if not dynamic(current) and not is_static:
        _check_cost(current, semantics)
        return list(current), [], []
    analysis = StaticShapesPass(current)
    analysis(model, facts)
    gone = analysis.unreachable + analysis.impossible
    current = [located for located in current if located not in gone]
    for located in dynamic(current):
        raise _no_length(located, model, target)
    _check_cost(current, semantics)
    return current, analysis.unreachable, analysis.impossible


def _check_cost(nodes: Sequence[Located], semantics: Semantics) -> None:
    """Refuse to unroll a node that would exhaust the memory long before there is a file."""
    for located in nodes:
        node = parse_recurrent(located, semantics)
        steps = (node.seq_length or 0) * node.num_directions
        if steps > _MOST_STEPS:
            raise UnsupportedModelError(
                f"unrolling {steps:,} steps makes about "
                f"{steps * _NODES_A_STEP:,} nodes and {steps * _BYTES_A_STEP / 1e9:,.1f} GB; "
                f"the limit is {_MOST_STEPS:,} steps",
                node=located,
                remedy=f"use `{wording.call('scan')}`, which emits a single step",
            )


def _no_length(located: Located, model: ir.Model, target: Target | None) -> UnsupportedModelError:
    X = located.node.inputs[0]
    layout = located.node.attributes.get_int("layout", 0)
    name = dim_name(X.shape[layout]) if X is not None and X.shape is not None else None
    needy = "unrolling" if target is None else f"target {target.name}"
    problem = f"its sequence length is {repr(name) if name else 'unknown'}, and {needy} needs a number"
    other_way = f"keep it dynamic with `{wording.call('scan')}`"
    if target is not None:
        other_way = "choose a target that has Scan or Loop"
    sizes = _remedy(located, model, name)
    if sizes is None:
        problem += ", which does not follow from the shapes of the inputs"
        return UnsupportedModelError(problem, node=located, remedy=other_way)
    return UnsupportedModelError(problem, node=located, remedy=f"give it one ({sizes}), or {other_way}")


def _remedy(located: Located, model: ir.Model, name: str | None) -> OpenSizes | None:
    """Return the sizes of inputs that make the length static, by trial; ``None`` if none do."""
    X = located.node.inputs[0]
    inputs = [value for value in model.graph.inputs if X is None or value in sources(X)]
    for example in _EXAMPLES:
        everything = open_sizes(inputs or model.graph.inputs, example)
        if name and name in everything.dims:
            alone = OpenSizes({name: example}, {})
            if _settles(alone, located, model):
                return alone
        settled = _settles(everything, located, model)
        if settled:
            return _least(everything, located, model)
        if settled is False:
            return None
    return everything


def _least(sizes: OpenSizes, located: Located, model: ir.Model) -> OpenSizes:
    """Return the sizes without those that the length does not depend on."""
    for field in ("dims", "input_shapes"):
        for name in getattr(sizes, field):
            others = {other: size for other, size in getattr(sizes, field).items() if other != name}
            fewer = dataclasses.replace(sizes, **{field: others})
            sizes = fewer if _settles(fewer, located, model) else sizes
    return sizes


def _settles(sizes: OpenSizes, located: Located, model: ir.Model) -> bool | None:
    """Return whether these sizes make the length static; ``None`` if the model is invalid with them."""
    dims = {name: _example(size) for name, size in sizes.dims.items()}
    shapes = {name: [*map(_example, shape)] for name, shape in sizes.input_shapes.items()}
    copy = model.clone()
    twin = next(
        same
        for (node, _), (same, _) in zip(walk(model.graph), walk(copy.graph), strict=True)
        if node is located.node
    )
    fixed = dataclasses.replace(located, node=twin)
    try:
        FreezeDimsPass(dims, shapes)(copy)
        analysis = StaticShapesPass([fixed])
        analysis(copy)
        return fixed in analysis.unreachable or parse_recurrent(fixed).seq_length is not None
    except (InvalidModelError, OptionError):
        return None


def _example(size: int | str) -> int:
    return size if isinstance(size, int) else _EXAMPLES[0]
