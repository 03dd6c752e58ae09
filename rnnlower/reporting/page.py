"""The HTML page: sections, style, and writing it whole or not at all."""

from __future__ import annotations

import dataclasses
import html
import pathlib
import platform
import re
from collections.abc import Iterable, Mapping, Sequence

from rnnlower.errors import OptionError
from rnnlower.files.publishing import check_companion
from rnnlower.folders import whole_file

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
        verdict: The conclusion.
        good: Whether the verdict is positive; ``None`` if neither.
        sections: The rest, in its order.
        command: The command line.
        seconds: The duration of each phase.
    """

    title: str
    verdict: str
    good: bool | None
    sections: Sequence[Section]
    command: str
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)


def check_report(report: pathlib.Path | None, *others: pathlib.Path) -> None:
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
    sections = [*page.sections, Section("Command and versions", _origin(page))]
    body = "\n".join(f"<section><h2>{escape(s.title)}</h2>\n{s.html}</section>" for s in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{_STYLE.read_text()}</style></head>\n<body>\n"
        f'<h1>{escape(page.title)}</h1>\n<div class="verdict{kind}">{escape(page.verdict)}</div>\n'
        f"{body}\n</body></html>\n"
    )


def _origin(page: Page) -> str:
    from rnnlower.engines.child import versions

    names = ("rnnlower", "onnx", "onnx-ir", "onnxruntime", "numpy")
    found = versions(names)
    # onnxruntime also has packages of other names.
    rows = [(name, found.get(name, "?")) for name in names]
    rows += [("Python", platform.python_version()), ("machine", f"{platform.system()} {platform.machine()}")]
    times = f"<h3>Time of each phase</h3>\n{table((), _phases(page.seconds))}" if page.seconds else ""
    return f"<pre>{escape(page.command)}</pre>\n{table((), rows)}{times}"


def _phases(seconds: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the time of each phase and of all; ``a: b`` is a part of ``a`` that ``a`` does not include."""
    whole = {phase.partition(":")[0] for phase in seconds if ":" in phase}
    names = {phase: f"{phase}: the rest" if phase in whole else phase for phase in seconds}
    order = sorted(seconds, key=lambda phase: phase in whole)
    rows = [(names[phase], seconds[phase]) for phase in order]
    return [(name, f"{time:.2f} s") for name, time in [*rows, ("all", sum(seconds.values()))]]


def escape(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text))


def shortened(text: str, most: int) -> str:
    """Return the end of a text that is too long for its place."""
    return text if len(text) <= most else f"...{text[3 - most :]}"


def paragraphs(texts: Iterable[str]) -> str:
    """Return a paragraph for each text."""
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; columns of numbers are right-aligned, and columns without a value are left out."""
    body = [["" if value is None else value for value in row] for row in rows]
    columns = list(zip(*body, strict=True))
    shown = [number for number, column in enumerate(columns) if any(value != "" for value in column)]
    kinds = {number: _kind(columns[number]) for number in shown}
    lines = [
        "".join(f"<{tag}{kinds[number]}>{escape(_shown(row[number]))}</{tag}>" for number in shown)
        for tag, row in [*([("th", header)] if header else []), *(("td", row) for row in body)]
    ]
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>\n'


def _kind(column: Sequence[object]) -> str:
    """Return the class of a column: numbers, or names so long that they may be broken anywhere."""
    if all(isinstance(v, int | float) or v == "" or _NUMBER.fullmatch(str(v)) for v in column):
        return ' class="number"'
    words = [word for value in column for word in str(value).split()]
    return ' class="long"' if max(map(len, words), default=0) > _LONG else ""


def _shown(value: object) -> object:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
