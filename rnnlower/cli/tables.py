"""Tables of results for people."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rnnlower.cli.console import Table, new_table, write
from rnnlower.wording import counted, steps_of_call

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.benchmarking.result import BenchResult, Timing
    from rnnlower.engines.known import Engine
    from rnnlower.inspection import ModelSummary, Port, RecurrentNode
    from rnnlower.lifting.replacing import LiftedNode
    from rnnlower.opset import OpsetReport
    from rnnlower.passes.checking import CheckReport
    from rnnlower.passes.reports import LiftReport, PadReport, Report, StreamReport
    from rnnlower.targets import Target
    from rnnlower.targets.misfits import Misfit
    from rnnlower.verification import OutputComparison, VerificationResult

_STATUS = {"not made": "is not made", "does not run": "does not run", "different": "is DIFFERENT, not timed"}


def print_lowering(report: Report, verification: VerificationResult | None, *, verbose: bool) -> None:
    """Print what became of each node, the op counts, and the verification."""
    columns = ("node", "op", "place", "direction", "strategy", "steps", "emitted ops")
    nodes = new_table(*columns, optional=("place", "direction"))
    for node in report.nodes:
        steps = "dynamic" if node.steps is None else str(node.steps)
        place = node.path or "main graph"
        nodes.add_row(
            node.name, node.op_type, place, node.direction, node.strategy, steps, str(node.emitted_ops)
        )
    if not report.nodes:
        write("no recurrent node to lower")
    else:
        write(nodes)
    if report.target is not None:
        for node in report.nodes:
            write(f"{node.op_type} {node.name}: {node.strategy}, as {node.reason}")
        for kept in report.kept:
            write(f"{kept.op_type} {kept.name}: kept, as {kept.reason}")
    write(_op_counts(report.ops_before, report.ops_after, everything=verbose))
    write(f"opset {report.opset}")
    if verification is not None:
        print_verification(verification, verbose=verbose)


def _op_counts(before: Mapping[str, int], after: Mapping[str, int], *, everything: bool) -> Table:
    """Return a table of op counts; only those that changed, unless all are wanted."""
    table = new_table("op", "before", "after")
    for op in sorted({*before, *after}):
        if everything or before.get(op, 0) != after.get(op, 0):
            table.add_row(op, str(before.get(op, 0)), str(after.get(op, 0)))
    table.add_row("all", str(sum(before.values())), str(sum(after.values())))
    return table


def print_conversion(
    report: OpsetReport, verification: VerificationResult | None, *, verbose: bool = False
) -> None:
    """Print what had to change, by operator (by node if verbose), and the verification."""
    write(f"opset {report.source} -> {report.target}, ir_version {report.ir_version}")
    if report.adapted and verbose:
        table = new_table("node", "op", "place", "step", "change", optional=("place",))
        for change in report.adapted:
            place = change.path or "main graph"
            name = change.name or f"(makes {change.output})"
            table.add_row(name, change.op_type, place, f"{change.old} -> {change.new}", change.reason)
        write(table)
    elif report.adapted:
        table = new_table("op", "nodes", "step", "change")
        for (op_type, step, reason), count in report.grouped().items():
            table.add_row(op_type, str(count), step, reason)
        write(table)
    for name in report.inlined:
        write(f"inlined function {name}")
    if verification is not None:
        print_verification(verification, verbose=verbose)


def print_lifting(
    report: LiftReport, verification: VerificationResult | None, *, verbose: bool = False
) -> None:
    """Print what was lifted, and the verification."""
    if lifted := [node for node in report.nodes if node.op_type is not None]:
        write(_lifted_nodes(lifted))
    if verification is not None:
        print_verification(verification, verbose=verbose)


def _lifted_nodes(nodes: Sequence[LiftedNode]) -> Table:
    table = new_table("node", "place", "form", "becomes", "direction", "units", optional=("place",))
    for node in nodes:
        row = (str(node.op_type), str(node.direction), str(node.hidden_size))
        table.add_row(node.name, node.path or "main graph", node.form, *row)
    return table


def print_padding(
    report: PadReport, verification: VerificationResult | None, *, verbose: bool = False
) -> None:
    """Print the inputs and outputs over time with their valid sizes, and the verification."""
    table = new_table("input or output", "axis", "valid", "of")
    metadata = report.metadata
    for name, axis in metadata.inputs.items():
        symbol = metadata.symbols[name]
        table.add_row(name, str(axis), symbol, f"{symbol} = {metadata.max[symbol]}")
    for name, output in metadata.outputs.items():
        table.add_row(name, str(output["axis"]), str(output["size"]), "")
    write(table)
    given = ", ".join(f"{name} ({symbol})" for symbol, name in metadata.lengths.items())
    write(f"the {metadata.form} is given in {given}")
    if verification is not None:
        print_verification(verification, verbose=verbose)


def print_stream(
    report: StreamReport, verification: VerificationResult | None, *, verbose: bool = False
) -> None:
    """Print the states, the time axes, what became of the recurrent nodes, and the verification."""
    table = new_table("state output", "feeds input")
    for output, name in report.states.items():
        table.add_row(output, name)
    if report.states:
        write(table)
    places = ", ".join(
        f"{name} on axis {axis}" for name, axis in (*report.inputs.items(), *report.outputs.items())
    )
    late = f"; outputs are {report.delay} steps late" if report.delay else ""
    write(f"{steps_of_call(report.chunk)}: {places}{late}")
    if report.lowering is not None:
        print_lowering(report.lowering, None, verbose=verbose)
    if verification is not None:
        print_verification(verification, verbose=verbose)


def print_verification(result: VerificationResult, *, verbose: bool = False) -> None:
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
    write(verdict.append(f": {', '.join([sets, *_engines(result)])}", "default"))


def _print_outputs(outputs: Sequence[OutputComparison], verbose: bool) -> None:
    more = ("max abs", "max rel", "max ulp", "worst at") if verbose else ()
    columns = ("output", "dtype", "largest error", "allowed", "used", "verdict", *more)
    table = new_table(*columns, optional=("dtype",))
    for output in outputs:
        row: list[str | Text] = [output.name, output.dtype or "?", *_errors(output), _verdict(output)]
        if verbose:
            row += [f"{value:.3g}" for value in (output.max_abs, output.max_rel, output.max_ulp)]
            row.append(_place(output))
        table.add_row(*row)
    if outputs:
        write(table)


def _errors(output: OutputComparison) -> tuple[str, str, str]:
    """Return the largest error, the allowed error, and their ratio."""
    if output.used is None:
        # Nothing differs, or rounding decides between two correct results.
        return f"{output.error:.2g}", "" if output.allowed is None else f"{output.allowed:.2g}", ""
    if output.allowed is None:
        return f"{output.error:.2g}", "0", ""
    return f"{output.error:.2g}", f"{output.allowed:.2g}", _share(output.used)


def _share(used: float) -> str:
    if not math.isfinite(used):
        return ""
    return f"{used:.1%}" if used < 10 else f"{used:.1f}x" if used < 1e4 else f"{used:.1e}x"


def _verdict(output: OutputComparison) -> Text:
    words = Text("equal", "green") if output.equal else Text("DIFFERENT", "bold red")
    if not output.equal and output.worst_index is not None:
        words.append(f" at {_place(output)}: {output.reference_value} / {output.candidate_value}", "default")
        words.append("" if output.worst_step is None else f", time step {output.worst_step}", "default")
    return words.append(f" ({output.note})", "default") if output.note else words


def _place(output: OutputComparison) -> str:
    return "" if output.worst_index is None else str(list(output.worst_index))


def _engines(result: VerificationResult) -> list[str]:
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
) -> None:
    """Print the inputs and outputs, the origin, the recurrent nodes, and the number of nodes by operator."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opset_imports.items())
    write(f"ir_version {model.ir_version}, opset {opsets}, {size:,} bytes")
    if origin is not None:
        options = "".join(f", {name} {value}" for name, value in origin.get("options", {}).items())
        write(f"made by rnnlower {origin.get('version')} {origin.get('command')}{options}")
    for kind, ports in (("input", summary.inputs), ("output", summary.outputs)):
        write(_ports(kind, ports))
    if nodes:
        write(_recurrent_nodes(nodes))
    else:
        write("no recurrent node")
    if liftable:
        write("`rnnlower lift` makes recurrent nodes of:")
        write(_lifted_nodes(liftable))
    ops = new_table("op", "nodes")
    for op_type, count in summary.ops.items():
        ops.add_row(op_type, f"{count:,}")
    ops.add_row("all", f"{sum(summary.ops.values()):,}")
    write(ops)


def _ports(kind: str, ports: Sequence[Port]) -> Table:
    table = new_table(kind, "dtype", "shape")
    for port in ports:
        shape = "?" if port.shape is None else f"[{', '.join(map(_size, port.shape))}]"
        table.add_row(port.name, port.dtype or "?", shape + " with a default" * port.default)
    return table


def _recurrent_nodes(nodes: Sequence[RecurrentNode]) -> Table:
    foreign = any(node.domain for node in nodes)
    table = new_table(
        "node",
        "op",
        *["domain"] * foreign,
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
        optional=("outputs", "inputs", "place", "weights"),
    )
    for node in nodes:
        sizes = [_size(size) for size in (node.seq_len, node.batch, node.input_size, node.hidden_size)]
        attributes = " ".join(f"{name}={value}" for name, value in node.attributes.items())
        table.add_row(
            node.name,
            node.op_type,
            *[node.domain or "ai.onnx"] * foreign,
            node.path or "main graph",
            node.direction,
            *sizes,
            node.dtype or "?",
            " ".join(node.inputs),
            " ".join(node.outputs),
            attributes,
            node.weights,
        )
    return table


def print_targets(targets: Sequence[Target]) -> None:
    """Print the targets, one per line."""
    columns = ("target", "opset", "control flow", "shapes", "native", "tried", "runtime")
    table = new_table(*columns, optional=("runtime",))
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
    write(table)


def print_check(target: Target, report: CheckReport, *, verbose: bool) -> None:
    """Print the recurrent nodes, then other misfits by operator and reason; all of them if verbose."""
    misfits, checked = report.misfits, report
    places = {(located.path, located.name) for located in checked.recurrent}
    recurrent = [misfit for misfit in misfits if (misfit.path, misfit.name) in places]
    others = [misfit for misfit in misfits if (misfit.path, misfit.name) not in places]
    _print_recurrent(checked, recurrent, verbose=verbose)
    if others and verbose:
        write(_misfits(others))
        for op_type, names in dict.fromkeys((each.op_type, each.alternatives) for each in others):
            if names:
                write(f"{op_type}: {', '.join(names)} have it")
    elif others:
        table = new_table("op", "nodes", "why not", "what to do", "guess")
        alike = collections.Counter((m.op_type, m.reason, m.remedy, m.guess) for m in others)
        for (op_type, reason, remedy, guess), count in alike.most_common():
            table.add_row(op_type, str(count), reason, remedy, "yes" if guess else "")
        write(table)
    guesses = [(name, claim) for name, claim in target.claims() if claim.guess]
    if verbose:
        for name, claim in guesses:
            write(f"a guess about {target.name}: {name}" + (f" ({claim.source})" if claim.source else ""))
    elif guesses:
        write(f"a guess about {target.name}: {', '.join(name for name, _ in guesses)} (-v shows the sources)")
    write(_summary(target, recurrent, others, checked))


def _print_recurrent(checked: CheckReport, misfits: Sequence[Misfit], *, verbose: bool) -> None:
    if not checked.recurrent:
        return
    found: dict[tuple[str, str], list[Misfit]] = {}
    for misfit in misfits:
        found.setdefault((misfit.path, misfit.name), []).append(misfit)
    columns = ("node", "op", "place", "fits", "why not", "what to do", "guess")
    table = new_table(*columns, optional=("place",))
    for located in checked.recurrent:
        row = [located.name, located.node.op_type, located.path or "main graph"]
        first, *others = found.get((located.path, located.name), [None])
        if first is None:
            table.add_row(*row, Text("yes", "green"), "", "", "")
            continue
        reason = first.reason + (f" (and {len(others)} more: -v)" if others else "")
        if verbose:
            reason = "; ".join(each.reason for each in (first, *others))
        table.add_row(*row, Text("no", "red"), reason, first.remedy, "yes" if first.guess else "")
    write(table)


def _misfits(misfits: Sequence[Misfit]) -> Table:
    table = new_table("node", "op", "place", "why not", "what to do", "guess", optional=("place",))
    for misfit in misfits:
        guess = "yes" if misfit.guess else ""
        place = misfit.path or "main graph"
        table.add_row(misfit.name, misfit.op_type, place, misfit.reason, misfit.remedy, guess)
    return table


def _summary(
    target: Target, recurrent: Sequence[Misfit], others: Sequence[Misfit], checked: CheckReport
) -> str:
    if not recurrent and not others:
        return f"every node fits target {target.name}"
    nodes = len({(misfit.path, misfit.name) for misfit in recurrent})
    rest = len({(misfit.path, misfit.name) for misfit in others if not misfit.op_type.startswith("(")})
    parts = [f"{nodes} of {len(checked.recurrent)} recurrent nodes"] if checked.recurrent else []
    parts += [f"{rest} of {checked.nodes - len(checked.recurrent)} other nodes"] if rest else []
    of_model = sum(misfit.op_type.startswith("(") for misfit in others)
    parts += [f"{of_model} of the model's inputs and properties"] if of_model else []
    return f"target {target.name} does not run {', '.join(parts)}"


def print_engines(engines: Sequence[Engine]) -> None:
    """Print the engines, installed or not, one per line."""
    columns = ("engine", "runtime", "installed", "tried with", "computes in", "what is missing")
    table = new_table(*columns, optional=("runtime", "computes in"))
    for engine in engines:
        missing = f"{engine.missing}: {engine.install}" if engine.missing else ""
        tried = engine.tried or "not tried"
        table.add_row(engine.name, engine.title, engine.version or "no", tried, engine.precision, missing)
    write(table)


def print_bench(result: BenchResult) -> None:
    """Print a line for each variant, and the conditions of the measurement."""
    table = new_table(
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
    write(table)
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
    threads = f"{result.threads or 'all'} thread{'' if result.threads == 1 else 's'}"
    where = f"onnxruntime {result.environment['onnxruntime']}"
    if result.runtime is not None:
        where = result.runtime.label
    write(f"{where}, {threads}, {result.runs} runs of each form; inputs {inputs}{steps}")


def _times(timing: Timing | None) -> tuple[str, str]:
    if timing is None:
        return "", ""
    return f"{timing.median:.4g}", f"{timing.p10:.4g} - {timing.p90:.4g}"


def _size(size: int | str | None) -> str:
    return "?" if size is None else str(size)
