"""Tables and lines on stdout, for a terminal, a pipe and a closed pipe."""

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
    """Return a table in which names stay whole, and prose folds if the terminal is too narrow."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column not in _PROSE)
    return table


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error in `write`: rich would end the command with the exit code of differing models."""
        raise BrokenPipeError


def write(what: Table | Text | str) -> None:
    """Write a table or a line to stdout, at full width if stdout is not a terminal."""
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
        # A reader that stopped does not want the rest, and the exit code stands.
        discard_stdout()
