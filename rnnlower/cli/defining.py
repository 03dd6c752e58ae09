"""The decorator that makes commands of functions whose parameters name options.

A parameter that is a dataclass, such as the options of a public function, stands for its fields. So names and
defaults agree with those of Python.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from rnnlower.cli.common import exit_codes
from rnnlower.cli.flags import ARGUMENTS, OPTIONS, PANEL_OF, keyword
from rnnlower.errors import OptionError


def check_verifying(verify: bool, given: Iterable[str]) -> None:
    """Refuse options of the verification if it is turned off."""
    if not verify and (option := next(iter(given), "")):
        option = option.replace("states", "state")
        raise OptionError(
            f"--{option} says how to verify, --no-verify turns that off: leave out one of the two"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The options of the comparison of source and result."""

    verify: bool = True
    trials: int | None = None
    seed: int | None = None
    atol: float | None = None
    rtol: float | None = None
    tolerance: str | None = None
    inputs: pathlib.Path | None = None
    states: dict[str, str] | None = None
    on: str | None = None

    def settings(self) -> dict[str, Any]:
        """Return the given options as arguments of `rnnlower.verify`; they require a verification."""
        names = [each.name for each in dataclasses.fields(self) if each.name != "verify"]
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, {})}
        if given.get("on") == "none":
            del given["on"]
        check_verifying(self.verify, given)
        return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class Display:
    """The options for what a command prints and reports."""

    report: pathlib.Path | None = None
    json_: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def in_words(self) -> bool:
        """True if the command reports what it did in words."""
        return not self.json_ and not self.quiet


def command(*absent: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function, with an option for each parameter and each field of a dataclass.

    Args:
        absent: Fields that the command does not offer; they keep their defaults.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        defaults: dict[str, Any] = {}
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            kind: Any = parameter.annotation
            if not dataclasses.is_dataclass(parameter.annotation):
                defaults[name] = parameter.default
                continue
            fields = inspect.signature(kind).parameters
            own = {each: fields[each].default for each in fields if each not in (*absent, "progress")}
            groups[name] = (kind, [*own])
            defaults |= own
        places = {each: _option_key(function.__name__, each) for each in defaults}
        grouped = {each for _, own in groups.values() for each in own}
        flags = {each: OPTIONS[place] for each, place in places.items() if place in OPTIONS}

        @functools.wraps(function)
        def run(**texts: Any) -> None:
            given = {
                each: flags[each].read(value) if each in flags else value for each, value in texts.items()
            }
            made = {
                group: kind(**{each: given[each] for each in own}) for group, (kind, own) in groups.items()
            }
            alone = {each: value for each, value in given.items() if each not in grouped}
            function(**alone, **made)

        parameters = []
        for each in (each for each in places if each not in flags):
            kind, words = ARGUMENTS[places[each]]
            argument = typer.Argument(metavar=each.upper(), help=words, show_default=False)
            parameters.append(keyword(each, inspect.Parameter.empty, Annotated[kind, argument]))
        order = [*OPTIONS]
        for each in sorted(flags, key=lambda each: order.index(places[each])):
            parameters.append(flags[each].parameter(places[each], defaults[each], PANEL_OF[places[each]]))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return exit_codes(run)

    return decorate


def _option_key(command: str, name: str) -> str:
    """Return the key of an argument or option of a command."""
    own = f"{command}.{name}"
    return own if own in OPTIONS or own in ARGUMENTS else name
