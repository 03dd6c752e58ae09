"""Groups of options that several commands share: a group is one parameter of a command's function."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

from rnnlower.cli.options import (
    Atol,
    Dims,
    Freeze,
    Inputs,
    InputShapes,
    Json,
    On,
    Quiet,
    Report,
    Rtol,
    Seed,
    Sets,
    States,
    Tolerance,
    Trials,
    Verbose,
    Verify,
)
from rnnlower.cli.values import parse_dims, parse_sets, parse_shapes, parse_states
from rnnlower.errors import OptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fixing:
    """The properties of the model's inputs that are fixed."""

    dim: Dims = None
    input_shape: InputShapes = None
    set_: Sets = None
    freeze: Freeze = None

    def values(self) -> dict[str, Any]:
        """Return the options under their Python names."""
        return {
            "dims": parse_dims(self.dim),
            "input_shapes": parse_shapes(self.input_shape),
            "sets": parse_sets(self.set_),
            "freeze": self.freeze,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparing:
    """The options of the comparison of source and result."""

    verify: Verify = True
    trials: Trials = None
    seed: Seed = None
    atol: Atol = None
    rtol: Rtol = None
    tolerance: Tolerance = None
    inputs: Inputs = None
    state: States = None
    on: On = None

    def settings(self) -> dict[str, Any]:
        """Return the given options under their Python names; they require a verification."""
        names = ("trials", "seed", "atol", "rtol", "tolerance", "inputs")
        options = {name: getattr(self, name) for name in names}
        options |= {"states": parse_states(self.state), "on": None if self.on == "none" else self.on}
        given = {name: value for name, value in options.items() if value is not None}
        if given and not self.verify:
            option = next(iter(given)).replace("states", "state")
            raise OptionError(
                f"--{option} says how to verify, --no-verify turns that off: leave out one of the two"
            )
        return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class Showing:
    """The options for the output of a command."""

    report: Report = None
    json_: Json = False
    quiet: Quiet = False
    verbose: Verbose = False


def flattened(*absent: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command each field of its option groups as a parameter of its own.

    Args:
        absent: Parameters and fields that the command does not have; they keep their defaults.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        groups: dict[str, Any] = {
            name: parameter.annotation
            for name, parameter in signature.parameters.items()
            if dataclasses.is_dataclass(parameter.annotation)
        }
        own = [each for each in _expanded(signature, groups) if each.name not in absent]

        @functools.wraps(function)
        def command(**options: Any) -> None:
            for name, group in groups.items():
                given = {field.name for field in dataclasses.fields(group)} & options.keys()
                options[name] = group(**{field: options.pop(field) for field in given})
            function(**options)

        command.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
        return command

    return decorate


def _expanded(signature: inspect.Signature, groups: dict[str, Any]) -> Iterator[inspect.Parameter]:
    for parameter in signature.parameters.values():
        if parameter.name not in groups:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        group = groups[parameter.name]
        annotations = typing.get_type_hints(group, include_extras=True)
        for field in dataclasses.fields(group):
            yield inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=annotations[field.name],
            )
