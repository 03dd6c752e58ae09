"""The report on a conversion, as plain data."""

from __future__ import annotations

import collections
import dataclasses


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
    left out because nothing called them. `notes` are sentences for the user.
    """

    source: int
    target: int
    ir_version: int
    adapted: list[Adaptation] = dataclasses.field(default_factory=list)
    inlined: list[str] = dataclasses.field(default_factory=list)
    unused: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    changed: bool = False

    def __bool__(self) -> bool:
        return self.changed

    def grouped(self) -> dict[tuple[str, str, str], int]:
        """Count the nodes that changed, by operator, version step and reason; the most frequent first."""
        steps = ((each.op_type, f"{each.old} -> {each.new}", each.reason) for each in self.adapted)
        return dict(collections.Counter(steps).most_common())
