"""Results as tables for a reader."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.benchmarking import BenchResult, Timing
    from rnnlower.inspection import RecurrentNode
    from rnnlower.opset import OpsetReport
    from rnnlower.passes.pipeline import LoweringReport
    from rnnlower.targets import Target
    from rnnlower.targets.fit import Misfit
    from rnnlower.verification import VerificationResult

__all__ = [
    "print_bench",
    "print_check",
    "print_conversion",
    "print_inspection",
    "print_lowering",
    "print_targets",
    "print_verification",
]

_PIPE_WIDTH = 160
_STATUS = {"not made": "is not made", "does not run": "does not run", "different": "is DIFFERENT, not timed"}


def print_lowering(report: LoweringReport, verification: VerificationResult | None, *, verbose: bool) -> None:
    """What became of each node, the op counts, and how the result compares."""
    nodes = _table("node", "op", "place", "direction", "strategy", "steps", "emitted ops")
    for node in report.nodes:
        steps = "dynamic" if node.steps is None else str(node.steps)
        place = node.path or "main graph"
        nodes.add_row(
            node.name, node.op_type, place, node.direction, node.strategy, steps, str(node.emitted_ops)
        )
    if not report.nodes:
        _print("no recurrent node to lower")
    else:
        _print(nodes)
    if report.target is not None:
        for node in report.nodes:
            _print(f"{node.op_type} {node.name}: {node.strategy}, as {node.reason}")
        for kept in report.kept:
            _print(f"{kept.op_type} {kept.name}: kept, as {kept.reason}")
    _print(_op_counts(report.ops_before, report.ops_after, everything=verbose))
    _print(f"opset {report.opset}")
    if verification is not None:
        print_verification(verification)


def _op_counts(before: Mapping[str, int], after: Mapping[str, int], *, everything: bool) -> Table:
    """Op counts; only those that changed, unless everything is asked for."""
    table = _table("op", "before", "after")
    for op in sorted({*before, *after}):
        if everything or before.get(op, 0) != after.get(op, 0):
            table.add_row(op, str(before.get(op, 0)), str(after.get(op, 0)))
    table.add_row("all", str(sum(before.values())), str(sum(after.values())))
    return table


def print_conversion(report: OpsetReport, verification: VerificationResult | None) -> None:
    """Which nodes had to change, and how the result compares."""
    _print(f"opset {report.source} -> {report.target}, ir_version {report.ir_version}")
    if report.adapted:
        table = _table("node", "op", "place", "step", "change")
        for change in report.adapted:
            place = change.path or "main graph"
            name = change.name or f"(makes {change.output})"
            table.add_row(name, change.op_type, place, f"{change.old} -> {change.new}", change.reason)
        _print(table)
    for name in report.inlined:
        _print(f"inlined function {name}")
    if verification is not None:
        print_verification(verification)


def print_verification(result: VerificationResult) -> None:
    """A line for each output with its errors."""
    table = _table("output", "max abs", "max rel", "max ulp", "verdict")
    for output in result.outputs:
        verdict = "equal" if output.equal else "DIFFERENT"
        if not output.equal and output.worst_index is not None:
            verdict += f" at {list(output.worst_index)}: {output.reference_value} / {output.candidate_value}"
            verdict += "" if output.worst_step is None else f", time step {output.worst_step}"
        if output.note:
            verdict += f" ({output.note})"
        table.add_row(
            output.name, f"{output.max_abs:.3g}", f"{output.max_rel:.3g}", f"{output.max_ulp:.3g}", verdict
        )
    _print(table)
    engines = ", ".join(f"{role} on {engine}" for role, engine in result.engines.items())
    verdict = "equal" if result.equal else "DIFFERENT"
    _print(f"{verdict} after {result.trials} trials ({engines})")
    for problem in result.problems:
        _print(f"problem: {problem}")
    if result.first_difference:
        _print(f"begins with {result.first_difference}")
    if result.states:
        _print(f"fed back: {', '.join(f'{name} to {value}' for name, value in result.states.items())}")
    for reason in result.skipped:
        _print(f"skipped: {reason}")


def print_inspection(model: ir.Model, nodes: Sequence[RecurrentNode]) -> None:
    """The recurrent nodes, one a line."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opset_imports.items())
    _print(f"ir_version {model.ir_version}, opset {opsets}")
    if not nodes:
        _print("no recurrent node")
        return
    table = _table(
        "node",
        "op",
        "place",
        "direction",
        "T",
        "B",
        "I",
        "H",
        "dtype",
        "inputs",
        "outputs",
        "attributes",
        "weights",
    )
    for node in nodes:
        sizes = [_size(size) for size in (node.seq_len, node.batch, node.input_size, node.hidden_size)]
        attributes = " ".join(f"{name}={value}" for name, value in node.attributes.items())
        table.add_row(
            node.name,
            node.op_type,
            node.path or "main graph",
            node.direction,
            *sizes,
            node.dtype or "?",
            " ".join(node.inputs),
            " ".join(node.outputs),
            attributes,
            node.weights,
        )
    _print(table)


def print_targets(targets: Sequence[Target]) -> None:
    """The targets, one a line."""
    table = _table("target", "opset", "control flow", "shapes", "native", "tried", "runtime")
    for target in targets:
        native = dict.fromkeys(op for rule in target.recurrent for op in rule.ops)
        table.add_row(
            target.name,
            "{}-{}".format(*target.opset.range),
            " ".join(target.control_flow.ops) or "none",
            "static" if target.shapes.static else "any",
            " ".join(native) or "none",
            "no" if target.tried is None else target.tried.version,
            target.title,
        )
    _print(table)


def print_check(target: Target, misfits: Sequence[Misfit]) -> None:
    """What does not fit, one a line, and what is a guess."""
    table = _table("node", "op", "place", "why not", "what to do", "guess")
    for misfit in misfits:
        place = misfit.path or "main graph"
        table.add_row(
            misfit.name, misfit.op_type, place, misfit.reason, misfit.remedy, "yes" if misfit.guess else ""
        )
    _print(table if misfits else f"every node fits target {target.name}")
    for name, claim in target.claims():
        if claim.guess:
            _print(f"a guess about {target.name}: {name} ({claim.source})")


def print_bench(result: BenchResult) -> None:
    """A line for each variant; below it what they ran on."""
    table = _table(
        "form", "latency ms", "p10 - p90", "ratio", "session ms", "file bytes", "ops", "ops run", "a step"
    )
    for variant in result.variants:
        table.add_row(
            variant.name,
            *_times(variant.latency),
            "" if variant.ratio is None else f"{variant.ratio:.2f}",
            _times(variant.session)[0],
            "" if variant.file_bytes is None else f"{variant.file_bytes:,}",
            "" if variant.ops is None else f"{variant.ops:,}",
            "" if variant.ops_run is None else f"{variant.ops_run:,}",
            "" if variant.ops_per_step is None else f"{variant.ops_per_step:.2f}",
        )
    _print(table)
    for variant in result.variants:
        if variant.status != "timed":
            _print(f"{variant.name} {_STATUS[variant.status]}: {variant.reason}")
    inputs = ", ".join(f"{name} {shape}" for name, shape in result.inputs.items())
    threads = f"{result.threads or 'all'} thread{'' if result.threads == 1 else 's'}"
    steps = "" if result.steps is None else f", {result.steps} time steps"
    where = f"onnxruntime {result.environment['onnxruntime']}"
    _print(f"{where}, {threads}, {result.runs} runs of each form; inputs {inputs}{steps}")


def _times(timing: Timing | None) -> tuple[str, str]:
    if timing is None:
        return "", ""
    return f"{timing.median:.4g}", f"{timing.p10:.4g} - {timing.p90:.4g}"


def _size(size: int | str | None) -> str:
    return "?" if size is None else str(size)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command end in its own way: rich's exit code is that of models which differ."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _print(what: Table | str) -> None:
    console = _Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=isinstance(what, str))
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(what)
