"""The order of the passes behind unroll, scan, loop and lower."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnnlower.errors import OpsetError, OptionError, UnsupportedModelError
from rnnlower.graph.inlining import functions_with, inline_functions
from rnnlower.graph.walk import Located, default_opset, walk
from rnnlower.lowering.replacing import LoweredNode, Plan
from rnnlower.lowering.requirements import FIRST_OPSET, opset_needs
from rnnlower.opset import NodePredicate
from rnnlower.passes.conforming import conform
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.fold_weights import FoldWeightsPass
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.infer_types import InferTypesPass
from rnnlower.passes.legacy_constants import LegacyConstantsPass
from rnnlower.passes.lengths import with_static_lengths
from rnnlower.passes.lower_recurrent import LowerRecurrentPass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import Semantics, check_semantics
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets import Target
from rnnlower.targets.fit import find_misfits
from rnnlower.targets.plan import (
    KeptNode,
    check_opset,
    choose_plan,
    dialect,
    require_emitted_fit,
    require_known,
    require_static_inputs,
    sort_out_native,
    wants_numbers,
)

__all__ = ["LoweringOptions", "LoweringReport", "count_ops", "lower_model"]

LAST_OPSET = 26
_FREE_INITIALIZERS_IR = 4
_ORIGIN = "rnnlower.origin"


@dataclasses.dataclass(frozen=True)
class LoweringOptions:
    """What a lowering is to do; the fields are the command line's options.

    Attributes:
        strategy: ``unroll``, ``scan``, ``loop``, or ``target``: what the target wants.
        opset: Version of the default domain of the result; ``None``: the source's, raised only as far as
            needed.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of graph inputs.
        nodes: Shell wildcards; only nodes whose name matches one are lowered. ``None``: all.
        unroll_factor: Time steps in an iteration of a Scan or Loop.
        semantics: Which reading wins where the text and onnxruntime differ.
        target: The runtime that the result is for.
        strict: Whether ops of the rest of the model that do not fit the target are an error.
    """

    strategy: str
    opset: int | None = None
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    nodes: Sequence[str] | None = None
    unroll_factor: int = 1
    semantics: Semantics = "ort"
    target: Target | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.nodes, str):
            raise OptionError(f"nodes is one string; write nodes=[{self.nodes!r}], a list of patterns")
        if self.unroll_factor < 1:
            raise OptionError(f"the unroll factor is {self.unroll_factor}; it must be at least 1")
        check_semantics(self.semantics)
        if self.opset is not None and not FIRST_OPSET <= self.opset <= LAST_OPSET:
            raise OptionError(
                f"the opset is {self.opset}; a lowered model has one from {FIRST_OPSET} to {LAST_OPSET}"
            )
        if self.target is not None and self.opset is not None:
            check_opset(self.target, self.opset)


@dataclasses.dataclass(frozen=True)
class LoweringReport:
    """What a lowering did.

    Attributes:
        nodes: The nodes that were lowered.
        opset: Version of the default domain of the result.
        ops_before: Number of nodes by operator in the source, subgraphs and functions included.
        ops_after: The same of the result.
        notes: What the user should know beside it.
        target: The name of the runtime that the result is for, if it is for one.
        kept: Recurrent nodes that this runtime runs soundly as they are.
    """

    nodes: Sequence[LoweredNode]
    opset: int
    ops_before: Mapping[str, int]
    ops_after: Mapping[str, int]
    notes: Sequence[str] = ()
    target: str | None = None
    kept: Sequence[KeptNode] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON knows it; reasons, where a target is the reason."""
        nodes = [dataclasses.asdict(node) for node in self.nodes]
        of_target: dict[str, Any] = {}
        if self.target is None:
            for node in nodes:
                del node["reason"]
        else:
            kept = [dataclasses.asdict(node) for node in self.kept]
            of_target = {"target": self.target, "kept": kept}
        return {
            "nodes": nodes,
            "opset": self.opset,
            "ops_before": dict(self.ops_before),
            "ops_after": dict(self.ops_after),
            "notes": list(self.notes),
        } | of_target


def count_ops(model: ir.Model) -> dict[str, int]:
    """Number of nodes by operator, subgraphs and functions included."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    counter = collections.Counter(
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for graph in graphs
        for node, _ in walk(graph)
    )
    return dict(sorted(counter.items()))


def lower_model(
    model: ir.Model, options: LoweringOptions, tell: Callable[[str, int, int], None] = lambda *_: None
) -> LoweringReport:
    """Lowers the recurrent nodes of the model in place; ``tell`` hears what is being done, and how far it is.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: A recurrent node breaks its operator's text.
        UnsupportedModelError: A node asks for what is refused, or an unrolled one has no static length.
        OpsetError: The model cannot be brought to the opset that is asked for or needed.
    """
    target = options.target
    options = _settle_opset(model, options)
    tell("preparing", 0, 0)
    ops_before = count_ops(model)
    selected = _select(find_recurrent(model), options.nodes)
    FreezeDimsPass(options.dims, options.input_shapes)(model)
    kept: list[KeptNode] = []
    if target is not None:
        # Before, integer constants have to be written in ways that a target need not have.
        model.ir_version = max(model.ir_version, _FREE_INITIALIZERS_IR)
        require_static_inputs(model, target)
        InferTypesPass()(model)
        selected, kept = sort_out_native(selected, target, options.semantics)
    for located in selected:
        parse_recurrent(located, options.semantics, lenient=True)
        located.node.meta[_ORIGIN] = located
    notes: list[str] = []
    lowest = FIRST_OPSET if target is None else max(FIRST_OPSET, target.opset.range[0])
    first = max(lowest, options.opset or 0)
    if first > default_opset(model):
        # A model too old for what is written here moves to the first opset that can say what it says.
        notes += _move(model, range(first, (options.opset or LAST_OPSET) + 1))
    notes += _inline_functions(model)
    current = _current(model)
    if target is not None and target.profile:
        lowered, more = conform(model, current)
    else:
        lowered, more = _lower(model, current, options, tell)
    notes += more
    if target is not None:
        notes += _unused_factor(lowered, kept, options)
        notes += _rest_of_the_model(model, options)
    name = None if target is None else target.name
    return LoweringReport(lowered, default_opset(model), ops_before, count_ops(model), notes, name, kept)


def _settle_opset(model: ir.Model, options: LoweringOptions) -> LoweringOptions:
    """The options, with the opset that the target asks for where the user asks for none."""
    opset, target = default_opset(model), options.target
    if options.opset is not None:
        return options
    if target is not None and opset > target.opset.range[1]:
        return dataclasses.replace(options, opset=target.opset.range[1])
    if opset > LAST_OPSET:
        raise UnsupportedModelError(
            f"the model has opset {opset}, and what is known here ends at {LAST_OPSET}; "
            f"ask for a lower one (--opset {LAST_OPSET})"
        )
    return options


def _lower(
    model: ir.Model,
    current: Sequence[Located],
    options: LoweringOptions,
    tell: Callable[[str, int, int], None],
) -> tuple[list[LoweredNode], list[str]]:
    """Lowers the nodes, by plans of their own; gives what became of them, and notes."""
    target = options.target
    FoldWeightsPass([located.node for located in current])(model)
    InferTypesPass()(model)
    unreachable: list[Located] = []
    impossible: list[Located] = []
    if options.strategy == "unroll" or (target is not None and wants_numbers(target)):
        current, unreachable, impossible = with_static_lengths(model, current, target, options.semantics)
    plans = {located.node: _plan(located, options) for located in current}
    plans |= {located.node: Plan("unroll", reason="it cannot run") for located in impossible}
    needs = {located: _needs(located, options, plans[located.node]) for located in current}
    needs |= {located: {"NonZero-9": 9} for located in impossible}
    asked = options.opset or default_opset(model)
    written = max([asked, *(opset for each in needs.values() for opset in each.values())])
    notes: list[str] = []
    if asked < written and options.opset is not None:
        # What stands beside the lowered nodes has to get there too: refused here, it is named as it is known.
        ConvertOpsetPass(asked, keep=_is_selected)(model.clone())
    if written != default_opset(model):
        notes += _move(model, [written], keep=_is_selected)
    lowering = LowerRecurrentPass(
        plans,
        current,
        semantics=options.semantics,
        impossible=impossible,
        dialect=None if target is None else dialect(target),
        tell=tell,
    )
    lowering(model)
    LegacyConstantsPass()(model)
    if asked < written and options.opset is not None:
        notes += _reach(model, asked, needs)
    if target is not None:
        require_emitted_fit(model, target)
    return lowering.lowered, [*notes, *_notes(unreachable, impossible), *lowering.notes]


def _plan(located: Located, options: LoweringOptions) -> Plan:
    if options.target is None:
        return Plan(options.strategy, options.unroll_factor)
    node = parse_recurrent(located, options.semantics)
    require_known(options.target, node, located.label)
    return choose_plan(options.target, node, options.unroll_factor)


def _rest_of_the_model(model: ir.Model, options: LoweringOptions) -> list[str]:
    """What the target does not run although no recurrent node is to blame."""
    assert options.target is not None
    misfits = find_misfits(model, options.target, options.semantics, emitted=False)
    if misfits and options.strict:
        raise UnsupportedModelError(
            f"target {options.target.name} does not run all of the rest of the model: "
            + "; ".join(map(str, misfits))
        )
    return [f"target {options.target.name} does not run {misfit}" for misfit in misfits]


def _unused_factor(
    lowered: Sequence[LoweredNode], kept: Sequence[KeptNode], options: LoweringOptions
) -> list[str]:
    """Which nodes become no Scan or Loop, where an unroll factor was asked for."""
    if options.unroll_factor == 1:
        return []
    done: list[tuple[LoweredNode | KeptNode, str]] = [(node, "is kept") for node in kept]
    for node in lowered:
        if node.strategy not in ("scan", "loop"):
            done.append((node, "is unrolled" if node.strategy == "unroll" else "is kept"))
    return [
        f"{node.op_type} node {'/'.join(filter(None, (node.path, node.name)))!r} {what}: "
        f"--unroll-factor {options.unroll_factor}, which is for Scan and Loop, changes nothing about it"
        for node, what in done
    ]


def _notes(unreachable: Sequence[Located], impossible: Sequence[Located]) -> list[str]:
    """What happened to nodes beside their being lowered."""
    notes = [
        f"{located.label} never runs on inputs of these shapes, and went with its branch"
        for located in unreachable
    ]
    notes += [
        f"{located.label} cannot run on inputs of these shapes; what replaces it fails as it would"
        for located in impossible
    ]
    return notes


def _select(found: Sequence[Located], patterns: Sequence[str] | None) -> list[Located]:
    if patterns is None:
        return list(found)
    for pattern in patterns:
        if not any(_matches(located, pattern) for located in found):
            names = ", ".join(located.name for located in found) or "none"
            raise OptionError(f"no recurrent node matches {pattern!r}; the model has {names}")
    return [located for located in found if any(_matches(located, pattern) for pattern in patterns)]


def _matches(located: Located, pattern: str) -> bool:
    """A name matches itself too, although its brackets say something else in a pattern."""
    return located.name == pattern or fnmatch.fnmatchcase(located.name, pattern)


def _is_selected(node: ir.Node) -> bool:
    return _ORIGIN in node.meta


def _move(model: ir.Model, opsets: Iterable[int], keep: NodePredicate | None = None) -> list[str]:
    """Moves the model to the first of the opsets that can say what it says; gives the conversion's notes."""
    refusals = []
    for opset in opsets:
        conversion = ConvertOpsetPass(opset, keep)
        try:
            conversion(model)
        except OpsetError as error:
            refusals.append(error)
        else:
            return [] if conversion.report is None else conversion.report.notes
    raise refusals[0]


def _reach(model: ir.Model, asked: int, needs: Mapping[Located, Mapping[str, int]]) -> list[str]:
    """Moves the lowered model to a lower opset than its new nodes were written in.

    Raises:
        OpsetError: A new node cannot be said there.
    """
    lowest = default_opset(model)
    for opset in range(asked, lowest):
        with contextlib.suppress(OpsetError):
            notes = _move(model, [opset])
            if opset == asked:
                return notes
            lowest = opset
            break
    located, what = next(
        (located, what) for located, each in needs.items() for what, opset in each.items() if opset >= lowest
    )
    raise OpsetError(
        f"{located.label}: what takes its place ({what}) cannot be said in "
        f"opset {asked}; ask for opset {lowest} or higher"
    )


def _inline_functions(model: ir.Model) -> list[str]:
    """Inlines the functions that hold selected nodes; gives notes."""
    opset = default_opset(model)
    functions = functions_with(model, _is_selected)
    versions = {opset, *(function.opset_imports.get("", opset) for function in functions)}
    # A version that nobody knows is refused at once.
    highest = min(max(versions), max(LAST_OPSET, opset))
    notes = _move(model, range(opset, highest + 1)) if len(versions) > 1 else []
    uncalled = inline_functions(model, functions_with(model, _is_selected))
    return notes + [
        f"function {function.domain}::{function.name} is never called, and went with its recurrent nodes"
        for function in uncalled
    ]


def _current(model: ir.Model) -> list[Located]:
    """The selected nodes where they are now, under the names and places they had in the source."""
    opset = default_opset(model)
    return [
        dataclasses.replace(node.meta[_ORIGIN], node=node, opset=opset)
        for node, _ in walk(model.graph)
        if _is_selected(node)
    ]


def _needs(located: Located, options: LoweringOptions, plan: Plan) -> dict[str, int]:
    return opset_needs(parse_recurrent(located, options.semantics), plan.strategy, plan.unroll_factor)
