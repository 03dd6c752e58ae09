"""The file of ranges: JSON, an entry for each node, direction and role."""

from __future__ import annotations

import json
import pathlib

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


def read_ranges(path: pathlib.Path) -> Ranges:
    """Read the file.

    Raises:
        OptionError: It is not such a file.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["ranges"]
        return {
            Role(entry["node"], entry["direction"], entry["role"]): Range(
                float(entry["min"]), float(entry["max"])
            )
            for entry in entries
        }
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{path} is no file of ranges ({error!r}); `rnnlower calibrate --ranges` writes one"
        ) from error
