"""The report on a conversion, the state that its steps share, and the nodes that its messages name."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.walk import display_name, node_names, place_name
from rnnlower.opset.value_types import ValueTypes

if TYPE_CHECKING:
    from rnnlower.recurrent.suspicions import Suspicion


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

    # What other commands report, and a conversion never has.
    warnings: ClassVar[Sequence[Suspicion]] = ()
    rounds: ClassVar[bool] = False
    dequantized: ClassVar[Sequence[str]] = ()
    caller: ClassVar[str | None] = None

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


NodePredicate = Callable[[ir.Node], bool]


@dataclasses.dataclass
class Conversion:
    """The state that all steps of one conversion share."""

    model: ir.Model
    types: ValueTypes
    report: OpsetReport
    keep: NodePredicate | None
    names: NameSource = dataclasses.field(default_factory=NameSource)
    labels: dict[ir.Node, str] = dataclasses.field(default_factory=dict)
    # Nodes that an adapter has written, with the description of the model's node that caused them.
    origins: dict[ir.Node, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.collect_names()

    def collect_names(self) -> None:
        """Collect the names of all values and nodes, for fresh ones to avoid, and labels for paths."""
        self.names = NameSource(all_names(self.model))
        self.labels = node_names(self.model) | self.labels


@dataclasses.dataclass(frozen=True)
class Subject:
    """A node that a message is about, with its label."""

    node: ir.Node
    path: str
    label: str

    def __str__(self) -> str:
        return place_name(self.path, display_name(self.node))
