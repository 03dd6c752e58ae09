"""Tables and lines on stdout, for a terminal, a pipe and a closed pipe."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from rnnlower.cli.common import discard_stdout
from rnnlower.cli.values import restore_stream_names

_GAP = 2
_UNBROKEN = 24
"""A longer word may be broken anywhere, unless it is a figure."""
_PIECE = re.compile(r"(?=.)\[?[^\s/\[]*[\s/]*")
_FIGURE = re.compile(r"\W*\d[\d.,e+-]*\w?\W*")


@dataclasses.dataclass
class Table:
    """Rows of cells under columns.

    A terminal shows no column without content. If it is narrow, text wraps. If that does not suffice, columns
    are left out, and a line names them; if that does not suffice either, each row becomes lines of
    ``name: value``. Figures stay whole.

    Attributes:
        optional: The columns that may be left out, in this order. They hold no figures.
    """

    columns: Sequence[str]
    optional: Sequence[str] = ()
    rows: list[list[Text]] = dataclasses.field(default_factory=list)

    def add_row(self, *cells: object) -> None:
        """Add a row with a cell for each column: a text, a number, or ``None`` for nothing."""
        self.rows.append(
            [cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in cells]
        )

    def lines(self, width: float) -> Iterator[Text]:
        """Yield the lines of the table in a terminal of this width; infinite: none wraps."""
        columns = {
            name: [Text(name, "bold"), *(row[index] for row in self.rows)]
            for index, name in enumerate(self.columns)
            if math.isinf(width) or any(row[index] for row in self.rows)
        }
        widths, absent = _widths(columns, width), []
        for name in self.optional:
            if widths is None and name in columns:
                del columns[name]
                absent.append(name)
                widths = _widths(columns, width)
        if widths is None:
            yield from self._records(width)
            return
        for row in zip(*columns.values(), strict=True):
            yield from _row_lines(row, widths)
        if absent:
            told = f"not shown in {width} columns: {', '.join(absent)} (a wider terminal and --json show all)"
            yield from _wrap(Text(told, "dim"), width)

    def _records(self, width: float) -> Iterator[Text]:
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            for name, cell in zip(self.columns, row, strict=True):
                if cell:
                    yield from _wrap(Text.assemble((f"{name}: ", "bold"), cell), width)


def write(what: Table | Text | str) -> None:
    """Write a table or a line to stdout, at full width if stdout is not a terminal."""
    console = _Console(highlight=False, markup=False, soft_wrap=True)
    what = restore_stream_names(what) if isinstance(what, str) else what
    try:
        width = console.width if sys.stdout.isatty() else math.inf
        for line in what.lines(width) if isinstance(what, Table) else _wrap(what, width):
            console.print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        # A reader that stopped does not want the rest, and the exit code stands.
        discard_stdout()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error in `write`: rich would end the command with the exit code of differing models."""
        raise BrokenPipeError


def _widths(columns: Mapping[str, Sequence[Text]], width: float) -> list[int] | None:
    """Return the widths of columns that fit; the narrowest get what is left. ``None``: they do not fit."""
    wanted = [max(cell.cell_len for cell in cells) for cells in columns.values()]
    widths = [max(map(_least_width, cells)) for cells in columns.values()]
    spare = width - _GAP * (len(widths) - 1) - sum(widths)
    if spare < 0:
        return None
    while spare and (narrow := [index for index, size in enumerate(widths) if size < wanted[index]]):
        widths[min(narrow, key=widths.__getitem__)] += 1
        spare -= 1
    return widths


def _least_width(cell: Text) -> int:
    words = (piece.rstrip() for piece in _PIECE.findall(cell.plain))
    return max(
        (cell_len(word) if _FIGURE.fullmatch(word) else min(cell_len(word), _UNBROKEN) for word in words),
        default=0,
    )


def _row_lines(row: Sequence[Text], widths: Sequence[int]) -> Iterator[Text]:
    """Yield the lines of a row: its cells next to each other."""
    cells = [_wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells))):
        line = Text()
        for cell, width in zip(cells, widths, strict=True):
            part = cell[number] if number < len(cell) else Text()
            line.append_text(part).append(" " * (width + _GAP - part.cell_len))
        line.rstrip()
        yield line


def _wrap(what: Text | str, width: float) -> list[Text]:
    """Return the lines of a text, broken between words, after / and before [ and within long names."""
    text = what if isinstance(what, Text) else Text(what)
    if text.cell_len <= width:
        return [text]
    cuts, start = [], 0
    for piece in _PIECE.finditer(text.plain):
        word = piece.group().rstrip()
        if start < piece.start() and cell_len(text.plain[start : piece.start()] + word) > width:
            start = piece.start()
            cuts.append(start)
        if cell_len(word) > width and not _FIGURE.fullmatch(word):
            for part in chop_cells(word, int(width))[:-1]:
                start += len(part)
                cuts.append(start)
    lines = list(text.divide(cuts))
    for line in lines:
        line.rstrip()
    return lines
