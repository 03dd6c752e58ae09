"""`rnnlower stream`."""

from __future__ import annotations

from typing import Annotated

import typer

from rnnlower.cli.groups import Comparing, Fixing, Showing, flattened
from rnnlower.cli.options import LOWERING, STREAMING, ExternalData, Model, Output, Semantics
from rnnlower.cli.running import exit_codes
from rnnlower.cli.values import parse_axes

__all__ = ["stream"]


@exit_codes
@flattened("state")
def stream(
    *,
    model: Model,
    output: Output,
    fixing: Fixing,
    chunk: Annotated[
        int, typer.Option(min=1, metavar="K", help="Time steps a call.", rich_help_panel=STREAMING)
    ] = 1,
    time_axis: Annotated[
        list[str] | None,
        typer.Option(
            "--time-axis",
            metavar="INPUT:AXIS",
            help="Where time is, if it does not follow from the recurrent nodes; repeatable.",
            show_default=False,
            rich_help_panel=STREAMING,
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="none|unroll|scan|loop",
            help="Whether recurrent nodes are lowered as well.",
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
            help="Take convolutions that look ahead, at a delay.",
            rich_help_panel=STREAMING,
        ),
    ] = False,
    semantics: Semantics = "ort",
    comparing: Comparing,
    external_data: ExternalData = "auto",
    showing: Showing,
) -> None:
    """Make a model of whole sequences one of a chunk a call: states become inputs and outputs."""
    from rnnlower.cli import tables
    from rnnlower.cli.rewriting import Rewriting
    from rnnlower.passes.streaming import StreamOptions, stream_model
    from rnnlower.reporting import stream_sections
    from rnnlower.targets import find_target

    runtime = find_target(target) if target else None
    options = StreamOptions(
        chunk,
        parse_axes(time_axis),
        allow_delay,
        strategy,
        runtime,
        semantics=semantics,  # type: ignore[arg-type]  # StreamOptions checks it
        **fixing.values(),
    )
    engine = "" if runtime is None else runtime.engine
    run = Rewriting("stream", model, output, comparing, showing, external_data, engine)
    with run.read() as (streamed, tell):
        report = stream_model(streamed, options, tell)
    verification = run.write(streamed, {"semantics": semantics, "sets": report.sets}, report.notes)
    run.report(verification, lambda source: stream_sections(source, streamed, report))
    if run.shows_words:
        tables.print_stream(report, verification, verbose=showing.verbose)
    run.finish(report.to_dict(), verification)
