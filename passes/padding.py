"""The pass and the pipeline of pad."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from rnnlower.arguments import MAX_LENGTH, dictionary, integer
from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.files.metadata import PadMetadata, StreamMetadata
from rnnlower.graph.inference import forget_inner_shapes
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR, constant_of
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.versions import needed_opset
from rnnlower.graph.walk import default_opset, node_label, walk_all
from rnnlower.lowering import LAST_OPSET
from rnnlower.padding.bodies import LOOPS
from rnnlower.padding.layout_operators import LAYOUT_OPERATORS
from rnnlower.padding.position_operators import POSITION_OPERATORS
from rnnlower.padding.reductions import REDUCTIONS, unfold_groups
from rnnlower.padding.sequence_operators import SEQUENCE_OPERATORS
from rnnlower.padding.sizes import FIRST_PADDED_OPSET, NoRuleError, Size
from rnnlower.padding.validity_walk import PadFlow, Rule
from rnnlower.padding.windows import WINDOWS
from rnnlower.passes.base import Pass
from rnnlower.passes.command_options import PadOptions
from rnnlower.passes.constant_inputs import FreezeInitializersPass
from rnnlower.passes.convert_opset import convert_to_first_possible
from rnnlower.passes.expand_functions import InlineFunctionsPass
from rnnlower.passes.reports import PadReport
from rnnlower.passes.steps import lifting_steps, shared
from rnnlower.passes.steps.work import Step, Work, run_steps
from rnnlower.timeflow.axes import require_axis
from rnnlower.wording import option, time_axis

RULES: Mapping[str, Rule] = {
    **REDUCTIONS,
    **SEQUENCE_OPERATORS,
    **LAYOUT_OPERATORS,
    **POSITION_OPERATORS,
    **WINDOWS,
    **LOOPS,
}
"""The rule of each operator that padding may reach; any other operator is refused."""

_READ_SIZES = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Range"})
"""The operators that compute with the number of steps in models of an open length."""


def _maximum_is_fixed(model: ir.Model, padding: PadLengthsPass) -> bool:
    shapes, metadata = {value.name: value.shape for value in model.graph.inputs}, padding.metadata
    return all(
        (shape := shapes[name]) is not None and shape[axis] == metadata.max[metadata.symbols[name]]
        for name, axis in metadata.inputs.items()
    )


@dataclasses.dataclass(eq=False)
class PadLengthsPass(Pass):
    """Turns a model of any length into a static one for lengths up to a maximum, with the length as an input.

    The input ``length`` says how many steps are valid. What couples the steps is masked, counted, or told the
    length, so that the valid part of each output does not depend on what follows it.

    Before::

        (float[T, 1, 4] X, float[2, 6, 4] W, float[2, 6, 2] R) => (float[T, 2, 1, 2] Y) {
            [gru] Y = GRU <hidden_size = 2, direction = "bidirectional"> (X, W, R)
        }

    After ``PadLengthsPass({"T": 16})``::

        (float[16, 1, 4] X, float[2, 6, 4] W, float[2, 6, 2] R, int64[1] length) => (float[16, 2, 1, 2] Y) {
            lengths = Cast <to = 6> (length)
            [gru] Y = GRU <hidden_size = 2, direction = "bidirectional"> (X, W, R, , lengths)
        }

    Args:
        maxima: The maximum for each symbolic dimension.
        by_mask: Whether masks are taken instead of lengths.
        per_row: Whether each row of a batch has a length of its own.

    Attributes:
        metadata: The calling convention of the result.
        notes: Those of the conversion of an old model.

    Raises:
        OptionError: There is no maximum, or it is below 2.
    """

    ENSURES = (_maximum_is_fixed,)

    maxima: Mapping[str, int]
    _: dataclasses.KW_ONLY
    by_mask: bool = False
    per_row: bool = False
    metadata: PadMetadata = dataclasses.field(init=False, repr=False)
    notes: list[str] = dataclasses.field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.maxima, Mapping) or not self.maxima:
            raise OptionError(f"{option('max')} is {self.maxima!r}; it must name a dimension and its maximum")
        for name, maximum in self.maxima.items():
            integer(f"maximum of {name!r}", maximum, 2, MAX_LENGTH)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Pad the model.

        Raises:
            OptionError: A dimension does not exist, or an axis does not.
            OpsetError: The model is older than all that is emitted, and cannot be converted.
            UnsupportedModelError: A node does with padding what no rule undoes.
        """
        if PadMetadata.read(model.metadata_props) is not None:
            raise OptionError(
                "the model is padded already",
                remedy=f"pad its source, with all lengths at once ({option('max')})",
            )
        stream = StreamMetadata.read(model.metadata_props)
        if stream is not None and stream.chunk is not None and stream.inputs:
            raise OptionError(
                f"the model is streamed, and each call takes {stream.chunk} time steps",
                remedy=f"stream its source with chunks of any size ({option('chunk', 'any')}), and pad that",
            )
        if not len(model.graph):
            raise UnsupportedModelError(
                "the model has no nodes, and nothing to pad", remedy="give the model that computes something"
            )
        InlineFunctionsPass(wanted=lambda node: True)(model, self.facts)
        if model.ir_version < FREE_INITIALIZERS_IR:
            FreezeInitializersPass()(model, self.facts)
        opset = max(needed_opset(model), FIRST_PADDED_OPSET)
        if opset > default_opset(model):
            self.notes += convert_to_first_possible(model, opset, self.facts, last=LAST_OPSET)
        unfold_groups(model)
        inputs = self._axes(model)
        rows = _row_axes(model, inputs) if self.per_row else {}
        flow = PadFlow(model, self.maxima, inputs, by_mask=self.by_mask, rows=rows).run(RULES)
        self.metadata = _make_metadata(model, flow, self.maxima, inputs)
        self.metadata.write(model.metadata_props)
        self._fix(model, flow)
        return ir.passes.PassResult(model, modified=True)

    def _axes(self, model: ir.Model) -> dict[str, dict[int, str]]:
        """Return for each input over time its axis and its length."""
        found: dict[str, dict[int, str]] = {}
        for value in model.graph.inputs:
            places = {
                axis: name
                for axis, dim in enumerate(value.shape or ())
                if (name := dim_name(dim)) is not None and name in self.maxima
            }
            if len(places) > 1:
                raise UnsupportedModelError(
                    f"input {value.name!r} has several axes of a padded length",
                    remedy="make it an input of one such axis, or compute it in the model"
                    + _alone(self.maxima),
                )
            if places:
                found[str(value.name)] = places
        missing = sorted(self.maxima.keys() - {name for places in found.values() for name in places.values()})
        if missing:
            names = sorted(
                {name for value in model.graph.inputs for dim in value.shape or () if (name := dim_name(dim))}
            )
            known = f"the inputs have {', '.join(names)}" if names else "none of their sizes has a name"
            raise OptionError(
                f"no input has a dimension {missing[0]!r}; {known}",
                remedy=f"name the axis of an input ({time_axis('INPUT', 'AXIS')}); do not fix its size",
            )
        return found

    def _fix(self, model: ir.Model, flow: PadFlow) -> None:
        """Declare the maximum at inputs and outputs; shapes inside follow from it."""
        forget_inner_shapes(model.graph)
        for value in (*model.graph.inputs, *model.graph.outputs):
            if value.shape is not None:
                axes = flow.lengths_of(value)
                value.shape = ir.Shape(
                    [
                        # A declaration may name the length where another size is.
                        flow.static_size(value, place)
                        if place in axes or dim_name(dim) in self.maxima
                        else dim
                        for place, dim in enumerate(value.shape)
                    ]
                )


def _notes_of_folded_sizes(model: ir.Model, size: int) -> Iterator[str]:
    """Yield a note for each scalar that may be the static length, or one divided by it, as in a mean."""
    for node, _ in walk_all(model):
        if node.op_type not in _READ_SIZES:
            continue
        tensors = [tensor for value in node.inputs if (tensor := constant_of(value)) is not None]
        for number in (float(tensor.numpy().item()) for tensor in tensors if tensor.size == 1):
            if any(math.isclose(number, each, rel_tol=1e-3) for each in (size, 1 / size)):
                yield (
                    f"{node_label(node)} reads the number {number:.4g}, which may follow from the static "
                    f"length {size}; if it does, shorter sequences come out wrong: pad a model of open length"
                )


def _alone(maxima: Mapping[str, int]) -> str:
    """Return a remedy for values with an axis of each of several lengths."""
    return f", or pad one length alone (a single {option('max')})" if len(maxima) > 1 else ""


def _make_metadata(
    model: ir.Model, flow: PadFlow, maxima: Mapping[str, int], inputs: Mapping[str, Mapping[int, str]]
) -> PadMetadata:
    outputs = {}
    for value in model.graph.outputs:
        axes = flow.lengths_of(value)
        if len(axes) > 1:
            raise UnsupportedModelError(
                f"output {value.name!r} has several axes of a padded length",
                remedy=f"make the model return a value computed from it{_alone(maxima)}",
            )
        for axis, size in axes.items():
            outputs[str(value.name)] = {"axis": axis, "size": _size_expression(value, size, flow)}
    ends = (*model.graph.inputs, *model.graph.outputs)
    return PadMetadata(
        max=dict(maxima),
        least=flow.least,
        multiples={symbol: number for symbol, number in flow.multiples.items() if number > 1},
        inputs={name: next(iter(places)) for name, places in inputs.items()},
        outputs=outputs,
        lengths={symbol: str(value.name) for symbol, value in flow.masks.given.items()},
        symbols={name: next(iter(places.values())) for name, places in inputs.items()},
        form="mask" if flow.masks.by_mask else "length",
        rows={str(value.name): axis for value in ends for axis in flow.row_axes_of(value)},
    )


def _row_axes(model: ir.Model, inputs: Mapping[str, Mapping[int, str]]) -> dict[str, int]:
    """Return the axis of rows of each input: the first one that is not time, and equal ones elsewhere."""
    found, dims = {}, set()
    for value in model.graph.inputs:
        if places := inputs.get(str(value.name)):
            axis = min({0, 1} - places.keys())
            if value.shape is None or len(value.shape) <= axis:
                raise UnsupportedModelError(
                    f"input {value.name!r} has no axis of rows",
                    remedy=f"pad it without lengths of rows ({option('per-row')})",
                )
            found[str(value.name)] = axis
            dims.add(dim_name(value.shape[axis]) or value.shape[axis])
    if len(dims) != 1:
        raise UnsupportedModelError(
            f"the inputs over time have different numbers of rows: {', '.join(sorted(map(str, dims)))}",
            remedy=f"pad without lengths of rows ({option('per-row')})",
        )
    (dim,) = dims
    if dim == 1:
        return {}
    for value in model.graph.inputs:
        same = [axis for axis, each in enumerate(value.shape or ()) if (dim_name(each) or each) == dim]
        if value.name not in found and len(same) == 1 and not value.is_initializer():
            found[str(value.name)] = same[0]
    return found


def _size_expression(value: ir.Value, size: Size, flow: PadFlow) -> str:
    try:
        return size.expression(flow.least[size.symbol], flow.multiples[size.symbol])
    except NoRuleError as error:
        raise UnsupportedModelError(
            f"output {value.name!r} {error}", remedy="make the model return a value computed from it"
        ) from None


@dataclasses.dataclass
class PadWork(Work):
    """The data that the steps of pad share: what a `PadReport` has."""

    options: PadOptions
    metadata: PadMetadata = dataclasses.field(init=False)


def pad_model(model: ir.Model, options: PadOptions) -> PadReport:
    """Pad the model in place. A failure leaves it half changed, so pass a copy.

    Raises:
        OptionError: An option does not fit the model.
        UnsupportedModelError: A node does with padding what no rule undoes.
    """
    options.report_progress("preparing")
    work = run_steps(PAD, PadWork(model, options))
    return PadReport(metadata=work.metadata, **work.summary())


def _make_axes_dynamic(work: PadWork) -> None:
    """Make static time axes dynamic, as only a symbol can be given a maximum.

    Before: inputs of a static length. After: the length has its name.
    """
    inputs, maxima = {value.name: value for value in work.model.graph.inputs}, work.options.max
    for name, axis in dictionary("time_axes", work.options.time_axes).items():
        if name not in inputs or (shape := inputs[name].shape) is None:
            raise OptionError(f"the model has no input {name!r} of known shape")
        require_axis(name, axis, shape)
        if len(maxima) != 1:
            raise OptionError(f"{option('time-axis')} works with a single length only")
        if isinstance(size := shape[axis], int):
            work.notes += _notes_of_folded_sizes(work.model, size)
        dims: list[int | ir.SymbolicDim] = [*shape]
        dims[axis] = ir.SymbolicDim(*maxima)
        inputs[name].shape = ir.Shape(dims)
    work.facts.forget()


def _pad(work: PadWork) -> None:
    """Pad the model, with masks and counts wherever steps are coupled.

    Before: a model of any length. After: one of the maximal length, which takes the length as an input.
    """
    work.options.report_progress("following time")
    options = work.options
    padding = PadLengthsPass(options.max, by_mask=options.mask, per_row=options.per_row)
    work.apply(padding)
    work.metadata = padding.metadata
    work.notes += padding.notes


PAD: Sequence[Step[PadWork, PadOptions]] = (
    Step(_make_axes_dynamic, "Sizes that follow from the length are not to be folded."),
    *shared.FIX_INPUTS,
    Step(shared.simplify_around_ifs, "Branches that never run need no rule."),
    Step(shared.warn_of_suspicions, "Nothing has been moved."),
    Step(lifting_steps.lift, "Rows of different lengths may meet in a Loop.", when=lambda o: o.lift),
    Step(shared.note_ifs, "Lifting removes some."),
    Step(lifting_steps.simplify_loops, "Loops that compute an operator have been lifted."),
    Step(_pad, "It is known which values are constant and which nodes run."),
    Step(lifting_steps.note_zero_steps, "Only kept nodes may lose the initial state.", when=lambda o: o.lift),
    Step(shared.strip, "Earlier messages use node names, so stripping is last.", when=lambda o: o.strip),
)
"""The steps of pad, in order."""
