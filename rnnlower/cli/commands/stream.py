"""The command `rnnlower stream`."""

from __future__ import annotations

from typing import Annotated

import typer

from rnnlower.cli.groups import Comparing, Fixing, Showing, flattened
from rnnlower.cli.options import (
    LOWERING,
    STREAMING,
    AssumeLinear,
    ComputeType,
    Dequantize,
    ExternalData,
    Gates,
    Model,
    Output,
    Semantics,
    Strip,
)
from rnnlower.cli.running import exit_codes, tell_of_rounding
from rnnlower.cli.values import parse_axes, parse_chunk


@exit_codes
@flattened("state")
def stream(
    *,
    model: Model,
    output: Output,
    fixing: Fixing,
    chunk: Annotated[
        str,
        typer.Option(
            metavar="K|any", help="Time steps a call; any: another number in each.", rich_help_panel=STREAMING
        ),
    ] = "1",
    time_axis: Annotated[
        list[str] | None,
        typer.Option(
            "--time-axis",
            metavar="INPUT:AXIS",
            help="The time axis of an input, if it does not follow from the recurrent nodes; repeatable.",
            show_default=False,
            rich_help_panel=STREAMING,
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="unroll, scan or loop: recurrent nodes are lowered as well; none: they stay.",
            rich_help_panel=LOWERING,
        ),
    ] = "none",
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Lower the recurrent nodes for this runtime.",
            show_default=False,
            rich_help_panel=LOWERING,
        ),
    ] = "",
    allow_delay: Annotated[
        bool,
        typer.Option(
            "--allow-delay",
            help="Accept convolutions that look ahead, at the price of a delay.",
            rich_help_panel=STREAMING,
        ),
    ] = False,
    semantics: Semantics = "ort",
    dequantize: Dequantize = False,
    assume_linear_before_reset: AssumeLinear = False,
    compute_type: ComputeType = None,
    gates: Gates = "auto",
    comparing: Comparing,
    external_data: ExternalData = "auto",
    strip: Strip = False,
    showing: Showing,
) -> None:
    """Turn a model of whole sequences into one of a chunk per call: states become inputs and outputs."""
    from rnnlower.cli import tables
    from rnnlower.cli.rewriting import Rewriting
    from rnnlower.passes.streaming import StreamOptions, stream_model
    from rnnlower.reporting import stream_sections
    from rnnlower.targets import find_target

    runtime = find_target(target) if target else None
    options = StreamOptions(
        parse_chunk(chunk),
        parse_axes(time_axis),
        allow_delay,
        strategy,
        runtime,
        semantics=semantics,  # type: ignore[arg-type]  # StreamOptions checks it
        dequantize=dequantize,
        assume_linear_before_reset=assume_linear_before_reset,
        compute_type=compute_type,
        gates=gates,  # type: ignore[arg-type]  # StreamOptions checks it
        strip=strip,
        **fixing.values(),
    )
    engine = "" if runtime is None else runtime.engine
    run = Rewriting("stream", model, output, comparing, showing, external_data, engine)
    with run.read() as (streamed, tell):
        report = stream_model(streamed, options, tell)
    settings = {
        "semantics": semantics,
        "sets": report.sets,
        "dequantize": dequantize,
        "assume_linear_before_reset": assume_linear_before_reset,
    }
    verification = run.write(streamed, settings, report.notes, report.warnings)
    run.report(verification, lambda source: stream_sections(source, streamed, report))
    if run.shows_words:
        tables.print_stream(report, verification, verbose=showing.verbose)
    if report.lowering is not None:
        tell_of_rounding(report.lowering, verification, showing.quiet)
    run.finish(report.to_dict(), verification)
