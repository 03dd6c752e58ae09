"""The file of ranges: JSON, an entry for each node, direction and role."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable

from rnnlower.errors import OptionError
from rnnlower.quantizing.observing import Range, Ranges, Role


def ranges_to_json(ranges: Ranges) -> str:
    """Return the text of the file."""
    entries = [
        {
            "node": role.node,
            "direction": role.direction,
            "role": role.name,
            "min": seen.least,
            "max": seen.largest,
        }
        for role, seen in sorted(ranges.items(), key=lambda item: item[0])
    ]
    return json.dumps({"ranges": entries}, indent=1) + "\n"


def read_ranges(paths: Iterable[pathlib.Path]) -> Ranges:
    """Read files, and pool what they say of a role.

    Raises:
        OptionError: One is not such a file.
    """
    ranges: Ranges = {}
    for path in paths:
        try:
            for entry in json.loads(path.read_text(encoding="utf-8"))["ranges"]:
                role = Role(entry["node"], entry["direction"], entry["role"])
                found = Range(float(entry["min"]), float(entry["max"]))
                ranges[role] = found.joined(ranges.get(role, found))
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(
                f"{path} is no file of ranges ({error!r}); `rnnlower calibrate --ranges` writes one"
            ) from error
    return ranges
