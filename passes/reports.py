"""The reports of the commands on what they did, which are also their JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rnnlower.files.metadata import PadMetadata
from rnnlower.lowering.replacing import LoweredNode
from rnnlower.recurrent.suspicions import Suspicion
from rnnlower.targets.choosing import KeptNode

if TYPE_CHECKING:
    from rnnlower.lifting.lifted_nodes import LiftedNode


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewritingReport:
    """The report on a model that was rewritten; `Work.summary` has these fields.

    Attributes:
        opset: Version of the default domain of the result.
        ops_before: Number of nodes by operator in the source, including subgraphs and functions.
        ops_after: The same of the result.
        notes: Messages for the user.
        sets: The inputs that were set, with their values as the model holds them.
        warnings: Ways in which the result may not behave as the user expects.
        rounds: Whether a recurrence rounds each operator to 16 bits.
        dequantized: Outputs of the quantized nodes that became float ones.
        caller: The code that calls the result, if it was asked for.
    """

    opset: int
    ops_before: Mapping[str, int]
    ops_after: Mapping[str, int]
    notes: Sequence[str] = ()
    sets: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    warnings: Sequence[Suspicion] = ()
    rounds: bool = False
    dequantized: Sequence[str] = ()
    caller: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "opset": self.opset,
            "ops_before": dict(self.ops_before),
            "ops_after": dict(self.ops_after),
            "notes": list(self.notes),
            **({"sets": {name: array.tolist() for name, array in self.sets.items()}} if self.sets else {}),
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(RewritingReport):
    """The report on a lowering.

    Attributes:
        nodes: The nodes that were lowered.
        target: The name of the runtime that the result is for, if it is for one.
        kept: Recurrent nodes that this runtime runs soundly as they are.
    """

    nodes: Sequence[LoweredNode]
    target: str | None = None
    kept: Sequence[KeptNode] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data, with reasons if they come from a target."""
        nodes = [dataclasses.asdict(node) for node in self.nodes]
        of_target: dict[str, Any] = {}
        if self.target is None:
            for node in nodes:
                for key in ("reason", "form", "prices"):
                    del node[key]
        else:
            kept = [dataclasses.asdict(node) for node in self.kept]
            of_target = {"target": self.target, "kept": kept}
        return {"nodes": nodes} | super().to_dict() | of_target


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiftReport(RewritingReport):
    """The report on lifting.

    Attributes:
        nodes: The recurrences that were examined.
    """

    nodes: Sequence[LiftedNode]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {"nodes": [dataclasses.asdict(node) for node in self.nodes]} | super().to_dict()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamReport(RewritingReport):
    """The report on a streaming conversion.

    Attributes:
        chunk: Time steps per call; ``None``: any number.
        inputs, outputs: The axis of time of those that have one.
        delay: Time steps that the outputs are late.
        states: For each output that holds a state, the input that takes it in the next call.
        lowering: The report on the lowering of the recurrent nodes, if there was one.
    """

    chunk: int | None
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    delay: int
    states: Mapping[str, str]
    lowering: Report | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        names = ("chunk", "inputs", "outputs", "delay", "states")
        lowering = None if self.lowering is None else self.lowering.to_dict()
        return {name: getattr(self, name) for name in names} | super().to_dict() | {"lowering": lowering}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PadReport(RewritingReport):
    """The report on padding.

    Attributes:
        metadata: The calling convention of the result.
    """

    metadata: PadMetadata

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return dataclasses.asdict(self.metadata) | super().to_dict()
