"""The commands that look at models: `rnnlower inspect`, `check`, `verify` and `bench`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import typer

from rnnlower.cli.defining import Comparing, Showing, command
from rnnlower.cli.progress import Phases, progress
from rnnlower.cli.running import (
    DIFFERENT,
    emit_json,
    emit_result,
    exit_code,
    installed_runtime,
    other_comparison,
    report_page,
    say,
    say_notes,
    tell_difference,
    to_stderr,
    verify_files,
    warn,
    write_report,
)
from rnnlower.errors import RnnLowerError, UnsupportedModelError, UnverifiableError, VerificationError
from rnnlower.passes.command_options import BenchOptions, CheckOptions
from rnnlower.wording import call, counted

if TYPE_CHECKING:
    from rnnlower.benchmarking.bench_result import BenchResult
    from rnnlower.verification import VerificationResult


@command()
def inspect(*, model: pathlib.Path, json_: bool = False) -> None:
    """List the inputs, outputs, operators and recurrent nodes."""
    from rnnlower.cli import tables
    from rnnlower.files.metadata import PadMetadata, read_provenance
    from rnnlower.files.model_io import read_model, size_on_disk
    from rnnlower.graph.versions import notes_on_operators
    from rnnlower.inspection import find_liftable, find_warnings, inspect_model, summarize

    loaded = read_model(model)
    summary, size = summarize(loaded), size_on_disk(model, loaded)
    liftable = find_liftable(loaded)
    nodes = inspect_model(loaded)
    warnings = find_warnings(loaded, liftable)
    notes = notes_on_operators(loaded)
    say_notes(notes, quiet=False)
    warn(warnings)
    origin, pad = read_provenance(loaded.metadata_props), PadMetadata.read(loaded.metadata_props)
    if json_:
        opset = {domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()}
        recurrent = [node.to_dict() for node in nodes]
        result = {"ir_version": loaded.ir_version, "opset": opset, "recurrent": recurrent}
        result |= dataclasses.asdict(summary) | {"bytes": size, "notes": notes, "provenance": origin}
        result["pad"] = None if pad is None else dataclasses.asdict(pad)
        result["liftable"] = [dataclasses.asdict(node) for node in liftable]
        emit_json(result | {"warnings": [dataclasses.asdict(warning) for warning in warnings]})
    else:
        tables.print_inspection(loaded, summary, size, nodes, liftable, origin, pad)


@command("report")
def check(*, model: pathlib.Path, options: CheckOptions, showing: Showing) -> None:
    """List the nodes that a runtime does not run, and what to do about them."""
    from rnnlower import api
    from rnnlower.cli import tables
    from rnnlower.targets import find_target

    report = api.check_report(model, options)
    runtime, misfits, after = find_target(options.target), report.misfits, report.after
    lower = f"`{call('lower', target=options.target)}`"
    told = [] if after is None else [f"{lower} {_told(after, runtime.name)}"]
    say_notes([*report.notes, *told], showing.quiet)
    if showing.json_:
        guesses = [{"claim": name, "source": claim.source} for name, claim in runtime.claims() if claim.guess]
        result = {
            "target": runtime.name,
            "fits": not misfits,
            "misfits": [dataclasses.asdict(misfit) for misfit in misfits],
            "notes": report.notes,
            "after_lower": after,
            "guesses": guesses,
        }
        problem = f"target {runtime.name} does not run all of {model}"
        error = UnsupportedModelError(problem, remedy=f"{lower} shows what can be done about it")
        emit_result(result, error if misfits else None)
    elif not showing.quiet:
        tables.print_check(runtime, report, verbose=showing.verbose)
    if misfits:
        raise typer.Exit(DIFFERENT)


def _told(after: dict[str, Any], target: str) -> str:
    if after["refused"]:
        return f"refuses: {after['refused']}"
    adapts = f", adapts {len(after['adapted'])}" if after["adapted"] else ""
    lowers = f"lowers {counted(len(after['lowered']), 'recurrent node')}{adapts}"
    does = f"{lowers} and keeps {len(after['kept'])}"
    if not (after["lowered"] or after["adapted"] or after["kept"]):
        does = "expresses nodes as other operators"
    if not after["left"]:
        return f"{does}; then everything fits"
    return f"{does}; then target {target} does not run " + "; ".join(after["left"])


@command("verify")
def verify(
    *,
    reference: pathlib.Path,
    candidate: pathlib.Path,
    sets: dict[str, Any] | None = None,
    semantics: str = "ort",
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    engine: str | None = None,
    comparing: Comparing,
    showing: Showing,
) -> None:
    """Run two models on the same inputs and compare their outputs."""
    from rnnlower.cli import tables
    from rnnlower.reporting.content import model_facts
    from rnnlower.reporting.page import check_report

    check_report(showing.report, reference, candidate)
    settings = comparing.settings()
    if "on" in settings:
        installed_runtime(settings["on"])
    settings |= {"semantics": semantics, "engine": engine, "sets": sets or {}}
    settings |= {"dequantize": dequantize, "assume_linear_before_reset": assume_linear_before_reset}
    phases = Phases(showing.verbose)
    with progress("verifying", showing.quiet, phases) as tell:
        result = verify_files(reference, candidate, settings, tell)
    error = None if result else _difference(result, candidate, settings)
    phases.print()
    if showing.report is not None:
        sections = [model_facts(reference, "Reference").section, model_facts(candidate, "Candidate").section]
        done = f"rnnlower verify {reference.name} {candidate.name}"
        quiet = showing.quiet or showing.json_
        report_page(showing.report, done, result, sections, phases, quiet)
    if showing.json_:
        emit_result(result.to_dict() | {"seconds": phases.rounded()}, error)
    elif not showing.quiet:
        tables.print_verification(result, verbose=showing.verbose)
    if error is not None:
        compared = (*result.outputs, *(() if result.on is None else result.on.outputs))
        more = not showing.verbose and any(not output.equal for output in compared)
        tell_difference(
            error, "-v shows the worst element of each output, and both of its values" if more else ""
        )


def _difference(
    result: VerificationResult, candidate: pathlib.Path, settings: dict[str, Any]
) -> VerificationError:
    outputs, problems, where = result.outputs, result.problems, ""
    if result.on is not None and all(output.equal for output in outputs) and not problems:
        outputs, problems = result.on.outputs, (result.on.problem,) if result.on.problem else ()
        where = f" on {result.on.label}"
    differ = sum(not output.equal for output in outputs)
    problem = next(iter(problems), f"{differ} of {len(outputs)} outputs differ") + where
    return VerificationError(f"{candidate}: {problem}", remedy=other_comparison(result, settings))


@command("verbose")
def bench(
    *, model: pathlib.Path, options: BenchOptions, plot: pathlib.Path | None = None, showing: Showing
) -> None:
    """Time the model as it is and lowered, on onnxruntime or another runtime on this machine."""
    from rnnlower.benchmarking.benchmark import measure
    from rnnlower.cli import tables
    from rnnlower.reporting.page import check_report
    from rnnlower.reporting.plots import check_chart, draw_chart

    if options.on is not None:
        installed_runtime(options.on)
    if plot is not None:
        check_chart(plot)
    check_report(showing.report, model)
    with progress("reading", showing.quiet) as tell:
        result = measure(model, dataclasses.replace(options, progress=tell))
    say_notes(result.notes, showing.quiet)
    problem = _problem(result)
    if showing.json_:
        emit_result(result.to_dict(), problem)
    elif not showing.quiet:
        tables.print_bench(result)
    if plot is not None and result.timed:
        draw_chart(result, plot, model.name)
        say(f"rnnlower: wrote {plot}", showing.quiet)
    if showing.report is not None:
        from rnnlower.reporting.content import bench_sections, model_facts

        verdict = f"{counted(len(result.timed), 'form')} timed" if problem is None else problem.problem
        sections = [model_facts(model).section, *bench_sections(result)]
        good = False if problem else None
        write_report(showing.report, f"rnnlower bench {model.name}", (verdict, good), sections, showing.quiet)
    if problem is not None:
        to_stderr(f"rnnlower: error: {problem}")
        raise typer.Exit(exit_code(problem))


def _problem(result: BenchResult) -> RnnLowerError | None:
    """Return the error for the exit code: the worst of all problems."""
    lowered = [variant for variant in result.variants if variant.strategy != "native"]
    if result.wrong:
        forms = ", ".join(variant.name for variant in result.wrong)
        return VerificationError(f"{forms}: not what the model computes")
    if lowered and all(variant.status == "not made" for variant in lowered):
        return UnsupportedModelError("the model cannot be lowered in any of these forms")
    if not result.timed:
        title = "onnxruntime" if result.runtime is None else result.runtime.label
        return UnverifiableError(f"{title} runs the model in none of these forms")
    return None
