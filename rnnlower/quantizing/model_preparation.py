"""The preparation of a model that is calibrated or quantized."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.walk import op_types
from rnnlower.lowering.emitter import Emitters
from rnnlower.passes.command_options import RecordedOptions
from rnnlower.passes.expand_functions import InlineFunctionsPass
from rnnlower.passes.folding import FoldWeightsPass
from rnnlower.passes.options import LOOPS
from rnnlower.passes.static_shapes import InferTypesPass
from rnnlower.passes.steps import shared
from rnnlower.passes.steps.work import Step, Work, run_steps
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets.adapting import AdaptedNode


def inline_functions(work: Work) -> None:
    """Inline functions that hold recurrent nodes.

    Before: recurrent nodes in functions. After: they are in the main graph or its subgraphs.
    """
    work.apply(InlineFunctionsPass())


def fold_weights(work: Work) -> None:
    """Fold weights, even if they grow: in 8 bits they are smaller than their source. Infer shapes.

    Before: weights that follow from constants, and shapes of inputs alone. After: constants, and recurrent
    nodes that know their number of steps, if it is fixed.
    """
    work.apply(FoldWeightsPass(may_grow=True))
    work.apply(InferTypesPass())


def fit_onnxruntime(work: Work) -> None:
    """Give recurrent nodes a hidden_size and layout 0: onnxruntime, which observes the rest, needs them.

    Before: hidden_size may be left out; nodes of layout 1. After: hidden_size is written out; nodes of
    layout 0 between Transposes, under the same names.
    """
    emitters = Emitters(work.model)
    for located in find_recurrent(work.model):
        attributes = located.node.attributes
        has_layout = bool(attributes.get_int("layout", 0))
        if located.node.domain or ("hidden_size" in attributes and not has_layout):
            continue
        node = parse_recurrent(located, "ort", lenient=True)
        attributes["hidden_size"] = ir.AttrInt64("hidden_size", node.hidden_size)
        if not has_layout or node.dtype is None or node.inputs["X"].shape is None:
            continue
        AdaptedNode(emitters.at(located.name, node.dtype), node, {"layout"}).replace(mark=False)


PREPARATION: Sequence[Step[Work, RecordedOptions]] = (
    *shared.FIX_INPUTS,
    Step(shared.raise_opset_to_operators, "Later steps would not know an operator that the opset lacks."),
    Step(inline_functions, "Types and constants of a node in a function are only known at the call."),
    Step(shared.simplify_around_ifs, "A node that never runs has no ranges."),
    Step(shared.note_ifs, "Those of known condition are gone."),
    Step(fold_weights, "Weights become integers, and nothing changes the number of steps any more."),
    Step(fit_onnxruntime, "The type and shape of X are known."),
)
"""The steps before a calibration, in order."""


def prepare(model: ir.Model, options: RecordedOptions) -> list[str]:
    """Fix sizes and inputs; return notes.

    Raises:
        UnsupportedModelError: There is no recurrent node, or one of them is not in float32.
    """
    notes = run_steps(PREPARATION, Work(model, options)).notes
    found = find_recurrent(model)
    if not found:
        operators = op_types(model)
        lift = f"if steps are written out, make a node of them first (`{wording.call('lift')}`)"
        remedy = f"{lift}; otherwise use onnxruntime.quantization on it"
        if "QuantizeLinear" in operators:
            remedy = "it has quantizers already: quantize the float model instead"
        elif not operators.isdisjoint(LOOPS):
            remedy = f"make one of the Loop or Scan first (`{wording.call('lift')}`)"
        raise UnsupportedModelError("the model has no LSTM, GRU or RNN node", remedy=remedy)
    for located in found:
        if located.node.domain:
            raise UnsupportedModelError(
                "it is quantized already", node=located, remedy="quantize the float model instead"
            )
        if (weights := located.node.inputs[1]) and weights.dtype not in (None, ir.DataType.FLOAT):
            raise UnsupportedModelError(
                f"its weights are {weights.dtype}", node=located, remedy="quantize the float32 model instead"
            )
    return notes
