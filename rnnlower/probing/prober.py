"""The probe of a runtime from scratch, and the resulting target."""

from __future__ import annotations

import datetime
import os
import pathlib
import time
from typing import Any

from rnnlower.engines.catalog import find_engine
from rnnlower.errors import UnverifiableError
from rnnlower.folders import whole_file
from rnnlower.passes.options import Progress
from rnnlower.probing import lowering_probes, operator_probes, type_probes
from rnnlower.probing.asking import Asker
from rnnlower.probing.node_probes import probe_recurrent_rules
from rnnlower.probing.writing import PROBED, merge_earlier, toml_text
from rnnlower.recurrent.operators import QUANTIZED_LSTM
from rnnlower.targets.reading import fill_in_sources, find_target, parse_target, read_toml
from rnnlower.targets.target import Target
from rnnlower.wording import counted

_EXPECTED = {
    "opsets": 21,
    "operators": 581,
    "types": 12,
    "limits of operators": 245,
    "control flow": 27,
    "recurrent nodes": 679,
    "adapted nodes": 188,
    "quantized nodes": 3,
    "lowered nodes": 64,
}
"""The number of questions per group for OpenCV 5.0: an estimate, since later questions depend on answers."""


def probe(
    engine: str, *, output: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> Target:
    """Try a runtime feature by feature, and return what it computes correctly as a target.

    A crash or a hang of the runtime is an answer. A probe takes minutes. With ``output``, the answers are
    saved next to the file until it is written, and an interrupted probe resumes from them. An existing file
    keeps what a probe cannot find out: its title, costs, remedies, times and other domains.

    Args:
        engine: A name of ``rnnlower engines``, or ``'cmd:PROGRAM {model} {inputs} {outputs}'``.
        output: The path of the target's TOML file, if one is wanted.
        progress: Called before each question with its group, its number and the estimated total, and after
            each group with a line about it and zeros.

    Returns:
        The target, as :func:`rnnlower.targets.find_target` reads it from the file.

    Raises:
        OptionError: There is no such engine, or the file exists and describes no target.
        UnverifiableError: It is not installed, or does not even run products and sums.
    """
    path = None if output is None else pathlib.Path(output)
    runtime = find_engine(engine)
    if not runtime.installed:
        raise UnverifiableError(
            f"{runtime.title} is not installed ({runtime.missing})", remedy=runtime.install
        )
    before: dict[str, Any] = {}
    if path is not None and path.exists():
        find_target(path)  # Before the questions: another file would be lost.
        before = fill_in_sources(read_toml(path))
    # The answers, until they are written.
    partial = None if path is None else path.with_name(f"{path.name}.partial")
    groups = _Progress(progress or (lambda *told: None))
    with Asker(runtime, partial, groups.count_question) as asker:
        tables = _probe_tables(asker, groups)
        groups.begin("")
    text = toml_text(merge_earlier(tables, before, operator_probes.tried_operators()))
    if path is None or partial is None:
        return parse_target(engine.partition(":")[0], text, "")
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
    partial.unlink(missing_ok=True)
    return parse_target(path.stem, text, str(path))


class _Progress:
    """Groups of questions, and the progress through them."""

    def __init__(self, on_progress: Progress) -> None:
        self._report = on_progress
        self._expected = dict(_EXPECTED)
        self._group, self._before, self._asked, self._since = "", 0, 0, time.monotonic()

    def count_question(self, key: str) -> None:
        """Report the next question."""
        self._asked += 1
        in_group = self._asked - self._before
        self._expected[self._group] = max(in_group, self._expected[self._group])
        self._report(f"{self._group}: question", self._asked, self._before + sum(self._expected.values()))

    def begin(self, group: str) -> None:
        """Begin a group and report on the one before; ``""`` ends the last one."""
        if self._group:
            asked, seconds = self._asked - self._before, time.monotonic() - self._since
            self._report(f"{self._group}: {counted(asked, 'question')} in {seconds:.0f} s", 0, 0)
            del self._expected[self._group]
        self._group, self._before, self._since = group, self._asked, time.monotonic()


def _probe_tables(asker: Asker, groups: _Progress) -> dict[str, Any]:
    """Return the tables of the file, in order."""
    engine = asker.engine
    groups.begin("opsets")
    opsets = operator_probes.probe_opset_range(asker)
    if not opsets:
        asker.finish()  # Another run could use none of these answers.
        raise UnverifiableError(f"{engine.label} does not run a product and a sum at opset 13")
    dynamic = asker.is_right("open sizes", operator_probes.dynamic_question)
    groups.begin("operators")
    ops = operator_probes.probe_operators(asker, opsets[1])
    groups.begin("types")
    dtypes = type_probes.probe_dtypes(asker)
    groups.begin("limits of operators")
    limits = operator_probes.probe_limits(asker, ops, opsets, dynamic)
    if (cut := operator_probes.trim_opsets(opsets, limits)) != opsets:
        # Older versions are asked where the range begins.
        opsets = cut
        limits = operator_probes.probe_limits(asker, ops, opsets, dynamic)
    source = f"{engine.label}, {PROBED}, {datetime.date.today().isoformat()}"
    tested = {"source": f"{source}: ONNX's node tests of each operator"}
    corrected = lowering_probes.probe_outputs(asker) | lowering_probes.probe_constants(asker)
    corrected |= lowering_probes.probe_nans(asker, ops) | lowering_probes.probe_sums(asker, ops)
    tables: dict[str, Any] = {
        "title": engine.title,
        "engine": engine.name,
        "source": source,
        "opset": {"range": opsets},
        "control_flow": {"ops": []},
        "shapes": {"static": not dynamic},
        "dtypes": {"allowed": dtypes},
        "ops": {"allowed": ops} | corrected | tested,
        "limits": [*limits, *type_probes.probe_type_limits(asker, ops, dtypes)],
    }
    groups.begin("control flow")
    flow = lowering_probes.probe_control_flow(asker, tables, dynamic)
    tables["control_flow"] = flow
    dynamic = dynamic and lowering_probes.takes_open_batch(asker, tables)
    tables["shapes"] = {"static": not dynamic}
    if found := type_probes.probe_arithmetic(asker, dtypes) | lowering_probes.probe_gates(asker, tables):
        tables["arithmetic"] = found
    groups.begin("recurrent nodes")
    tables["recurrent"] = probe_recurrent_rules(asker, dynamic, flow["ops"], dtypes)
    groups.begin("adapted nodes")
    tables["recurrent"] = lowering_probes.probe_adaptations(asker, tables)
    groups.begin("quantized nodes")
    if quantized := operator_probes.probe_quantized_rules(asker):
        tables["recurrent"] += quantized
        tables["ops"]["allowed"] = [*ops, f"com.microsoft.{QUANTIZED_LSTM}"]
    groups.begin("lowered nodes")
    tables["cautions"] = lowering_probes.probe_cautions(asker, tables)
    return tables | {"tried": {"version": engine.version or "unknown"}}
