"""The sections of a page: the model, the changes, the verification, timings."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rnnlower.errors import RnnLowerError
from rnnlower.files.model_io import data_files, read_model
from rnnlower.inspection import RecurrentNode, inspect_model
from rnnlower.reporting.drawing import draw_node, draw_step, step_of
from rnnlower.reporting.page import Section, escape, paragraphs, table
from rnnlower.reporting.plots import bars, over_time, percent, shares
from rnnlower.wording import counted, steps_of_call

if TYPE_CHECKING:
    from rnnlower.benchmarking.result import BenchResult, Timing
    from rnnlower.opset import OpsetReport
    from rnnlower.passes.reports import LiftReport, PadReport, Report, StreamReport
    from rnnlower.verification import OutputComparison, VerificationResult

_MOST_DRAWN = 4
_MOST_PLOTTED = 12
_TYPE_NAMES = {"float": "float32", "double": "float64"}


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """A description of a model when it was read: MODEL itself may be overwritten before the page is written.

    Attributes:
        section: Its size, opset, inputs, outputs and recurrent nodes.
        nodes: The recurrent nodes.
    """

    section: Section
    nodes: Sequence[RecurrentNode]


def model_facts(path: pathlib.Path, title: str = "The model") -> ModelFacts:
    """Describe the model in this file.

    Raises:
        InvalidModelError: The file cannot be read.
    """
    model = read_model(path)
    graph, nodes = model.graph, _recurrent_nodes(path)
    size = path.stat().st_size + sum(file.stat().st_size for file in data_files(model))
    facts = [
        ("file", str(path)),
        ("size", f"{size:,} bytes"),
        ("opset", ", ".join(f"{domain or 'ai.onnx'} {n}" for domain, n in model.opset_imports.items())),
        ("producer", f"{model.producer_name or '?'} {model.producer_version or ''}"),
        *(("input", _signature(value)) for value in graph.inputs if not value.is_initializer()),
        *(("output", _signature(value)) for value in graph.outputs),
    ]
    return ModelFacts(Section(title, table((), facts) + _recurrent_table(nodes)), nodes)


def result_section(path: pathlib.Path, written: bool) -> Section:
    """Return the section on the model that a command has written, or on why there is none."""
    title = "The result"
    if written:
        return model_facts(path, title).section
    return Section(title, paragraphs([f"The outputs differ, so {path} was not written."]))


def _signature(value: ir.Value) -> str:
    shape = "of unknown shape" if value.shape is None else f"[{', '.join(map(_dim, value.shape))}]"
    name = "?" if value.dtype is None else value.dtype.name.lower()
    return f"{value.name}: {_TYPE_NAMES.get(name, name)} {shape}"


def _dim(dim: int | ir.SymbolicDim) -> str:
    return str(dim) if isinstance(dim, int) else str(dim.value or "?")


def _recurrent_nodes(path: pathlib.Path) -> Sequence[RecurrentNode]:
    try:
        return inspect_model(read_model(path))
    except RnnLowerError:
        # This model may be one that convert accepts and inspection refuses.
        return ()


def _recurrent_table(nodes: Sequence[RecurrentNode]) -> str:
    if not nodes:
        return paragraphs(["No recurrent node."])
    header = (
        "node",
        "op",
        "place",
        "direction",
        "time steps",
        "batch",
        "input",
        "units",
        "type",
        "attributes",
    )
    rows = [
        (
            node.name,
            node.op_type,
            node.path or "main graph",
            node.direction,
            *("?" if size is None else str(size) for size in _sizes(node)),
            node.dtype or "?",
            " ".join(f"{name}={value}" for name, value in node.attributes.items()),
        )
        for node in nodes
    ]
    return "<h3>Recurrent nodes</h3>\n" + table(header, rows)


def _sizes(node: RecurrentNode) -> tuple[int | str | None, ...]:
    return node.seq_len, node.batch, node.input_size, node.hidden_size


def lowering_sections(source: ModelFacts, lowered: ir.Model, report: Report) -> Iterator[Section]:
    """Yield the sections on the recurrent nodes: a table, a drawing of a step, op counts, prices."""
    header = ("node", "op", "place", "direction", "strategy", "time steps", "emitted ops", "why")
    rows = [
        (
            node.name,
            node.op_type,
            node.path or "main graph",
            node.direction,
            node.strategy,
            "dynamic" if node.steps is None else node.steps,
            node.emitted_ops,
            node.reason,
        )
        for node in report.nodes
    ]
    kept = [(node.name, node.op_type, "kept", node.reason) for node in report.kept]
    before, after = (sum(counts.values()) for counts in (report.ops_before, report.ops_after))
    kept_too = f", {len(report.kept)} kept" if report.kept else ""
    lowered_ = f"{counted(len(rows), 'recurrent node')} lowered{kept_too}"
    lead = f"{lowered_}. {counted(before, 'operator')} became {after:,}, at opset {report.opset}."
    body = paragraphs([lead]) + (table(header, rows) if rows else "")
    body += ("<h3>Kept as they are</h3>\n" + table(("node", "op", "", "why"), kept)) if kept else ""
    body += paragraphs([*map(str, report.warnings), *report.notes])
    yield Section("What changed", body)
    if drawings := "".join(_drawings(source, lowered, report)):
        yield Section("A time step, before and after", drawings)
    if prices := "".join(_prices(report)):
        yield Section("Prices of the candidates", prices)
    yield Section("Operators", _op_counts(report.ops_before, report.ops_after))


def _drawings(source: ModelFacts, lowered: ir.Model, report: Report) -> Iterator[str]:
    """Yield a drawing for each kind of node and strategy, because the layers of a model look alike."""
    before = {(node.path, node.name): node for node in source.nodes}
    drawn: set[tuple[str, ...]] = set()
    for node in report.nodes:
        kind = (node.op_type, node.direction, node.strategy)
        found = before.get((node.path, node.name))
        step = draw_step(step_of(lowered, node.name, node.steps))
        if kind in drawn or found is None or not step or len(drawn) == _MOST_DRAWN:
            continue
        drawn.add(kind)
        where = "A time step of its straight line" if node.strategy == "unroll" else "An iteration"
        yield f"<h3>Before: {escape(node.op_type)} {escape(node.name)}, all time steps</h3>\n"
        yield draw_node(found)
        yield f"<h3>After: {escape(node.strategy)}</h3>\n"
        yield paragraphs([f"{where}. Products are blue; values without a box come from outside the step."])
        yield step


def _prices(report: Report) -> Iterator[str]:
    for node in report.nodes:
        if len(node.prices) > 1:
            rows = [(name, price, f"{price:,.1f} us", False) for name, price in node.prices.items()]
            yield f"<h3>{escape(node.name)}: the cheapest is taken</h3>\n{bars(rows)}"


def _op_counts(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    names = sorted({*before, *after})
    changed = [(name, before.get(name, 0), after.get(name, 0)) for name in names]
    total = ("all", sum(before.values()), sum(after.values()))
    header = ("operator", "before", "after")
    same = [row for row in changed if row[1] == row[2]]
    shown = table(header, [*(row for row in changed if row[1] != row[2]), total])
    if not same:
        return shown
    summary = f"<summary>{len(same)} operators are unchanged</summary>"
    return f"{shown}<details>{summary}{table(header, same)}</details>"


def lifting_sections(source: ModelFacts, lifted: ir.Model, report: LiftReport) -> Iterator[Section]:
    """Yield the section on what was lifted, and on what stays."""
    header = ("node", "place", "form", "becomes", "direction", "units")
    rows = [
        (node.name, node.path or "main graph", node.form, node.op_type, node.direction, node.hidden_size)
        for node in report.nodes
        if node.op_type is not None
    ]
    body = table(header, rows) if rows else paragraphs(["Nothing was lifted."])
    yield Section("What was lifted", body + paragraphs([*report.notes]))


def padding_sections(source: ModelFacts, padded: ir.Model, report: PadReport) -> Iterator[Section]:
    """Yield the section on the lengths, and on what is valid of each output."""
    metadata = report.metadata
    rows = [(name, metadata.inputs[name], symbol) for name, symbol in metadata.symbols.items()]
    rows += [(name, output["axis"], output["size"]) for name, output in metadata.outputs.items()]
    maxima = ", ".join(f"{symbol} is at most {most}" for symbol, most in metadata.max.items())
    body = paragraphs([f"{maxima}; the {metadata.form} is given in {', '.join(metadata.lengths.values())}."])
    body += table(("input or output", "axis", "valid"), rows)
    yield Section("What is padded", body + paragraphs([*report.notes]))


def conversion_sections(source: ModelFacts, converted: ir.Model, report: OpsetReport) -> Iterator[Section]:
    """Yield the section on the nodes that had to change for the opset."""
    header = ("node", "op", "place", "opset", "change")
    rows = [
        (
            each.name or f"(makes {each.output})",
            each.op_type,
            each.path or "main graph",
            f"{each.old} -> {each.new}",
            each.reason,
        )
        for each in report.adapted
    ]
    body = paragraphs([f"Opset {report.source} to {report.target}, ir_version {report.ir_version}."])
    if not rows:
        body += paragraphs(["No node had to change."])
    else:
        groups = [(op, count, step, reason) for (op, step, reason), count in report.grouped().items()]
        body += table(("operator", "nodes", "opset", "change"), groups)
        summary = f"<summary>{counted(len(rows), 'node')} by name</summary>"
        body += f"<details>{summary}{table(header, rows)}</details>"
    yield Section("What changed", body + paragraphs([*report.notes]))


def stream_sections(source: ModelFacts, streamed: ir.Model, report: StreamReport) -> Iterator[Section]:
    """Yield the sections on states and time axes, and on recurrent nodes that were lowered, too."""
    axes = [*report.inputs.items(), *report.outputs.items()]
    steps = steps_of_call(report.chunk)
    late = f"; outputs are {report.delay} steps late" if report.delay else ""
    body = paragraphs([f"{steps}{late}."])
    body += (
        f"<h3>States</h3>\n{table(('output', 'feeds input'), report.states.items())}" if report.states else ""
    )
    body += f"<h3>Time</h3>\n{table(('input or output', 'axis'), axes)}"
    yield Section("States and time", body + paragraphs(report.notes))
    if report.lowering is not None:
        yield from lowering_sections(source, streamed, report.lowering)


def verification_sections(result: VerificationResult | None) -> Iterator[Section]:
    """Yield the sections on the verdict for each output, with plots of errors over outputs and time steps."""
    if result is None:
        yield Section("Verification", paragraphs(["Not verified: --no-verify was given."]))
        return
    engines = ", ".join(
        f"{role}: {engine} {result.versions.get(engine, '')}".rstrip()
        for role, engine in result.engines.items()
    )
    sets = counted(result.trials, "set")
    body = paragraphs([f"Compared on {sets} of inputs. {engines[:1].upper()}{engines[1:]}."])
    body += paragraphs([*result.problems, *_beginning(result), *result.skipped])
    body += _outputs(result.outputs)
    if result.on is not None:
        body += f"<h3>On another runtime</h3>\n{paragraphs([str(result.on)])}"
        body += _outputs(result.on.outputs) if result.on.outputs != result.outputs else ""
    yield Section("Verification", body)
    if plots := "".join(_time_plots(result.outputs)):
        yield Section("Errors over the time steps", plots)


def _beginning(result: VerificationResult) -> list[str]:
    return (
        [f"The first inner value that differs: {result.first_difference}"] if result.first_difference else []
    )


def _outputs(outputs: Sequence[OutputComparison]) -> str:
    if not outputs:
        return ""
    header = ("output", "type", "largest error", "allowed", "used", "verdict")
    rows = []
    for each in outputs:
        allowed = "" if each.allowed is None else f"{each.allowed:.2g}"
        verdict = ("equal" if each.equal else "DIFFERENT") + (f", {each.note}" if each.note else "")
        rows.append((each.name, each.dtype or "?", f"{each.error:.2g}", allowed, _used(each), verdict))
    plot = shares([(each.name, each.used or 0.0, not each.equal) for each in outputs[:_MOST_PLOTTED]])
    caption = "Share of the allowed error that is used, on a logarithmic scale (dashed: the limit)"
    return f"{table(header, rows)}<h3>{caption}</h3>\n{plot}"


def _used(output: OutputComparison) -> str:
    return "" if output.used is None else percent(output.used)


def _time_plots(outputs: Sequence[OutputComparison]) -> Iterator[str]:
    for output in [each for each in outputs if len(each.errors_over_time) > 1][:_MOST_PLOTTED]:
        caption = "largest absolute error at each step (dashed: allowed at the worst element)"
        yield f"<h3>{escape(output.name)}: {caption}</h3>\n"
        yield over_time(output.errors_over_time, output.allowed)


def bench_sections(result: BenchResult) -> Iterator[Section]:
    """Yield the section on latency, session creation and size of each form."""
    timed = [variant for variant in result.timed if variant.latency is not None]
    header = ("form", "latency ms", "p10 - p90", "ratio", "session ms", "file bytes", "ops", "status")
    rows: list[tuple[Any, ...]] = []
    for v in result.variants:
        spread = "" if v.latency is None else f"{v.latency.p10:.3f} - {v.latency.p90:.3f}"
        ratio = "" if v.ratio is None else f"{v.ratio:.2f}"
        status = v.status if not v.reason else f"{v.status}: {v.reason}"
        rows.append(
            (v.name, _median(v.latency), spread, ratio, _median(v.session), v.file_bytes, v.ops, status)
        )
    facts = [*result.inputs.items(), *result.environment.items()]
    facts += [("threads", result.threads or "all"), ("timed runs", result.runs)]
    latencies = [(v.name, v.latency.median, f"{v.latency.median:.3f} ms", False) for v in timed if v.latency]
    sessions = [(v.name, v.session.median, f"{v.session.median:.1f} ms", False) for v in timed if v.session]
    yield Section("Latency of a run", bars(latencies) + table(header, rows) + paragraphs(result.notes))
    yield Section("Session creation", bars(sessions))
    yield Section("Measured on", table((), facts))


def _median(timing: Timing | None) -> str:
    return "" if timing is None else f"{timing.median:.3f}"
