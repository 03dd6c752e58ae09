"""`rnnlower unroll`, `scan`, `loop` and `lower`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rnnlower.cli.options import (
    AssumeLinear,
    Atol,
    ComputeType,
    ControlFlow,
    Dequantize,
    Dims,
    ExternalData,
    Fold,
    Gates,
    Inputs,
    InputShapes,
    Json,
    Model,
    Native,
    Nodes,
    On,
    Opset,
    Output,
    Quiet,
    Report,
    Rtol,
    Seed,
    Semantics,
    Sets,
    States,
    Strict,
    TargetName,
    Trials,
    UnrollFactor,
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
    warn,
    write,
)
from rnnlower.cli.values import (
    check_external_data,
    parse_dims,
    parse_sets,
    parse_shapes,
    verification_settings,
)

if TYPE_CHECKING:
    from rnnlower.verification import VerificationResult

__all__ = ["LOWERINGS"]


def _lower(
    model: Model,
    output: Output,
    strategy: str,
    target: TargetName,
    strict: Strict = False,
    opset: Opset = None,
    dim: Dims = None,
    input_shape: InputShapes = None,
    set_: Sets = None,
    fold: Fold = None,
    control_flow: ControlFlow = None,
    node: Nodes = None,
    unroll_factor: UnrollFactor = 1,
    semantics: Semantics = "ort",
    dequantize: Dequantize = False,
    assume_linear_before_reset: AssumeLinear = False,
    compute_type: ComputeType = None,
    gates: Gates = "auto",
    native: Native = "auto",
    verify: Verify = True,
    trials: Trials = None,
    seed: Seed = None,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    state: States = None,
    on: On = None,
    external_data: ExternalData = "auto",
    report: Report = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from rnnlower.cli import tables
    from rnnlower.cli.progress import Phases, progress
    from rnnlower.files.model_io import read_model
    from rnnlower.passes.pipeline import LoweringOptions, lower_model
    from rnnlower.reporting import check_report, lowering_sections, model_facts
    from rnnlower.targets import find_target

    options = LoweringOptions(
        strategy,
        opset=opset,
        dims=parse_dims(dim),
        input_shapes=parse_shapes(input_shape),
        nodes=node,
        unroll_factor=unroll_factor,
        semantics=semantics,  # type: ignore[arg-type]  # LoweringOptions checks it
        target=find_target(target) if target else None,
        strict=strict,
        sets=parse_sets(set_),
        fold=fold,
        control_flow=control_flow,
        dequantize=dequantize,
        assume_linear_before_reset=assume_linear_before_reset,
        compute_type=compute_type,
        gates=gates,  # type: ignore[arg-type]  # LoweringOptions checks it
        native=native,  # type: ignore[arg-type]  # LoweringOptions checks it
    )
    check_external_data(external_data)
    check_report(report, model, output)
    settings = verification_settings(verify, trials, seed, atol, rtol, inputs, state, on)
    absent = None
    if runtime := settings.pop("on", None):
        installed_runtime(runtime)
    elif verify and on is None and options.target is not None:
        runtime, absent = own_runtime(options.target.engine)
    phases = Phases(verbose)
    with progress("reading", quiet, phases) as tell:
        lowered = read_model(model)
        source_size = size_on_disk(model, lowered)
        source = model_facts(model) if report is not None else None
        lowering = lower_model(lowered, options, tell)
    for note in lowering.notes:
        say(f"rnnlower: note: {note}", quiet)
    warn(lowering.warnings)
    settings |= {"semantics": semantics, "sets": lowering.sets, "also_on": runtime}
    settings |= {"dequantize": dequantize, "assume_linear_before_reset": assume_linear_before_reset}
    how = settings if verify else None
    verification, written = write(lowered, output, model, how, external_data, quiet, phases)
    if verification is not None and verification.on is None:
        verification = dataclasses.replace(verification, on=absent)
    verified = {} if verification is None else verification.to_dict()
    result = lowering.to_dict() | {
        "verification": verified or None,
        **({"on": verified["on"]} if "on" in verified else {}),
        "output": str(output) if verification is None or verification else None,
    }
    if report is not None and source is not None:
        sections = [source.section, *lowering_sections(source, lowered, lowering)]
        name = "lower" if strategy == "target" else strategy
        report_page(report, f"rnnlower {name} {model.name}", verification, sections, phases, quiet or json_)
    if not json_ and not quiet:
        tables.print_lowering(lowering, verification, verbose=verbose)
    if compute_type is None and verification is not None and _is_narrow(verification):
        say(
            "rnnlower: note: each operator rounds to 16 bits, where onnxruntime's recurrent operators round "
            "at the end; --compute-type float32 does as they do",
            quiet,
        )
    finish(result, verification, output, (source_size, written), json_, quiet, phases)


def _is_narrow(verification: VerificationResult) -> bool:
    """Whether what differs is floats of 16 bits."""
    return any(output.dtype in ("float16", "bfloat16") for output in verification.outputs if not output.equal)


_ABSENT: dict[str, set[str]] = {
    "unroll": {"unroll_factor", "target", "strict", "native"},
    "scan": {"target", "strict", "control_flow", "native"},
    "loop": {"target", "strict", "control_flow", "native"},
    "target": set(),
}


def _lowering_command(strategy: str) -> Callable[..., None]:
    """The command of one strategy: `_lower` without the parameters that are not its own."""
    absent = {"strategy"} | _ABSENT[strategy]
    signature = inspect.signature(_lower, eval_str=True)

    def command(**options: Any) -> None:
        _lower(strategy=strategy, **{"target": ""} | options)

    own = [parameter for name, parameter in signature.parameters.items() if name not in absent]
    command.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
    return command


LOWERINGS = {strategy: exit_codes(_lowering_command(strategy)) for strategy in _ABSENT}
