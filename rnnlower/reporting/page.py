"""The HTML page: sections, style, tables, plots as inline SVG, and writing it whole or not at all.

The chart of a benchmark is a file of its own, which matplotlib draws.
"""

from __future__ import annotations

import dataclasses
import html
import math
import pathlib
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rnnlower.errors import OptionError
from rnnlower.files.publishing import check_companion
from rnnlower.folders import whole_file
from rnnlower.reporting.rows import share_text

if TYPE_CHECKING:
    from rnnlower.benchmarking.bench_result import BenchResult


_NUMBER = re.compile(r"[\d.,]+(e[+-]?\d+)?( ?[%x]| s)?( - [\d.]+)?|inf|nan|\?")
_LONG = 24
"""The number of letters from which a word may be broken."""
_STYLE = pathlib.Path(__file__).with_name("style.css")


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading, and the HTML below it."""

    title: str
    html: str


@dataclasses.dataclass(frozen=True)
class Page:
    """The content of a report.

    Attributes:
        title: The command and the model.
        good: Whether the verdict is positive; ``None`` if neither.
        sections: The rest, in its order.
        seconds: The duration of each phase.
    """

    title: str
    verdict: str
    good: bool | None
    sections: Sequence[Section]
    command: str
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)


def require_report_path(report: pathlib.Path | None, *others: pathlib.Path) -> None:
    """Refuse a page that could not be written, before anything is done.

    Raises:
        OptionError: A suffix other than .html, no folder for it, something in its place that is not a file,
            or one of the other files of the command.
    """
    if report is None:
        return
    check_companion("--report", report, (".html", ".htm"), "the report is an .html file")
    if report.resolve() in {other.resolve() for other in others}:
        raise OptionError(f"--report {report}: that is one of the models")


def write_page(page: Page, path: pathlib.Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        OptionError: The disk is full, or the file cannot be written.
    """
    try:
        with whole_file(path) as part:
            part.write_bytes(_render(page).encode())
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}") from error


def _render(page: Page) -> str:
    kind = {True: " good", False: " bad", None: ""}[page.good]
    sections = [*page.sections, Section("Command and versions", _describe_origin(page))]
    body = "\n".join(f"<section><h2>{escape(s.title)}</h2>\n{s.html}</section>" for s in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{_STYLE.read_text('utf-8')}</style></head>\n<body>\n"
        f'<h1>{escape(page.title)}</h1>\n<div class="verdict{kind}">{escape(page.verdict)}</div>\n'
        f"{body}\n</body></html>\n"
    )


def _describe_origin(page: Page) -> str:
    from rnnlower.engines.child import versions

    names = ("rnnlower", "onnx", "onnx-ir", "onnxruntime", "numpy")
    found = versions(names)
    # onnxruntime also has packages of other names.
    rows = [(name, found.get(name, "?")) for name in names]
    rows += [("Python", platform.python_version()), ("machine", f"{platform.system()} {platform.machine()}")]
    times = f"<h3>Time of each phase</h3>\n{table((), _phase_rows(page.seconds))}" if page.seconds else ""
    return f"<pre>{escape(page.command)}</pre>\n{table((), rows)}{times}"


def _phase_rows(seconds: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the time of each phase and the total; the time of ``a: b`` is not included in that of ``a``."""
    whole = {phase.partition(":")[0] for phase in seconds if ":" in phase}
    names = {phase: f"{phase}: the rest" if phase in whole else phase for phase in seconds}
    order = sorted(seconds, key=lambda phase: phase in whole)
    rows = [(names[phase], seconds[phase]) for phase in order]
    return [(name, f"{time:.2f} s") for name, time in [*rows, ("all", sum(seconds.values()))]]


def escape(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text))


def shorten(text: str, max_length: int) -> str:
    """Return the end of a text if it is too long."""
    return text if len(text) <= max_length else f"...{text[3 - max_length :]}"


def paragraphs(texts: Iterable[str]) -> str:
    """Return a paragraph for each text."""
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; columns of numbers are right-aligned, and columns without a value are left out."""
    body = [["" if value is None else value for value in row] for row in rows]
    columns = list(zip(*body, strict=True))
    shown = [number for number, column in enumerate(columns) if any(value != "" for value in column)]
    kinds = {number: _column_class(columns[number]) for number in shown}
    lines = [
        "".join(f"<{tag}{kinds[number]}>{escape(_format_cell(row[number]))}</{tag}>" for number in shown)
        for tag, row in [*([("th", header)] if header else []), *(("td", row) for row in body)]
    ]
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>\n'


def _column_class(column: Sequence[object]) -> str:
    """Return the class of a column: numbers, or names so long that they may be broken anywhere."""
    if all(isinstance(v, int | float) or v == "" or _NUMBER.fullmatch(str(v)) for v in column):
        return ' class="number"'
    words = [word for value in column for word in str(value).split()]
    return ' class="long"' if max(map(len, words), default=0) > _LONG else ""


def _format_cell(value: object) -> object:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value


_WIDTH = 760
_LABELS = 190
_ROW = 24
_SPAN = _WIDTH - _LABELS - 150
"""The length of the longest bar; its text follows."""
_LOWEST_SHARE, _MAX_TICKS = -4, 8
_MAX_POINTS = 500


def draw_bars(rows: Sequence[tuple[str, float, str, bool]]) -> str:
    """Draw horizontal bars, given as (label, length, text after the bar, is bad)."""
    scale = _SPAN / (max([length for _, length, _, _ in rows], default=0.0) or 1.0)
    parts = _draw_rows((label, length * scale, text, bad) for label, length, text, bad in rows)
    return _svg(_WIDTH, len(rows) * _ROW + 4, parts)


def draw_shares(rows: Sequence[tuple[str, float, bool]]) -> str:
    """Draw shares of a limit, given as (label, share, is bad), on a logarithmic axis; the limit is dashed."""
    known = [share for _, share, _ in rows if 0 < share < math.inf]
    low = max(math.floor(math.log10(min(known, default=0.1))), _LOWEST_SHARE)
    low, high = min(low, -1), max(math.ceil(math.log10(max(known, default=1.0))), 0)
    scale, height = _SPAN / (high - low), len(rows) * _ROW + 4

    def width_of(share: float) -> float:
        return scale * ((math.log10(min(share, 10.0**high)) if share > 0 else low) - low)

    parts = []
    for power in range(low, high + 1):
        if power % math.ceil((high - low) / _MAX_TICKS):
            continue
        x, line = _LABELS + (power - low) * scale, "var(--line)"
        tick = f"{10**power:,}x" if power > 0 else f"{10.0 ** (power + 2):g}%"
        if power == 0:
            line = 'var(--bad)" stroke-dasharray="4 3'
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="{line}"/>'
            f'<text x="{x:.1f}" y="{height + 14}" text-anchor="middle" class="dim">{tick}</text>'
        )
    drawn = _draw_rows((label, width_of(share), share_text(share), bad) for label, share, bad in rows)
    return _svg(_WIDTH, height + 20, [*drawn, *parts])


def _draw_rows(rows: Iterable[tuple[str, float, str, bool]]) -> list[str]:
    """Draw a bar for each row; the lengths are in pixels."""
    parts = []
    for number, (label, width, text, bad) in enumerate(rows):
        top, width = number * _ROW, max(width, 1.0)
        color = "var(--bad)" if bad else "var(--blue)"
        parts.append(
            f'<text x="{_LABELS - 8}" y="{top + 16}" text-anchor="end">{escape(shorten(label, 26))}</text>'
            f'<rect x="{_LABELS}" y="{top + 4}" width="{width:.1f}" height="{_ROW - 8}" rx="2" '
            f'fill="{color}"/>'
            f'<text x="{_LABELS + width + 6:.1f}" y="{top + 16}" class="dim">{escape(text)}</text>'
        )
    return parts


def draw_errors(errors: Sequence[float], allowed: float | None = None) -> str:
    """Plot the largest error at each time step on a logarithmic axis, with a line at the allowed error.

    Thousands of steps are thinned out: each point is then the largest of its neighbors.
    """
    known = [error for error in errors if math.isfinite(error) and error > 0]
    if not known:
        return "<p>No difference at any time step.</p>\n"
    ends = [*known, *([allowed] if allowed else [])]
    low, high = math.floor(math.log10(min(ends))), math.ceil(math.log10(max(ends)))
    high += high == low
    width, height, left, top = _WIDTH, 200, 60, 12
    span, depth = width - left - 20, height - top - 34

    def y_of(value: float) -> float:
        clipped = min(max(value, 10.0**low), 10.0**high) if math.isfinite(value) else 10.0**high
        return top + depth * (high - math.log10(clipped)) / (high - low)

    parts = []
    for power in range(low, high + 1, max(1, (high - low) // 5)):
        y = y_of(10.0**power)
        parts.append(
            f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" class="dim">1e{power}</text>'
        )
    group = math.ceil(len(errors) / _MAX_POINTS)
    points = [(start, max(errors[start : start + group])) for start in range(0, len(errors), group)]
    steps = max(len(errors) - 1, 1)
    placed = [(left + span * step / steps, y_of(error)) for step, error in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    parts.append(f'<polyline points="{line}" fill="none" stroke="var(--blue)" stroke-width="1.5"/>')
    if len(placed) <= 60:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="var(--blue)"/>' for x, y in placed]
    if allowed:
        y = y_of(allowed)
        parts.append(
            f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--bad)" '
            f'stroke-dasharray="4 3"/><text x="{width - 22}" y="{y - 4:.1f}" text-anchor="end">allowed</text>'
        )
    bottom = height - 16
    parts += [
        f'<text x="{left}" y="{bottom}" class="dim">step 0</text>',
        f'<text x="{width - 20}" y="{bottom}" text-anchor="end" class="dim">step {len(errors) - 1}</text>',
    ]
    return _svg(width, height, parts)


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img">{body}</svg>\n'


def require_chart_path(path: pathlib.Path) -> None:
    """Refuse a chart that could not be written to this path, before anything is measured.

    Raises:
        OptionError: Another format than PNG or SVG, no folder to put it in, a folder in its place, or no
            matplotlib.
    """
    check_companion("--plot", path, (".png", ".svg"), "the chart is a .png or an .svg")
    _matplotlib()


def draw_chart(result: BenchResult, path: pathlib.Path, title: str) -> None:
    """Draw bars of latency, session creation and file size, one for each variant that was timed."""
    matplotlib = _matplotlib()
    variants = list(reversed(result.timed))
    names = [variant.name for variant in variants]
    latencies = [variant.latency for variant in variants if variant.latency]
    sessions = [variant.session for variant in variants if variant.session]
    medians = [latency.median for latency in latencies]
    spread = [
        [latency.median - latency.p10 for latency in latencies],
        [latency.p90 - latency.median for latency in latencies],
    ]
    with matplotlib.rc_context({"svg.hashsalt": "rnnlower", "svg.fonttype": "none", "font.size": 9}):
        figure = matplotlib.figure.Figure(figsize=(10, 1.3 + 0.35 * len(names)), layout="constrained")
        figure.suptitle(title, parse_math=False)
        axes = figure.subplots(1, 3, sharey=True)
        bars = axes[0].barh(names, medians, xerr=spread, capsize=2)
        ratios = ["" if variant.ratio is None else f"{variant.ratio:.2f}x" for variant in variants]
        axes[0].bar_label(bars, ratios, padding=4)
        axes[1].barh(names, [session.median for session in sessions], color="tab:orange")
        axes[2].barh(names, [(variant.file_bytes or 0) / 1e3 for variant in variants], color="tab:green")
        labels = (f"latency, ms ({result.threads_in_words})", "session creation, ms", "file, kB")
        for axis, label in zip(axes, labels, strict=True):
            axis.set_xlabel(label)
            axis.margins(x=0.2)
            axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise OptionError(
            "--plot needs matplotlib, which rnnlower brings only if asked: pip install 'rnnlower[plot]'"
        ) from error
    return matplotlib
