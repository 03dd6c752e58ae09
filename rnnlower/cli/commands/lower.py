"""The commands `rnnlower unroll`, `scan`, `loop` and `lower`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rnnlower.cli.groups import Comparing, Fixing, Showing, flattened
from rnnlower.cli.options import (
    AssumeLinear,
    ComputeType,
    ControlFlow,
    Dequantize,
    ExternalData,
    Fold,
    Gates,
    Model,
    Native,
    Nodes,
    Opset,
    Output,
    Semantics,
    Strict,
    Strip,
    TargetName,
    UnrollFactor,
)
from rnnlower.cli.running import exit_codes, tell_of_rounding


def _lower(
    *,
    model: Model,
    output: Output,
    strategy: str,
    target: TargetName,
    fixing: Fixing,
    strict: Strict = False,
    opset: Opset = None,
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
    comparing: Comparing,
    external_data: ExternalData = "auto",
    strip: Strip = False,
    showing: Showing,
) -> None:
    from rnnlower.cli import tables
    from rnnlower.cli.rewriting import Rewriting
    from rnnlower.passes.lowering_options import LoweringOptions
    from rnnlower.passes.pipeline import lower_model
    from rnnlower.reporting import lowering_sections
    from rnnlower.targets import find_target

    runtime = find_target(target) if target else None
    options = LoweringOptions(
        strategy,
        opset=opset,
        nodes=node,
        unroll_factor=unroll_factor,
        semantics=semantics,  # type: ignore[arg-type]  # LoweringOptions checks it
        target=runtime,
        strict=strict,
        fold=fold,
        control_flow=control_flow,
        dequantize=dequantize,
        assume_linear_before_reset=assume_linear_before_reset,
        compute_type=compute_type,
        gates=gates,  # type: ignore[arg-type]  # LoweringOptions checks it
        native=native,  # type: ignore[arg-type]  # LoweringOptions checks it
        strip=strip,
        **fixing.values(),
    )
    name, engine = ("lower", runtime.engine) if runtime is not None else (strategy, "")
    run = Rewriting(name, model, output, comparing, showing, external_data, engine)
    with run.read() as (lowered, tell):
        lowering = lower_model(lowered, options, tell)
    settings = {
        "semantics": semantics,
        "sets": lowering.sets,
        "dequantize": lowering.dequantized if node else dequantize,
        "assume_linear_before_reset": assume_linear_before_reset,
    }
    verification = run.write(lowered, settings, lowering.notes, lowering.warnings)
    run.report(verification, lambda source: lowering_sections(source, lowered, lowering))
    if run.shows_words:
        tables.print_lowering(lowering, verification, verbose=showing.verbose)
    tell_of_rounding(lowering, verification, showing.quiet)
    run.finish(lowering.to_dict(), verification)


_ABSENT: dict[str, set[str]] = {
    "unroll": {"unroll_factor", "target", "strict", "native"},
    "scan": {"target", "strict", "control_flow", "native"},
    "loop": {"target", "strict", "control_flow", "native"},
    "target": set(),
}


def _lowering_command(strategy: str) -> Callable[..., None]:
    """Return the command of one strategy: `_lower` without the parameters of other strategies."""
    absent = {"strategy"} | _ABSENT[strategy]
    fixed: dict[str, Any] = {"strategy": strategy} | ({"target": ""} if "target" in absent else {})
    return flattened(*absent)(functools.partial(_lower, **fixed))


LOWERINGS = {strategy: exit_codes(_lowering_command(strategy)) for strategy in _ABSENT}
