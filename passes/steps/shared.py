"""Steps that several pipelines share: options, lifting, opset, warnings, cleaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_ir.passes.common import LiftConstantsToInitializersPass

from rnnlower import wording
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.open_sizes import decided_by
from rnnlower.graph.walk import called, op_types, walk
from rnnlower.passes.assume_linear import AssumeLinearBeforeResetPass
from rnnlower.passes.constant_inputs import FreezeInitializersPass, LegacyConstantsPass, SetInputsPass
from rnnlower.passes.convert_opset import move_to_operators
from rnnlower.passes.declared_sizes import CorrectShapesPass, FreezeDimsPass
from rnnlower.passes.folding import FoldConstantsPass
from rnnlower.passes.removing import RemoveNoopsPass, RemoveUnusedPass, StripPass
from rnnlower.passes.simpler_control_flow import CaptureStatesPass, TakeBranchesPass
from rnnlower.passes.steps.work import LoweringWork, Work
from rnnlower.recurrent.node import KEEPS_INITIAL
from rnnlower.recurrent.state_operators import CAUSAL_CONV
from rnnlower.recurrent.suspicions import find_suspicions, other_recurrences
from rnnlower.wording import call, counted

if TYPE_CHECKING:
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass
    from rnnlower.targets.target import Target

_LENGTHS = 4
"""The position of sequence_lens."""
_FORMS = {"line": "the straight line behind", "loop": "Loop", "scan": "Scan"}


def freeze_dims(work: Work) -> None:
    """Fix sizes.

    Before: inputs have open dimensions. After: those that the user gave are numbers wherever they stand.
    """
    work.apply(FreezeDimsPass(work.options.dims, work.options.input_shapes))


def assume_linear_before_reset(work: Work) -> None:
    """Read GRU nodes as the user asks.

    Before: GRU nodes of both forms. After: all have linear_before_reset=1.
    """
    reading = work.apply(AssumeLinearBeforeResetPass())
    work.notes.append(
        f"GRU nodes are read as linear_before_reset=1, as asked for: {reading.changed} had another form"
    )


def lift(work: Work) -> None:
    """Lift the model's own recurrences.

    Before: Loops and Scans that compute an LSTM, GRU, RNN or LinearAttention, and if the target has a kernel
    of it, Convs that compute a CausalConvWithState. After: these operators, unless the target's prices say
    that they cost more.
    """
    target = work.options.runtime
    lift_all(work, convolutions=target is not None and target.has_foreign("com.microsoft", CAUSAL_CONV))


def lift_all(work: Work, *, convolutions: bool) -> None:
    """Lift Loops and Scans, and if asked for, convolutions over a past that is not zero."""
    if not {"Loop", "Scan", *(["Conv"] if convolutions else [])} & op_types(work.model):
        return
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass
    from rnnlower.passes.steps.lifting_prices import prices_of_lifting

    lifting = LiftRecurrentPass(
        getattr(work.options, "nodes", None),
        steps=None,
        convolutions=convolutions,
        semantics=work.options.semantics,
    )
    target = getattr(work.options, "runtime", None)
    prices = None if target is None else prices_of_lifting(work.model, lifting, target)
    if target is not None and prices is not None and prices[0] < prices[1]:
        _tell_prices(work, "Loops and Scans stay as they are", target, prices)
        return
    _lift(work, lifting)


def lift_lines(work: LoweringWork) -> None:
    """Lift straight lines of cells.

    Before: the steps of a recurrence, one after another. After: a recurrent operator; for a target, only if
    it costs less by the target's prices, in the cheapest form.
    """
    if not {"Gemm", "MatMul"} & op_types(work.model):
        return
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass, has_chains
    from rnnlower.passes.steps.lifting_prices import prices_of_lines

    if not has_chains(work.model, work.facts):
        return
    options, target = work.options, work.options.runtime
    lifting = LiftRecurrentPass(options.nodes, frames=False, convolutions=False, semantics=options.semantics)
    if target is not None:
        prices = prices_of_lines(work.model, lifting, target)
        if prices is None:
            return
        if prices[0] <= prices[1]:
            _tell_prices(work, "straight lines of cells stay as they are", target, prices)
            return
    _lift(work, lifting)


def _tell_prices(work: Work, decision: str, target: Target, prices: tuple[float, float]) -> None:
    own, lifted = (f"{price:.3g}" for price in prices)
    work.notes.append(
        f"{decision}: target {target.name} takes {own} µs for them by its prices, "
        f"and {lifted} µs for the operators that they compute"
    )


def _lift(work: Work, lifting: LiftRecurrentPass) -> None:
    lifting(work.model, work.facts)
    for node in lifting.lifted:
        what = "Conv" if node.op_type == CAUSAL_CONV else _FORMS[node.form]
        if node.op_type is not None:
            work.notes.append(
                f"{what} {node.name!r} was lifted to {node.op_type} with "
                f"{node.hidden_size} units; {wording.option('no-lift')} leaves it as it is"
            )


def warn_of_suspicions(work: Work) -> None:
    """Warn of what looks like a fault of an exporter. The graph stays as it is."""
    work.warnings += find_suspicions(work.model)


def warn_of_other_recurrences(work: Work) -> None:
    """Warn of Loops and Scans that are cells written out by hand. The graph stays as it is."""
    work.warnings += other_recurrences(work.model)


def set_inputs(work: Work) -> None:
    """Set inputs.

    Before: all inputs of the source. After: those with a value are constants.
    """
    work.sets = work.apply(SetInputsPass(work.options.sets or {})).values


def freeze_initializers(work: Work) -> None:
    """Take the defaults of inputs as constants.

    Before: inputs may have an initializer. After: none has, if asked for, or if no caller can override it.
    """
    # Without being asked, nothing is taken away that a caller can feed.
    if work.options.freeze or work.model.ir_version < FREE_INITIALIZERS_IR:
        work.notes += work.apply(FreezeInitializersPass()).notes
    elif defaults := sum(value.is_initializer() for value in work.model.graph.inputs):
        work.notes.append(
            f"{counted(defaults, 'graph input')} with an initializer stay, as callers can override them; "
            f"{wording.option('freeze', True)} takes them as constants"
        )


def raise_to_operators(work: Work) -> None:
    """Correct an opset that is too low.

    Before: the opset may lack an operator of the model. After: it has them all, or they are expressed in it.
    """
    work.notes += move_to_operators(work.model, work.facts, work.opset)


def simplify_model(work: Work) -> None:
    """Simplify the model by what is known.

    Before: nodes that follow from constants, and Ifs of known condition. After: constants, and a branch each.
    """
    simplifying = TakeBranchesPass(), CaptureStatesPass(), FoldConstantsPass(work.refuses), RemoveNoopsPass()
    for each in (*simplifying, RemoveUnusedPass()):
        work.apply(each)
    work.notes += work.apply(CorrectShapesPass()).notes
    work.notes += [
        f"If {called(node)!r} stays: {reason}"
        for node, _ in walk(work.model.graph)
        if node.op_type == "If" and not node.domain and (reason := decided_by(work.model, node.inputs[0]))
    ]


def lift_constants(work: Work) -> None:
    """Make initializers of Constants if the target has no Constant, as a lowering does.

    Before: Constant nodes. After: initializers.
    """

    def count() -> int:
        return sum(node.op_type == "Constant" and not node.domain for node, _ in walk(work.model.graph))

    if "Constant" in work.target.op_types or not (before := count()):
        return
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(work.model)
    work.facts.forget()
    lowering = call("lower", target=work.target.address)
    work.notes.append(
        f"{work.target.name} has no Constant: `{lowering}` makes initializers of "
        f"{counted(before - count(), 'node')}"
    )


def legacy_constants(work: Work) -> None:
    """Suit an old IR version.

    Before: initializers that are not inputs, which IR version 3 lacks. After: Constant nodes there.
    """
    work.apply(LegacyConstantsPass())


def tell_of_no_steps(work: Work) -> None:
    """Report lifted nodes that stay and whose final state differs if there are no steps.

    Before: lifted nodes stand for Loops and Scans, whose last state is then the initial one. After: they are
    operators like others.
    """
    lifted = [node for node, _ in walk(work.model.graph) if KEEPS_INITIAL in node.meta]
    for node in lifted:
        dims = work.facts.dims(node.inputs[0])
        given = node.inputs[_LENGTHS] if len(node.inputs) > _LENGTHS else None
        lengths = work.facts.constant(given)
        has_steps = dims is not None and isinstance(dims[0], int) and dims[0] > 0
        has_steps &= given is None or (lengths is not None and bool(lengths.all()))
        if node.meta.pop(KEEPS_INITIAL) and not has_steps and work.options.semantics == "ort":
            instead = "ends the process" if node.op_type == "GRU" and given is None else "returns 0"
            work.notes.append(
                f"{node.op_type} {node.name!r} needs a step: of a sequence without steps, the last state was "
                f"the initial one; onnxruntime's {node.op_type} {instead}, and `{call('scan')}` keeps it"
            )


def strip(work: Work) -> None:
    """Remove what is only for readers.

    Before: nodes have names and metadata. After: neither, and nothing has a doc string.
    """
    work.apply(StripPass())
