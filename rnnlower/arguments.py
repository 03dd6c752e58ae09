"""Checks of the arguments of the Python functions, made before any work starts."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rnnlower.errors import OptionError

MAX_LENGTH = 2**31 - 1
"""No sequence is longer."""

MAX_STEPS = 200_000
"""The largest number of time steps that are written one by one; more would exhaust the memory."""


def integer(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> int:
    """Return the value as an int.

    Raises:
        OptionError: It is not an int, but for example a float or a string of digits, or it is too small or
            too large.
    """
    number = None if isinstance(value, bool) else plain(value)
    if not isinstance(number, int):
        raise OptionError(f"the {name} is {value!r}; it must be an integer")
    if number < least:
        raise OptionError(f"the {name} is {value}; it must be at least {least}")
    if number > most:
        raise OptionError(f"the {name} is {value}; it must be at most {most}")
    return number


def check_unroll_factor(value: Any) -> int:
    """Return the time steps of an iteration as an int.

    Raises:
        OptionError: It is not one from 1 to `MAX_STEPS`.
    """
    return integer("unroll factor", value, least=1, most=MAX_STEPS)


def plain(value: Any) -> Any:
    """Return integers, such as NumPy's, as int and iterators as tuples, also among a dictionary's values."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, Iterator):
        return tuple(map(plain, value))
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # An array.
        return value


def dictionary(name: str, value: Any) -> dict[str, Any]:
    """Return the value as a dictionary, an empty one for ``None``.

    Raises:
        OptionError: It is something else.
    """
    if not isinstance(value, Mapping | None):
        raise OptionError(f"{name} is {value!r}; it must be a dictionary")
    return dict(value or {})


def check_strings(name: str, values: Any) -> None:
    """Refuse a value that is neither a list of strings nor ``None``.

    Raises:
        OptionError: It is a single string, or holds something else.
    """
    if isinstance(values, str):
        raise OptionError(f"{name} is one string; write {name}=[{values!r}], a list")
    are_strings = isinstance(values, Iterable) and all(isinstance(each, str) for each in values)
    if values is not None and not are_strings:
        raise OptionError(f"{name} is {values!r}; it must be a list of strings")


def model_path(model: Any, role: str = "the model") -> str:
    """Return the path of a model.

    Raises:
        OptionError: It is not a path.
    """
    if isinstance(model, str | os.PathLike):
        path = os.fspath(model)
        if isinstance(path, str):
            return path
    kind = type(model).__name__
    raise OptionError(f"{role} is of type {kind}; it must be a path, an onnx.ModelProto or an onnx_ir.Model")


def check_choice(name: str, value: Any, choices: Sequence[str], pronoun: str = "it") -> None:
    """Refuse a value that is not one of the choices; ``name`` begins the message, as in ``native is``.

    Raises:
        OptionError: It is another one.
    """
    if value not in choices:
        raise OptionError(f"{name} {value!r}; {pronoun} must be one of {', '.join(choices)}")
