"""Options and commands as messages write them: in the style of the command line, or of Python."""

from __future__ import annotations

import contextlib
import contextvars
import shlex
from collections.abc import Iterator, Mapping, Sequence

# Python's style is the default; the command line, which is the outer caller, sets its own.
_in_python: contextvars.ContextVar[bool] = contextvars.ContextVar("in_python", default=True)
_ARGUMENTS = {
    "dim": "dims",
    "input-shape": "input_shapes",
    "node": "nodes",
    "state": "states",
    "set": "sets",
    "time-axis": "time_axes",
}


@contextlib.contextmanager
def command_line_words() -> Iterator[None]:
    """Make messages write `--dim T=16` instead of `dims={"T": 16}`."""
    token = _in_python.set(False)
    try:
        yield
    finally:
        _in_python.reset(token)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 node`, `1,030 nodes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many there are beyond: ``a, b, c and 4 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def option(name: str, value: object = None) -> str:
    """Write an option: `--opset 17`, or `opset=17`; a switch has the value True, a mere name none."""
    if not _in_python.get():
        return f"--{name}" if value is None or value is True else f"--{name} {shlex.quote(str(value))}"
    argument = _ARGUMENTS.get(name, name.replace("-", "_"))
    if name.startswith("no-"):
        return f"{argument.removeprefix('no_')}=False"
    literal = "" if value is None else f'"{value}"' if isinstance(value, str) else str(value)
    return f"{argument}={literal}"


def dims(sizes: Mapping[str, object]) -> str:
    """Write the options that fix dimensions: `--dim T=16`, or `dims={"T": 16}`."""
    return _entries("dim", "=", sizes)


def input_shapes(shapes: Mapping[str, Sequence[object]]) -> str:
    """Write the options that fix input shapes: `--input-shape X:2,3`, or `input_shapes={"X": [2, 3]}`."""
    joint, form = (", ", "[{}]") if _in_python.get() else (",", "{}")
    written = {name: form.format(joint.join(map(str, shape))) for name, shape in shapes.items()}
    return _entries("input-shape", ":", written)


def sets(name: str) -> str:
    """Write the option that gives an input a value: `--set sr=VALUE`, or `sets={"sr": VALUE}`."""
    return _entries("set", "=", {name: "VALUE"})


def time_axis(name: str, axis: object) -> str:
    """Write the option that names the time axis: `--time-axis X:0`, or `time_axes={"X": 0}`."""
    return _entries("time-axis", ":", {name: axis})


def _entries(name: str, separator: str, entries: Mapping[str, object]) -> str:
    """Write an option that is repeatable on the command line, and a dictionary in Python."""
    if _in_python.get():
        return f"{_ARGUMENTS[name]}={{" + ", ".join(f'"{key}": {each}' for key, each in entries.items()) + "}"
    written = [shlex.quote(f"{key}{separator}{each}") for key, each in entries.items()]
    return " ".join(f"--{name} {each}" for each in written)


def several(options: Sequence[str]) -> str:
    """Write several options, one after the other."""
    return (", " if _in_python.get() else " ").join(options)


def call(verb: str, **options: object) -> str:
    """Write a command: `rnnlower lower --target sonnx`, or `rnnlower.lower(model, target="sonnx")`."""
    given = [option(name, value) for name, value in options.items()]
    if _in_python.get():
        return f"rnnlower.{verb}({', '.join(['model', *given])})"
    return " ".join(["rnnlower", verb, *given])


def steps_of_call(chunk: int | None) -> str:
    """Describe the number of time steps of a streamed model: ``1 time step a call``."""
    if chunk is None:
        return "any number of time steps a call"
    return f"{chunk} time step{'s' * (chunk > 1)} a call"
