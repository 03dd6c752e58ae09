"""The parsing of option values, and the replacement of streams by files.

A model is read more than once (the verification runs it), and a result is written whole or not at all. While
a command runs, files therefore stand in for standard input, pipes and standard output.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from rnnlower.arguments import check_choice
from rnnlower.errors import OptionError
from rnnlower.folders import temporary_folder


def _pairs(
    option: str,
    form: str,
    example: str,
    fits: Callable[[str], bool] = str.isdecimal,
    read: Callable[[str], Any] = int,
) -> Callable[[list[str] | None], dict[str, Any]]:
    """Return a function that reads the texts of an option, of a form such as ``NAME=N``, as a dictionary."""
    separator = re.sub(r"\w", "", form)[0]

    def parse(texts: list[str] | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for text in texts or ():
            name, given, value = text.rpartition(separator)
            if not (name and given and fits(value)):
                raise OptionError(f"{option} {text!r} is not {form}, as in {option} {example}")
            if found.setdefault(name, read(value)) != read(value):
                values = f"{found[name]} and {read(value)}"
                raise OptionError(f"{option} gives {name!r} two values, {values}: leave out one")
        return found

    return parse


def _are_sizes(text: str) -> bool:
    return all(part.strip().isdecimal() for part in text.split(","))


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if text]


parse_dims = _pairs("--dim", "NAME=N", "T=16")
parse_maxima = _pairs("--max", "NAME=N", "T=512")
parse_buckets = _pairs("--max", "NAME=N", "T=512, or T=128,512 for a model each", _are_sizes, _sizes)
parse_shapes = _pairs(
    "--input-shape", "NAME:2,3,4", "X:16,1,80", lambda text: not text or _are_sizes(text), _sizes
)
parse_states = _pairs("--state", "OUT=IN", "h_out=h_in", bool, str)
parse_axes = _pairs("--time-axis", "INPUT:AXIS", "X:0", lambda axis: axis.removeprefix("-").isdecimal())


def parse_connections(texts: list[str] | None) -> dict[str, str] | None:
    """Return the output that feeds each connected input."""
    read = _pairs("--connect", "OUT=IN", "encoder_out=am", bool, str)
    pairs = [pair for text in texts or () for pair in read([text]).items()]
    found = {name: output for output, name in pairs}
    if len(found) < len(pairs):
        raise OptionError("--connect feeds an input twice: leave out one of the two")
    return found or None


def parse_sets(options: list[str] | None) -> dict[str, Any]:
    sets: dict[str, Any] = {}
    for option in options or ():
        name, separator, text = option.partition("=")
        if not separator or not name or not text:
            raise OptionError(f"--set {option!r} is not NAME=VALUE, as in --set sr=16000")
        if name in sets:
            raise OptionError(f"--set gives {name!r} two values: leave out one")
        sets[name] = _read_array(text[1:], option) if text.startswith("@") else _parse_value(text, option)
    return sets


def _parse_value(text: str, option: str) -> Any:
    import json

    words = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
    try:
        value = words[text] if text in words else json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, int | float | list):
        raise OptionError(
            f"--set {option!r}: {text!r} is not a number, true, false, a list such as [1,2], or @FILE.npz:KEY"
        )
    return value


def _read_array(place: str, option: str) -> Any:
    from rnnlower.engines import child

    path, separator, key = place.rpartition(":")
    if not separator or not path or not key:
        raise OptionError(f"--set {option!r} is not NAME=@FILE.npz:KEY")
    try:
        arrays = child.read_arrays(path)
    except ValueError as error:
        raise OptionError(f"--set {option!r}: cannot read {path}: {error}") from error
    if key not in arrays:
        known = ", ".join(arrays) or "nothing"
        raise OptionError(f"--set {option!r}: {path} has no {key!r}; it has {known}")
    return arrays[key]


def parse_chunk(chunk: str) -> int | str:
    """Return the time steps per call; a string: a duration, or any number."""
    return int(chunk) if chunk.isdecimal() else chunk


def check_external_data(mode: str) -> None:
    from rnnlower.files.model_io import EXTERNAL_DATA_MODES

    check_choice("--external-data is", mode, EXTERNAL_DATA_MODES)


_STREAM = "-"
_STDIN = (_STREAM, "/dev/stdin")
_MODELS = ("model", "reference", "candidate")
_DATA = ("recordings", "calibration", "inputs", "target")
_stream_names: dict[str, str] = {}
"""The names of streams by the paths of their files, for messages."""


def restore_stream_names(text: str) -> str:
    """Replace the paths of files that stand in for streams by the names of the streams."""
    for path, name in _stream_names.items():
        text = text.replace(path, name)
    return text


def check_output(options: Mapping[str, Any]) -> None:
    """Refuse a result in place of a file that the command reads, except a model in place of its source.

    Raises:
        OptionError: There is such a file.
        InvalidModelError: The model cannot be read.
    """
    output = options.get("output")
    if output is None or str(output) == _STREAM:
        return
    # The reader in Python has its data next to it; a folder, such as `.`, may have no name.
    in_python = options.get("format") == "python" and output.name
    places = [output, output.with_suffix(".npz")] if in_python else [output]
    replaced = {path.resolve() for path in places if path.is_file()}
    if not replaced:
        return
    models = {path.resolve(): path for path in _listed(options.get("model")) if path.is_file()}
    read = {pathlib.Path(each).resolve() for name in _DATA for each in _listed(options.get(name))}
    for text in options.get("sets") or ():
        read.add(pathlib.Path(text.partition("=@")[2].rpartition(":")[0]).resolve())
    if "recordings" in options:
        read |= models.keys()
    if replaced - models.keys():
        from rnnlower.files.checks import external_files, read_proto

        for path in models.values():
            # What cannot be read is refused by the command itself, with its own message.
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                # Parsing a large model takes longer than looking for the name.
                if any(os.fsencode(each.name) in content for each in replaced):
                    names = external_files(read_proto(path, str(path)))
                    read.update((path.parent / name).resolve() for name in names)
    for path in replaced & read:
        raise OptionError(
            f"the result would take the place of {path.name}, which the command reads",
            remedy="give the result another name",
        )


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [] if values is None else [values]


@contextlib.contextmanager
def connect_models(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the options of a command with several connected models replaced by one file."""
    given = dict(options)
    paths = given.get("model")
    with contextlib.ExitStack() as stack:
        if isinstance(paths, list):
            connections = parse_connections(given["connect"])
            given["model"] = paths[0]
            if len(paths) > 1 or connections is not None:
                from rnnlower.files.composing import compose_files

                folder = stack.enter_context(temporary_folder())
                _check_stdin(paths)
                files = [
                    _copy_stream(path, folder / f"model_{number}.onnx") if _is_stream(path) else path
                    for number, path in enumerate(paths)
                ]
                given["model"] = file = folder / f"{'_'.join(each.stem for each in files)}.onnx"
                given["connect"] = None
                file.write_bytes(compose_files(files, connections).SerializeToString())
                _stream_names[str(file)] = " + ".join(map(str, paths))
        yield given


@contextlib.contextmanager
def replace_streams(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the options of a command with streams replaced by files.

    With ``-`` for OUT, the result goes to stdout after the block, and what the block prints to stderr.

    Raises:
        OptionError: A stream is a terminal or used twice, or an option does not go with it.
    """
    given = dict(options)
    models = [name for name in _MODELS if name in given and _is_stream(given[name])]
    to_stdout = str(given.get("output")) == _STREAM
    if to_stdout:
        _check_output(given)
    _check_stdin([given[name] for name in models])
    with contextlib.ExitStack() as stack:
        if models or to_stdout:
            folder = stack.enter_context(temporary_folder())
        for name in models:
            given[name] = _copy_stream(given[name], folder / f"{name}.onnx")
        if not to_stdout:
            yield given
            return
        result = folder / ("result.onnx" if "model" in given else "result.toml")
        given["output"], _stream_names[str(result)] = result, "standard output"
        with contextlib.redirect_stdout(sys.stderr):
            yield given
        with result.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _check_stdin(models: Sequence[pathlib.Path]) -> None:
    if sum(str(path) in _STDIN for path in models) > 1:
        raise OptionError("standard input can be only one of the models")


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


def _copy_stream(path: pathlib.Path, file: pathlib.Path) -> pathlib.Path:
    """Return a file with the content of a stream."""
    is_stdin = str(path) in _STDIN
    if is_stdin and (sys.stdin is None or sys.stdin.isatty()):
        raise OptionError("no model comes from standard input: give a path, or a command that writes one")
    _stream_names[str(file)] = "standard input" if is_stdin else str(path)
    with contextlib.ExitStack() as stack:
        source: BinaryIO = sys.stdin.buffer if is_stdin else stack.enter_context(path.open("rb"))
        with file.open("wb") as target:
            shutil.copyfileobj(source, target)
    return file
