"""Targets: the abilities of a runtime, and the format of the TOML file that describes them.

A file consists of claims. Each is a table with its `source` (the documentation or code, with its
version) or, if there is no source, ``guess = true``::

    title = "Name of the runtime"
    engine = "openvino"           # its name in `rnnlower engines`; optional
    runtime = true                # false: a tool or a profile, for another purpose than running; optional

    [opset]                       # supported versions of the default domain
    range = [7, 20]
    source = "..."

    [control_flow]
    ops = []                      # the supported ones of If, Loop and Scan
    apart = false                 # whether each direction needs its own Scan, if that needs no If
    dynamic = "Loop"              # the one to use for a dynamic number of steps, if both work
    captured = "Loop"             # the one to use for weights that are no constants, if both work
    unroll_batch = false          # whether few steps are unrolled only if the batch size is static
    keeps_gathered_axis = false   # whether Gather by a Loop's number keeps the axis, which a Reshape removes
    empty_scan = false            # whether a Scan over no steps runs, so that it needs no If around it
    source = "..."

    [shapes]
    static = true                 # whether all sizes must be static
    source = "..."

    [dtypes]
    allowed = ["float32"]         # NumPy names of tensor types
    source = "..."

    [ops]
    # "com.microsoft.Gelu": an operator of another domain; instead of allowed,
    # absent = ["Gemm"]: all standard operators but these
    allowed = ["Add", "Concat", "MatMul", "Mul", "Reshape", "Sigmoid", "Slice", "Sub", "Tanh", "Transpose"]
    domains = ["com.microsoft"]   # domains of which it has all operators that are not absent
    functions = false             # whether it supports model-local functions
    copies_constants = false      # whether each node that reads a constant gets a copy; an Identity shares it
    overwrites_outputs = false    # whether it may overwrite an output that other nodes read; a Cast copies it
    copied_outputs = ["Conv"]     # operators whose results are right as outputs only behind a Cast
    loses_nan = ["Relu"]          # unary operators that make numbers of NaN, or a Softmax: of a row of -inf
    inexact_behind_sum = ["Tanh"]  # operators that are less exact behind an Add or Gemm; a Max goes between
    source = "..."

    [[limits]]                    # of single operators; all keys but ops are optional
    ops = ["Clip"]
    dtypes = ["float32"]          # of the first input
    constant = [1, 2]             # inputs that must be constants
    vector = [1]                  # constant inputs that must have at most one axis
    not_negative = [4]            # constant inputs that must hold no negative number
    max_rank = 4                  # of the first input and the first output
    attributes = { mode = ["linear"] }
    versions = [11, 13]           # supported versions of the operator
    written = ["axes"]            # attributes that must be written even if they are the default
    max_outputs = 9               # maximum number of outputs; a larger Split is written as a tree
    alone_behind = ["Expand"]     # what must not repeat an axis of 1 for it alone: a Max goes between
    remedy = "..."                # what the user can do
    source = "..."

    [[recurrent]]                 # recurrent nodes that it runs correctly; an absent key limits nothing
    ops = ["LSTM"]
    dtypes = ["float32"]
    directions = ["forward"]
    inputs = ["B", "initial_h"]   # the optional inputs that it respects
    attributes = { layout = [0], clip = [] }
    activations = ["default"]     # the operator's defaults only; or names of functions
    constant = ["W", "R"]         # inputs that must be constants if present
    fixed = ["W", "R"]            # inputs that must be constants or computed from constants
    static = ["batch", "time"]    # sizes of X that must be static
    static_nested = ["time"]      # ... in bodies of If, Loop and Scan
    static_with_states = ["batch"]  # ... if there are initial states that are not graph inputs
    not_behind = ["Expand"]       # operators that must not repeat an axis of 1 to compute X
    min_input_size = 2            # minimum number of features of X
    min_hidden_size = 8           # minimum number of units
    max_batch = 1                 # maximum batch size
    semantics = ["ort"]           # the --semantics under which it is correct
    same_activations = true       # whether both directions must have the same activations
    needs = ["initial_h", "Y_h"]  # optional inputs, outputs and attributes without which it does not run
    not_empty = ["B", "Y"]        # inputs and outputs that must not be empty names
    most_inputs = 4               # maximum number of inputs, including empty ones at the end
    nested = true                 # whether it runs in bodies of If, Loop and Scan, too
    wrong = ["layout", "reverse"] # inputs, attributes, directions, "activations" and "type" that it computes
    otherwise = "refused"         # wrong without an error; others are "refused" or "unknown"
    adapt = ["initial_h"]         # words of `wrong` that ops around the operator correct, as tried
    tried = "batches of 1 and 2"  # sizes at which it was tried and correct; optional
    source = "..."

    [[recurrent]]                 # or nodes that a profile with coded rules allows: "sonnx"
    ops = ["LSTM"]
    profile = "sonnx"
    source = "..."

    [[cautions]]                  # warnings about lowered nodes
    ops = ["GRU"]
    open = ["batch"]              # only if one of these sizes of X is dynamic
    above_steps = 200             # only if the node is a straight line of more steps than these
    text = "..."
    source = "..."

    [arithmetic]                  # if it is known
    gates = "separate"            # whether it wants one product per gate, or "fused": as few as possible
    accumulates = "float32"       # the type in which it sums float16 products; "float16": they become float32
    source = "..."

    [costs]                       # if they are known; the cheapest candidate is then chosen
    microseconds = { nodes = 1, elements = 1e-3 }  # for each kind of count; what is left out is free
    native = { LSTM = { nodes = 5, steps = 1 } }   # the same for its own recurrent operators
    forms = ["pair"]              # forms of a step that were tried, beside the plain one
    strategies = ["unroll"]       # among which prices choose; left out: all that it has the operators for
    fused = ["Tanh"]              # activations that it fuses with a preceding Gemm
    nearby_weights = false        # whether weights that only a nested body reads move into that body
    source = "..."

    [tried]                       # if it was tried by this project
    version = "1.0"
    source = "..."

Shape inputs and constants are int64 regardless of `dtypes`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.targets.validation import CONTROL_FLOW


@functools.cache
def standard_operators() -> frozenset[str]:
    """Return the operators of the default domain, except control flow."""
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    return frozenset(names - {*CONTROL_FLOW})


OPTIONAL = ("arithmetic", "costs", "tried")
"""The optional tables of a file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim about a runtime, with its source, or as a guess."""

    source: str = ""
    guess: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpsetRange(Claim):
    range: Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlFlow(Claim):
    ops: Sequence[str]
    apart: bool = False
    dynamic: str = "Scan"
    captured: str = "Scan"
    unroll_batch: bool = False
    empty_scan: bool = False
    keeps_gathered_axis: bool = False


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
    copies_constants: bool = False
    overwrites_outputs: bool = False
    copied_outputs: Sequence[str] = ()
    loses_nan: Sequence[str] = ()
    inexact_behind_sum: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit(Claim):
    ops: Sequence[str]
    dtypes: Sequence[str] | None = None
    constant: Sequence[int] = ()
    vector: Sequence[int] = ()
    not_negative: Sequence[int] = ()
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
    native: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    forms: Sequence[str] = ()
    strategies: Sequence[str] = ()
    fused: Sequence[str] = ()
    nearby_weights: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arithmetic(Claim):
    gates: str = "auto"
    accumulates: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caution(Claim):
    ops: Sequence[str]
    text: str
    open: Sequence[str] = ()
    above_steps: int | None = None


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
    max_batch: int | None = None
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
    tried: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried(Claim):
    version: str


@dataclasses.dataclass(frozen=True)
class Target:
    """A runtime; the fields are the tables of its file.

    ``engine`` runs models on it, if there is one; ``runtime`` is false for a tool or a profile, which people
    choose for another purpose than to run models; ``path`` is that of its file if it is not built in.
    """

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
    arithmetic: Arithmetic | None = None
    costs: Costs | None = None
    tried: Tried | None = None
    engine: str = ""
    runtime: bool = True
    path: str = dataclasses.field(default="", compare=False)

    @property
    def address(self) -> str:
        """The name under which a command finds it: that of a file is its path."""
        return self.path or self.name

    @property
    def profile(self) -> str:
        """The profile that kept recurrent nodes must conform to; ``""`` if there is none."""
        return next((rule.profile for rule in self.recurrent if rule.profile), "")

    @functools.cached_property
    def op_types(self) -> frozenset[str]:
        """The operators of the default domain that it runs, except the recurrent ones."""
        if self.ops.allowed is not None:
            ops = frozenset(op_type for op_type in self.ops.allowed if "." not in op_type)
        else:
            ops = standard_operators() - {*(self.ops.absent or ())}
        return (ops - {*RECURRENT_OPS}) | {*self.control_flow.ops}

    @functools.cached_property
    def domains(self) -> frozenset[str]:
        """The domains in addition to the default one of which it runs operators."""
        single = {op_type.rpartition(".")[0] for op_type in self.ops.allowed or () if "." in op_type}
        return frozenset({*self.ops.domains} | single)

    def has_foreign(self, domain: str, op_type: str) -> bool:
        """Return whether it runs an operator of a domain other than the default one."""
        name = f"{domain}.{op_type}"
        if domain in self.ops.domains:
            return name not in (self.ops.absent or ())
        return name in (self.ops.allowed or ())

    def claims(self) -> list[tuple[str, Claim]]:
        """Return all claims, with the names of their tables."""
        claims: list[tuple[str, Claim]] = [
            (name, getattr(self, name)) for name in ("opset", "control_flow", "shapes", "dtypes", "ops")
        ]
        claims += [(f"limits of {', '.join(limit.ops)}", limit) for limit in self.limits]
        claims += [(f"native {', '.join(rule.ops)}", rule) for rule in self.recurrent]
        claims += [(f"lowered {', '.join(caution.ops)}", caution) for caution in self.cautions]
        more = [(name, getattr(self, name)) for name in OPTIONAL]
        return claims + [(name, claim) for name, claim in more if claim is not None]
