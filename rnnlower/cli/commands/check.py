"""`rnnlower check`."""

from __future__ import annotations

import dataclasses

import typer

from rnnlower.cli.options import (
    Dims,
    InputShapes,
    Json,
    Model,
    Quiet,
    Semantics,
    Sets,
    TargetName,
    Verbose,
    parse_dims,
    parse_sets,
    parse_shapes,
)
from rnnlower.cli.running import DIFFERENT, emit_result, exit_codes, say
from rnnlower.errors import UnsupportedModelError
from rnnlower.wording import call

__all__ = ["check"]


@exit_codes
def check(
    model: Model,
    target: TargetName,
    dim: Dims = None,
    input_shape: InputShapes = None,
    set_: Sets = None,
    semantics: Semantics = "ort",
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Does every node fit the runtime? Exit code 0: yes, 1: no."""
    from rnnlower.cli import tables
    from rnnlower.files.model_io import read_model
    from rnnlower.passes.lowering_options import count_ops
    from rnnlower.passes.simplify import settle
    from rnnlower.recurrent.finding import find_recurrent
    from rnnlower.targets import find_target
    from rnnlower.targets.fit import find_misfits, profile_notes, runs_op

    runtime = find_target(target)
    checked = read_model(model)
    settled = settle(
        checked,
        parse_dims(dim),
        parse_shapes(input_shape),
        parse_sets(set_),
        lambda node: not runs_op(runtime, node),
    )
    misfits = find_misfits(checked, runtime, semantics)  # type: ignore[arg-type]
    notes = [*settled, *profile_notes(checked, runtime)]
    for note in notes:
        say(f"rnnlower: note: {note}", quiet)
    if json_:
        guesses = [{"claim": name, "source": claim.source} for name, claim in runtime.claims() if claim.guess]
        result = {
            "target": runtime.name,
            "fits": not misfits,
            "misfits": [dataclasses.asdict(misfit) for misfit in misfits],
            "notes": notes,
            "guesses": guesses,
        }
        remedy = f"`{call('lower', target=target)}` says what it can do about it"
        error = UnsupportedModelError(f"target {runtime.name} does not run all of {model}", remedy=remedy)
        emit_result(result, error if misfits else None)
    elif not quiet:
        looked_at = tables.Checked(find_recurrent(checked), sum(count_ops(checked).values()))
        tables.print_check(runtime, misfits, looked_at, verbose=verbose)
    if misfits:
        raise typer.Exit(DIFFERENT)
