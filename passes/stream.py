"""Conversion of a model of whole sequences to one of a chunk per call, with all states as inputs and outputs.

A convolution over time is preceded by the last frames of the previous chunk, and so are the other
operators that need them. The metadata states which output feeds which input (``rnnlower.state``).

Before::

    (float[T, 1, 4] X, float[1, 6, 4] W, float[1, 6, 2] R) => (float[T, 1, 1, 2] Y) {
        [gru] Y = GRU <hidden_size = 2> (X, W, R)
    }

After ``StreamPass(chunk=1)``::

    (float[1, 1, 4] X, float[1, 6, 4] W, float[1, 6, 2] R, float[1, 1, 2] gru_h_in)
    => (float[1, 1, 1, 2] Y, float[1, 1, 2] gru_h_out) {
        Y, gru_h_out = GRU <hidden_size = 2> (X, W, R, , , gru_h_in)
    }
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.errors import OptionError
from rnnlower.files.metadata import StreamMetadata
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.names import NameSource
from rnnlower.graph.walk import default_opset, dim_name
from rnnlower.passes.base import Pass
from rnnlower.passes.freeze_initializers import FreezeInitializersPass
from rnnlower.passes.inline_functions import InlineFunctionsPass
from rnnlower.streaming.analysis import Analysis, analyze
from rnnlower.streaming.rewriter import StreamRewriter
from rnnlower.streaming.single_steps import pair_states
from rnnlower.streaming.slices import gather_slices
from rnnlower.timeflow.axes import SingleStepError, find_axes
from rnnlower.wording import option


def _states_are_outside(model: ir.Model, streaming: StreamPass) -> bool:
    inputs = {value.name for value in model.graph.inputs}
    outputs = {value.name for value in model.graph.outputs}
    return outputs >= streaming.states.keys() and inputs >= {*streaming.states.values()}


def _name_sizes(model: ir.Model, axes: Mapping[str, int]) -> None:
    """Name the nameless sizes of the inputs, apart from time, so that states can declare the same ones."""
    inputs = [value for value in model.graph.inputs if value.shape is not None]
    names = NameSource(filter(None, (dim_name(dim) for value in inputs for dim in value.shape or ())))
    for value in inputs:
        dims = list(value.shape or ())
        for axis, dim in enumerate(dims):
            if not isinstance(dim, int) and dim_name(dim) is None and axes.get(value.name or "") != axis:
                dims[axis] = ir.SymbolicDim(names.fresh(f"{value.name}_dim_{axis}"))
        value.shape = ir.Shape(dims)


class StreamPass(Pass):
    """Makes a model of one chunk a call.

    Args:
        chunk: Time steps a call; ``None``: any number of them, another in each call.
        time_axes: The axis of time of inputs, where it does not follow from the recurrent nodes.
        allow_delay: Whether convolutions may look ahead, at a delay.
        states: States that the model has already: ``{output: input}``.

    Attributes:
        analysis: The analysis of the model.
        states: For each output that holds a state, the input that takes it in the next call.

    Raises:
        OptionError: The chunk has no step.
    """

    ENSURES = (_states_are_outside,)

    def __init__(
        self,
        chunk: int | None = 1,
        time_axes: Mapping[str, int] | None = None,
        allow_delay: bool = False,
        states: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
            raise OptionError(f"the chunk is {chunk!r}; it must be a number of time steps, at least 1")
        self._chunk = chunk
        self._time_axes = dict(time_axes or {})
        self._allow_delay = allow_delay
        self._given = dict(states or {})
        self.analysis: Analysis | None = None
        self.states: Mapping[str, str] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Convert the model.

        Raises:
            OptionError: The chunk or the time axis does not fit the model.
            UnsupportedModelError: A node couples time steps in a way that no state outside can carry.
        """
        InlineFunctionsPass(wanted=lambda node: True)(model, self.facts)
        if model.ir_version < FREE_INITIALIZERS_IR:
            FreezeInitializersPass()(model, self.facts)
        gather_slices(model, self.facts)
        if self._given:
            return self._keep(model, pair_states(model, self._given))
        try:
            axes = find_axes(model, self._time_axes)
        except SingleStepError as error:
            states = pair_states(model, {})
            if not states:
                error.advise(f"{error.remedy}; {option('state', 'OUT=IN')} names states that it has")
                raise
            return self._keep(model, states)
        _name_sizes(model, axes)
        self.analysis = analyze(model, axes, self._chunk, allow_delay=self._allow_delay)
        self.states = StreamRewriter(model, default_opset(model)).rewrite(self.analysis)
        return ir.passes.PassResult(model, modified=True)

    def _keep(self, model: ir.Model, states: Mapping[str, str]) -> ir.passes.PassResult:
        """Keep a model of one step per call, and say which of its outputs are states."""
        if self._chunk not in (None, 1):
            raise OptionError(f"the model takes one step per call, and the chunk is {self._chunk}")
        self.analysis, self.states = Analysis(1, {}, 1, {}, 0, [], {}, None), states
        defaults = {value.name: value.const_value for value in model.graph.inputs}
        start = {
            name: 0.0 if (default := defaults[name]) is None else default.numpy().tolist()
            for name in states.values()
        }
        StreamMetadata(1, {}, {}, 0, states, start).write(model.metadata_props)
        return ir.passes.PassResult(model, modified=True)
