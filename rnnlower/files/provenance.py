"""The metadata entry on the origin of a model: the version, the command and its options."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

PROVENANCE_KEY = "rnnlower.provenance"

_MOST_ELEMENTS = 16
"""Larger values are described by their type and shape."""


def record_provenance(
    properties: MutableMapping[str, str], command: str, options: Any, *, wanted: bool
) -> None:
    """Replace the entry of a model's source by one for a command, unless none is wanted or all metadata go.

    It has the fields of the command's options that are not as by default.
    """
    properties.pop(PROVENANCE_KEY, None)
    if not wanted or options.strip:
        return
    given = {
        field.name: _plain(value)
        for field in dataclasses.fields(options)
        if field.init and field.name != "progress"
        if (value := getattr(options, field.name)) != field.default and value not in (None, {}, [])
    }
    version = importlib.metadata.version("rnnlower")
    entry = {"version": version, "command": command, "options": given}
    properties[PROVENANCE_KEY] = json.dumps(entry, sort_keys=True)


def read_provenance(properties: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the entry of a model, or ``None`` if it has none that can be read."""
    try:
        entry = json.loads(properties.get(PROVENANCE_KEY, "null"))
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _plain(value: Any) -> Any:
    """Return a value in JSON types."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        small = value.size <= _MOST_ELEMENTS
        return value.tolist() if small else f"{value.dtype} of shape {list(value.shape)}"
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
