"""Types and shapes that follow from the model, static lengths for unrolling, remedies if there are none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower import wording
from rnnlower.arguments import MAX_STEPS
from rnnlower.errors import InvalidModelError, OptionError, UnsupportedModelError
from rnnlower.graph.dynamic_sizes import SizeOptions, options_for_sizes
from rnnlower.graph.facts import Facts
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import LocatedNode, ancestors, subgraphs_of, walk, walk_all
from rnnlower.passes.base import Pass
from rnnlower.passes.declared_sizes import FreezeDimsPass
from rnnlower.passes.simpler_control_flow import take_branches
from rnnlower.recurrent.finding import RANK_OF_X, find_recurrent, infer_input_types
from rnnlower.recurrent.node import Semantics
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets import Target

_NODES_A_STEP = 10
_BYTES_A_STEP = 350
# Sizes to try: a model of images may be invalid with the first.
_EXAMPLES = (16, 256)


class InferTypesPass(Pass):
    """Records inferred types and shapes on the inputs of recurrent nodes, and nowhere else.

    Anything that cannot be inferred stays unknown.

    Before::

        (float[3, 1, 1] x, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) {
            X = Neg (x)
            Y = RNN <hidden_size = 1> (X, W, R)
        }

    After ``InferTypesPass()``::

        (float[3, 1, 1] x, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) <float[3, 1, 1] X> {
            X = Neg (x)
            Y = RNN <hidden_size = 1> (X, W, R)
        }
    """

    KEEPS_FACTS = True

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, modified=infer_input_types(model, self.facts))


class StaticShapesPass(Pass):
    """Records the shapes that follow from the model's inputs, as `InferTypesPass` does.

    An If whose condition the shapes decide is replaced by the branch that runs if a node to be unrolled is in
    it: the other branch never runs, and the length of its sequences is not known.

    Before::

        (float[2, 3] x, float[1, 1, 3] W, float[1, 1, 1] R) => (float[2, 1, 1, 1] Y) <int64[1] axes = {1}> {
            X = Unsqueeze (x, axes)
            Y = RNN <hidden_size = 1> (X, W, R)
        }

    After ``StaticShapesPass()``::

        (float[2, 3] x, float[1, 1, 3] W, float[1, 1, 1] R) => (float[2, 1, 1, 1] Y)
        <int64[1] axes = {1}, float[2, 1, 3] X> {
            X = Unsqueeze (x, axes)
            Y = RNN <hidden_size = 1> (X, W, R)
        }

    Args:
        nodes: The recurrent nodes that may be unreachable or impossible, in the main graph or its subgraphs;
            ``None``: all.

    Attributes:
        unreachable: The nodes that were removed with a branch that never runs.
        impossible: The nodes whose X has a wrong rank: their branch fails if it is ever taken.
    """

    KEEPS_FACTS = True

    def __init__(self, nodes: Sequence[LocatedNode] | None = None) -> None:
        self._nodes = nodes
        self.unreachable: list[LocatedNode] = []
        self.impossible: list[LocatedNode] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = find_recurrent(model) if self._nodes is None else self._nodes
        wanted = {located.node for located in nodes}
        modified = infer_input_types(model, self.facts)
        taken = take_branches(
            self.facts,
            model.graph,
            lambda node: any(inner in wanted for graph in subgraphs_of(node) for inner, _ in walk(graph)),
        )
        left = {node for node, _ in walk_all(model)}
        for located in nodes:
            if located.node not in left:
                self.unreachable.append(located)
                continue
            X = located.node.inputs[0]
            dims = None if X is None or X.is_graph_input() else self.facts.dims(X)
            # A branch that inputs of these shapes must not take may be invalid for them.
            if dims is not None and len(dims) != RANK_OF_X and located.path:
                self.impossible.append(located)
        return ir.passes.PassResult(model, modified=modified or bool(taken))


def resolve_static_lengths(
    model: ir.Model, current: Sequence[LocatedNode], target: Target | None, semantics: Semantics, facts: Facts
) -> tuple[list[LocatedNode], list[LocatedNode], list[LocatedNode]]:
    """Return the nodes to be unrolled, each with a static length, the unreachable and the impossible ones.

    Raises:
        UnsupportedModelError: A length is not static, or too long to be unrolled.
    """

    def dynamic(nodes: Sequence[LocatedNode]) -> list[LocatedNode]:
        return [located for located in nodes if parse_recurrent(located, semantics).seq_length is None]

    analysis = StaticShapesPass(current)
    if dynamic(current) or (target is not None and target.shapes.static):
        analysis(model, facts)
    gone = analysis.unreachable + analysis.impossible
    left = [located for located in current if located not in gone]
    for located in dynamic(left):
        raise _unknown_length_error(located, model, target)
    for located in left:
        node = parse_recurrent(located, semantics)
        steps = (node.seq_length or 0) * node.num_directions
        if steps > MAX_STEPS:
            # It would exhaust the memory long before there is a file.
            raise UnsupportedModelError(
                f"unrolling {steps:,} steps makes about "
                f"{steps * _NODES_A_STEP:,} nodes and {steps * _BYTES_A_STEP / 1e9:,.1f} GB; "
                f"the limit is {MAX_STEPS:,} steps",
                node=located,
                remedy=f"use `{wording.call('scan')}`, which emits a single step",
            )
    return left, analysis.unreachable, analysis.impossible


def dynamic_remedy() -> str:
    """Return the remedy for nodes that cannot be unrolled: `scan`, or the option of commands that have it."""
    return f"keep it dynamic with `{wording.call('scan')}` or {wording.option('strategy', 'scan')}"


def _unknown_length_error(
    located: LocatedNode, model: ir.Model, target: Target | None
) -> UnsupportedModelError:
    X = located.node.inputs[0]
    layout = located.node.attributes.get_int("layout", 0)
    name = dim_name(X.shape[layout]) if X is not None and X.shape is not None else None
    needy = "unrolling" if target is None else f"target {target.name}"
    problem = f"its sequence length is {repr(name) if name else 'unknown'}, and {needy} needs a number"
    other_way = dynamic_remedy()
    if target is not None:
        other_way = "choose a target that has Scan or Loop"
    sizes = _find_sufficient_sizes(located, model, name)
    if sizes is None:
        problem += ", which does not follow from the shapes of the inputs"
        return UnsupportedModelError(problem, node=located, remedy=other_way)
    return UnsupportedModelError(problem, node=located, remedy=f"give it one ({sizes}), or {other_way}")


def _find_sufficient_sizes(located: LocatedNode, model: ir.Model, name: str | None) -> SizeOptions | None:
    """Return the sizes of inputs that make the length static, by trial; ``None`` if none do."""
    X = located.node.inputs[0]
    inputs = [value for value in model.graph.inputs if X is None or value in ancestors(X)]
    for example in _EXAMPLES:
        everything = options_for_sizes(inputs or model.graph.inputs, example)
        if name and name in everything.dims:
            alone = SizeOptions({name: example}, {})
            if _makes_length_static(alone, located, model):
                return alone
        settled = _makes_length_static(everything, located, model)
        if settled:
            return _drop_unneeded_sizes(everything, located, model)
        if settled is False:
            return None
    return everything


def _drop_unneeded_sizes(sizes: SizeOptions, located: LocatedNode, model: ir.Model) -> SizeOptions:
    """Drop the sizes that the length does not depend on."""
    for field in ("dims", "input_shapes"):
        for name in getattr(sizes, field):
            others = {other: size for other, size in getattr(sizes, field).items() if other != name}
            fewer = dataclasses.replace(sizes, **{field: others})
            sizes = fewer if _makes_length_static(fewer, located, model) else sizes
    return sizes


def _makes_length_static(sizes: SizeOptions, located: LocatedNode, model: ir.Model) -> bool | None:
    """Return whether these sizes make the length static; ``None`` if the model is invalid with them."""
    dims = {name: _example_size(size) for name, size in sizes.dims.items()}
    shapes = {name: [*map(_example_size, shape)] for name, shape in sizes.input_shapes.items()}
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


def _example_size(size: int | str) -> int:
    return size if isinstance(size, int) else _EXAMPLES[0]
