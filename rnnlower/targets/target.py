"""Targets: what a runtime can run, and what stands in the TOML file that says so.

A file consists of claims. Each is a table with its `source` (whose documentation or code, and of which
version) and, where nobody has said it, ``guess = true``::

    title = "What the runtime is called"
    engine = "openvino"           # which of `rnnlower engines` it is; left out: none

    [opset]                       # versions of the default domain that it takes
    range = [7, 20]
    source = "..."

    [control_flow]
    ops = ["If", "Loop", "Scan"]  # those of the three that it has
    apart = false                 # whether, over static steps, each direction wants a Scan of its own
    dynamic = "Loop"              # which of them a dynamic number of steps wants, where both would do
    nearby_weights = false        # whether weights that only a nested body reads lie in that body
    unroll_batch = false          # whether few steps are unrolled only where the batch size is a number
    source = "..."

    [shapes]
    static = true                 # whether every size must be known beforehand
    source = "..."

    [dtypes]
    allowed = ["float32"]         # types of tensors, as NumPy calls them
    source = "..."

    [ops]
    allowed = ["Add", "MatMul"]   # or absent = [...]: all of the standard but these;
                                  # "com.microsoft.Gelu" is one of another domain
    domains = ["com.microsoft"]   # domains of which it has everything that is not absent
    functions = false             # whether it takes model-local functions
    source = "..."

    [[limits]]                    # of single operators; each key but ops may be left out
    ops = ["Clip"]
    dtypes = ["float32"]          # of the first input
    constant = [1, 2]             # inputs that must be constants
    vector = [1]                  # inputs that must not have several axes where they are constants
    max_rank = 4                  # of the first input and the first output
    attributes = { mode = ["linear"] }
    versions = [11, 13]           # of the operator, each by the opset that brought it
    written = ["axes"]            # attributes that must be written at the opsets that have them
    max_outputs = 9               # how many outputs a node may have; a Split into more is written as a tree
    alone_behind = ["Expand"]     # operators that must not repeat an axis of 1 for the first input alone
    remedy = "..."                # what to do about it
    source = "..."

    [[recurrent]]                 # recurrent nodes that it runs soundly; a key left out limits nothing
    ops = ["LSTM"]
    dtypes = ["float32"]
    directions = ["forward"]
    inputs = ["B", "initial_h"]   # the optional ones that it minds
    attributes = { layout = [0], clip = [] }
    activations = ["default"]     # no others than the operator's own; or names of functions
    constant = ["W", "R"]         # inputs that must be constants if they are there
    fixed = ["W", "R"]            # inputs that must be constants or computed from constants
    static = ["batch", "time"]    # sizes of X that must be numbers
    static_nested = ["time"]      # ... in bodies of If, Loop and Scan
    static_with_states = ["batch"]  # ... where initial states are there and are no graph inputs
    not_behind = ["Expand"]       # operators that must not repeat an axis of 1 to make X
    min_input_size = 2            # least number of features of X
    min_hidden_size = 8           # least number of units
    semantics = ["ort"]           # the readings (--semantics) under which it is right
    same_activations = true       # whether those of both directions must be the same
    needs = ["initial_h", "Y_h"]  # optional inputs, outputs and attributes without which it does not run
    not_empty = ["B", "Y"]        # inputs and outputs that must not be written as empty names
    most_inputs = 4               # how many inputs may be written, empty ones at the end included
    nested = true                 # whether it runs in bodies of If, Loop and Scan too
    wrong = ["layout", "reverse"] # inputs, attributes, directions, "activations" and "type" that it gets
    otherwise = "refused"         # silently wrong; others it refuses, or what becomes of them is "unknown"
    adapt = ["initial_h"]         # words of `wrong` that are put right around the operator, tried too
    faster_unrolled = 100         # number of steps up to which the unrolled node is faster than this one
    measured = "a third of ..."   # how the times compare, with sizes
    tried = "batches of 1 and 2"  # sizes at which it was tried and right; left out: it was not tried
    source = "..."

    [[recurrent]]                 # or what a profile allows, whose rules are functions: "sonnx"
    ops = ["LSTM"]
    profile = "sonnx"
    source = "..."

    [[cautions]]                  # what is told of a node that was lowered
    ops = ["GRU"]
    open = ["batch"]              # only where one of these sizes of X is no number
    text = "..."
    source = "..."

    [costs]                       # if they are known: the cheapest form is then taken
    microseconds = { loops = 9, nodes = 1, elements = 1e-3, weight_bytes = 0, multiplies = 0, loaded = 0 }
    fused = ["Tanh"]              # activations that it makes part of a Gemm in front of them
    source = "..."

    [tried]                       # if it was tried here
    version = "1.0"
    source = "..."

Shape inputs and constants are int64 whatever `dtypes` says.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.targets.validation import CONTROL_FLOW

__all__ = [
    "CONTROL_FLOW",
    "OPTIONAL",
    "Caution",
    "Claim",
    "ControlFlow",
    "Costs",
    "Limit",
    "Ops",
    "OpsetRange",
    "RecurrentRule",
    "Shapes",
    "Target",
    "Tried",
    "Types",
]

OPTIONAL = ("costs", "tried")
"""The tables that a file may leave out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """Something said about a runtime, by whom, and whether it is a guess."""

    source: str
    guess: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpsetRange(Claim):
    range: Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlFlow(Claim):
    ops: Sequence[str]
    apart: bool = False
    dynamic: str = "Scan"
    nearby_weights: bool = False
    unroll_batch: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes(Claim):
    static: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Types(Claim):
    allowed: Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ops(Claim):
    allowed: Sequence[str] | None = None
    absent: Sequence[str] | None = None
    domains: Sequence[str] = ()
    functions: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit(Claim):
    ops: Sequence[str]
    dtypes: Sequence[str] | None = None
    constant: Sequence[int] = ()
    vector: Sequence[int] = ()
    max_rank: int | None = None
    attributes: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    versions: Sequence[int] | None = None
    written: Sequence[str] = ()
    max_outputs: int | None = None
    alone_behind: Sequence[str] = ()
    remedy: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs(Claim):
    microseconds: Mapping[str, float]
    fused: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caution(Claim):
    ops: Sequence[str]
    text: str
    open: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentRule(Claim):
    ops: Sequence[str]
    dtypes: Sequence[str] | None = None
    directions: Sequence[str] | None = None
    inputs: Sequence[str] | None = None
    attributes: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    activations: Sequence[str] | None = None
    constant: Sequence[str] = ()
    fixed: Sequence[str] = ()
    needs: Sequence[str] = ()
    not_empty: Sequence[str] = ()
    not_behind: Sequence[str] = ()
    min_input_size: int | None = None
    min_hidden_size: int | None = None
    most_inputs: int | None = None
    nested: bool = True
    static: Sequence[str] = ()
    static_nested: Sequence[str] = ()
    static_with_states: Sequence[str] = ()
    semantics: Sequence[str] | None = None
    same_activations: bool = False
    wrong: Sequence[str] = ()
    otherwise: str = "refused"
    profile: str = ""
    adapt: Sequence[str] = ()
    faster_unrolled: int = 0
    measured: str = ""
    tried: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried(Claim):
    version: str


@dataclasses.dataclass(frozen=True)
class Target:
    """A runtime; the fields are the tables of its file. ``engine`` is what runs models on it, if anything."""

    name: str
    title: str
    opset: OpsetRange
    control_flow: ControlFlow
    shapes: Shapes
    dtypes: Types
    ops: Ops
    limits: Sequence[Limit] = ()
    recurrent: Sequence[RecurrentRule] = ()
    cautions: Sequence[Caution] = ()
    costs: Costs | None = None
    tried: Tried | None = None
    engine: str = ""

    @property
    def profile(self) -> str:
        """The profile that recurrent nodes are to conform to, which keeps them; ``""``: none."""
        return next((rule.profile for rule in self.recurrent if rule.profile), "")

    @functools.cached_property
    def op_types(self) -> frozenset[str]:
        """The operators of the default domain that it runs, the recurrent ones aside."""
        if self.ops.allowed is not None:
            ops = {op_type for op_type in self.ops.allowed if "." not in op_type}
        else:
            standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
            ops = standard - {*(self.ops.absent or ()), *CONTROL_FLOW}
        return frozenset((ops - {*RECURRENT_OPS}) | {*self.control_flow.ops})

    @functools.cached_property
    def domains(self) -> frozenset[str]:
        """The domains of which it runs operators, beside the default one."""
        single = {op_type.rpartition(".")[0] for op_type in self.ops.allowed or () if "." in op_type}
        return frozenset({*self.ops.domains} | single)

    def has_foreign(self, domain: str, op_type: str) -> bool:
        """Whether it runs an operator of another domain than the default one."""
        name = f"{domain}.{op_type}"
        if domain in self.ops.domains:
            return name not in (self.ops.absent or ())
        return name in (self.ops.allowed or ())

    def claims(self) -> list[tuple[str, Claim]]:
        """Everything that is said of the runtime, with the name of its table."""
        claims: list[tuple[str, Claim]] = [
            (name, getattr(self, name)) for name in ("opset", "control_flow", "shapes", "dtypes", "ops")
        ]
        claims += [(f"limits of {', '.join(limit.ops)}", limit) for limit in self.limits]
        claims += [(f"native {', '.join(rule.ops)}", rule) for rule in self.recurrent]
        claims += [(f"lowered {', '.join(caution.ops)}", caution) for caution in self.cautions]
        more = [(name, getattr(self, name)) for name in OPTIONAL]
        return claims + [(name, claim) for name, claim in more if claim is not None]
