"""The options of a lowering, and the report on one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from rnnlower import wording
from rnnlower.arguments import check_strings, integer
from rnnlower.errors import OptionError
from rnnlower.lowering import FIRST_OPSET, LAST_OPSET
from rnnlower.lowering.replacing import Gates, LoweredNode
from rnnlower.recurrent.exporter_warnings import Suspicion
from rnnlower.recurrent.node import Semantics, check_semantics
from rnnlower.targets import Target
from rnnlower.targets.choosing import KeptNode, Native
from rnnlower.targets.requirements import check_opset, wants_numbers

LOOPS = ("Loop", "Scan")


@dataclasses.dataclass(frozen=True)
class LoweringOptions:
    """The options of a lowering; the fields are the command line's options.

    Attributes:
        strategy: ``unroll``, ``scan``, ``loop``, or ``target``: chosen for the target.
        opset: Version of the default domain of the result; ``None``: the source's, raised only as far as
            needed.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of graph inputs.
        nodes: Shell wildcards. Only nodes whose name matches one of them are lowered. ``None``: all.
        unroll_factor: Time steps per iteration of a Scan or Loop.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
        target: The runtime that the result is for.
        sets: Values of graph inputs that become constants.
        fold: Whether to fold constants and replace If nodes of known condition; ``None``: for a target, and
            if inputs or sizes are given.
        control_flow: ``unroll``: unroll Loop and Scan nodes of the model, too; ``keep``: leave
            them; ``None``: unroll those that the target lacks.
        freeze: Whether initializers that are graph inputs, too, become constants; ``None``: for a target,
            those that no caller can override.
        strip: Whether metadata and names of nodes, and doc strings, are removed.
        strict: Whether ops of the rest of the model that do not fit the target are an error.
        dequantize: Whether quantized recurrent operators, of those that are lowered, become float ones.
        assume_linear_before_reset: Whether every GRU is read as ``linear_before_reset=1``.
        compute_type: ``float32``: narrower recurrences compute in it, between Casts.
        gates: ``fused``: as few products as can be; ``separate``: one for each gate; ``auto``: what the
            target runs fastest.
        native: ``keep``: keep the target's own recurrent operators, as they are or adapted, wherever it runs
            them correctly; ``lower``: replace them all; ``auto``: keep those that are faster than primitives.
    """

    strategy: str
    opset: int | None = None
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    nodes: Sequence[str] | None = None
    unroll_factor: int = 1
    semantics: Semantics = "ort"
    target: Target | None = None
    strict: bool = False
    sets: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fold: bool | None = None
    control_flow: str | None = None
    dequantize: bool = False
    assume_linear_before_reset: bool = False
    compute_type: str | None = None
    gates: Gates = "auto"
    native: Native = "auto"
    freeze: bool | None = None
    strip: bool = False

    @property
    def folds(self) -> bool:
        """True if constants are folded and If nodes of known condition are replaced."""
        if self.fold is not None:
            return self.fold
        return self.strategy == "target" or bool(self.sets) or self.fixes_sizes

    @property
    def may_freeze(self) -> bool:
        """True if initializers that are graph inputs may become constants."""
        return bool(self.freeze) or (self.freeze is None and self.target is not None)

    @property
    def unrolls(self) -> tuple[str, ...]:
        """The model's own control flow operators that are unrolled."""
        if self.control_flow == "unroll":
            return LOOPS
        if self.control_flow == "keep" or self.target is None:
            return ()
        return tuple(op_type for op_type in LOOPS if op_type not in self.target.control_flow.ops)

    @property
    def may_unroll(self) -> bool:
        """True if some of the model's own control flow may be unrolled."""
        return bool(self.unrolls) or (self.target is not None and self.control_flow is None)

    @property
    def emits(self) -> bool:
        """True if recurrent nodes are replaced, and not kept by a profile."""
        return not self.conforms

    @property
    def conforms(self) -> bool:
        """True if recurrent nodes are kept in the form that a profile prescribes."""
        return self.target is not None and bool(self.target.profile)

    @property
    def fixes_sizes(self) -> bool:
        """True if sizes are given."""
        return bool(self.dims or self.input_shapes)

    @property
    def needs_lengths(self) -> bool:
        """True if every sequence length must be a number."""
        return self.strategy == "unroll" or (self.target is not None and wants_numbers(self.target))

    @property
    def may_adapt(self) -> bool:
        """True if the target's own operators may stay, with ops around them."""
        return self.native != "lower"

    @property
    def shares_constants(self) -> bool:
        """True if the target would copy a constant for each node that reads it."""
        return self.target is not None and self.target.ops.copies_constants

    @property
    def separates_sums(self) -> bool:
        """True if the target needs a Max in front of an activation, or of a product of a repetition."""
        if self.target is None:
            return False
        alone = any(limit.alone_behind for limit in self.target.limits)
        return bool(self.target.ops.inexact_behind_sum) or (alone and "Max" in self.target.op_types)

    @property
    def keeps_nan(self) -> bool:
        """True if operators of the target make numbers of NaN."""
        return self.target is not None and bool(self.target.ops.loses_nan)

    @property
    def copies_outputs(self) -> bool:
        """True if some outputs of the model are only right on the target as copies."""
        ops = None if self.target is None else self.target.ops
        return ops is not None and (ops.overwrites_outputs or bool(ops.copied_outputs))

    @property
    def has_factor(self) -> bool:
        """True if a Scan or Loop takes several steps per iteration."""
        return self.unroll_factor != 1

    def __post_init__(self) -> None:
        if self.nodes is not None:
            check_strings("nodes", self.nodes)
        if not isinstance(self.sets, Mapping):
            raise OptionError(f"sets is {self.sets!r}; it must be a dictionary")
        if self.control_flow not in (None, "keep", "unroll"):
            name = wording.option("control-flow")
            raise OptionError(f"{name} is {self.control_flow!r}; it must be keep or unroll")
        if integer("unroll factor", self.unroll_factor) < 1:
            raise OptionError(f"the unroll factor is {self.unroll_factor}; it must be at least 1")
        check_semantics(self.semantics)
        if self.compute_type not in (None, "float32"):
            raise OptionError(f"the compute type is {self.compute_type!r}; it must be 'float32'")
        if self.gates not in get_args(Gates):
            raise OptionError(
                f"the gates are {self.gates!r}; they must be one of {', '.join(get_args(Gates))}"
            )
        if self.native not in get_args(Native):
            raise OptionError(f"native is {self.native!r}; it must be one of {', '.join(get_args(Native))}")
        if self.native == "lower" and self.target is not None and self.target.profile:
            raise OptionError(
                f"target {self.target.name} is a profile, which keeps recurrent nodes",
                remedy=f"leave out {wording.option('native', 'lower')}",
            )
        if self.opset is not None and not FIRST_OPSET <= integer("opset", self.opset) <= LAST_OPSET:
            raise OptionError(
                f"the opset is {self.opset}; a lowered model has one from {FIRST_OPSET} to {LAST_OPSET}"
            )
        if self.target is not None and self.opset is not None:
            check_opset(self.target, self.opset)


@dataclasses.dataclass(frozen=True)
class Report:
    """The report on a lowering.

    Attributes:
        nodes: The nodes that were lowered.
        opset: Version of the default domain of the result.
        ops_before: Number of nodes by operator in the source, including subgraphs and functions.
        ops_after: The same of the result.
        notes: Messages for the user.
        target: The name of the runtime that the result is for, if it is for one.
        warnings: What the result may not do that the user expects of it.
        dequantized: Outputs of the quantized nodes that became float ones.
        rounds: Whether a recurrence rounds each operator to 16 bits.
        kept: Recurrent nodes that this runtime runs soundly as they are.
        sets: The inputs that were set, with their values as the model holds them.
    """

    nodes: Sequence[LoweredNode]
    opset: int
    ops_before: Mapping[str, int]
    ops_after: Mapping[str, int]
    notes: Sequence[str] = ()
    target: str | None = None
    kept: Sequence[KeptNode] = ()
    sets: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    warnings: Sequence[Suspicion] = ()
    rounds: bool = False
    dequantized: Sequence[str] = ()

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
        return {
            "nodes": nodes,
            "opset": self.opset,
            "ops_before": dict(self.ops_before),
            "ops_after": dict(self.ops_after),
            "notes": list(self.notes),
            **({"sets": {name: array.tolist() for name, array in self.sets.items()}} if self.sets else {}),
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        } | of_target
