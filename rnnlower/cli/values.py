"""Conversion of the text of options to values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from rnnlower.errors import OptionError


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


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if text]


parse_dims = _pairs("--dim", "NAME=N", "T=16")
parse_maxima = _pairs("--max", "NAME=N", "T=512")
parse_buckets = _pairs(
    "--max",
    "NAME=N",
    "T=512, or T=128,512 for a model each",
    lambda sizes: all(part.strip().isdecimal() for part in sizes.split(",")),
    _sizes,
)
parse_shapes = _pairs(
    "--input-shape",
    "NAME:2,3,4",
    "X:16,1,80",
    lambda sizes: not sizes or all(part.strip().isdecimal() for part in sizes.split(",")),
    _sizes,
)
parse_states = _pairs("--state", "OUT=IN", "h_out=h_in", bool, str)
parse_axes = _pairs("--time-axis", "INPUT:AXIS", "X:0", lambda axis: axis.removeprefix("-").isdecimal())


def parse_connections(texts: list[str] | None) -> dict[str, str] | None:
    """Return inputs, with the outputs that feed them."""
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


def parse_chunk(chunk: str) -> int | str | None:
    """Return the time steps per call; ``None``: any number of them; a text: a duration."""
    return None if chunk == "any" else int(chunk) if chunk.isdecimal() else chunk


def check_external_data(mode: str) -> None:
    from rnnlower.files.model_io import EXTERNAL_DATA_MODES

    if mode not in EXTERNAL_DATA_MODES:
        raise OptionError(f"--external-data is {mode!r}; it must be one of {', '.join(EXTERNAL_DATA_MODES)}")
