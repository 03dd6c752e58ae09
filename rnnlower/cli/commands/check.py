"""The command `rnnlower check`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import typer

from rnnlower.cli.groups import Fixing, Showing, flattened
from rnnlower.cli.options import Model, Semantics, TargetName
from rnnlower.cli.running import DIFFERENT, emit_result, exit_codes, say
from rnnlower.errors import RnnLowerError, UnsupportedModelError
from rnnlower.wording import call, counted

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.passes.lowering_options import LoweringOptions
    from rnnlower.targets import Target


@exit_codes
@flattened("report")
def check(
    *,
    model: Model,
    target: TargetName,
    fixing: Fixing,
    semantics: Semantics = "ort",
    showing: Showing,
) -> None:
    """List the nodes that a runtime does not run, and what to do about them."""
    from rnnlower.cli import tables
    from rnnlower.files.model_io import read_model
    from rnnlower.graph.walk import count_ops
    from rnnlower.passes.lowering_options import LoweringOptions
    from rnnlower.passes.simplify import settle
    from rnnlower.passes.steps.opset_moves import raise_to_operators
    from rnnlower.recurrent.finding import find_recurrent
    from rnnlower.targets import find_target
    from rnnlower.targets.fit import find_misfits, profile_notes, runs_op

    runtime = find_target(target)
    checked = read_model(model)
    fixed = fixing.values()
    settled = raise_to_operators(checked)
    settled += settle(checked, **fixed, unwanted=lambda node: not runs_op(runtime, node))
    options = LoweringOptions(
        "target",
        semantics=semantics,  # type: ignore[arg-type]  # find_misfits checks it
        target=runtime,
        **fixed,
    )
    folded = _fold_constants(checked, runtime)
    misfits = find_misfits(checked, runtime, semantics)  # type: ignore[arg-type]
    notes = [*settled, *folded, *profile_notes(checked, runtime)]
    for note in notes:
        say(f"rnnlower: note: {note}", showing.quiet)
    after = _after_lowering(read_model(model), options) if misfits else None
    if after is not None:
        say(f"rnnlower: note: {_told(after, target, runtime.name)}", showing.quiet)
    if showing.json_:
        guesses = [{"claim": name, "source": claim.source} for name, claim in runtime.claims() if claim.guess]
        result = {
            "target": runtime.name,
            "fits": not misfits,
            "misfits": [dataclasses.asdict(misfit) for misfit in misfits],
            "notes": notes,
            "after_lower": after,
            "guesses": guesses,
        }
        remedy = f"`{call('lower', target=target)}` shows what can be done about it"
        error = UnsupportedModelError(f"target {runtime.name} does not run all of {model}", remedy=remedy)
        emit_result(result, error if misfits else None)
    elif not showing.quiet:
        looked_at = tables.Checked(find_recurrent(checked), sum(count_ops(checked).values()))
        tables.print_check(runtime, misfits, looked_at, verbose=showing.verbose)
    if misfits:
        raise typer.Exit(DIFFERENT)


def _fold_constants(model: ir.Model, target: Target) -> list[str]:
    """Turn the Constant nodes into initializers if the target lacks them, as `lower` does; return a note."""
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    from rnnlower.graph.walk import walk

    def count() -> int:
        return sum(node.op_type == "Constant" and not node.domain for node, _ in walk(model.graph))

    if "Constant" in target.op_types:
        return []
    before = count()
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    folded = before - count()
    command = call("lower", target=target.address)
    words = f"{target.name} has no Constant: `{command}` makes initializers of {counted(folded, 'node')}"
    return [words] if folded else []


def _after_lowering(model: ir.Model, options: LoweringOptions) -> dict[str, Any]:
    """Return what `lower` would do to the model and leave, or why it refuses."""
    from rnnlower.passes.forecast import forecast
    from rnnlower.targets.misfits import grouped

    try:
        found = forecast(model, options)
    except RnnLowerError as error:
        return {"lowered": [], "adapted": [], "kept": [], "misfits": [], "left": [], "refused": str(error)}
    return {
        "lowered": [located.name for located in found.lowered],
        "adapted": [node.name for node in found.adapted],
        "kept": [node.name for node in found.kept],
        "misfits": [dataclasses.asdict(misfit) for misfit in found.misfits],
        "left": grouped(found.misfits),
        "refused": None,
    }


def _told(after: dict[str, Any], target: str, name: str) -> str:
    command = f"`{call('lower', target=target)}`"
    if after["refused"]:
        return f"{command} refuses: {after['refused']}"
    adapts = f", adapts {len(after['adapted'])}" if after["adapted"] else ""
    lowers = f"lowers {counted(len(after['lowered']), 'recurrent node')}{adapts}"
    does = f"{command} {lowers} and keeps {len(after['kept'])}"
    if not after["left"]:
        return f"{does}; then everything fits"
    return f"{does}; then target {name} does not run " + "; ".join(after["left"])
