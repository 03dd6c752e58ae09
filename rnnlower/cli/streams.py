"""Standard input and pipes as MODEL, standard output as OUT: a file stands for each while a command runs.

A model is read more than once (the verification runs it), and a result is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from rnnlower.cli.values import parse_connections
from rnnlower.errors import OptionError
from rnnlower.folders import temporary_folder

_STREAM = "-"
_STDIN = (_STREAM, "/dev/stdin")
_MODELS = ("model", "reference", "candidate")
_names: dict[str, str] = {}
"""Names of streams by the paths of their files, for messages."""


def with_names_of_streams(text: str) -> str:
    """Return the text with streams in the place of the files that stand for them."""
    for path, name in _names.items():
        text = text.replace(path, name)
    return text


@contextlib.contextmanager
def one_model(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the options of a command with one file in the place of several that are connected."""
    given = dict(options)
    paths = given.get("model")
    with contextlib.ExitStack() as stack:
        if isinstance(paths, list):
            connections = parse_connections(given["connect"])
            given["model"] = paths[0]
            if len(paths) > 1 or connections is not None:
                from rnnlower.files.composing import compose_files

                folder = stack.enter_context(temporary_folder())
                given["model"] = file = folder / f"{'_'.join(path.stem for path in paths)}.onnx"
                given["connect"] = None
                file.write_bytes(compose_files(paths, connections).SerializeToString())
                _names[str(file)] = " + ".join(map(str, paths))
        yield given


@contextlib.contextmanager
def files_for_streams(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the options of a command with files in the place of streams.

    With ``-`` for OUT, the result goes to stdout after the block, and what the block prints to stderr.

    Raises:
        OptionError: A stream is a terminal or used twice, or an option does not go with it.
    """
    given = dict(options)
    models = [name for name in _MODELS if name in given and _is_stream(given[name])]
    to_stdout = str(given.get("output")) == _STREAM
    if to_stdout:
        _check_output(given)
    if sum(str(given[name]) in _STDIN for name in models) > 1:
        raise OptionError("standard input can be only one of the two models")
    with contextlib.ExitStack() as stack:
        if models or to_stdout:
            folder = stack.enter_context(temporary_folder())
        for name in models:
            given[name] = _copied(given[name], folder / f"{name}.onnx")
        if not to_stdout:
            yield given
            return
        result = folder / ("result.onnx" if "model" in given else "result.toml")
        given["output"], _names[str(result)] = result, "standard output"
        with contextlib.redirect_stdout(sys.stderr):
            yield given
        with result.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _is_stream(path: pathlib.Path) -> bool:
    if str(path) == _STREAM:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or (str(path) in _STDIN and not stat.S_ISREG(mode))


def _check_output(options: dict[str, Any]) -> None:
    """Refuse options that do not go with a result on stdout; its data cannot be in a file of its own."""
    if sys.stdout is None or sys.stdout.isatty():
        raise OptionError("-o - writes the result to standard output: redirect it to a file or a command")
    if options.get("emit"):
        raise OptionError("-o - holds one file, and --emit writes another next to it: give a path")
    if options.get("json_"):
        raise OptionError("-o - and --json both write to standard output: leave out one of the two")
    if (mode := options.get("external_data")) in ("always", "share"):
        raise OptionError(f"-o - holds one file, and --external-data {mode} needs another one: give a path")
    if mode is not None:
        options["external_data"] = "never"


def _copied(path: pathlib.Path, file: pathlib.Path) -> pathlib.Path:
    """Return a file with the content of a stream."""
    is_stdin = str(path) in _STDIN
    if is_stdin and (sys.stdin is None or sys.stdin.isatty()):
        raise OptionError("no model comes from standard input: give a path, or a command that writes one")
    _names[str(file)] = "standard input" if is_stdin else str(path)
    with contextlib.ExitStack() as stack:
        source: BinaryIO = sys.stdin.buffer if is_stdin else stack.enter_context(path.open("rb"))
        with file.open("wb") as target:
            shutil.copyfileobj(source, target)
    return file
