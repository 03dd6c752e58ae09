"""The read access of an adapter to one node at one version step."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from rnnlower.errors import OpsetError
from rnnlower.graph.names import NameSource, names_in
from rnnlower.graph.versions import Version
from rnnlower.graph.walk import is_read, names_of
from rnnlower.opset.value_types import ValueTypes
from rnnlower.opset.version_fit import present


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


NodePredicate = Callable[[ir.Node], bool]


@dataclasses.dataclass
class Session:
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

    @property
    def source(self) -> int:
        return self.report.source

    @property
    def target(self) -> int:
        return self.report.target

    def collect_names(self) -> None:
        """Collect the names of all values and nodes, for `fresh` to avoid, and labels for paths."""
        self.names = NameSource(names_in(self.model))
        self.labels = names_of(self.model) | self.labels

    def fresh(self, base: str) -> str:
        """Return an unused name: `base` itself if it is free."""
        return self.names.fresh(base)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A node that a message is about, with its label."""

    node: ir.Node
    path: str
    label: str

    def __str__(self) -> str:
        name = self.node.name or next((out.name for out in self.node.outputs if out.name), "") or ""
        return f"{self.path}/{name}" if self.path else name


def describe(node: ir.Node) -> str:
    """Return how messages refer to a node: by its name, or by its first output if it has none."""
    if node.name:
        return f"node {node.name!r} ({node.op_type})"
    outputs = [value.name for value in node.outputs if value.name]
    if outputs:
        return f"the unnamed {node.op_type} that computes {outputs[0]!r}"
    inputs = [value.name for value in node.inputs if value is not None]
    return f"the unnamed {node.op_type} that reads {inputs}"


class View:
    """A node on its way from one version of its operator to the next one, up or down.

    `opset` is the opset that emitted nodes are written for. It is the target opset of the step, except for an
    operator that does not exist there: its replacement is written for the source opset, and converted
    after it.
    """

    def __init__(
        self,
        session: Session,
        graph: ir.Graph,
        node: ir.Node,
        versions: tuple[Version, Version | None],
        opsets: tuple[int, int],
        path: str,
    ) -> None:
        self.session = session
        self.graph = graph
        self.node = node
        self.old, self.new = versions
        self.source_opset, self.opset = opsets
        self.path = path
        self.made = next((str(value.name) for value in node.outputs if value.name), "")
        if self.new is None:
            self.opset = self.source_opset
        self.target = session.target
        # Of a value: its content if it is constant, its element type, rank and shape, each if it is known.
        self.array, self.dtype = session.types.array, session.types.dtype
        self.rank, self.shape = session.types.rank, session.types.shape
        # Edits put new nodes before the node, or after another one.
        self.emitted: list[ir.Node] = []
        self._after: ir.Node | None = None

    def attr(self, name: str) -> Any:
        """Return the attribute, else the old version's default; refuse a parameter."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            formal = self.old.attributes.get(name)
            return None if formal is None else formal.default
        if attribute.is_ref():
            self.refuse(
                f"its attribute {name!r} is a parameter of the function it is in",
                "inline the model's functions first",
            )
        return attribute.value

    def input(self, position: int) -> ir.Value | None:
        """Return the input at `position`, or ``None`` if it is omitted."""
        values = present(self.node.inputs)
        return values[position] if position < len(values) else None

    def x(self, position: int = 0) -> ir.Value:
        """Return the input at `position`, which the operator requires."""
        value = self.input(position)
        if value is None:
            self.refuse(f"its required input {position} is missing")
        return value

    def output(self, position: int) -> ir.Value | None:
        """Return the output at `position`, or ``None`` if it is omitted."""
        values = present(self.node.outputs)
        return values[position] if position < len(values) else None

    def used(self, position: int) -> bool:
        """Return whether anything reads the output at `position`, including graph outputs."""
        value = self.output(position)
        return value is not None and is_read(value)

    def ints(self, value: ir.Value | None) -> list[int] | None:
        """Return the content of `value` as a flat list of integers if it is constant."""
        array = self.array(value)
        return None if array is None else [int(each) for each in array.reshape(-1)]

    def known_ints(self, value: ir.Value | None, reason: str) -> list[int]:
        """Return the content of `value` as `ints` does; refuse for the reason if it is not constant."""
        values = self.ints(value)
        if values is None:
            self.refuse(reason)
        return values

    def known_dtype(self, value: ir.Value) -> ir.DataType:
        """Return the element type of `value`; refuse if it is not known."""
        dtype = self.dtype(value)
        if dtype is None:
            self.refuse(f"the element type of {value.name!r} is not known", "declare it in value_info")
        return dtype

    def known_rank(self, value: ir.Value) -> int:
        """Return the rank of `value`; refuse if it is not known."""
        rank = self.rank(value)
        if rank is None:
            self.refuse(f"the rank of {value.name!r} is not known", "declare the shape in value_info")
        return rank

    def static_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of `value` if all its dimensions are numbers."""
        shape = self.shape(value)
        return shape.numpy() if shape is not None and shape.is_static() else None

    def refuse(self, reason: str, remedy: str = "") -> NoReturn:
        """Stop the conversion.

        Raises:
            OpsetError: Always; it names the node, the version step, `reason` and the remedy.
        """
        where = f" in {self.path}" if self.path else ""
        if self.new is None:
            step = f"{self.old} does not exist before opset {self.old.since}"
            stay = f"ask for opset {self.old.since} or higher"
        else:
            step = f"{self.old} cannot become {self.new}"
            stay = f"ask for opset {self.old.since} or higher" if self.new.since < self.old.since else ""
            stay = stay or f"ask for an opset below {self.new.since}"
        advice = f"{remedy}, or {stay}" if remedy else stay
        origin = self.session.origins.get(self.node)
        written = f", written for {origin}" if origin else ""
        subject = Subject(self.node, self.path, f"{describe(self.node)}{written}{where}")
        wanted = self.old.since if self.new is None or self.new.since < self.old.since else None
        raise OpsetError(f"{step}: {reason}", node=subject, remedy=advice, opset=wanted)
