"""The frame of commands that write a model: check, read, verify the result, write it, and report."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rnnlower.cli.defining import Comparing, Showing
from rnnlower.cli.progress import Phases, Tell, progress
from rnnlower.cli.running import (
    emit_result,
    installed_runtime,
    other_comparison,
    own_runtime,
    report_page,
    say,
    say_notes,
    size_on_disk,
    tell_difference,
    verify_files,
    warn,
)
from rnnlower.cli.values import check_external_data
from rnnlower.errors import UnverifiableError, VerificationError
from rnnlower.recurrent.operators import QUANTIZED_LSTM

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.recurrent.exporter_warnings import Suspicion
    from rnnlower.reporting.content import ModelFacts
    from rnnlower.reporting.page import Section
    from rnnlower.verification import VerificationResult


_QUANTIZING = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
    }
)
"""Operators that round to integers."""


class Rewriting:
    """A run of a command that reads a model, changes it and writes it.

    Args:
        name: The name of the command.
        model: The path of the model.
        output: The path of the result.
        comparing: The options of the comparison.
        showing: The options for the output.
        external_data: Whether tensors go into a separate file.
        engine: The runtime that the result is for, on which it is tried, too; ``""`` if there is none.

    Raises:
        OptionError: An option does not fit the others.
        UnverifiableError: The runtime to compare on is not installed.
    """

    def __init__(
        self,
        name: str,
        model: pathlib.Path,
        output: pathlib.Path,
        comparing: Comparing,
        showing: Showing,
        external_data: str,
        engine: str = "",
    ) -> None:
        from rnnlower.reporting.page import check_report

        self.name, self.source, self.output = name, model, output
        self.showing, self.external_data = showing, external_data
        check_external_data(external_data)
        check_report(showing.report, model, output)
        self.verifies, self.settings = comparing.verify, comparing.settings()
        runtime, self.absent = self.settings.pop("on", None), None
        if runtime:
            installed_runtime(runtime)
        elif comparing.verify and comparing.on is None:
            runtime, self.absent = own_runtime(engine)
        self.settings["also_on"] = runtime
        self.phases = Phases(showing.verbose)
        self.facts: ModelFacts | None = None
        self.sizes = (0, 0)
        self.shared: Collection[pathlib.Path] = ()
        self._op_types: set[str] = set()
        self._fixed_sizes: list[str] = []

    @contextlib.contextmanager
    def read(self) -> Iterator[tuple[ir.Model, Tell]]:
        """Yield the model, and the progress callback."""
        from rnnlower.files.model_io import read_model
        from rnnlower.graph.walk import op_types
        from rnnlower.reporting.content import model_facts

        with progress("reading", self.showing.quiet, self.phases) as tell:
            model = read_model(self.source)
            self.sizes = (size_on_disk(self.source, model), 0)
            self._op_types = op_types(model)
            self.facts = model_facts(self.source) if self.showing.report is not None else None
            yield model, tell

    def write(
        self,
        model: ir.Model,
        settings: dict[str, Any],
        notes: Iterable[str],
        warnings: Iterable[Suspicion] = (),
    ) -> VerificationResult | None:
        """Write the model, unless the verification finds it different from the source.

        Args:
            model: The result.
            settings: Arguments of the verification in addition to the user's options.
            notes: Messages for the user.
            warnings: Ways in which the result may not meet the user's expectation.
        """
        from rnnlower.files.model_io import staged
        from rnnlower.graph.open_sizes import open_sizes
        from rnnlower.graph.walk import op_types

        say_notes(notes, self.showing.quiet)
        warn(warnings)
        verification = None
        with (
            progress("writing", self.showing.quiet, self.phases) as tell,
            staged(model, self.output, self.external_data) as stage,
        ):
            self._op_types -= {"Loop", "Scan"} - op_types(model)
            if self.name != "stream" and (sizes := str(open_sizes(model.graph.inputs, "N"))):
                self._fixed_sizes = [f"{sizes} fixes the sizes of the inputs, which some runtimes need"]
            if self.verifies:
                verification = self._verify(stage.path, settings, tell)
            if verification is None or verification:
                stage.accept()
            self.sizes = (self.sizes[0], stage.size)
            self.shared = stage.shared
        if verification is not None and verification.on is None:
            verification = dataclasses.replace(verification, on=self.absent)
        return verification

    def _verify(self, result: pathlib.Path, settings: dict[str, Any], tell: Tell) -> VerificationResult:
        try:
            return verify_files(self.source, result, self.settings | settings, tell)
        except UnverifiableError as error:
            if error.on is not None:
                forms = [*self._other_forms(), *self._fixed_sizes]
                error.advise("; ".join([*forms, "--on none writes the result without a run there"]))
            raise

    def report(
        self, verification: VerificationResult | None, sections: Callable[[ModelFacts], Iterable[Section]]
    ) -> None:
        """Write the page about the run, if one is wanted; ``sections`` uses facts about the source."""
        if self.showing.report is not None and self.facts is not None:
            from rnnlower.reporting.content import result_section

            written = verification is None or bool(verification)
            report_page(
                self.showing.report,
                f"rnnlower {self.name} {self.source.name}",
                verification,
                [self.facts.section, result_section(self.output, written), *sections(self.facts)],
                self.phases,
                not self.shows_words,
            )

    @property
    def shows_words(self) -> bool:
        """True if the command reports what it did in words."""
        return not self.showing.json_ and not self.showing.quiet

    def finish(self, result: dict[str, Any], verification: VerificationResult | None) -> dict[str, Any]:
        """Report on the output, and end with the exit code; return the whole result for JSON."""
        self.phases.print()
        error = None if verification is None or verification else self._not_written(verification)
        verified = None if verification is None else verification.to_dict()
        result = result | {"verification": verified}
        if verified is not None and "on" in verified:
            result["on"] = verified["on"]
        result |= {"output": str(self.output) if error is None else None, "seconds": self.phases.rounded()}
        if error is not None:
            if self.showing.json_:
                emit_result(result, error)
            tell_difference(error, "--no-verify writes it all the same, for inspection")
        source, written = self.sizes
        shares = ""
        if self.shared:
            size = sum(file.stat().st_size for file in self.shared)
            files = ", ".join(sorted(file.name for file in self.shared))
            shares = f", which refer to {size:,} in the source's {files}"
        wrote = f"rnnlower: wrote {self.output} ({written:,} bytes{shares}; the source has {source:,})"
        say(wrote, not self.shows_words)
        return result

    def _not_written(self, verification: VerificationResult) -> VerificationError:
        on = verification.on
        where = f" on {on.label}" if on is not None and not on.equal else ""
        problem = next(iter(verification.problems), f"the result differs from the source{where}")
        remedies = [*(self._other_forms() if where else ()), other_comparison(verification, self.settings)]
        return VerificationError(
            f"{problem}; {self.output} was not written", remedy="; ".join(filter(None, remedies))
        )

    def _other_forms(self) -> Iterator[str]:
        """Yield forms of the model that may run where this one fails."""
        if self.name in ("lower", "unroll") and {"Loop", "Scan"} & self._op_types:
            yield "--control-flow unroll makes straight lines of the model's own Loop and Scan nodes"
        if QUANTIZED_LSTM in self._op_types:
            yield "--dequantize gives the quantized recurrent nodes float weights"
        elif _QUANTIZING & self._op_types:
            yield (
                "the model is quantized, and a runtime may round its last bit another way: lower the float "
                "model instead, and quantize the result"
            )
