"""The commands that write a model: `rnnlower unroll`, `scan`, `loop`, `lower`, `lift`, `pad` and others."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rnnlower.cli.defining import Comparing, Showing, command
from rnnlower.cli.running import emit_result
from rnnlower.cli.streams import with_names_of_streams
from rnnlower.errors import OptionError
from rnnlower.passes.lowering_options import LoopOptions, LowerOptions, ScanOptions, UnrollOptions
from rnnlower.passes.rewriting_options import ConvertOptions, LiftOptions, PadOptions, StreamOptions


def _rewriting(name: str, kind: type[Any], words: str, *absent: str) -> Callable[..., None]:
    """Return the command that runs the public function of this name, which takes options of this kind."""

    def rewrite(
        *,
        model: pathlib.Path,
        output: pathlib.Path,
        options: Any,
        comparing: Comparing,
        external_data: str = "auto",
        provenance: bool = True,
        showing: Showing,
    ) -> None:
        from rnnlower.cli.rewriting import Rewriting

        buckets = _buckets(options, output, showing)
        results = []
        for number, (each, path, shown) in enumerate(buckets):
            if number and not showing.quiet and not showing.json_:
                print()
            run = Rewriting(name, model, path, each, comparing, shown, external_data, provenance)
            results.append(run.run())
        if showing.json_:
            emit_result(results[0] if len(results) == 1 else {"buckets": results})

    rewrite.__name__, rewrite.__doc__ = name, words
    rewrite.__annotations__["options"] = kind
    return command(*absent)(rewrite)


def _buckets(options: Any, output: pathlib.Path, showing: Showing) -> list[tuple[Any, pathlib.Path, Showing]]:
    """Return the options, the path and the page of each model: of `pad`, one for each maximum."""
    if not isinstance(options, PadOptions):
        return [(options, output, showing)]
    sizes_of: Mapping[str, Sequence[int]] = options.max  # type: ignore[assignment]
    combined = [*itertools.product(*sizes_of.values())]
    made = []
    for sizes in combined:
        each = dataclasses.replace(options, max=dict(zip(options.max, sizes, strict=True)))
        if len(combined) == 1:
            return [(each, output, showing)]
        if with_names_of_streams(str(output)) != str(output):
            raise OptionError("several maxima write several files: -o - takes one model")
        of_bucket = "-".join(map(str, sizes))
        page = showing.report and showing.report.with_stem(f"{showing.report.stem}-{of_bucket}")
        path = output.with_stem(f"{output.stem}-{of_bucket}")
        made.append((each, path, dataclasses.replace(showing, report=page)))
    return made


REWRITINGS = [
    _rewriting("unroll", UnrollOptions, "Rewrite every recurrent node into straight-line primitive ops."),
    _rewriting(
        "scan",
        ScanOptions,
        "Rewrite every recurrent node into a Scan over primitive ops; the length may be dynamic.",
    ),
    _rewriting(
        "loop",
        LoopOptions,
        "Rewrite every recurrent node into a Loop over primitive ops; the length may be dynamic.",
    ),
    _rewriting(
        "lower",
        LowerOptions,
        "Rewrite the recurrent nodes that a runtime lacks or gets wrong into ops that it has.",
    ),
    _rewriting(
        "lift",
        LiftOptions,
        "Turn Loops, Scans and straight lines that compute an LSTM, GRU or RNN into these operators.",
    ),
    _rewriting(
        "pad",
        PadOptions,
        "Make a static model of a maximal length that is right for every length up to it.",
        "states",
    ),
    _rewriting(
        "stream",
        StreamOptions,
        "Turn a model of whole sequences into one of a chunk per call: states become inputs and outputs.",
    ),
    _rewriting("convert", ConvertOptions, "Change the model's opset, up or down.", "on"),
]
