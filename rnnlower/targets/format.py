"""The format of target files: the keys, with their types, ranges and descriptions.

Reading, the messages about faults, `rnnlower targets --schema` and `--new`, and docs/targets.md follow from
these structs. Rules that concern several keys are in `reading.py`. Shape inputs and constants are int64
regardless of `dtypes`.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from rnnlower.lowering.forms import BODY_FORMS, STRAIGHT_FORMS, THRESHOLDS
from rnnlower.lowering.pricing import KINDS, price_names
from rnnlower.lowering.replacing import Gates
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.recurrent import operators
from rnnlower.recurrent.node import Semantics
from rnnlower.targets.vocabulary import (
    ADAPTABLE,
    CONTROL_FLOW,
    OPTIONAL_INPUTS,
    OPTIONAL_PORTS,
    PROPERTIES,
    Activations,
    DomainOp,
    DType,
    Input,
    LoopOp,
    Natural,
    Op,
    Positive,
    RecurrentOp,
    Size,
    one_of,
)


def _key(description: str, example: Any = False) -> Meta:
    return Meta(description=description, examples=[example])


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim about a runtime, with its source, or as a guess."""

    source: Annotated[str, _key("the documentation or code that states it, with its version", "...")] = ""
    guess: Annotated[bool, _key("whether the claim is a guess, without a source", True)] = False


class OpsetRange(Claim, frozen=True):
    """The supported versions of the default domain."""

    range: Annotated[
        tuple[Positive, ...],
        Meta(min_length=2, max_length=2),
        _key("the first and the last version", [7, 20]),
    ]


class ControlFlow(Claim, frozen=True):
    """The control flow that works, and the forms of it that are written."""

    ops: Annotated[
        tuple[Annotated[str, one_of(CONTROL_FLOW)], ...],
        _key("those of If, Loop and Scan that it supports", []),
    ]
    apart: Annotated[bool, _key("whether each direction needs its own Scan, if that needs no If")] = False
    dynamic: Annotated[LoopOp, _key("the one to use for a dynamic number of steps, if both work", "Loop")] = (
        "Scan"
    )
    captured: Annotated[
        LoopOp, _key("the one to use for weights that are not constant, if both work", "Loop")
    ] = "Scan"
    unroll_batch: Annotated[bool, _key("whether few steps are unrolled only if the batch size is static")] = (
        False
    )
    empty_scan: Annotated[
        bool, _key("whether a Scan over no steps runs, so that it needs no If around it")
    ] = False
    flat: Annotated[bool, _key("whether no Loop or Scan may be in the body of another")] = False
    keeps_gathered_axis: Annotated[
        bool, _key("whether a Loop's number has axes, its condition is lost, and its states are overwritten")
    ] = False


class Shapes(Claim, frozen=True):
    """The supported shapes."""

    static: Annotated[bool, _key("whether all sizes must be static", True)]


class Types(Claim, frozen=True):
    """The supported tensor types."""

    allowed: Annotated[tuple[DType, ...], _key("NumPy names of tensor types", ["float32"])]


class Ops(Claim, frozen=True):
    """The supported operators: either those that are allowed, or all standard ones but the absent ones."""

    allowed: Annotated[
        tuple[DomainOp, ...] | None,
        _key(
            'its operators; "com.microsoft.Gelu" is one of another domain',
            [
                *("Add", "Cast", "Concat", "IsNaN", "MatMul", "Max", "Mul"),
                *("Reshape", "Sigmoid", "Slice", "Sub", "Tanh"),
            ],
        ),
    ] = None
    absent: Annotated[
        tuple[DomainOp, ...] | None,
        _key("instead of allowed: it has all standard operators but these", ["Gemm"]),
    ] = None
    domains: Annotated[
        tuple[str, ...], _key("domains of which it has all operators that are not absent", ["com.microsoft"])
    ] = ()
    functions: Annotated[bool, _key("whether it supports model-local functions")] = False
    copies_constants: Annotated[
        bool, _key("whether each node that reads a constant gets its own copy; an Identity shares it")
    ] = False
    overwrites_outputs: Annotated[
        bool, _key("whether it may overwrite an output that other nodes read; a Cast copies it")
    ] = False
    copied_outputs: Annotated[
        tuple[Op, ...], _key("operators whose results are correct as outputs only after a Cast", ["Conv"])
    ] = ()
    loses_constant_axes: Annotated[
        bool, _key("whether what follows from constants may lose axes of size 1; it becomes a constant")
    ] = False
    loses_nan: Annotated[
        tuple[Op, ...],
        _key(
            "unary operators that turn NaN into numbers, or a Softmax that does so for rows of -inf", ["Relu"]
        ),
    ] = ()
    inexact_behind_sum: Annotated[
        tuple[Op, ...],
        _key("operators that are less exact directly after an Add or Gemm; a Max goes between", ["Tanh"]),
    ] = ()


class Limit(Claim, frozen=True):
    """A limit of single operators; it concerns nodes of the default domain."""

    ops: Annotated[tuple[Op, ...], _key("the operators", ["Resize"])]
    dtypes: Annotated[tuple[DType, ...] | None, _key("types of the first input", ["float32"])] = None
    constant: Annotated[tuple[Natural, ...], _key("inputs that must be constants", [1, 2])] = ()
    vector: Annotated[tuple[Natural, ...], _key("constant inputs that must have at most one axis", [1])] = ()
    scalar: Annotated[tuple[Natural, ...], _key("constant inputs that must have no axis", [1])] = ()
    not_vector: Annotated[tuple[Natural, ...], _key("inputs that must have more than one axis", [0, 1])] = ()
    no_depthwise: Annotated[
        bool, _key("whether no group may have one channel, of one input and one output", True)
    ] = False
    last_axis: Annotated[
        tuple[Positive, ...],
        _key("versions in which axes of more than one element must not follow the attribute axis", [1, 11]),
    ] = ()
    not_negative: Annotated[
        tuple[Natural, ...], _key("constant inputs that must not contain negative numbers", [4])
    ] = ()
    ones: Annotated[tuple[Natural, ...], _key("constant inputs that must contain nothing but 1", [4])] = ()
    ranks: Annotated[tuple[Natural, ...], _key("supported ranks of the first input", [4])] = ()
    max_rank: Annotated[Natural | None, _key("maximum rank of the first input and the first output", 4)] = (
        None
    )
    attributes: Annotated[
        dict[str, tuple[Any, ...]],
        _key("allowed values of attributes; [] if the attribute must be absent", {"mode": ["linear"]}),
    ] = {}
    versions: Annotated[tuple[Positive, ...] | None, _key("supported versions of the operator", [11, 13])] = (
        None
    )
    spelled: Annotated[tuple[str, ...], _key("attributes that must have no ellipsis", ["mode"])] = ()
    written: Annotated[
        tuple[str, ...], _key("attributes that must be written even if they are the default", ["mode"])
    ] = ()
    # A tree of nodes with one output each would never end.
    max_outputs: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        _key("maximum number of outputs; a larger Split is written as a tree", 9),
    ] = None
    alone_behind: Annotated[
        tuple[Op, ...],
        _key("operators that must not repeat an axis of size 1 for it alone; a Max goes between", ["Expand"]),
    ] = ()
    remedy: Annotated[str, _key("what the user can do", "...")] = ""


class RecurrentRule(Claim, frozen=True):
    """Recurrent nodes that it runs correctly; a key that is left out limits nothing."""

    ops: Annotated[tuple[RecurrentOp, ...], _key("the operators", ["LSTM"])]
    dtypes: Annotated[tuple[DType, ...] | None, _key("types of X", ["float32"])] = None
    directions: Annotated[
        tuple[Annotated[str, one_of(operators.DIRECTIONS)], ...] | None, _key("directions", ["forward"])
    ] = None
    inputs: Annotated[
        tuple[Annotated[str, one_of(OPTIONAL_INPUTS)], ...] | None,
        _key("the optional inputs that it respects", ["B", "initial_h"]),
    ] = None
    attributes: Annotated[
        dict[Annotated[str, one_of(operators.ATTRIBUTE_TYPES)], tuple[Any, ...]],
        _key("allowed values of attributes; [] if the attribute must be absent", {"layout": [0], "clip": []}),
    ] = {}
    activations: Annotated[
        tuple[Annotated[str, one_of(("default", *operators.SPEC_PARAMETERS))], ...] | None,
        _key("names of functions; default stands for those of the operator", ["default"]),
    ] = None
    constant: Annotated[tuple[Input, ...], _key("inputs that must be constants if present", ["W", "R"])] = ()
    fixed: Annotated[
        tuple[Input, ...], _key("inputs that must be constants or computed from constants", ["W", "R"])
    ] = ()
    needs: Annotated[
        tuple[Annotated[str, one_of((*OPTIONAL_PORTS, *operators.ATTRIBUTE_TYPES))], ...],
        _key("optional inputs, outputs and attributes without which it does not run", ["initial_h", "Y_h"]),
    ] = ()
    not_empty: Annotated[
        tuple[Annotated[str, one_of(OPTIONAL_PORTS)], ...],
        _key("inputs and outputs that must not be empty names", ["B", "Y"]),
    ] = ()
    not_behind: Annotated[
        tuple[Op, ...], _key("operators that must not repeat an axis of size 1 to compute X", ["Expand"])
    ] = ()
    min_input_size: Annotated[Positive | None, _key("minimum number of features of X", 2)] = None
    min_hidden_size: Annotated[Positive | None, _key("minimum number of units", 8)] = None
    max_batch: Annotated[Positive | None, _key("maximum batch size", 1)] = None
    most_inputs: Annotated[
        Annotated[int, Meta(ge=3)] | None,
        _key("maximum number of inputs, including empty ones at the end", 4),
    ] = None
    nested: Annotated[bool, _key("whether it also runs in bodies of If, Loop and Scan", True)] = True
    two_states: Annotated[
        bool, _key("whether initial_h and initial_c must be two values, unless they are constants", True)
    ] = False
    one_reader: Annotated[
        bool, _key("whether no other recurrent node may read X, unless the batch size is 1", True)
    ] = False
    static: Annotated[tuple[Size, ...], _key("sizes of X that must be static", ["batch", "time"])] = ()
    static_nested: Annotated[
        tuple[Size, ...], _key("sizes of X that must be static in bodies of If, Loop and Scan", ["time"])
    ] = ()
    static_with_states: Annotated[
        tuple[Size, ...],
        _key("sizes of X that must be static if an initial state is not a graph input", ["batch"]),
    ] = ()
    semantics: Annotated[
        tuple[Annotated[str, one_of((*get_args(Semantics), "agreed"))], ...] | None,
        _key("the --semantics under which it is correct; agreed: where both mean the same, too", ["ort"]),
    ] = None
    same_activations: Annotated[
        bool, _key("whether both directions must have the same activations", True)
    ] = False
    wrong: Annotated[
        tuple[Annotated[str, one_of(PROPERTIES)], ...],
        _key("properties that are not allowed above and make the result wrong without an error", ["layout"]),
    ] = ()
    otherwise: Annotated[
        Annotated[str, one_of(("refused", "unknown"))],
        _key("what happens to nodes with other properties that are not allowed", "refused"),
    ] = "refused"
    profile: Annotated[
        Annotated[str, one_of(("sonnx",))],
        _key("a profile whose rules, which are code, stand in place of the keys above", "sonnx"),
    ] = ""
    adapt: Annotated[
        tuple[Annotated[str, one_of(ADAPTABLE)], ...],
        _key("properties that ops around the operator correct, as tried", ["initial_h"]),
    ] = ()
    tried: Annotated[str, _key("sizes at which it was tried and correct", "batches of 1 and 2")] = ""


class Caution(Claim, frozen=True):
    """A warning about lowered nodes."""

    ops: Annotated[tuple[RecurrentOp, ...], _key("the operators before the lowering", ["GRU"])]
    text: Annotated[str, _key("the warning", "...")]
    open: Annotated[tuple[Size, ...], _key("only if one of these sizes of X is dynamic", ["batch"])] = ()
    above_steps: Annotated[
        int | None, _key("only if the node is a straight line of more steps than this", 200)
    ] = None


class Arithmetic(Claim, frozen=True):
    """The arithmetic that is known of it."""

    gates: Annotated[
        Annotated[str, one_of(get_args(Gates))],
        _key("whether it needs one product for each gate (separate), or as few as possible (fused)", "auto"),
    ] = "auto"
    accumulates: Annotated[
        Annotated[str, one_of(("float16", "float32"))],
        _key("the type in which it sums products of float16; for float16 they become float32", "float32"),
    ] = ""
    quantized: Annotated[
        tuple[Annotated[str, one_of(get_args(Activations))], ...] | None,
        _key("the --activations of `quantize` whose products it computes; left out: all", ["int8-only"]),
    ] = None
    unclipped: Annotated[
        tuple[DType, ...],
        _key(
            "integers whose quantizers it leaves out: it computes in floats there, and clips nothing",
            ["int16"],
        ),
    ] = ()


_Price = Annotated[float, Meta(ge=0)]
_Prices = dict[Annotated[str, one_of(price_names(native=False))], _Price]
_NativePrices = dict[Annotated[str, one_of(price_names(native=True))], _Price]


class Costs(Claim, frozen=True):
    """Prices that are known, by which the cheapest candidate is chosen."""

    microseconds: Annotated[
        _Prices,
        _key("the price of one unit of each count; what is left out is free", {"nodes": 1, "elements": 1e-3}),
    ]
    native: Annotated[
        dict[Annotated[str, one_of(KINDS)], _NativePrices],
        _key("the same for its own recurrent operators", {"LSTM": {"nodes": 5, "steps": 1}}),
    ] = {}
    forms: Annotated[
        tuple[Annotated[str, one_of(form.name for form in (*STRAIGHT_FORMS, *BODY_FORMS))], ...],
        _key("forms of a step that were tried, in addition to the plain one", ["pair"]),
    ] = ()
    thresholds: Annotated[
        dict[Annotated[str, one_of(THRESHOLDS)], Natural],
        _key("the sizes at which forms are allowed, as measured", {"largest_pair": 192}),
    ] = {}
    strategies: Annotated[
        tuple[Annotated[str, one_of(STRATEGIES)], ...],
        _key("those among which prices choose; left out: all that it has the operators for", ["unroll"]),
    ] = ()
    fused: Annotated[tuple[Op, ...], _key("activations that it fuses with a preceding Gemm", ["Tanh"])] = ()
    nearby_weights: Annotated[
        bool, _key("whether weights that only a nested body reads move into that body")
    ] = False


class Tried(Claim, frozen=True):
    """The trial of it by this project."""

    version: Annotated[str, _key("the version that was tried", "1.0")]


class TargetFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A target file; the fields are its keys and tables."""

    title: Annotated[str, _key("the name of the runtime for people", "Name of the runtime")] = ""
    engine: Annotated[str, _key("its name in `rnnlower engines`", "openvino")] = ""
    source: Annotated[str, _key("the source of all claims that state none of their own", "...")] = ""
    runtime: Annotated[
        bool, _key("false: a tool or a profile, for another purpose than running models", True)
    ] = True
    opset: OpsetRange
    control_flow: ControlFlow
    shapes: Shapes
    dtypes: Types
    ops: Ops
    limits: tuple[Limit, ...] = ()
    recurrent: tuple[RecurrentRule, ...] = ()
    cautions: tuple[Caution, ...] = ()
    arithmetic: Arithmetic | None = None
    costs: Costs | None = None
    tried: Tried | None = None
