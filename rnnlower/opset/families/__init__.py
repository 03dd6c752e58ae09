"""The operator families: what each version step that is more than a widening of types changes.

For a new opset release, add rows to the modules and raise `REVIEWED`. A step that has not been reviewed is
refused, never guessed.
"""

from __future__ import annotations

import importlib

from rnnlower.opset.adapters import Row

# The last opset whose steps have all been compared with the previous opset.
REVIEWED = 28

_NAMES = "along_axes broadcasting composed control elementwise layers resizing shaping"
FAMILIES = tuple(importlib.import_module(f"rnnlower.opset.families.{name}") for name in _NAMES.split())
ROWS: dict[tuple[str, int, int], Row] = {
    (operator, row.low, row.high): row
    for family in FAMILIES
    for row in family.ROWS
    for operator in row.operators.split()
}
