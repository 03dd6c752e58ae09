"""The command `rnnlower convert`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rnnlower.cli.groups import Comparing, Showing, flattened
from rnnlower.cli.options import CONVERSION, ExternalData, Freeze, Model, Output, Sets, Strip
from rnnlower.cli.running import exit_codes
from rnnlower.cli.values import parse_sets

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclasses.dataclass(frozen=True)
class _Settled:
    """The result of setting and freezing inputs: notes, and the values in the model."""

    notes: Sequence[str] = ()
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _settle(model: ir.Model, sets: Mapping[str, Any], freeze: bool | None) -> _Settled:
    from rnnlower.passes import FreezeInitializersPass, LegacyConstantsPass, SetInputsPass
    from rnnlower.passes.simplify import simplify

    setting = SetInputsPass(sets)
    setting(model)
    freezing = FreezeInitializersPass()
    if freeze:
        freezing(model)
    notes = [*freezing.notes, *(simplify(model) if sets else ())]
    LegacyConstantsPass()(model)
    return _Settled(notes, setting.values)


@exit_codes
@flattened("on")
def convert(
    *,
    model: Model,
    output: Output,
    opset: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Default-domain opset of the result.",
            show_default=False,
            rich_help_panel=CONVERSION,
        ),
    ],
    set_: Sets = None,
    freeze: Freeze = None,
    comparing: Comparing,
    external_data: ExternalData = "auto",
    strip: Strip = False,
    showing: Showing,
) -> None:
    """Change the model's opset, up or down."""
    from rnnlower.cli import tables
    from rnnlower.cli.rewriting import Rewriting
    from rnnlower.errors import OptionError
    from rnnlower.opset import OPSETS, convert_opset
    from rnnlower.passes.strip import StripPass
    from rnnlower.reporting import conversion_sections

    run = Rewriting("convert", model, output, comparing, showing, external_data)
    if opset not in OPSETS:
        raise OptionError(
            f"the opset is {opset}; the installed onnx knows {OPSETS.start} to {OPSETS.stop - 1}"
        )
    given = parse_sets(set_)
    with run.read() as (converted, tell):
        tell("converting")
        settled = _settle(converted, given, freeze) if given or freeze else _Settled()
        conversion = convert_opset(converted, opset)
        if strip:
            StripPass()(converted)
    notes = (*settled.notes, *conversion.notes)
    verification = run.write(converted, {"sets": settled.values}, notes)
    run.report(verification, lambda source: conversion_sections(conversion))
    if run.shows_words:
        tables.print_conversion(conversion, verification, verbose=showing.verbose)
    run.finish(dataclasses.asdict(conversion) | {"opset": opset}, verification)
