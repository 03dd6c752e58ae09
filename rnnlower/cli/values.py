"""Conversion of the text of options to values."""

from __future__ import annotations

import math
import zipfile
import zlib
from typing import Any, TypeVar

from rnnlower.errors import OptionError

_Value = TypeVar("_Value")


def _set_once(found: dict[str, _Value], name: str, value: _Value, option: str) -> None:
    if found.setdefault(name, value) != value:
        raise OptionError(f"{option} gives {name!r} two values, {found[name]} and {value}: leave out one")


def parse_dims(options: list[str] | None) -> dict[str, int]:
    dims: dict[str, int] = {}
    for option in options or ():
        name, separator, size = option.rpartition("=")
        if not separator or not name or not size.isdecimal():
            raise OptionError(f"--dim {option!r} is not NAME=N, as in --dim T=16")
        _set_once(dims, name, int(size), "--dim")
    return dims


def parse_maxima(options: list[str] | None) -> dict[str, int]:
    maxima: dict[str, int] = {}
    for option in options or ():
        name, separator, size = option.rpartition("=")
        if not separator or not name or not size.isdecimal():
            raise OptionError(f"--max {option!r} is not NAME=N, as in --max T=512")
        _set_once(maxima, name, int(size), "--max")
    return maxima


def parse_shapes(options: list[str] | None) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for option in options or ():
        name, separator, sizes = option.rpartition(":")
        parts = sizes.split(",") if sizes else []
        if not separator or not name or not all(part.strip().isdecimal() for part in parts):
            raise OptionError(f"--input-shape {option!r} is not NAME:2,3,4, as in --input-shape X:16,1,80")
        _set_once(shapes, name, [int(part) for part in parts], "--input-shape")
    return shapes


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
    import numpy as np

    path, separator, key = place.rpartition(":")
    if not separator or not path or not key:
        raise OptionError(f"--set {option!r} is not NAME=@FILE.npz:KEY")
    try:
        archive = np.load(path)
        if isinstance(archive, np.ndarray):
            raise OptionError(f"--set {option!r}: {path} holds one array; write an .npz with np.savez")
        with archive:
            if key not in archive.files:
                known = ", ".join(archive.files) or "nothing"
                raise OptionError(f"--set {option!r}: {path} has no {key!r}; it has {known}")
            return archive[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"--set {option!r}: cannot read {path}: {error or type(error).__name__}") from error


def parse_states(options: list[str] | None) -> dict[str, str] | None:
    states: dict[str, str] = {}
    for option in options or ():
        output, separator, name = option.partition("=")
        if not separator or not output or not name:
            raise OptionError(f"--state {option!r} is not OUT=IN, as in --state h_out=h_in")
        _set_once(states, output, name, "--state")
    return states or None


def parse_axes(options: list[str] | None) -> dict[str, int]:
    axes: dict[str, int] = {}
    for option in options or ():
        name, separator, axis = option.rpartition(":")
        if not separator or not name or not axis.removeprefix("-").isdecimal():
            raise OptionError(f"--time-axis {option!r} is not INPUT:AXIS, as in --time-axis X:0")
        _set_once(axes, name, int(axis), "--time-axis")
    return axes


def parse_chunk(chunk: str) -> int | str | None:
    """Time steps a call; ``None``: any number of them; a text: a duration."""
    return None if chunk == "any" else int(chunk) if chunk.isdecimal() else chunk


def check_external_data(mode: str) -> None:
    from rnnlower.files.model_io import EXTERNAL_DATA_MODES

    if mode not in EXTERNAL_DATA_MODES:
        raise OptionError(f"--external-data is {mode!r}; it must be one of {', '.join(EXTERNAL_DATA_MODES)}")
