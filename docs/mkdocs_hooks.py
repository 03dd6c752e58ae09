"""Hooks of mkdocs: the page of commands, generated from the command line; plots; links out of docs/.

`mkdocs build --strict` runs it. Pages are written for readers of the repository, too: a link to a file
outside of docs/ becomes the file's name, and a plot is taken along.
"""

from __future__ import annotations

import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import typer.main
from mkdocs.structure.files import File

from rnnlower.cli.app import app
from rnnlower.cli.flags import PANELS

ROOT = pathlib.Path(__file__).parents[1]
_PLOT = re.compile(r"\]\(\.\./benchmarks/plots/([\w.]+)\)")
_OUTWARD = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]*\)")
_CASE = re.compile(r"^\*\*(.+?)\*\* \((exit code .*)\)$", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the page of commands and the plots."""
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for plot in sorted((ROOT / "benchmarks" / "plots").glob("*.svg")):
        files.append(File.generated(config, f"plots/{plot.name}", abs_src_path=str(plot)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to what the site has; each refusal gets a heading, which the search finds."""
    markdown = _PLOT.sub(r"](plots/\1)", markdown)
    markdown = _OUTWARD.sub(r"\1", markdown)
    if page.file.src_uri == "refusals.md":
        markdown = _CASE.sub(r"### \1\n\n\2", markdown)
    return markdown


def commands_page() -> str:
    """Return every command with its options, example and exit codes."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# Commands",
        "Written from the command line itself: `rnnlower COMMAND --help` shows the same. Data goes to "
        "stdout, everything else to stderr. What is refused is refused before anything is written.",
        _table(
            ("command", "what it does"),
            ((f"[`{name}`](#{name})", _first(command.help)) for name, command in group.commands.items()),
        ),
        "`rnnlower --install-completion` installs completion for the shell, `rnnlower --version` tells the "
        "version.",
    ]
    for name, command in group.commands.items():
        parts += _command(name, command)
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = " ".join(argument.metavar or argument.name.upper() for argument in arguments)
    yield f"## {name}"
    yield inspect.cleandoc(command.help or "")
    yield f"```\nrnnlower {name} {words} [options]\n```".replace("  ", " ")
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    for panel in (None, *PANELS):
        rows = [_row(option) for option in options if getattr(option, "rich_help_panel", None) == panel]
        if rows:
            yield _table((panel or "options", ""), rows)
    epilog = inspect.cleandoc(command.epilog or "")
    if epilog:
        yield f"```\n{epilog}\n```"


def _row(option: Any) -> tuple[str, str]:
    names = ", ".join((*option.opts, *option.secondary_opts))
    metavar = "" if option.is_flag else f" {(option.metavar or '').strip()}"
    given = option.default if isinstance(option.default, str | int) and not option.is_flag else None
    default = "" if given in (None, "") else f" Default: `{given}`."
    return f"`{names}{metavar}`", f"{option.help or ''}{default}"


def _table(header: tuple[str, str], rows: Any) -> str:
    lines = [header, ("---", "---"), *rows]
    return "\n".join(
        f"| {left.replace('|', chr(92) + '|')} | {right.replace('|', chr(92) + '|')} |"
        for left, right in lines
    )


def _first(text: str | None) -> str:
    return inspect.cleandoc(text or "").partition("\n")[0]
