"""The order of the passes behind unroll, scan and loop."""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.fold_weights import FoldWeightsPass
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.inline_functions import InlineFunctionsPass
from rnnlower.passes.lower_recurrent import LoweredNode, LowerRecurrentPass
from rnnlower.passes.static_shapes import StaticShapesPass
from rnnlower.places import Located, default_opset, find_recurrent, walk
from rnnlower.recurrent import ResolvedNode, Semantics, parse_recurrent
from rnnlower.requirements import FIRST_OPSET, minimum_opset

__all__ = ["LoweringOptions", "LoweringReport", "count_ops", "lower_model"]

LAST_OPSET = 26
_ORIGIN = "rnnlower.origin"


@dataclasses.dataclass(frozen=True)
class LoweringOptions:
    """What a lowering is to do; the fields are the command line's options.

    Attributes:
        strategy: ``unroll``, ``scan`` or ``loop``.
        opset: Version of the default domain of the result; ``None``: the source's, raised only as far as needed.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of graph inputs.
        nodes: Shell wildcards; only nodes whose name matches one are lowered. ``None``: all.
        unroll_factor: Time steps in an iteration of a Scan or Loop.
        semantics: Which reading wins where the text and onnxruntime differ.
    """

    strategy: str
    opset: int | None = None
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    nodes: Sequence[str] | None = None
    unroll_factor: int = 1
    semantics: Semantics = "ort"

    def __post_init__(self) -> None:
        if self.unroll_factor < 1:
            raise OptionError(f"the unroll factor is {self.unroll_factor}; it must be at least 1")
        if self.semantics not in ("ort", "spec"):
            raise OptionError(f"the semantics are {self.semantics!r}; they must be 'ort' or 'spec'")
        if self.opset is not None and not FIRST_OPSET <= self.opset <= LAST_OPSET:
            raise OptionError(
                f"the opset is {self.opset}; a lowered model has one from {FIRST_OPSET} to {LAST_OPSET}"
            )


@dataclasses.dataclass(frozen=True)
class LoweringReport:
    """What a lowering did.

    Attributes:
        nodes: The nodes that were lowered.
        opset: Version of the default domain of the result.
        ops_before: Number of nodes by operator in the source, subgraphs and functions included.
        ops_after: The same of the result.
    """

    nodes: Sequence[LoweredNode]
    opset: int
    ops_before: Mapping[str, int]
    ops_after: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON knows it."""
        return {
            "nodes": [dataclasses.asdict(node) for node in self.nodes],
            "opset": self.opset,
            "ops_before": dict(self.ops_before),
            "ops_after": dict(self.ops_after),
        }


def count_ops(model: ir.Model) -> dict[str, int]:
    """Number of nodes by operator, subgraphs and functions included."""
    graphs = [model.graph, *model.functions.values()]
    counter = collections.Counter(
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for graph in graphs
        for node, _ in walk(graph)
    )
    return dict(sorted(counter.items()))


def lower_model(model: ir.Model, options: LoweringOptions) -> LoweringReport:
    """Lowers the recurrent nodes of the model in place.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: A recurrent node breaks its operator's text.
        UnsupportedModelError: A node asks for what is refused, or an unrolled one has no static length.
        OpsetError: The model cannot be brought to the opset that is asked for or needed.
    """
    ops_before = count_ops(model)
    selected = _select(find_recurrent(model), options.nodes)
    FreezeDimsPass(options.dims, options.input_shapes)(model)
    for located in selected:
        if not located.path.startswith("function:"):
            parse_recurrent(located.node, located.opset, options.semantics, label=str(located))
        located.node.meta[_ORIGIN] = located
    _raise_opset(model, max(FIRST_OPSET, default_opset(model), options.opset or 0))
    InlineFunctionsPass(lambda node: _ORIGIN in node.meta)(model)
    current = _current(model)
    FoldWeightsPass([located.node for located in current])(model)
    if options.strategy == "unroll":
        current = _with_static_lengths(model, current, options)
    needed = [
        minimum_opset(_parse(located, model, options.semantics), options.strategy, options.unroll_factor)
        for located in current
    ]
    _raise_opset(model, max([default_opset(model), *needed]))
    current = _current(model)
    lowering = LowerRecurrentPass(
        current, options.strategy, unroll_factor=options.unroll_factor, semantics=options.semantics
    )
    lowering(model)
    if options.opset is not None and options.opset < default_opset(model):
        ConvertOpsetPass(options.opset)(model)
    return LoweringReport(lowering.lowered, default_opset(model), ops_before, count_ops(model))


def _select(found: Sequence[Located], patterns: Sequence[str] | None) -> list[Located]:
    if patterns is None:
        return list(found)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(located.name, pattern) for located in found):
            names = ", ".join(located.name for located in found) or "none"
            raise OptionError(f"no recurrent node matches {pattern!r}; the model has {names}")
    return [
        located
        for located in found
        if any(fnmatch.fnmatchcase(located.name, pattern) for pattern in patterns)
    ]


def _raise_opset(model: ir.Model, opset: int) -> None:
    if opset > default_opset(model):
        ConvertOpsetPass(opset)(model)


def _current(model: ir.Model) -> list[Located]:
    """The selected nodes where they are now, under the names and places they had in the source."""
    opset = default_opset(model)
    return [
        dataclasses.replace(node.meta[_ORIGIN], node=node, opset=opset)
        for node, _ in walk(model.graph)
        if _ORIGIN in node.meta
    ]


def _parse(located: Located, model: ir.Model, semantics: Semantics) -> ResolvedNode:
    return parse_recurrent(located.node, default_opset(model), semantics, label=str(located))


def _with_static_lengths(
    model: ir.Model, current: Sequence[Located], options: LoweringOptions
) -> list[Located]:
    """The nodes that are to be unrolled, each of which then has a static length.

    Raises:
        UnsupportedModelError: A length is not static.
    """

    def dynamic(nodes: Sequence[Located]) -> list[Located]:
        return [located for located in nodes if _parse(located, model, options.semantics).seq_length is None]

    if not dynamic(current):
        return list(current)
    analysis = StaticShapesPass(current)
    analysis(model)
    current = [located for located in current if located not in analysis.unreachable]
    for located in dynamic(current):
        raise UnsupportedModelError(_no_length(located, model))
    return current


def _no_length(located: Located, model: ir.Model) -> str:
    node = located.node
    X = node.inputs[0]
    layout = node.attributes.get_int("layout", 0)
    dim = X.shape[layout] if X is not None and X.shape is not None else None
    named = isinstance(dim, ir.SymbolicDim) and dim.value is not None
    length = f"{str(dim)!r}" if named else "unknown"
    remedy = f"--dim {dim}=16" if named else _input_remedy(model)
    return (
        f"{node.op_type} node {str(located)!r}: its sequence length is {length}, and unrolling needs a number. "
        f"Give it one ({remedy}), or keep it dynamic with `rnnlower scan`"
    )


def _input_remedy(model: ir.Model) -> str:
    """Options that fix what is dynamic about the model's inputs, for a length that depends on them."""
    names = dict.fromkeys(
        dim.value
        for value in model.graph.inputs
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim) and dim.value
    )
    unnamed = [
        f"--input-shape {value.name}:{','.join('N' if not isinstance(d, int) or d < 0 else str(d) for d in value.shape)}"
        for value in model.graph.inputs
        if value.shape is not None
        and any(
            (isinstance(d, int) and d < 0) or (isinstance(d, ir.SymbolicDim) and not d.value)
            for d in value.shape
        )
    ]
    remedies = [f"--dim {name}=16" for name in names] + unnamed
    return " or ".join(remedies) or "--dim T=16 or --input-shape NAME:2,3,4"
