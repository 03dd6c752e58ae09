"""The sections of a page: the model, the changes, the verification, timings."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnnlower.errors import RnnLowerError
from rnnlower.files.model_io import read_model, size_on_disk
from rnnlower.inspection import Port, RecurrentNode, inspect_model, summarize
from rnnlower.reporting import rows
from rnnlower.reporting.drawing import draw_node, draw_step, find_step
from rnnlower.reporting.page import Section, draw_bars, draw_errors, draw_shares, escape, paragraphs, table
from rnnlower.wording import counted, steps_of_call

if TYPE_CHECKING:
    from rnnlower.benchmarking.bench_result import BenchResult
    from rnnlower.opset import OpsetReport
    from rnnlower.passes.reports import LiftReport, PadReport, Report, StreamReport
    from rnnlower.verification import OutputComparison, VerificationResult

_MAX_DRAWN = 4
_MAX_PLOTTED = 12


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """A description of a model when it was read: MODEL itself may be overwritten before the page is written.

    Attributes:
        section: Its size, opset, inputs, outputs and recurrent nodes.
    """

    section: Section
    nodes: Sequence[RecurrentNode]


def model_facts(path: pathlib.Path, title: str = "The model") -> ModelFacts:
    """Describe the model in this file.

    Raises:
        InvalidModelError: The file cannot be read.
    """
    model = read_model(path)
    summary = summarize(model)
    facts = [
        ("file", str(path)),
        ("size", f"{size_on_disk(path, model):,} bytes"),
        ("opset", ", ".join(f"{domain or 'ai.onnx'} {n}" for domain, n in model.opset_imports.items())),
        ("producer", f"{model.producer_name or '?'} {model.producer_version or ''}"),
        *(("input", _signature(port)) for port in summary.inputs if not port.default),
        *(("output", _signature(port)) for port in summary.outputs),
    ]
    recurrent = paragraphs(["No recurrent node."])
    nodes: Sequence[RecurrentNode] = ()
    # This model may be one that convert accepts and inspection refuses.
    with contextlib.suppress(RnnLowerError):
        nodes = inspect_model(model)
    if nodes:
        cells = rows.recurrent_nodes(nodes, ("time steps", "batch", "input", "units"))
        recurrent = f"<h3>Recurrent nodes</h3>\n{table(*cells)}"
    return ModelFacts(Section(title, table((), facts) + recurrent), nodes)


def result_section(path: pathlib.Path, written: bool) -> Section:
    """Return the section on the model that a command has written, or on why there is none."""
    title = "The result"
    if written:
        return model_facts(path, title).section
    return Section(title, paragraphs([f"The outputs differ, so {path} was not written."]))


def _signature(port: Port) -> str:
    return f"{port.name}: {port.dtype or '?'} {rows.shape_text(port) or 'of unknown shape'}"


def lowering_sections(source: ModelFacts, lowered: ir.Model, report: Report) -> Iterator[Section]:
    """Yield the sections on the recurrent nodes: a table, a drawing of a step, op counts, prices."""
    header, cells = rows.lowered_nodes(report.nodes)
    lowered_nodes = [(*row, node.reason) for row, node in zip(cells, report.nodes, strict=True)]
    kept = [(node.name, node.op_type, "kept", node.reason) for node in report.kept]
    before, after = (sum(counts.values()) for counts in (report.ops_before, report.ops_after))
    kept_too = f", {len(report.kept)} kept" if report.kept else ""
    done = f"{counted(len(cells), 'recurrent node')} lowered{kept_too}"
    lead = f"{done}. {counted(before, 'operator')} became {after:,}, at opset {report.opset}."
    body = paragraphs([lead]) + (table((*header, "why"), lowered_nodes) if cells else "")
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
        step = draw_step(find_step(lowered, node.name, node.steps))
        if kind in drawn or found is None or not step or len(drawn) == _MAX_DRAWN:
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
            prices = [(name, price, f"{price:,.1f} us", False) for name, price in node.prices.items()]
            yield f"<h3>{escape(node.name)}: the cheapest is taken</h3>\n{draw_bars(prices)}"


def _op_counts(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    shown = table(*rows.op_counts(before, after, changed=True))
    same = rows.op_counts(before, after, changed=False)
    if not same[1]:
        return shown
    summary = f"<summary>{len(same[1])} operators are unchanged</summary>"
    return f"{shown}<details>{summary}{table(*same)}</details>"


def lifting_sections(source: ModelFacts, lifted: ir.Model, report: LiftReport) -> Iterator[Section]:
    """Yield the section on what was lifted, and on what stays."""
    cells = rows.lifted_nodes(report.nodes)
    body = table(*cells) if cells[1] else paragraphs(["Nothing was lifted."])
    yield Section("What was lifted", body + paragraphs([*report.notes]))


def padding_sections(source: ModelFacts, padded: ir.Model, report: PadReport) -> Iterator[Section]:
    """Yield the section on the lengths, and on what is valid of each output."""
    lengths = rows.padded_lengths(report.metadata)
    body = paragraphs([f"{lengths[:1].upper()}{lengths[1:]}."]) + table(*rows.padded_values(report.metadata))
    yield Section("What is padded", body + paragraphs([*report.notes]))


def conversion_sections(source: ModelFacts, converted: ir.Model, report: OpsetReport) -> Iterator[Section]:
    """Yield the section on the nodes that had to change for the opset."""
    body = paragraphs([f"Opset {report.source} to {report.target}, ir_version {report.ir_version}."])
    if not report.adapted:
        body += paragraphs(["No node had to change."])
    else:
        body += table(*rows.adapted_operators(report))
        summary = f"<summary>{counted(len(report.adapted), 'node')} by name</summary>"
        body += f"<details>{summary}{table(*rows.adapted_nodes(report))}</details>"
    yield Section("What changed", body + paragraphs([*report.notes]))


def stream_sections(source: ModelFacts, streamed: ir.Model, report: StreamReport) -> Iterator[Section]:
    """Yield the sections on states and time axes, and on recurrent nodes that were lowered, too."""
    axes = [*report.inputs.items(), *report.outputs.items()]
    steps = steps_of_call(report.chunk)
    late = f"; outputs are {report.delay} steps late" if report.delay else ""
    body = paragraphs([f"{steps}{late}."])
    if report.states:
        body += f"<h3>States</h3>\n{table(('output', 'feeds input'), report.states.items())}"
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
    beginning = f"The first inner value that differs: {result.first_difference}"
    body += paragraphs([*result.problems, *[beginning] * bool(result.first_difference), *result.skipped])
    body += _outputs(result.outputs)
    if result.on is not None:
        body += f"<h3>On another runtime</h3>\n{paragraphs([str(result.on)])}"
        body += _outputs(result.on.outputs) if result.on.outputs != result.outputs else ""
    yield Section("Verification", body)
    if plots := "".join(_time_plots(result.outputs)):
        yield Section("Errors over the time steps", plots)


def _outputs(outputs: Sequence[OutputComparison]) -> str:
    if not outputs:
        return ""
    header, cells = rows.outputs(outputs)
    verdicts = [
        ("equal" if each.equal else "DIFFERENT") + (f", {each.note}" if each.note else "") for each in outputs
    ]
    shown = table((*header, "verdict"), [(*row, words) for row, words in zip(cells, verdicts, strict=True)])
    plot = draw_shares([(each.name, each.used or 0.0, not each.equal) for each in outputs[:_MAX_PLOTTED]])
    caption = "Share of the allowed error that is used, on a logarithmic scale (dashed: the limit)"
    return f"{shown}<h3>{caption}</h3>\n{plot}"


def _time_plots(outputs: Sequence[OutputComparison]) -> Iterator[str]:
    for output in [each for each in outputs if len(each.errors_over_time) > 1][:_MAX_PLOTTED]:
        caption = "largest absolute error at each step (dashed: allowed at the worst element)"
        yield f"<h3>{escape(output.name)}: {caption}</h3>\n"
        yield draw_errors(output.errors_over_time, output.allowed)


def bench_sections(result: BenchResult) -> Iterator[Section]:
    """Yield the section on latency, session creation and size of each form."""
    timed = [variant for variant in result.timed if variant.latency is not None]
    header, cells = rows.timed_forms(result.variants)
    reasons = [f"{v.status}: {v.reason}" if v.reason else v.status for v in result.variants]
    forms = table((*header, "status"), [(*row, why) for row, why in zip(cells, reasons, strict=True)])
    facts = [*result.inputs.items(), *result.environment.items()]
    facts += [("threads", result.threads or "all"), ("timed runs", result.runs)]
    latencies = [(v.name, v.latency.median, f"{v.latency.median:.3f} ms", False) for v in timed if v.latency]
    sessions = [(v.name, v.session.median, f"{v.session.median:.1f} ms", False) for v in timed if v.session]
    yield Section("Latency of a run", draw_bars(latencies) + forms + paragraphs(result.notes))
    yield Section("Session creation", draw_bars(sessions))
    yield Section("Measured on", table((), facts))
