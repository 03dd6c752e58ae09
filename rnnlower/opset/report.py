"""The report on a conversion, as plain data."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """A node that could not cross a version step unchanged; `output` is the first value that it computes."""

    name: str
    output: str
    op_type: str
    path: str
    old: int
    new: int
    reason: str


@dataclasses.dataclass
class OpsetReport:
    """The result of `convert_opset`; truthy when the model was changed.

    `inlined` names the functions whose calls were replaced by their bodies, `unused` the functions that were
    left out because nothing called them. `notes` are sentences for the user. `sets` are inputs that were
    set before, with their values.
    """

    source: int
    target: int
    ir_version: int
    adapted: list[Adaptation] = dataclasses.field(default_factory=list)
    inlined: list[str] = dataclasses.field(default_factory=list)
    unused: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    changed: bool = False
    sets: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.changed

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        report = dataclasses.asdict(self) | {"opset": self.target}
        sets = {name: array.tolist() for name, array in report.pop("sets").items()}
        return report | ({"sets": sets} if sets else {})

    def grouped(self) -> dict[tuple[str, str, str], int]:
        """Count the nodes that changed, by operator, version step and reason; the most frequent first."""
        steps = ((each.op_type, f"{each.old} -> {each.new}", each.reason) for each in self.adapted)
        return dict(collections.Counter(steps).most_common())
