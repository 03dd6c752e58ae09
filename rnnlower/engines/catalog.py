"""The known runtimes, and how to install those that are missing."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rnnlower.engines import child
from rnnlower.errors import OptionError

_SECONDS_TO_ASK = 60.0
_FLOAT16 = "float16"
PLACEHOLDERS = ("{model}", "{inputs}", "{outputs}")
"""The words of a command that stand for the names of files."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """A runtime, as its adapter describes it, and its installation.

    Attributes:
        name: Its name for ``--on``.
        title: Its name for people.
        packages: Its packages on PyPI, all of which it needs; ``a|b``: one of the two. The first one
            gives the version.
        install: How to install it; by default, pip with its packages.
        needs: Programs that it needs.
        precision: The type in which it computes float32; its tolerance follows from it.
        activation_error: The largest error of its Sigmoid and Tanh, where it is far above float32's rounding.
        tried: The version with which the adapter was tried; ``""`` if it was not.
        threads: Whether the number of threads can be set.
        slow: True if it takes seconds to load a model, so that a probe asks less.
        version: The installed version; ``None`` if it is not installed.
        python: The interpreter that has it.
        missing: What is missing to run it; ``""`` if nothing.
        command: The words of a command, for ``cmd:``.
    """

    name: str
    title: str
    packages: Sequence[str] = ()
    install: str = ""
    needs: Sequence[str] = ()
    precision: str = "float32"
    activation_error: float = 0.0
    tried: str = ""
    threads: bool = False
    slow: bool = False
    version: str | None = None
    python: str = sys.executable
    missing: str = ""
    command: Sequence[str] = ()

    @property
    def installed(self) -> bool:
        """True if it can be run."""
        return not self.missing

    @property
    def is_coarse(self) -> bool:
        """True if it computes in a smaller type than float32."""
        return self.precision == _FLOAT16

    @property
    def is_here(self) -> bool:
        """True if this interpreter has it."""
        return self.python == sys.executable and not self.command

    @property
    def label(self) -> str:
        """Its title with its version."""
        return f"{self.title} {self.version}" if self.version else self.title

    def to_dict(self) -> dict[str, Any]:
        """Return what ``engines --json`` prints, in JSON types."""
        keys = ("name", "title", "installed", "version", "tried", "precision", "python", "missing", "install")
        return {key: getattr(self, key) for key in keys} | {"needs": list(self.needs)}


def engine_names() -> list[str]:
    """Return the names of the known runtimes."""
    return sorted(_load_adapters())


def engines() -> list[Engine]:
    """Return the known runtimes, including those that are not installed."""
    return [find_engine(name) for name in engine_names()]


def find_engine(name: str) -> Engine:
    """Return the runtime of this name, or the command of a ``cmd:`` line.

    Raises:
        OptionError: There is no such runtime, or the command lacks one of its placeholders.
    """
    if isinstance(name, str) and name.startswith("cmd:"):
        words, precision = _parse_command(name)
        return Engine(name, f"the command {words[0]}", command=words, precision=precision)
    if name not in engine_names():
        raise OptionError(
            f"there is no engine {name!r}; it must be one of {', '.join(engine_names())}, "
            "or a command as in 'cmd:PROGRAM {model} {inputs} {outputs}'"
        )
    about = _load_adapters()[name].about
    variable = f"RNNLOWER_PYTHON_{name.replace('-', '_').upper()}"
    python = os.environ.get(variable) or sys.executable
    engine = Engine(name, python=python, **about)
    pip = f"pip install {' '.join(package.split('|')[0] for package in engine.packages)}"
    version, missing = _find_installation(engine, variable)
    return dataclasses.replace(engine, install=engine.install or pip, version=version, missing=missing)


def _parse_command(line: str) -> tuple[Sequence[str], str]:
    """Split ``cmd:PROGRAM {model} {inputs} {outputs}`` into words as a shell would.

    Returns:
        The words, and the type in which the program computes: float16 after ``cmd:float16:``, else float32.

    Raises:
        OptionError: The line does not have this form.
    """
    example = "'cmd:./run.sh {model} {inputs} {outputs}'"
    text = line.removeprefix("cmd:")
    precision = _FLOAT16 if text.startswith(f"{_FLOAT16}:") else "float32"
    try:
        words = shlex.split(text.removeprefix(f"{_FLOAT16}:"))
    except ValueError as error:
        raise OptionError(
            f"the engine {line!r} cannot be split into words: {error}; as in {example}"
        ) from error
    missing = [place for place in PLACEHOLDERS if not any(place in word for word in words)]
    if missing:
        raise OptionError(f"the engine {line!r} has no place for {missing[0]}; as in {example}")
    return words, precision


def adapter_file(engine: Engine) -> Path:
    """Return the file from which the child loads the runtime."""
    return Path(_load_adapters()[engine.name].load.__code__.co_filename)


def _load_adapters() -> dict[str, child.Adapter]:
    """Return the adapters by the names of their runtimes."""
    from rnnlower.engines.runtimes import converters, readers  # noqa: F401 (they add to the adapters)

    return child.ADAPTERS


def _find_installation(engine: Engine, variable: str) -> tuple[str | None, str]:
    """Return the installed version, and what is missing."""
    if shutil.which(engine.python) is None:
        return None, f"{variable} is {engine.python!r}, which is not a program"
    own_way = _load_adapters()[engine.name].version
    if own_way is not None:
        version: str | None = own_way()
        missing = [] if version else [engine.title]
    else:
        choices = tuple(package.split("|") for package in engine.packages)
        try:
            found = _versions(engine.python, tuple(name for names in choices for name in names))
        except OptionError as error:
            return None, f"{variable} cannot be used: {error}"
        present = [next((found[name] for name in names if name in found), None) for names in choices]
        missing = [names[0] for names, each in zip(choices, present, strict=True) if each is None]
        version = None if missing else present[0]
    missing += [program for program in engine.needs if shutil.which(program) is None]
    return (None if missing else version), (f"{', '.join(missing)} not found" if missing else "")


@functools.lru_cache
def _versions(python: str, packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the packages that the interpreter has."""
    if python == sys.executable:
        return child.versions(packages)
    try:
        asked = subprocess.run(
            [python, str(Path(child.__file__)), "--versions", *packages],
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_ASK,
            check=True,
        )
        found: dict[str, str] = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise OptionError(f"{python} cannot list its packages: {error}") from error
    return found
