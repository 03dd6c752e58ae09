"""`rnnlower convert`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rnnlower.cli.options import (
    Atol,
    ExternalData,
    Inputs,
    Json,
    Model,
    Output,
    Quiet,
    Report,
    Rtol,
    Seed,
    Sets,
    States,
    Trials,
    Verbose,
    Verify,
)
from rnnlower.cli.running import (
    exit_codes,
    finish,
    report_page,
    say,
    size_on_disk,
    write,
)
from rnnlower.cli.values import check_external_data, parse_sets, verification_settings

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["convert"]


@dataclasses.dataclass(frozen=True)
class _Settled:
    """What setting inputs has done: notes, and the values as the model holds them."""

    notes: Sequence[str] = ()
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _settle(model: ir.Model, sets: Mapping[str, Any]) -> _Settled:
    from rnnlower.passes import LegacyConstantsPass, SetInputsPass
    from rnnlower.passes.simplify import simplify

    setting = SetInputsPass(sets)
    setting(model)
    notes = simplify(model)
    LegacyConstantsPass()(model)
    return _Settled(notes, setting.values)


@exit_codes
def convert(
    model: Model,
    output: Output,
    opset: Annotated[
        int, typer.Option(metavar="N", help="Default-domain opset of the result.", show_default=False)
    ],
    set_: Sets = None,
    verify: Verify = True,
    trials: Trials = None,
    seed: Seed = None,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    state: States = None,
    external_data: ExternalData = "auto",
    report: Report = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Change the model's opset, up or down."""
    from rnnlower.cli import tables
    from rnnlower.cli.progress import Phases, progress
    from rnnlower.errors import OptionError
    from rnnlower.files.model_io import read_model
    from rnnlower.opset import OPSETS, convert_opset
    from rnnlower.reporting import check_report, conversion_sections, model_facts

    check_external_data(external_data)
    check_report(report, model, output)
    settings = verification_settings(verify, trials, seed, atol, rtol, inputs, state)
    if opset not in OPSETS:
        raise OptionError(
            f"the opset is {opset}; the installed onnx knows {OPSETS.start} to {OPSETS.stop - 1}"
        )
    given = parse_sets(set_)
    phases = Phases(verbose)
    with progress("reading", quiet, phases) as tell:
        converted = read_model(model)
        source_size = size_on_disk(model, converted)
        source = model_facts(model) if report is not None else None
        tell("converting")
        settled = _settle(converted, given) if given else _Settled()
        conversion = convert_opset(converted, opset)
    settings |= {"sets": settled.values}
    for note in (*settled.notes, *conversion.notes):
        say(f"rnnlower: note: {note}", quiet)
    verification, written = write(
        converted, output, model, settings if verify else None, external_data, quiet, phases
    )
    result = dataclasses.asdict(conversion) | {
        "opset": opset,
        "verification": None if verification is None else verification.to_dict(),
        "output": str(output) if verification is None or verification else None,
    }
    if report is not None and source is not None:
        sections = [source.section, *conversion_sections(conversion)]
        report_page(report, f"rnnlower convert {model.name}", verification, sections, phases, quiet or json_)
    if not json_ and not quiet:
        tables.print_conversion(conversion, verification, verbose=verbose)
    finish(result, verification, output, (source_size, written), json_, quiet, phases)
