"""The commands that write a model: `rnnlower unroll`, `scan`, `loop`, `lower`, `lift`, `pad` and others.

Their frame is the same: check, read, change, verify the result, write it, and report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rnnlower.cli import common
from rnnlower.cli.defining import Comparison, Display, command
from rnnlower.cli.progress import Phases, progress
from rnnlower.cli.values import check_external_data, restore_stream_names
from rnnlower.errors import OptionError, UnverifiableError, VerificationError
from rnnlower.folders import whole_file
from rnnlower.passes.command_options import ConvertOptions, LiftOptions, PadOptions, StreamOptions
from rnnlower.passes.options import LoopOptions, LoweringOptions, LowerOptions, ScanOptions, UnrollOptions

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.files.model_io import Stage
    from rnnlower.opset import OpsetReport
    from rnnlower.passes.options import Options
    from rnnlower.passes.reports import RewritingReport
    from rnnlower.reporting.content import ModelFacts
    from rnnlower.reporting.page import Section
    from rnnlower.verification import RuntimeTrial, VerificationResult

    Bucket = tuple[Options, pathlib.Path, Display]
    CommandReport = RewritingReport | OpsetReport
    Views = tuple[Callable[..., Iterable[Section]], Callable[[Any, bool], None]]

_QUANTIZING = {
    *("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger"),
    *("QLinearConv", "QLinearMatMul", "QuantizeLinear"),
}
"""Operators that round to integers."""

_ROUNDING = (
    "each operator of a float16 recurrence rounds to 16 bits, where onnxruntime's recurrent operators round "
    "at the end; --compute-type float32 does the same"
)


def _views_of(options: Options) -> Views:
    """Return the functions that show a report, as sections of a page and in words; `--help` loads none."""
    from rnnlower.cli import tables
    from rnnlower.reporting import content

    of_others: dict[type[Options], Views] = {
        LiftOptions: (content.lifting_sections, tables.print_lifting),
        PadOptions: (content.padding_sections, tables.print_padding),
        StreamOptions: (content.stream_sections, tables.print_stream),
        ConvertOptions: (content.conversion_sections, tables.print_conversion),
    }
    return of_others.get(type(options), (content.lowering_sections, tables.print_lowering))


@dataclasses.dataclass
class Change:
    """A model that a command has changed, not yet written.

    Attributes:
        facts: The source's facts, if a page of the report is wanted.
        stage: The result next to its destination.
        verification: The comparison of source and result, if it is wanted.
    """

    model: ir.Model
    report: CommandReport
    facts: ModelFacts | None
    source_size: int
    stage: Stage
    verification: VerificationResult | None

    @property
    def equal(self) -> bool:
        """Return whether no comparison found a difference."""
        return self.verification is None or bool(self.verification)


@dataclasses.dataclass
class Rewriting:
    """A run of a command that reads a model, changes it and writes it.

    Attributes:
        name: The name of the command, and of the public function.
        options: The options of the public function.
        external_data: Whether tensors go into a separate file.
        provenance: Whether the metadata has the command and its options.

    Raises:
        OptionError: An option does not fit the others.
        UnverifiableError: The runtime to compare on is not installed.
    """

    name: str
    source: pathlib.Path
    output: pathlib.Path
    options: Options
    comparison: Comparison
    display: Display
    external_data: str
    provenance: bool

    def __post_init__(self) -> None:
        from rnnlower.reporting.page import require_report_path

        check_external_data(self.external_data)
        require_report_path(self.display.report, self.source, self.output)
        self._caller = self._path_of_caller()
        self._settings = self.comparison.settings()
        runtime = self._settings.pop("on", None)
        self._absent: RuntimeTrial | None = None
        if runtime:
            common.installed_runtime(runtime)
        elif self.comparison.verify and self.comparison.on is None and self.options.engine:
            from rnnlower.engines.catalog import find_engine
            from rnnlower.verification import RuntimeTrial

            # The result is tried on the runtime that it is for.
            engine = find_engine(self.options.engine)
            if engine.installed:
                runtime = engine.name
            else:
                self._absent = RuntimeTrial.of(engine, problem=f"{engine.title} is not installed")
        self._settings["also_on"] = runtime
        self._phases = Phases(self.display.verbose)
        if isinstance(self.options, ConvertOptions):
            from rnnlower.opset import OPSETS

            if self.options.opset not in OPSETS:
                known = f"the installed onnx knows {OPSETS.start} to {OPSETS.stop - 1}"
                raise OptionError(f"the opset is {self.options.opset}; {known}")

    def change(self, stages: contextlib.ExitStack) -> Change:
        """Change the model; the result is written when the stages end, if it is accepted until then."""
        from rnnlower import api
        from rnnlower.files.metadata import record_provenance
        from rnnlower.files.model_io import read_model, size_on_disk
        from rnnlower.graph.walk import op_types
        from rnnlower.reporting.content import model_facts

        with progress("reading", self.display.quiet, self._phases) as tell:
            model = read_model(self.source)
            size, self._op_types = size_on_disk(self.source, model), op_types(model)
            facts = None if self.display.report is None else model_facts(self.source)
            report = getattr(api, self.name).run(model, dataclasses.replace(self.options, progress=tell))
        record_provenance(model.metadata_props, self.name, self.options, wanted=self.provenance)
        common.say_notes(report.notes, self.display.quiet)
        common.warn(report.warnings)
        stage, verification = self._stage(model, report, stages)
        return Change(model, report, facts, size, stage, verification)

    def finish(self, change: Change) -> dict[str, Any]:
        """Report the change; return the result for JSON, or end with the exit code if nothing was written."""
        from rnnlower.cli import tables
        from rnnlower.reporting.content import result_section

        sections, print_report = _views_of(self.options)
        report, verification = change.report, change.verification
        if self.display.report is not None and change.facts is not None:
            written = result_section(self.output, change.equal)
            common.report_page(
                self.display.report,
                f"rnnlower {self.name} {self.source.name}",
                verification,
                [change.facts.section, written, *sections(change.facts, change.model, report)],
                self._phases,
                not self.display.in_words,
            )
        if self.display.in_words:
            print_report(report, self.display.verbose)
            if verification is not None:
                tables.print_verification(verification, verbose=self.display.verbose)
        if not change.equal and report.rounds:
            common.say_notes([_ROUNDING], self.display.quiet)
        result = self._finished(report.to_dict(), verification)
        sizes = f"{_describe_size(change.stage)}; the source has {change.source_size:,}"
        common.say(f"rnnlower: wrote {self.output} ({sizes})", not self.display.in_words)
        if report.caller is not None and self._caller is not None:
            with whole_file(self._caller) as part:
                part.write_text(report.caller, encoding="utf-8")
            common.say(f"rnnlower: wrote {self._caller}", not self.display.in_words)
        return result

    def _path_of_caller(self) -> pathlib.Path | None:
        """Return where the caller's code goes if it is wanted."""
        from rnnlower.files.publishing import check_destination
        from rnnlower.streaming.callers import SUFFIXES

        emit = self.options.emit if isinstance(self.options, StreamOptions) else None
        if emit not in SUFFIXES:
            return None
        path = self.output.with_suffix(SUFFIXES[emit])
        if path.resolve() in (self.source.resolve(), self.output.resolve()):
            raise OptionError(
                f"--emit {emit} writes {path}, which is one of the models", remedy="rename the result"
            )
        check_destination(path)
        return path

    def _stage(
        self, model: ir.Model, report: CommandReport, stages: contextlib.ExitStack
    ) -> tuple[Stage, VerificationResult | None]:
        """Write the model next to its destination, and compare it with the source."""
        from rnnlower.files.model_io import stage_model
        from rnnlower.graph.dynamic_sizes import options_for_sizes
        from rnnlower.graph.walk import op_types

        verification = None
        with progress("writing", self.display.quiet, self._phases) as tell:
            stage = stages.enter_context(stage_model(model, self.output, self.external_data))
            self._op_types -= {"Loop", "Scan"} - op_types(model)
            if self.comparison.verify:
                reading = self.options.reading() | {"sets": report.sets}
                nodes = self.options.nodes if isinstance(self.options, LoweringOptions) else None
                if nodes and reading.get("dequantize"):
                    reading["dequantize"] = report.dequantized
                try:
                    verification = common.verify_files(
                        self.source, stage.path, self._settings | reading, tell
                    )
                except UnverifiableError as error:
                    if error.on is not None:
                        forms = [*self._other_forms()]
                        sizes = str(options_for_sizes(model.graph.inputs, "N"))
                        if sizes and not isinstance(self.options, StreamOptions):
                            forms.append(f"{sizes} fixes the sizes of the inputs, which some runtimes need")
                        error.advise("; ".join([*forms, "--on none writes the result without a run there"]))
                    raise
        if verification is not None and verification.on is None:
            verification = dataclasses.replace(verification, on=self._absent)
        return stage, verification

    def _finished(self, result: dict[str, Any], verification: VerificationResult | None) -> dict[str, Any]:
        """Return the whole result for JSON; end with the exit code if nothing was written."""
        self._phases.print()
        error = None if verification is None or verification else self._not_written(verification)
        verified = None if verification is None else verification.to_dict()
        result = result | {"verification": verified}
        if verified is not None and "on" in verified:
            result["on"] = verified["on"]
        result |= {"output": str(self.output) if error is None else None, "seconds": self._phases.rounded()}
        if error is not None:
            if self.display.json_:
                common.emit_result(result, error)
            common.exit_with_difference(error, "--no-verify writes it all the same, for inspection")
        return result

    def _not_written(self, verification: VerificationResult) -> VerificationError:
        on = verification.on
        where = f" on {on.label}" if on is not None and not on.equal else ""
        problem = next(iter(verification.problems), f"the result differs from the source{where}")
        remedies = [
            *(self._other_forms() if where else ()),
            common.advise_comparison(verification, self._settings),
        ]
        return VerificationError(
            f"{problem}; {self.output} was not written", remedy="; ".join(filter(None, remedies))
        )

    def _other_forms(self) -> Iterator[str]:
        """Yield forms of the model that may run where this one fails."""
        from rnnlower.recurrent.operators import QUANTIZED_LSTM

        if isinstance(self.options, LowerOptions | UnrollOptions) and {"Loop", "Scan"} & self._op_types:
            yield "--control-flow unroll makes straight lines of the model's own Loop and Scan nodes"
        if QUANTIZED_LSTM in self._op_types:
            yield "--dequantize gives the quantized recurrent nodes float weights"
        elif _QUANTIZING & self._op_types:
            yield (
                "the model is quantized, and a runtime may round its last bit another way: lower the float "
                "model instead, and quantize the result"
            )


def _describe_size(stage: Stage) -> str:
    shares = ""
    if stage.shared:
        size = sum(file.stat().st_size for file in stage.shared)
        files = ", ".join(sorted(file.name for file in stage.shared))
        shares = f", which refer to {size:,} in the source's {files}"
    return f"{stage.size:,} bytes{shares}"


def _rewriting(kind: type[Options], words: str) -> Callable[..., None]:
    """Return the command that runs the public function whose options are of this kind."""
    name = kind.__name__.removesuffix("Options").lower()

    def rewrite(
        *,
        model: pathlib.Path,
        output: pathlib.Path,
        options: Options,
        comparison: Comparison,
        external_data: str = "auto",
        provenance: bool = True,
        display: Display,
    ) -> None:
        runs = [
            Rewriting(name, model, path, each, comparison, shown, external_data, provenance)
            for each, path, shown in _buckets(options, output, display)
        ]
        with contextlib.ExitStack() as stages:
            changes = [run.change(stages) for run in runs]
            equal = all(change.equal for change in changes)
            for change in changes:
                change.stage.accepted = equal
        results: list[dict[str, Any]] = []
        for run, change in zip(runs, changes, strict=True):
            # Of several models that were not written, the first that differs is the reason.
            if equal or not change.equal:
                if results and display.in_words:
                    print()
                results.append(run.finish(change))
        if display.json_:
            common.emit_result(results[0] if len(results) == 1 else {"buckets": results})

    rewrite.__name__, rewrite.__doc__ = name, words
    rewrite.__annotations__["options"] = kind
    return command(*_ABSENT.get(kind, ()))(rewrite)


def _buckets(options: Options, output: pathlib.Path, display: Display) -> Sequence[Bucket]:
    """Return the options, the path and the page of each model: of `pad`, one for each maximum."""
    if not isinstance(options, PadOptions):
        return [(options, output, display)]
    sizes_of: Mapping[str, Sequence[int]] = options.max  # type: ignore[assignment]
    combined = [*itertools.product(*sizes_of.values())]
    made = []
    for sizes in combined:
        each = dataclasses.replace(options, max=dict(zip(options.max, sizes, strict=True)))
        if len(combined) == 1:
            return [(each, output, display)]
        if restore_stream_names(str(output)) != str(output):
            raise OptionError("several maxima write several files: -o - takes one model")
        of_bucket = "-".join(map(str, sizes))
        page = display.report and display.report.with_stem(f"{display.report.stem}-{of_bucket}")
        path = output.with_stem(f"{output.stem}-{of_bucket}")
        made.append((each, path, dataclasses.replace(display, report=page)))
    return made


_WORDS: dict[type[Options], str] = {
    UnrollOptions: "Rewrite every recurrent node into straight-line primitive ops.",
    ScanOptions: "Rewrite every recurrent node into a Scan over primitive ops; the length may be dynamic.",
    LoopOptions: "Rewrite every recurrent node into a Loop over primitive ops; the length may be dynamic.",
    LowerOptions: "Rewrite the recurrent nodes that a runtime lacks or gets wrong into ops that it has.",
    LiftOptions: (
        "Turn Loops, Scans and straight lines that compute an LSTM, GRU or RNN into these operators."
    ),
    PadOptions: "Make a static model of a maximal length that is right for every length up to it.",
    StreamOptions: (
        "Turn a model of whole sequences into one of a chunk per call: states become inputs and outputs."
    ),
    ConvertOptions: "Change the model's opset, up or down.",
}
_ABSENT = {PadOptions: ("states",), ConvertOptions: ("on",)}
REWRITINGS = [_rewriting(kind, words) for kind, words in _WORDS.items()]
