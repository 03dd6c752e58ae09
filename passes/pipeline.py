"""The order of the passes behind unroll, scan, loop and lower, as a list: `PIPELINE`."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import MissingOperatorError, OpsetError, OptionError, UnsupportedModelError
from rnnlower.files import unmodelled
from rnnlower.graph.walk import Located, default_opset, walk
from rnnlower.lowering.replacing import EMITTED, LoweredNode, Plan
from rnnlower.lowering.sketching import FIRST_OPSET, Wishes
from rnnlower.lowering.weights import Weights, private_weights
from rnnlower.passes.adapt_nodes import AdaptNodesPass
from rnnlower.passes.adapt_recurrent import AdaptRecurrentPass
from rnnlower.passes.assume_linear import AssumeLinearBeforeResetPass
from rnnlower.passes.conforming import conform
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.dequantize_recurrent import DequantizeRecurrentPass
from rnnlower.passes.expand_definitions import ExpandDefinitionsPass
from rnnlower.passes.fold_weights import FoldWeightsPass
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.infer_types import InferTypesPass
from rnnlower.passes.legacy_constants import LegacyConstantsPass
from rnnlower.passes.lengths import with_static_lengths
from rnnlower.passes.lower_recurrent import LowerRecurrentPass, dtype_of
from rnnlower.passes.lowering_options import LAST_OPSET, LoweringOptions, Report, count_ops
from rnnlower.passes.opset_moves import inline, move, reach
from rnnlower.passes.set_inputs import SetInputsPass
from rnnlower.passes.simplify import simplify
from rnnlower.passes.static_shapes import StaticShapesPass
from rnnlower.passes.unroll_control_flow import UnrollControlFlowPass
from rnnlower.recurrent.caveats import forgotten_states, other_recurrences
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.suspicions import Suspicion, find_suspicions
from rnnlower.targets import Target, find_target
from rnnlower.targets.fit import find_misfits, refuses, runs_op
from rnnlower.targets.misfits import Misfit, grouped
from rnnlower.targets.plan import (
    KeptNode,
    cautions,
    choose_plan,
    dialect,
    require_emitted_fit,
    require_known,
    require_static_inputs,
    sort_out_native,
    wants_native,
    wants_numbers,
)

__all__ = [
    "PIPELINE",
    "Forecast",
    "LoweringOptions",
    "Report",
    "Step",
    "count_ops",
    "forecast",
    "lower_model",
]

_FREE_INITIALIZERS_IR = 4
_ORIGIN = "rnnlower.origin"

Tell = Callable[[str, int, int], None]


@dataclasses.dataclass
class _Work:
    """A model on its way through the steps, and what they hand on to each other.

    Attributes:
        model: The model, which the steps change.
        options: What is asked for.
        tell: Hears what is being done, and how far it is.
        opset: The opset asked for: by the user, or else by the target; ``None``: by nobody.
        nodes: The recurrent nodes to be lowered, under the names and places that they had in the source.
        unreachable: Those that went with a branch that never runs.
        impossible: Those that cannot run on inputs of the given shapes.
        plans: How each node is to be lowered.
        needs: The opset that each form of a node needs, with the operator that needs it.
        adapted: What became of the nodes that the target runs with something around them.
        lowered: What became of the others.
        kept: The nodes that the target runs as they are.
        notes: What the user should know beside it.
        sets: The inputs that were set, with their values.
        warnings: What the result may not do that the user expects of it.
    """

    model: ir.Model
    options: LoweringOptions
    tell: Tell
    opset: int | None
    nodes: list[Located] = dataclasses.field(default_factory=list)
    unreachable: list[Located] = dataclasses.field(default_factory=list)
    impossible: list[Located] = dataclasses.field(default_factory=list)
    plans: dict[ir.Node, Plan] = dataclasses.field(default_factory=dict)
    needs: dict[Located, dict[str, int]] = dataclasses.field(default_factory=dict)
    adapted: list[LoweredNode] = dataclasses.field(default_factory=list)
    lowered: list[LoweredNode] = dataclasses.field(default_factory=list)
    kept: list[KeptNode] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    sets: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    warnings: list[Suspicion] = dataclasses.field(default_factory=list)

    @property
    def target(self) -> Target:
        """The target, in steps that are for one."""
        assert self.options.target is not None
        return self.options.target


@dataclasses.dataclass(frozen=True)
class Step:
    """An entry of the pipeline.

    Attributes:
        run: What it does.
        reason: Why it stands where it stands.
        when: Whether it is wanted.
    """

    run: Callable[[_Work], None]
    reason: str
    when: Callable[[LoweringOptions], bool] = lambda options: True


def lower_model(model: ir.Model, options: LoweringOptions, tell: Tell = lambda *_: None) -> Report:
    """Lowers the recurrent nodes of the model in place; ``tell`` hears what is being done, and how far it is.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: A recurrent node breaks its operator's text.
        UnsupportedModelError: A node asks for what is refused, or an unrolled one has no static length.
        OpsetError: The model cannot be brought to the opset that is asked for or needed.
    """
    work = _Work(model, options, tell, _asked_opset(model, options))
    ops_before = count_ops(model)
    try:
        for step in PIPELINE:
            if step.when(options):
                step.run(work)
    except OpsetError as error:
        _advise_on_target(error, options.target)
        raise
    finally:
        _forget_marks(model)
    return Report(
        [*work.adapted, *work.lowered],
        default_opset(model),
        ops_before,
        count_ops(model),
        work.notes,
        None if options.target is None else options.target.name,
        work.kept,
        work.sets,
        work.warnings,
    )


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What a lowering for a target would do.

    Attributes:
        lowered: The recurrent nodes that it would lower.
        kept: Those that it would keep.
        misfits: What the target would still not run.
        notes: What it would tell beside.
    """

    lowered: list[Located]
    kept: list[KeptNode]
    misfits: list[Misfit]
    notes: list[str]


def forecast(model: ir.Model, options: LoweringOptions) -> Forecast:
    """What `lower_model` would do for the target of the options: all its steps but the emission.

    The steps change the model, which is of no use afterwards. The errors are those of `lower_model`.
    """
    work = _Work(model, options, lambda *_: None, _asked_opset(model, options))
    for step in PIPELINE[: [step.run for step in PIPELINE].index(_lower_nodes)]:
        if step.when(options):
            step.run(work)
    if work.opset is not None and work.opset < default_opset(work.model):
        ConvertOpsetPass(work.opset, keep=_is_selected)(work.model)
    if _emits(options):
        for located in (*work.nodes, *work.impossible):
            located.node.meta[EMITTED] = True
    misfits = find_misfits(work.model, work.target, options.semantics, emitted=False)
    return Forecast(work.nodes, work.kept, misfits, work.notes)


def _forget_marks(model: ir.Model) -> None:
    """Takes off what the steps have marked nodes with: another lowering would take it for its own."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node, _ in walk(graph):
            for mark in (EMITTED, _ORIGIN):
                node.meta.pop(mark, None)


def _advise_on_target(error: OpsetError, target: Target | None) -> None:
    """An opset that the target does not take is no way out."""
    if target is None or error.opset is None:
        return
    first, last = target.opset.range
    if error.opset > last:
        error.advise(
            f"opset {error.opset} has it, but target {target.name} takes {first} to {last}: "
            "choose a target that takes more, or take the operator out of the model"
        )


def _asked_opset(model: ir.Model, options: LoweringOptions) -> int | None:
    """The opset that the user asks for, or that the target needs."""
    opset, target = default_opset(model), options.target
    if options.opset is not None:
        return options.opset
    if target is not None and opset > target.opset.range[1]:
        return target.opset.range[1]
    if opset > LAST_OPSET:
        raise UnsupportedModelError(
            f"the model has opset {opset}, and what is known here ends at {LAST_OPSET}",
            remedy=f"ask for a lower one ({wording.option('opset', LAST_OPSET)})",
        )
    return None


def _select(work: _Work) -> None:
    work.tell("preparing", 0, 0)
    found, patterns = find_recurrent(work.model), work.options.nodes
    for pattern in patterns or ():
        if not any(_matches(located, pattern) for located in found):
            names = ", ".join(located.name for located in found) or "none"
            raise OptionError(f"no recurrent node matches {pattern!r}; the model has {names}")
    for located in found:
        if patterns is None or any(_matches(located, pattern) for pattern in patterns):
            located.node.meta[_ORIGIN] = located
            work.nodes.append(located)


def _matches(located: Located, pattern: str) -> bool:
    """A name matches itself too, although its brackets say something else in a pattern."""
    return located.name == pattern or fnmatch.fnmatchcase(located.name, pattern)


def _is_selected(node: ir.Node) -> bool:
    return _ORIGIN in node.meta


def _freeze(work: _Work) -> None:
    FreezeDimsPass(work.options.dims, work.options.input_shapes)(work.model)


def _set_inputs(work: _Work) -> None:
    setting = SetInputsPass(work.options.sets)
    setting(work.model)
    work.sets = setting.values


def _simplify(work: _Work) -> None:
    target = work.options.target
    work.notes += simplify(work.model, lambda node: target is not None and not runs_op(target, node))
    before = work.nodes
    _find_nodes(work)
    here = {located.name for located in work.nodes}
    work.unreachable += [located for located in before if located.name not in here]


def _expand_definitions(work: _Work) -> None:
    expanding = ExpandDefinitionsPass(lambda node: not runs_op(work.target, node))
    expanding(work.model)
    work.notes += [
        f"target {work.target.name} has no {op_type}: {len(names)} written out by its definition"
        for op_type, names in expanding.expanded.items()
    ]


def _adapt(work: _Work) -> None:
    opset = default_opset(work.model)
    adapting = AdaptNodesPass(lambda node: refuses(work.target, node, opset))
    adapting(work.model)
    work.notes += [
        f"target {work.target.name} refuses {op_type} as it is: {len(names)} expressed as other operators"
        for op_type, names in adapting.adapted.items()
    ]


def _unroll_control_flow(work: _Work) -> None:
    kinds = work.options.unrolls
    if kinds:
        unrolling = UnrollControlFlowPass(kinds, strict=work.options.control_flow == "unroll")
        unrolling(work.model)
        work.notes += [
            f"{name!r} became a straight line of {count} iterations"
            for name, count in unrolling.unrolled.items()
        ]
        _find_nodes(work)


def _open_to_target(work: _Work) -> None:
    # Before, integer constants have to be written in ways that a target need not have.
    work.model.ir_version = max(work.model.ir_version, _FREE_INITIALIZERS_IR)
    require_static_inputs(work.model, work.target)


def _set_impossible_aside(work: _Work) -> None:
    analysis = StaticShapesPass(work.nodes)
    analysis(work.model)
    work.unreachable += analysis.unreachable
    work.impossible += analysis.impossible
    gone = {located.node for located in (*analysis.unreachable, *analysis.impossible)}
    work.nodes = [located for located in work.nodes if located.node not in gone]


def _keep_native(work: _Work) -> None:
    InferTypesPass()(work.model)
    options = work.options
    wanted, work.kept = sort_out_native(work.nodes, work.target, options.semantics, options.native)
    for located in work.nodes:
        if located not in wanted:
            del located.node.meta[_ORIGIN]
    work.nodes = wanted


def _adapt_recurrent(work: _Work) -> None:
    options = work.options
    native = [
        each for each in work.nodes if wants_native(each, work.target, options.semantics, options.native)
    ]
    # Afterwards a state of zeros stands where there was none.
    steps = [(each, parse_recurrent(each, options.semantics, lenient=True).seq_length) for each in native]
    forgetting = {each: forgotten_states([(each, length)]) for each, length in steps}
    adapting = AdaptRecurrentPass(work.target, native, options.semantics)
    adapting(work.model)
    work.warnings += [warning for each in adapting.gone for warning in forgetting[each]]
    work.adapted = adapting.adapted
    work.nodes = [each for each in work.nodes if each not in adapting.gone]


def _read(work: _Work) -> None:
    for located in work.nodes:
        parse_recurrent(located, work.options.semantics, lenient=True)


def _assume_linear(work: _Work) -> None:
    reading = AssumeLinearBeforeResetPass()
    reading(work.model)
    work.notes.append(
        f"GRU nodes are read as linear_before_reset=1, as asked for: {reading.mended} had another form"
    )


def _dequantize(work: _Work) -> None:
    target = work.options.target
    keep_integers = target is None or "DequantizeLinear" in target.op_types
    InferTypesPass()(work.model)
    DequantizeRecurrentPass(work.nodes, keep_integers=keep_integers)(work.model)


def _warn(work: _Work) -> None:
    work.warnings += find_suspicions(work.model)


def _warn_of_other_recurrences(work: _Work) -> None:
    work.warnings += other_recurrences(work.model)


def _raise_opset(work: _Work) -> None:
    target, last = work.options.target, work.opset or LAST_OPSET
    lowest = FIRST_OPSET if target is None else max(FIRST_OPSET, target.opset.range[0])
    first = max(lowest, work.opset or 0)
    if first > default_opset(work.model):
        work.notes += move(work.model, range(first, last + 1))


def _inline_functions(work: _Work) -> None:
    target = work.options.target
    in_the_way = work.options.folds and target is not None and not target.ops.functions
    work.notes += inline(work.model, (lambda node: True) if in_the_way else _is_selected)
    _find_nodes(work)


def _find_nodes(work: _Work) -> None:
    """Notes where the selected nodes are now, under the names and places that they had in the source."""
    opset = default_opset(work.model)
    work.nodes = [
        dataclasses.replace(node.meta[_ORIGIN], node=node, opset=opset)
        for node, _ in walk(work.model.graph)
        if _is_selected(node)
    ]


def _conform(work: _Work) -> None:
    work.lowered, notes = conform(work.model, work.nodes)
    work.notes += notes
    conformed = {(node.path, node.name) for node in work.lowered}
    work.nodes = [each for each in find_recurrent(work.model) if (each.path, each.name) in conformed]


def _fold_weights(work: _Work) -> None:
    FoldWeightsPass([located.node for located in work.nodes])(work.model)
    InferTypesPass()(work.model)


def _fix_lengths(work: _Work) -> None:
    work.nodes, unreachable, impossible = with_static_lengths(
        work.model, work.nodes, work.options.target, work.options.semantics
    )
    work.unreachable += unreachable
    work.impossible += impossible


def _warn_of_forgotten_states(work: _Work) -> None:
    kept = {(node.path, node.name) for node in work.kept}
    found = [each for each in find_recurrent(work.model) if (each.path, each.name) in kept]
    nodes = [*work.nodes, *found]
    lengths = [(located, parse_recurrent(located, work.options.semantics).seq_length) for located in nodes]
    work.warnings += forgotten_states(lengths)


def _plan(work: _Work) -> None:
    options, nodes = work.options, []
    opset = work.opset or default_opset(work.model)
    trained = unmodelled.names_in_training(work.model)
    private = private_weights([located.node for located in work.nodes], trained)
    compute_type = None if options.compute_type is None else ir.DataType.FLOAT
    wishes = Wishes(options.unroll_factor, options.gates, compute_type)
    for located in work.nodes:
        node = parse_recurrent(located, options.semantics)
        if options.target is not None:
            require_known(options.target, node, located)
        weights = Weights(private, dtype_of(node, located))
        target = options.target or find_target("onnxruntime")
        strategy = options.strategy if options.target is None else None
        try:
            plan = choose_plan(target, node, weights, opset, wishes, strategy)
        except MissingOperatorError as error:
            raise error.at(located) from None
        nodes.append(node)
        work.plans[located.node] = plan
        work.needs[located] = dict(plan.needs)
    if options.target is not None:
        work.notes += cautions(options.target, nodes)
    for located in work.impossible:
        work.plans[located.node] = Plan("unroll", reason="it cannot run")
        work.needs[located] = {"NonZero-9": 9}


def _reach_forms(work: _Work) -> None:
    model, asked = work.model, work.opset or default_opset(work.model)
    written = max([asked, *(opset for each in work.needs.values() for opset in each.values())])
    if asked < written and work.opset is not None:
        # The rest of the model has to get back there: refused here, it has the names that the user knows.
        ConvertOpsetPass(asked, keep=_is_selected)(model.clone())
    if written != default_opset(model):
        work.notes += move(model, [written], keep=_is_selected)


def _lower_nodes(work: _Work) -> None:
    target = work.options.target
    lowering = LowerRecurrentPass(
        work.plans,
        work.nodes,
        semantics=work.options.semantics,
        impossible=work.impossible,
        dialect=None if target is None else dialect(target),
        compute_type=None if work.options.compute_type is None else ir.DataType.FLOAT,
        gates=work.options.gates,
        tell=work.tell,
    )
    lowering(work.model)
    work.lowered = lowering.lowered
    work.notes += [
        f"{located.label} never runs on inputs of these shapes, and went with its branch"
        for located in work.unreachable
    ]
    work.notes += [
        f"{located.label} cannot run on inputs of these shapes; what replaces it fails as it would"
        for located in work.impossible
    ]
    work.notes += lowering.notes


def _legacy_constants(work: _Work) -> None:
    LegacyConstantsPass()(work.model)


def _return_to_asked(work: _Work) -> None:
    if work.opset is not None and work.opset < default_opset(work.model):
        work.notes += reach(work.model, work.opset, work.needs)


def _require_fit(work: _Work) -> None:
    require_emitted_fit(work.model, work.target)


def _tell_unused_factor(work: _Work) -> None:
    factor = wording.option("unroll-factor", work.options.unroll_factor)
    done: list[tuple[LoweredNode | KeptNode, str]] = [(node, "is kept") for node in work.kept]
    for node in (*work.adapted, *work.lowered):
        if node.strategy not in ("scan", "loop"):
            done.append((node, "is unrolled" if node.strategy == "unroll" else "is kept"))
    work.notes += [
        f"{node.op_type} node {'/'.join(filter(None, (node.path, node.name)))!r} {what}: "
        f"{factor}, which is for Scan and Loop, changes nothing about it"
        for node, what in done
    ]


def _tell_misfits(work: _Work) -> None:
    """Tells what the target does not run although no recurrent node is to blame."""
    misfits = find_misfits(work.model, work.target, work.options.semantics, emitted=False)
    if misfits and work.options.strict:
        raise UnsupportedModelError(
            f"target {work.target.name} does not run all of the rest of the model: "
            + "; ".join(grouped(misfits))
        )
    work.notes += [f"target {work.target.name} does not run {line}" for line in grouped(misfits)]


def _has_target(options: LoweringOptions) -> bool:
    return options.target is not None


def _has_profile(options: LoweringOptions) -> bool:
    return options.target is not None and bool(options.target.profile)


def _adapts(options: LoweringOptions) -> bool:
    return _has_target(options) and options.native != "lower" and not _has_profile(options)


def _emits(options: LoweringOptions) -> bool:
    return not _has_profile(options)


def _folds_for_target(options: LoweringOptions) -> bool:
    return options.target is not None and options.folds


def _needs_lengths(options: LoweringOptions) -> bool:
    if options.target is not None:
        return _emits(options) and wants_numbers(options.target)
    return options.strategy == "unroll"


def _may_waste_factor(options: LoweringOptions) -> bool:
    return options.target is not None and options.unroll_factor != 1


PIPELINE: Sequence[Step] = (
    Step(_select, "Nodes have the names that `inspect` shows only before anything moves."),
    Step(_freeze, "What follows is easier to tell where sizes are numbers."),
    Step(_assume_linear, "What follows reads the attribute.", lambda o: o.assume_linear_before_reset),
    Step(_warn, "Names are still those that the user knows, and fixed sizes excuse some."),
    Step(_set_inputs, "A value fills the shape that is now known.", lambda options: bool(options.sets)),
    Step(_open_to_target, "A model that the target takes in no form is refused first.", _has_target),
    Step(_raise_opset, "A model too old for what is written here moves to the first opset that suffices."),
    Step(
        _inline_functions, "Only a call knows the attributes, shapes and constants of a node in a function."
    ),
    Step(_expand_definitions, "Definitions hold Scans, and what folds.", _folds_for_target),
    Step(_unroll_control_flow, "Iterations tell sizes and constants.", lambda o: bool(o.unrolls)),
    Step(_simplify, "What never runs need not be lowered, nor fit.", lambda options: options.folds),
    Step(_dequantize, "A target may run the float operator.", lambda o: o.dequantize),
    Step(_adapt, "Other forms need sizes, and what is folded needs no form.", _folds_for_target),
    Step(
        _set_impossible_aside,
        "Branches that inputs of the given shapes must not take need not make sense for them.",
        lambda options: bool(options.dims or options.input_shapes) and _emits(options),
    ),
    Step(
        _keep_native, "A node's types and sizes, now known, decide whether the target runs it.", _has_target
    ),
    Step(_adapt_recurrent, "What runs as it is needs nothing around it.", _adapts),
    Step(_warn_of_other_recurrences, "Loops of the model's own are still told from those of a lowering."),
    Step(_read, "What breaks an operator's text is refused before work is spent on it."),
    Step(_conform, "A profile keeps the recurrent nodes, and changes how they are written.", _has_profile),
    Step(_fold_weights, "Weights that are cut and joined from constants can be packed anew.", _emits),
    Step(_fix_lengths, "Straight lines need the number of steps.", _needs_lengths),
    Step(_warn_of_forgotten_states, "Whether a node runs one step shows once lengths are numbers."),
    Step(_plan, "Strategy and opset are chosen from all that is now known of a node.", _emits),
    Step(_reach_forms, "The forms of the plans must exist before they are emitted.", _emits),
    Step(_lower_nodes, "Everything before was for this.", _emits),
    Step(_legacy_constants, "Old IR versions have no initializers that are no inputs.", _emits),
    Step(
        _return_to_asked, "Forms are written at the opset that they need; many exist in other words.", _emits
    ),
    Step(_require_fit, "The target's data and the forms must agree.", lambda o: _has_target(o) and _emits(o)),
    Step(_tell_unused_factor, "An option that changed nothing is no secret.", _may_waste_factor),
    Step(_tell_misfits, "What is left is judged in its final form.", _has_target),
)
"""What a lowering does, in order."""
