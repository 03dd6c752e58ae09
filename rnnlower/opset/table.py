"""The table of version steps that are more than a widening of types, collected from the operator families.

For a new opset release, add rows to the family modules and raise `REVIEWED`. A step that has not been
reviewed is refused, never guessed.
"""

from __future__ import annotations

import importlib

from rnnlower.opset.adapters import Row

# The last opset whose steps have all been compared with the previous opset.
REVIEWED = 28

_NAMES = "along_axes broadcasting composed control elementwise layers quantize_linear resizing shaping"
FAMILIES = tuple(importlib.import_module(f"rnnlower.opset.families.{name}") for name in _NAMES.split())


def _gather() -> dict[tuple[str, int, int], Row]:
    table: dict[tuple[str, int, int], Row] = {}
    for family in FAMILIES:
        for row in family.ROWS:
            for operator in row.operators.split():
                key = (operator, row.low, row.high)
                if key in table:
                    raise ValueError(f"two rows for {operator} {row.low} to {row.high}")
                table[key] = row
    return table


ROWS = _gather()
