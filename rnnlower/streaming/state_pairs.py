"""The states that a step model has as inputs and outputs: which output feeds which input in the next call."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.files.metadata import state_stem
from rnnlower.graph.walk import ancestors, operand
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.timeflow.flow import locate
from rnnlower.timeflow.recurrence import STATES, move_sources, move_targets
from rnnlower.wording import option


def pair_states(model: ir.Model, given: Mapping[str, str]) -> dict[str, str]:
    """Return the outputs that are states, with the inputs that take them in the next call.

    An output is the state of an input of its type and shape if both belong to one recurrent node, if it holds
    elements of the input, as a cache does, or if their names say so. Other pairs have to be `given`.

    Raises:
        OptionError: A given pair does not fit the model.
        UnsupportedModelError: A recurrent node has a state that no pair of input and output holds.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    outputs = {str(value.name): value for value in model.graph.outputs}
    pairs = _given(given, inputs, outputs)
    candidates = {
        name: [out for out, made in outputs.items() if _fits(made, value)] for name, value in inputs.items()
    }
    for matches in (_recurrent_states(model), _caches(model), _namesakes(model)):
        for name, found in matches.items():
            left = [out for out in candidates[name] if out in found and out not in pairs]
            if name not in pairs.values() and len(left) == 1:
                pairs[left[0]] = name
    _refuse_lost(model, pairs)
    return pairs


def _given(
    given: Mapping[str, str], inputs: Mapping[str, ir.Value], outputs: Mapping[str, ir.Value]
) -> dict[str, str]:
    for output, name in given.items():
        if output not in outputs or name not in inputs:
            raise OptionError(f"state {output}={name}: the model has no such output, or no such input")
        if not _fits(outputs[output], inputs[name]):
            raise OptionError(
                f"state {output}={name}: the two differ in type or shape, or the output does not depend on it"
            )
        if [*given.values()].count(name) > 1:
            raise OptionError(f"state {output}={name}: another output feeds the same input")
    return dict(given)


def _fits(output: ir.Value, value: ir.Value) -> bool:
    """Return whether an output may feed an input in the next call."""
    if output.dtype != value.dtype or value not in ancestors(output):
        return False
    if output.shape is None or value.shape is None:
        return True
    return len(output.shape) == len(value.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(output.shape, value.shape, strict=True)
    )


def _moved_from(value: ir.Value | None) -> set[str]:
    """Return the names of the inputs of the model whose elements a value holds."""
    return {this.name for this in move_sources(value) if this.is_graph_input() and this.name}


def _recurrent_states(model: ir.Model) -> dict[str, set[str]]:
    """Return inputs that are initial states of recurrent nodes, with the outputs that hold the final ones."""
    found: dict[str, set[str]] = {}
    for node in filter(is_recurrent, model.graph):
        for final, initial in STATES.values():
            if len(node.inputs) > initial and len(node.outputs) > final:
                ends = [*move_targets(node.outputs[final]), *move_targets(node.outputs[0])]
                names = {str(out.name) for out in ends if out.is_graph_output()}
                for name in _moved_from(node.inputs[initial]):
                    found.setdefault(name, set()).update(names)
    return found


def _caches(model: ir.Model) -> dict[str, set[str]]:
    """Return inputs, with the outputs that hold elements of them."""
    found: dict[str, set[str]] = {}
    for out in model.graph.outputs:
        for name in _moved_from(out):
            found.setdefault(name, set()).add(str(out.name))
    return found


def _namesakes(model: ir.Model) -> dict[str, set[str]]:
    """Return inputs, with the outputs whose names differ by a word such as in, out or next alone."""
    stems = {str(out.name): state_stem(str(out.name)) for out in model.graph.outputs}
    return {
        str(value.name): {out for out, stem in stems.items() if stem and stem == state_stem(str(value.name))}
        for value in model.graph.inputs
    }


def _refuse_lost(model: ir.Model, pairs: Mapping[str, str]) -> None:
    """Refuse a recurrent node that takes its initial state from an input that no output feeds."""
    inputs = {value.name for value in model.graph.inputs}
    for node in filter(is_recurrent, model.graph):
        for name, (_, index) in STATES.items():
            lost = _moved_from(operand(node, index)) - {*pairs.values()}
            if lost & inputs:
                raise UnsupportedModelError(
                    f"{locate(model, node).label} takes its {name} from input {min(lost)!r}, and it is "
                    "not clear which output is its final state",
                    remedy=f"name it ({option('state', f'OUT={min(lost)}')})",
                )
