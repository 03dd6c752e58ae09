"""Tables of results for people."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rnnlower.cli.console import Table, write
from rnnlower.reporting import rows
from rnnlower.wording import counted, listed, steps_of_call

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.benchmarking.bench_result import BenchResult
    from rnnlower.engines.catalog import Engine
    from rnnlower.files.metadata import PadMetadata
    from rnnlower.inspection import ModelSummary, RecurrentNode
    from rnnlower.lifting.lifted_nodes import LiftedNode
    from rnnlower.opset import OpsetReport
    from rnnlower.passes.checking import CheckReport
    from rnnlower.passes.reports import LiftReport, PadReport, Report, StreamReport
    from rnnlower.targets import Target
    from rnnlower.targets.misfits import Misfit
    from rnnlower.verification import OutputComparison, VerificationResult

_STATUS = {"not made": "is not made", "does not run": "does not run", "different": "is DIFFERENT, not timed"}


def print_lowering(report: Report, verbose: bool) -> None:
    """Print what became of each node, and the op counts: only those that changed, unless all are wanted."""
    if report.nodes:
        write(_table(rows.lowered_nodes(report.nodes), optional=("place", "direction")))
    else:
        write("no recurrent node to lower")
    if report.target is not None:
        names: dict[tuple[str, str], list[str]] = {}
        for node in report.nodes:
            names.setdefault((node.op_type, f"{node.strategy}, as {node.reason}"), []).append(node.name)
        for kept in report.kept:
            names.setdefault((kept.op_type, f"kept, as {kept.reason}"), []).append(kept.name)
        for (op_type, reason), group in names.items():
            write(f"{op_type} {listed(group)}: {reason}")
    changed = None if verbose else True
    write(_table(rows.op_counts(report.ops_before, report.ops_after, changed=changed)))
    write(f"opset {report.opset}")


def print_conversion(report: OpsetReport, verbose: bool) -> None:
    """Print what had to change, by operator (by node if verbose)."""
    write(f"opset {report.source} -> {report.target}, ir_version {report.ir_version}")
    if report.adapted:
        adapted = rows.adapted_nodes if verbose else rows.adapted_operators
        write(_table(adapted(report), optional=("place",)))
    for name in report.inlined:
        write(f"inlined function {name}")


def print_lifting(report: LiftReport, verbose: bool) -> None:
    """Print what became a recurrent node."""
    lifted = rows.lifted_nodes(report.nodes)
    if lifted[1]:
        write(_table(lifted, optional=("place",)))


def print_padding(report: PadReport, verbose: bool) -> None:
    """Print the valid sizes, and the inputs that hold the lengths."""
    write(_table(rows.padded_values(report.metadata)))
    write(rows.padded_lengths(report.metadata))


def print_stream(report: StreamReport, verbose: bool) -> None:
    """Print the states, the time axes, and what became of the recurrent nodes."""
    if report.states:
        write(_table((("state output", "feeds input"), [*report.states.items()])))
    axes = (*report.inputs.items(), *report.outputs.items())
    places = ": " * bool(axes) + ", ".join(f"{name} on axis {axis}" for name, axis in axes)
    late = f"; outputs are {report.delay} steps late" if report.delay else ""
    write(f"{steps_of_call(report.chunk)}{places}{late}")
    if report.lowering is not None:
        print_lowering(report.lowering, verbose)


def _table(cells: rows.Cells, *, optional: Sequence[str] = ()) -> Table:
    table = Table(cells[0], optional)
    for row in cells[1]:
        table.add_row(*row)
    return table


def print_verification(result: VerificationResult, *, verbose: bool) -> None:
    """Print a line for each output: its largest error and the allowed one; then the verdict.

    Outputs on another runtime follow if they differ.
    """
    _print_outputs(result.outputs, verbose)
    if result.on is not None:
        if not result.on.equal and result.on.ran and result.on.outputs != result.outputs:
            _print_outputs(result.on.outputs, verbose)
        write(str(result.on))
    for problem in result.problems:
        write(f"problem: {problem}")
    if result.first_difference:
        write(f"begins with {result.first_difference}")
    if result.states:
        write(f"fed back: {', '.join(f'{name} to {value}' for name, value in result.states.items())}")
    for reason in result.skipped:
        write(f"note: {reason}")
    sets = f"{counted(result.trials, 'set')} of inputs"
    verdict = Text("Verified", "bold green") if result else Text("DIFFERENT", "bold red")
    write(verdict.append(f": {', '.join([sets, *_engine_labels(result)])}", "default"))


def _print_outputs(outputs: Sequence[OutputComparison], verbose: bool) -> None:
    columns, cells = rows.outputs(outputs)
    more = ("max abs", "max rel", "max ulp", "worst at") if verbose else ()
    table = Table((*columns, "verdict", *more), optional=("dtype",))
    for output, row in zip(outputs, cells, strict=True):
        measures = [f"{value:.3g}" for value in (output.max_abs, output.max_rel, output.max_ulp)]
        table.add_row(*row, _verdict(output), *([*measures, _place(output)] if verbose else ()))
    if outputs:
        write(table)


def _verdict(output: OutputComparison) -> Text:
    words = Text("equal", "green") if output.equal else Text("DIFFERENT", "bold red")
    if not output.equal and output.worst_index is not None:
        words.append(f" at {_place(output)}: {output.reference_value} / {output.candidate_value}", "default")
        words.append("" if output.worst_step is None else f", time step {output.worst_step}", "default")
    return words.append(f" ({output.note})", "default") if output.note else words


def _place(output: OutputComparison) -> str:
    return "" if output.worst_index is None else str(list(output.worst_index))


def _engine_labels(result: VerificationResult) -> list[str]:
    """Return the engines of the two models."""
    versions = {engine: f"{engine} {version}".rstrip() for engine, version in result.versions.items()}
    named = {role: versions.get(engine, engine) for role, engine in result.engines.items()}
    if len(named) == 2 and len({*named.values()}) == 1:
        return [f"{named['reference']} both"]
    return [f"{role} on {engine}" for role, engine in named.items()]


def print_inspection(
    model: ir.Model,
    summary: ModelSummary,
    size: int,
    nodes: Sequence[RecurrentNode],
    liftable: Sequence[LiftedNode],
    origin: Mapping[str, Any] | None = None,
    pad: PadMetadata | None = None,
) -> None:
    """Print origin and padding, the inputs and outputs, the recurrent nodes, and the nodes by operator."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opset_imports.items())
    write(f"ir_version {model.ir_version}, opset {opsets}, {size:,} bytes")
    if origin is not None:
        options = "".join(f", {name} {value}" for name, value in origin.get("options", {}).items())
        write(f"made by rnnlower {origin.get('version')} {origin.get('command')}{options}")
    if pad is not None:
        write(f"padded: {rows.padded_lengths(pad)}")
        write(_table(rows.padded_values(pad)))
    for kind, ports in (("input", summary.inputs), ("output", summary.outputs)):
        shapes = [(rows.shape_text(port) or "?") + " with a default" * port.default for port in ports]
        named = [(port.name, port.dtype or "?", shape) for port, shape in zip(ports, shapes, strict=True)]
        write(_table(((kind, "dtype", "shape"), named)))
    optional = ("outputs", "inputs", "place", "weights")
    recurrent = rows.recurrent_nodes(nodes, ("T", "B", "I", "H"))
    write(_table(recurrent, optional=optional) if nodes else "no recurrent node")
    if liftable:
        write("`rnnlower lift` makes recurrent nodes of:")
        write(_table(rows.lifted_nodes(liftable), optional=("place",)))
    counts = {**summary.ops, "all": sum(summary.ops.values())}
    write(_table((("op", "nodes"), [(op_type, f"{count:,}") for op_type, count in counts.items()])))


def print_targets(targets: Sequence[Target]) -> None:
    """Print the targets, one per line."""
    columns = ("target", "opset", "control flow", "shapes", "native", "tried", "runtime")
    cells = [
        (
            target.name,
            "{}-{}".format(*target.opset.range),
            " ".join(target.control_flow.ops) or "none",
            "static" if target.shapes.static else "any",
            " ".join(dict.fromkeys(op for rule in target.recurrent for op in rule.ops)) or "none",
            "no" if target.tried is None else target.tried.version,
            target.title,
        )
        for target in targets
    ]
    write(_table((columns, cells), optional=("runtime",)))


def print_check(target: Target, report: CheckReport, *, verbose: bool) -> None:
    """Print the recurrent nodes, then other misfits by operator and reason; all of them if verbose."""
    places = {(located.path, located.name) for located in report.recurrent}
    recurrent = [misfit for misfit in report.misfits if (misfit.path, misfit.name) in places]
    others = [misfit for misfit in report.misfits if (misfit.path, misfit.name) not in places]
    _print_recurrent(report, recurrent, verbose=verbose)
    why = ("why not", "what to do", "guess")
    if others and verbose:
        named = [(m.name, m.op_type, rows.place_text(m.path), m.reason, m.remedy, _guess(m)) for m in others]
        write(_table((("node", "op", "place", *why), named), optional=("place",)))
        for op_type, names in dict.fromkeys((each.op_type, each.alternatives) for each in others):
            if names:
                write(f"{op_type}: {', '.join(names)} have it")
    elif others:
        alike = collections.Counter((m.op_type, (m.reason, m.remedy, _guess(m))) for m in others)
        cells = [(op_type, count, *words) for (op_type, words), count in alike.most_common()]
        write(_table((("op", "nodes", *why), cells)))
    guesses = [(name, claim) for name, claim in target.claims() if claim.guess]
    if verbose:
        for name, claim in guesses:
            write(f"a guess about {target.name}: {name}" + (f" ({claim.source})" if claim.source else ""))
    elif guesses:
        write(f"a guess about {target.name}: {', '.join(name for name, _ in guesses)} (-v shows the sources)")
    write(_summary(target, recurrent, others, report))


def _print_recurrent(checked: CheckReport, misfits: Sequence[Misfit], *, verbose: bool) -> None:
    if not checked.recurrent:
        return
    found: dict[tuple[str, str], list[Misfit]] = {}
    for misfit in misfits:
        found.setdefault((misfit.path, misfit.name), []).append(misfit)
    columns = ("node", "op", "place", "fits", "why not", "what to do", "guess")
    table = Table(columns, optional=("place",))
    for located in checked.recurrent:
        row = [located.name, located.node.op_type, rows.place_text(located.path)]
        first, *others = found.get((located.path, located.name), [None])
        if first is None:
            table.add_row(*row, Text("yes", "green"), "", "", "")
            continue
        reason = first.reason + (f" (and {len(others)} more: -v)" if others else "")
        if verbose:
            reason = "; ".join(each.reason for each in (first, *others))
        table.add_row(*row, Text("no", "red"), reason, first.remedy, _guess(first))
    write(table)


def _guess(misfit: Misfit) -> str:
    return "yes" if misfit.guess else ""


def _summary(
    target: Target, recurrent: Sequence[Misfit], others: Sequence[Misfit], checked: CheckReport
) -> str:
    if not recurrent and not others:
        return f"every node fits target {target.name}"
    nodes = len({(misfit.path, misfit.name) for misfit in recurrent})
    rest = len({(misfit.path, misfit.name) for misfit in others if not misfit.op_type.startswith("(")})
    parts = [f"{nodes} of {len(checked.recurrent)} recurrent nodes"] if nodes else []
    parts += [f"{rest} of {checked.nodes - len(checked.recurrent)} other nodes"] if rest else []
    of_model = sum(misfit.op_type.startswith("(") for misfit in others)
    parts += [f"{of_model} of the model's inputs and properties"] if of_model else []
    return f"target {target.name} does not run {', '.join(parts)}"


def print_engines(engines: Sequence[Engine]) -> None:
    """Print the engines, installed or not, one per line."""
    columns = ("engine", "runtime", "installed", "tried with", "computes in", "what is missing")
    cells = [
        (
            *(engine.name, engine.title, engine.version or "no", engine.tried or "not tried"),
            *(engine.precision, engine.missing and f"{engine.missing}: {engine.install}"),
        )
        for engine in engines
    ]
    write(_table((columns, cells), optional=("runtime", "computes in")))


def print_bench(result: BenchResult) -> None:
    """Print a line for each variant, and the conditions of the measurement."""
    columns, cells = rows.timed_forms(result.variants)
    more = [
        (
            None if variant.ops_run is None else f"{variant.ops_run:,}",
            None if variant.ops_per_step is None else f"{variant.ops_per_step:.2f}",
        )
        for variant in result.variants
    ]
    every = [(*row, *ops) for row, ops in zip(cells, more, strict=True)]
    write(_table(((*columns, "ops run", "a step"), every)))
    if result.step_ms:
        costs = ", ".join(f"{name} {cost:.4g} ms" for name, cost in result.step_ms.items())
        write(f"a time step of the stream's inputs: {costs}")
    for variant in result.variants:
        if variant.taken:
            write(f"{variant.name} takes {', '.join(variant.taken)}")
        if variant.status != "timed":
            write(f"{variant.name} {_STATUS[variant.status]}: {variant.reason}")
    inputs = ", ".join(f"{name} {shape}" for name, shape in result.inputs.items())
    steps = f", {result.length}" if result.length else ""
    where = f"onnxruntime {result.environment['onnxruntime']}"
    if result.runtime is not None:
        where = result.runtime.label
    write(f"{where}, {result.threads_in_words}, {result.runs} runs of each form; inputs {inputs}{steps}")
