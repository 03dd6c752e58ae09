"""The ``cmd:`` engine: any program that reads arrays and writes arrays."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rnnlower.errors import OptionError

_COARSE = "float16"
_PLACES = ("{model}", "{inputs}", "{outputs}")


def split(line: str) -> tuple[Sequence[str], str]:
    """Split ``cmd:PROGRAM {model} {inputs} {outputs}`` into words as a shell would.

    Returns:
        The words, and the type in which the program computes: float16 after ``cmd:float16:``, else float32.

    Raises:
        OptionError: The line does not have this form.
    """
    example = "'cmd:./run.sh {model} {inputs} {outputs}'"
    text = line.removeprefix("cmd:")
    precision = _COARSE if text.startswith(f"{_COARSE}:") else "float32"
    try:
        words = shlex.split(text.removeprefix(f"{_COARSE}:"))
    except ValueError as error:
        raise OptionError(
            f"the engine {line!r} cannot be split into words: {error}; as in {example}"
        ) from error
    missing = [place for place in _PLACES if not any(place in word for word in words)]
    if missing:
        raise OptionError(f"the engine {line!r} has no place for {missing[0]}; as in {example}")
    return words, precision


def fill(words: Sequence[str], model: str, inputs: str, outputs: str) -> list[str]:
    """Return the words with the file names filled in."""
    names = dict(zip(_PLACES, (model, inputs, outputs), strict=True))
    filled = list(words)
    for place, name in names.items():
        filled = [word.replace(place, name) for word in filled]
    return filled
