"""The commands that write no model: inspect, check, verify, bench, engines, targets and probe."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import TYPE_CHECKING, Any

import typer

from rnnlower.cli import common
from rnnlower.cli.defining import Comparison, Display, command
from rnnlower.cli.progress import Phases, progress
from rnnlower.errors import (
    OptionError,
    RnnLowerError,
    UnsupportedModelError,
    UnverifiableError,
    VerificationError,
)
from rnnlower.passes.command_options import BenchOptions, CheckOptions
from rnnlower.wording import call, counted

if TYPE_CHECKING:
    from rnnlower.benchmarking.bench_result import BenchResult
    from rnnlower.passes.checking import Forecast
    from rnnlower.verification import VerificationResult


@command()
def inspect(*, model: pathlib.Path, json_: bool = False) -> None:
    """List the inputs, outputs, operators and recurrent nodes."""
    from rnnlower.cli import tables
    from rnnlower.files.metadata import PadMetadata, read_provenance
    from rnnlower.files.model_io import read_model, size_on_disk
    from rnnlower.graph.versions import notes_on_newer_operators
    from rnnlower.inspection import find_liftable, find_warnings, inspect_model, summarize

    loaded = read_model(model)
    summary, size = summarize(loaded), size_on_disk(model, loaded)
    liftable = find_liftable(loaded)
    nodes = inspect_model(loaded)
    warnings = find_warnings(loaded, liftable)
    notes = notes_on_newer_operators(loaded)
    common.say_notes(notes, quiet=False)
    common.warn(warnings)
    origin, pad = read_provenance(loaded.metadata_props), PadMetadata.read(loaded.metadata_props)
    if json_:
        opset = {domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()}
        recurrent = [node.to_dict() for node in nodes]
        result = {"ir_version": loaded.ir_version, "opset": opset, "recurrent": recurrent}
        result |= vars(summary) | {"bytes": size, "notes": notes, "provenance": origin}
        common.emit_json(result | {"pad": pad, "liftable": liftable, "warnings": warnings})
    else:
        tables.print_inspection(loaded, summary, size, nodes, liftable, origin, pad)


@command("report")
def check(*, model: pathlib.Path, options: CheckOptions, display: Display) -> None:
    """List the nodes that a runtime does not run, and what to do about them."""
    from rnnlower import api
    from rnnlower.cli import tables
    from rnnlower.targets import find_target

    report = api.check_report(model, options)
    runtime, misfits, after = find_target(options.target), report.misfits, report.after
    lower = f"`{call('lower', target=options.target)}`"
    told = [] if after is None else [f"{lower} {_describe_forecast(after, runtime.name)}"]
    common.say_notes([*report.notes, *told], display.quiet)
    if display.json_:
        guesses = [{"claim": name, "source": claim.source} for name, claim in runtime.claims() if claim.guess]
        result = {
            "target": runtime.name,
            "fits": not misfits,
            "misfits": misfits,
            "notes": report.notes,
            "after_lower": after,
            "guesses": guesses,
        }
        problem = f"target {runtime.name} does not run all of {model}"
        error = UnsupportedModelError(problem, remedy=f"{lower} shows what can be done about it")
        common.emit_result(result, error if misfits else None)
    elif not display.quiet:
        tables.print_check(runtime, report, verbose=display.verbose)
    if misfits:
        raise typer.Exit(common.DIFFERENT)


def _describe_forecast(after: Forecast, target: str) -> str:
    if after.refused:
        return f"refuses: {after.refused}"
    adapts = f", adapts {len(after.adapted)}" if after.adapted else ""
    does = f"lowers {counted(len(after.lowered), 'recurrent node')}{adapts} and keeps {len(after.kept)}"
    if not (after.lowered or after.adapted or after.kept):
        does = "expresses nodes as other operators"
    if not after.left:
        return f"{does}; then everything fits"
    return f"{does}; then target {target} does not run {'; '.join(after.left)}"


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
    comparison: Comparison,
    display: Display,
) -> None:
    """Run two models on the same inputs and compare their outputs."""
    from rnnlower.cli import tables
    from rnnlower.reporting.content import model_facts
    from rnnlower.reporting.page import require_report_path

    require_report_path(display.report, reference, candidate)
    settings = comparison.settings()
    if "on" in settings:
        common.installed_runtime(settings["on"])
    settings |= {"semantics": semantics, "engine": engine, "sets": sets or {}}
    settings |= {"dequantize": dequantize, "assume_linear_before_reset": assume_linear_before_reset}
    phases = Phases(display.verbose)
    with progress("verifying", display.quiet, phases) as tell:
        result = common.verify_files(reference, candidate, settings, tell)
    error = None if result else _difference(result, candidate, settings)
    phases.print()
    if display.report is not None:
        sections = [model_facts(reference, "Reference").section, model_facts(candidate, "Candidate").section]
        done = f"rnnlower verify {reference.name} {candidate.name}"
        common.report_page(display.report, done, result, sections, phases, not display.in_words)
    if display.json_:
        common.emit_result(result.to_dict() | {"seconds": phases.rounded()}, error)
    elif not display.quiet:
        tables.print_verification(result, verbose=display.verbose)
    if error is not None:
        compared = (*result.outputs, *(() if result.on is None else result.on.outputs))
        more = not display.verbose and any(not output.equal for output in compared)
        common.exit_with_difference(
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
    return VerificationError(f"{candidate}: {problem}", remedy=common.advise_comparison(result, settings))


@command("verbose")
def bench(
    *, model: pathlib.Path, options: BenchOptions, plot: pathlib.Path | None = None, display: Display
) -> None:
    """Time the model as it is and lowered, on onnxruntime or another runtime on this machine."""
    from rnnlower.benchmarking.benchmark import measure
    from rnnlower.cli import tables
    from rnnlower.reporting.page import draw_chart, require_chart_path, require_report_path

    if options.on is not None:
        common.installed_runtime(options.on)
    if plot is not None:
        require_chart_path(plot)
    require_report_path(display.report, model)
    with progress("reading", display.quiet) as tell:
        result = measure(model, dataclasses.replace(options, progress=tell))
    common.say_notes(result.notes, display.quiet)
    problem = _problem(result)
    if display.json_:
        common.emit_result(result.to_dict(), problem)
    elif not display.quiet:
        tables.print_bench(result)
    if plot is not None and result.timed:
        draw_chart(result, plot, model.name)
        common.say(f"rnnlower: wrote {plot}", display.quiet)
    if display.report is not None:
        from rnnlower.reporting.content import bench_sections, model_facts

        verdict = f"{counted(len(result.timed), 'form')} timed" if problem is None else problem.problem
        sections = [model_facts(model).section, *bench_sections(result)]
        good = False if problem else None
        common.write_report(
            display.report, f"rnnlower bench {model.name}", (verdict, good), sections, display.quiet
        )
    if problem is not None:
        common.to_stderr(f"rnnlower: error: {problem}")
        raise typer.Exit(common.exit_code(problem))


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
        return UnverifiableError(f"{title} runs the model correctly in none of these forms")
    return None


_NO_TOML = "{} does not end in .toml, by which --target recognizes a file"


@command()
def engines(*, json_: bool = False) -> None:
    """List the engines that can run models here, and how to install the others."""
    from rnnlower.cli import tables
    from rnnlower.engines.catalog import engines as known

    found = known()
    if json_:
        common.emit_json({"engines": [engine.to_dict() for engine in found]})
    else:
        tables.print_engines(found)


@command()
def targets(*, schema: bool = False, new: pathlib.Path | None = None, json_: bool = False) -> None:
    """List the targets."""
    import msgspec

    from rnnlower.cli import tables
    from rnnlower.targets import find_target, target_names
    from rnnlower.targets.target_schema import schema as target_schema

    if new is not None:
        if schema:
            raise OptionError(
                "--new writes a target file, --schema prints what may stand in one: leave out one"
            )
        _write_start(new)
        if json_:
            common.emit_json({"output": str(new)})
        return
    if schema:
        common.emit(json.dumps(target_schema(), indent=2))
        return
    known = [find_target(name) for name in target_names()]
    if json_:
        # The path is that of a user's file.
        fields = [msgspec.to_builtins(target) for target in known]
        common.emit_json({"targets": [{k: v for k, v in each.items() if k != "path"} for each in fields]})
    else:
        tables.print_targets(known)


def _write_start(path: pathlib.Path) -> None:
    from rnnlower.targets.target_schema import start

    if path.suffix != ".toml":
        raise OptionError(_NO_TOML.format(path))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(start())
    except FileExistsError:
        raise OptionError(f"{path} exists; --new does not overwrite it") from None
    common.to_stderr(f"rnnlower: wrote {path}")


@command()
def probe(
    *,
    engine: str,
    output: pathlib.Path | None = None,
    check: str = "",
    json_: bool = False,
    quiet: bool = False,
) -> None:
    """Try a runtime feature by feature and write what it computes correctly as a target."""
    from rnnlower.probing import probe as try_runtime
    from rnnlower.probing.writing import list_changes
    from rnnlower.targets import find_target

    if output is None and not check:
        raise OptionError("no target file: -o TARGET.toml writes one, --check TARGET.toml compares with one")
    if output is not None and output.suffix != ".toml":
        raise OptionError(_NO_TOML.format(output))
    old = find_target(check) if check else None
    with progress("probing", quiet, estimated=True) as tell:
        found = try_runtime(engine, output=output, progress=tell)
    if output is not None:
        common.say(f"rnnlower: wrote {output}", quiet)
    differences = [] if old is None else list_changes(old, found)
    version = None if found.tried is None else found.tried.version
    if json_:
        written = None if output is None else str(output)
        result = {"engine": engine, "version": version, "output": written, "changes": differences}
        error = VerificationError(f"{check}: {'; '.join(differences)}") if differences else None
        common.emit_result(result, error)
    else:
        for line in differences:
            common.emit(line)
    if differences:
        raise typer.Exit(common.DIFFERENT)
