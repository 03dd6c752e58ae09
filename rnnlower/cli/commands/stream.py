"""`rnnlower stream`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from rnnlower.cli.options import (
    Atol,
    Dims,
    ExternalData,
    Inputs,
    InputShapes,
    Json,
    Model,
    On,
    Output,
    Quiet,
    Report,
    Rtol,
    Seed,
    Semantics,
    Sets,
    Trials,
    Verbose,
    Verify,
)
from rnnlower.cli.running import (
    exit_codes,
    finish,
    installed_runtime,
    own_runtime,
    report_page,
    say,
    size_on_disk,
    write,
)
from rnnlower.cli.values import (
    check_external_data,
    parse_axes,
    parse_dims,
    parse_sets,
    parse_shapes,
    verification_settings,
)

__all__ = ["stream"]


@exit_codes
def stream(
    model: Model,
    output: Output,
    chunk: Annotated[int, typer.Option(min=1, metavar="K", help="Time steps a call.")] = 1,
    time_axis: Annotated[
        list[str] | None,
        typer.Option(
            "--time-axis",
            metavar="INPUT:AXIS",
            help="Where time is, if it does not follow from the recurrent nodes; repeatable.",
            show_default=False,
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(metavar="none|unroll|scan|loop", help="Whether recurrent nodes are lowered as well."),
    ] = "none",
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE", help="Lower the recurrent nodes for this runtime.", show_default=False
        ),
    ] = "",
    allow_delay: Annotated[
        bool, typer.Option("--allow-delay", help="Take convolutions that look ahead, at a delay.")
    ] = False,
    dim: Dims = None,
    input_shape: InputShapes = None,
    set_: Sets = None,
    semantics: Semantics = "ort",
    verify: Verify = True,
    trials: Trials = None,
    seed: Seed = None,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    on: On = None,
    external_data: ExternalData = "auto",
    report_to: Report = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Make a model of whole sequences one of a chunk a call: states become inputs and outputs."""
    from rnnlower.cli import tables
    from rnnlower.cli.progress import Phases, progress
    from rnnlower.files.model_io import read_model
    from rnnlower.passes.streaming import StreamOptions, stream_model
    from rnnlower.reporting import check_report, model_facts, stream_sections
    from rnnlower.targets import find_target

    options = StreamOptions(
        chunk,
        parse_axes(time_axis),
        allow_delay,
        strategy,
        find_target(target) if target else None,
        parse_dims(dim),
        parse_shapes(input_shape),
        semantics,  # type: ignore[arg-type]  # StreamOptions checks it
        parse_sets(set_),
    )
    check_external_data(external_data)
    check_report(report_to, model, output)
    settings = verification_settings(verify, trials, seed, atol, rtol, inputs, None, on)
    absent = None
    if runtime := settings.pop("on", None):
        installed_runtime(runtime)
    elif verify and on is None and options.target is not None:
        runtime, absent = own_runtime(options.target.engine)
    phases = Phases(verbose)
    with progress("reading", quiet, phases) as tell:
        streamed = read_model(model)
        source_size = size_on_disk(model, streamed)
        source = model_facts(model) if report_to is not None else None
        report = stream_model(streamed, options, tell)
    for note in report.notes:
        say(f"rnnlower: note: {note}", quiet)
    settings |= {"semantics": semantics, "sets": report.sets, "also_on": runtime}
    verification, written = write(
        streamed, output, model, settings if verify else None, external_data, quiet, phases
    )
    if verification is not None and verification.on is None:
        verification = dataclasses.replace(verification, on=absent)
    result = report.to_dict() | {
        "verification": None if verification is None else verification.to_dict(),
        "output": str(output) if verification is None or verification else None,
    }
    if report_to is not None and source is not None:
        sections = [source.section, *stream_sections(source, streamed, report)]
        report_page(
            report_to, f"rnnlower stream {model.name}", verification, sections, phases, quiet or json_
        )
    if not json_ and not quiet:
        tables.print_stream(report, verification, verbose=verbose)
    finish(result, verification, output, (source_size, written), json_, quiet, phases)
