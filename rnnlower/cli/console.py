"""Tables and lines on stdout, for a terminal, a pipe and a pipe that broke."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rnnlower.cli.running import discard_stdout

__all__ = ["new_table", "write"]

_PIPE_WIDTH = 100_000
_PROSE = {"why not", "what to do", "attributes", "inputs", "outputs", "change", "runtime", "verdict", "place"}


def new_table(*columns: str) -> Table:
    """A table of which names stay whole, and prose folds where the terminal is too narrow for it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column not in _PROSE)
    return table


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let `write` see it: rich would end the command, with the exit code of models that differ."""
        raise BrokenPipeError


def write(what: Table | Text | str) -> None:
    """Writes a table or a line to stdout, as wide as it is where nobody looks at a terminal."""
    in_pipe = not sys.stdout.isatty()
    file = io.StringIO() if in_pipe else sys.stdout
    soft_wrap = not isinstance(what, Table)
    console = _Console(file=file, highlight=False, markup=False, soft_wrap=soft_wrap)
    if in_pipe:
        console.width = _PIPE_WIDTH
    try:
        console.print(what)
        if isinstance(file, io.StringIO):
            lines = file.getvalue().splitlines()
            sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever stopped reading does not want the rest, and the exit code stands.
        discard_stdout()
