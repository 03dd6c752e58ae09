"""Steps that lift the model's own recurrences; what lifts is imported only where there are any."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from rnnlower import wording
from rnnlower.graph.walk import op_types, operand, walk
from rnnlower.passes.expand_functions import InlineFunctionsPass
from rnnlower.passes.loop_forms import CountIterationsPass, WriteScansPass
from rnnlower.passes.removing import RemoveNoopsPass
from rnnlower.passes.sequences import StackSequencesPass
from rnnlower.passes.simpler_control_flow import CaptureStatesPass
from rnnlower.passes.steps.work import LoweringWork, Work
from rnnlower.recurrent.node import KEEPS_INITIAL
from rnnlower.recurrent.state_operators import CAUSAL_CONV, LINEAR_ATTENTION
from rnnlower.targets import Target
from rnnlower.wording import call

if TYPE_CHECKING:
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass

_LENGTHS = 4
"""The position of sequence_lens."""
_FORMS = {"line": "the straight line behind", "loop": "Loop", "scan": "Scan"}


def lift(work: Work) -> None:
    """Lift the model's own recurrences.

    Before: Loops and Scans that compute an LSTM, GRU, RNN or LinearAttention, and if the target has a kernel
    of it, Convs that compute a CausalConvWithState. After: these operators, unless the target's prices say
    that they cost more.
    """
    target = work.options.runtime
    lift_all(
        work,
        convolutions=target is not None and target.has_foreign("com.microsoft", CAUSAL_CONV),
        empty=True,
        gaps=target is not None and not (target.has("Loop") or target.has("Scan")),
    )


def lift_all(
    work: Work, *, convolutions: bool, empty: bool = False, gaps: bool = False, shifts: bool = True
) -> None:
    """Lift Loops and Scans, and with `convolutions` those over a nonzero past.

    With `empty`, also a Loop or Scan that may have no steps is lifted. With `gaps`, also one of which rows
    skip steps, if the target can move them: the Loop streams and unrolls as it is, ScatterElements does not.
    Without `shifts`, states that are read before they change stay: the operator has one step more, and no
    final state within a stream.
    """
    if not {"Loop", "Scan", *(["Conv"] if convolutions else [])} & op_types(work.model):
        return
    from rnnlower.lifting.row_masks import SKIPPING_OPERATORS
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass

    options, target = work.options, work.options.runtime
    lifting = LiftRecurrentPass(
        options.nodes,
        lines=False,
        convolutions=convolutions,
        zero_pasts=False,
        matrices=_takes_attention(target),
        shifts=shifts,
        gaps=gaps and target is not None and all(map(target.has, SKIPPING_OPERATORS)),
        semantics=options.semantics,
        empty=empty,
    )
    _lift(work, lifting)


def _takes_attention(target: Target | None) -> bool:
    """Return whether a target runs LinearAttention, which gives decays as logarithms, or what it becomes.

    A profile keeps recurrent nodes, and has none of this domain.
    """
    if target is None or target.has_foreign("com.microsoft", LINEAR_ATTENTION):
        return True
    return target.has("Exp") and not target.profile


def lift_lines(work: LoweringWork) -> None:
    """Lift straight lines of recurrences.

    Before: the steps of a recurrence, one after another. After: a recurrent operator; for a target, only if
    it costs less by the target's prices, in the cheapest form.
    """
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass, has_lines

    if has_lines(work.model, work.facts):
        names, semantics = work.options.nodes, work.options.semantics
        lifting = LiftRecurrentPass(
            names,
            frames=False,
            convolutions=False,
            matrices=_takes_attention(work.options.runtime),
            gaps=False,
            semantics=semantics,
        )
        _lift(work, lifting)


def _lift(work: Work, lifting: LiftRecurrentPass) -> None:
    """Lift if the target's prices favor it; Loops and Scans also at an equal price, or at an unknown one."""
    from rnnlower.passes.steps.lifting_prices import price_lifting

    if (target := work.options.runtime) is not None:
        prices = price_lifting(work.model, lifting, target)
        if prices is None and not lifting.frames:
            return
        what = "Loops and Scans" if lifting.frames else "straight lines"
        if prices and prices.lifted == math.inf:
            work.notes.append(
                f"{what} with a matrix as state stay as they are: target {target.name} does not run "
                "what LinearAttention becomes"
            )
            _lift(work, dataclasses.replace(lifting, matrices=False))
            return
        if prices and (prices.own < prices.lifted or (prices.own == prices.lifted and not lifting.frames)):
            work.notes.append(
                f"{what} stay as they are: target {target.name} takes {prices.own:.3g} µs for them by its "
                f"prices, and {prices.lifted:.3g} µs for the operators that they compute"
            )
            return
    lifting(work.model, work.facts)
    for node in lifting.lifted:
        what = "Conv" if node.op_type == CAUSAL_CONV else _FORMS[node.form]
        if node.op_type is not None:
            work.notes.append(
                f"{what} {node.name!r} was lifted to {node.op_type} with "
                f"{node.hidden_size} units; {wording.option('no-lift')} leaves it as it is"
            )


def write_scans(work: LoweringWork) -> None:
    """Write Loops as Scans if the target has only these.

    Before: Loops that are not lifted. After: Scans, where each step reads one element of a series.
    """
    target = work.target
    if target.has("Scan") and not target.has("Loop") and "Loop" in op_types(work.model):
        written = work.apply(WriteScansPass()).written
        work.notes += [f"Loop {name!r} is written as a Scan: {target.name} has no Loop" for name in written]


def simplify_loops(work: Work) -> None:
    """Bring Loops that are not lifted into the form whose time can be followed.

    Before: TorchScript's Loops append to sequences and slice whole axes, jax2onnx's carry what they read as
    a state, TensorFlow's end by a condition. After: they stack, read steps, and have a trip count.
    """
    if "Loop" in op_types(work.model):
        work.apply(InlineFunctionsPass(wanted=lambda node: node.op_type == "Loop"))
        work.apply(CaptureStatesPass())
        work.apply(CountIterationsPass())
        work.apply(StackSequencesPass())
        work.apply(RemoveNoopsPass())


def note_zero_steps(work: Work) -> None:
    """Report lifted nodes that stay and whose final state differs if there are no steps.

    Before: lifted nodes stand for Loops and Scans, whose last state is then the initial one. After: they are
    operators like others.
    """
    lifted = [node for node, _ in walk(work.model.graph) if KEEPS_INITIAL in node.meta]
    for node in lifted:
        dims = work.facts.dims(node.inputs[0])
        given = operand(node, _LENGTHS)
        lengths = work.facts.constant(given)
        has_steps = dims is not None and isinstance(dims[0], int) and dims[0] > 0
        has_steps &= given is None or (lengths is not None and bool(lengths.all()))
        if node.meta.pop(KEEPS_INITIAL) and not has_steps and work.options.semantics == "ort":
            instead = "ends the process" if node.op_type == "GRU" and given is None else "returns 0"
            work.notes.append(
                f"{node.op_type} {node.name!r} needs a step: of a sequence without steps, the last state was "
                f"the initial one; onnxruntime's {node.op_type} {instead}, and `{call('scan')}` keeps it"
            )
