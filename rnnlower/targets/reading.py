"""Lookup of targets by name, and parsing of their TOML files."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import msgspec.toml

from rnnlower.errors import OptionError
from rnnlower.targets.faults import contradictions, did_you_mean, format_faults
from rnnlower.targets.format import standard_operators
from rnnlower.targets.target import Target

_FOLDER = pathlib.Path(__file__).parent / "data"


def target_names() -> list[str]:
    """Return the names of the built-in targets."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


_DEFAULT = "onnxruntime"
"""The target whose forms are emitted if none is asked for: it runs every result, to verify it."""


def find_target(name: str | os.PathLike[str] = _DEFAULT) -> Target:
    """Return the target of this name, or the one that the TOML file at this path describes.

    Raises:
        OptionError: There is no such target, or the file does not describe one.
    """
    if not isinstance(name, str | os.PathLike):
        raise OptionError(f"the target is {name!r}; it must be a name, or the path of a .toml file")
    return _built_in(str(name)) if str(name) in target_names() else _read_file(pathlib.Path(name), name)


_REMEDY = "`rnnlower targets --new FILE.toml` writes a start with all keys, --schema is for editors"
_ALIKE = 0.7
"""The least similarity of a misspelt target to the one that was meant; TensorFlow and TensorRT have less."""


@functools.cache
def _built_in(name: str) -> Target:
    """Return a built-in target, cached because every lowering uses it."""
    return _parse(name, _drop_newer_operators(read_toml(_FOLDER / f"{name}.toml")))


def _drop_newer_operators(data: dict[str, Any]) -> dict[str, Any]:
    """Remove operators that are newer than the installed onnx from a built-in file."""

    def known(op_types: Sequence[str]) -> list[str]:
        return [name for name in op_types if "." in name or name in standard_operators()]

    ops, limits = data["ops"], data.get("limits", [])
    ops |= {"allowed": known(ops["allowed"])} if "allowed" in ops else {}
    limits = [limit | {"ops": known(limit["ops"])} for limit in limits if known(limit["ops"])]
    return data | {"limits": limits}


def _read_file(path: pathlib.Path, name: str | os.PathLike[str]) -> Target:
    if path.suffix == ".toml" and not path.is_file():
        remedy = f"`rnnlower targets --new {path}` writes a start"
        raise OptionError(f"target file {path} does not exist", remedy=remedy)
    if path.suffix != ".toml" and path.is_file():
        raise OptionError(f"target file {path} does not end in .toml")
    if path.suffix != ".toml":
        names = target_names()
        listed = f"; it must be one of {', '.join(names)}, or the path of a .toml file that describes one"
        raise OptionError(
            f"there is no target {str(name)!r}" + (did_you_mean(str(name), names, _ALIKE) or listed)
        )
    try:
        return parse_target(path.stem, path.read_text(encoding="utf-8"), str(name))
    except ValueError as error:
        raise OptionError(f"target file {path}: {error}", remedy=_REMEDY) from error


def read_toml(path: pathlib.Path) -> dict[str, Any]:
    """Return the data of a target's file.

    Raises:
        OptionError: It is not TOML.
    """
    try:
        data: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
    except ValueError as error:
        raise OptionError(f"target file {path}: {error}") from error
    return data


def parse_target(name: str, text: str, path: str = "") -> Target:
    """Parse the text of a target file, which is at a path unless it is built in or not written yet.

    Raises:
        ValueError: It is not TOML or does not describe a target.
    """
    return _parse(name, msgspec.toml.decode(text), path)


def fill_in_sources(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a file with the file's source in every claim that states none."""
    source = data.get("source")

    def stated(claim: Any) -> Any:
        if not source or not isinstance(claim, dict) or "source" in claim or claim.get("guess"):
            return claim
        return claim | {"source": source}

    return {
        key: [stated(claim) for claim in value] if isinstance(value, list) else stated(value)
        for key, value in data.items()
    }


def _parse(name: str, data: Mapping[str, Any], path: str = "") -> Target:
    data = fill_in_sources(data)
    _raise_first(format_faults(data))
    target = msgspec.convert({"title": name, **data, "name": name, "path": path}, Target)
    _raise_first(contradictions(target))
    return target


def _raise_first(faults: Iterator[str]) -> None:
    for fault in faults:
        raise ValueError(fault)
