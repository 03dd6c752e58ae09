"""State outputs of streaming models, matched with the inputs that take them in the next call."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from rnnlower.errors import OptionError
from rnnlower.files.stream_metadata import state_stem
from rnnlower.verification.inputs.uses import Facts, dims_of
from rnnlower.verification.interface import required_inputs


def state_pairs(
    graph: onnx.GraphProto, facts: Facts, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return pairs of a state output and the state input that it feeds in the next call.

    They are found for inputs that are initial states of recurrent nodes, among outputs of the same type and a
    compatible shape: by name (``h`` and ``hn``, ``cache`` and ``cache_out``), or else by order. ``given``
    pairs are taken as they are, without a search.

    Raises:
        OptionError: A given name is not an output or input, or the two do not fit.
    """
    inputs = {value.name: value for value in required_inputs(graph)}
    outputs = {value.name: value for value in graph.output}
    if given is not None:
        for output, name in given.items():
            if output not in outputs or name not in inputs:
                raise OptionError(f"state {output}={name}: the model has no such output or no such input")
            if not _may_hold(outputs[output], inputs[name]):
                raise OptionError(f"state {output}={name}: the two differ in type or shape")
            if [*given.values()].count(name) > 1:
                raise OptionError(f"state {output}={name}: another output feeds the same input")
        return dict(given)
    pairs: dict[str, str] = {}
    states = [name for name in inputs if facts.uses[name].is_state]
    for name in states:
        matching = [o for o, other in outputs.items() if o not in pairs and _may_feed(other, inputs[name])]
        same_stem = [o for o in matching if state_stem(name) and state_stem(o) == state_stem(name)]
        if len(same_stem) == 1:
            pairs[same_stem[0]] = name
    left = [name for name in states if name not in pairs.values()]
    free = [
        o for o in outputs if o not in pairs and any(_may_feed(outputs[o], inputs[name]) for name in left)
    ]
    in_order = list(zip(free, left, strict=False))
    if len(left) == len(free) and all(_may_feed(outputs[o], inputs[name]) for o, name in in_order):
        pairs.update(in_order)
    return pairs


def _may_feed(output: onnx.ValueInfoProto, value: onnx.ValueInfoProto) -> bool:
    """Return whether the output may be a state for the input; values of rank 0 or 1 hardly are."""
    theirs, own = dims_of(output), dims_of(value)
    return theirs is not None and own is not None and len(own) > 1 and _may_hold(output, value)


def _may_hold(output: onnx.ValueInfoProto, value: onnx.ValueInfoProto) -> bool:
    if output.type.tensor_type.elem_type != value.type.tensor_type.elem_type:
        return False
    theirs, own = dims_of(output), dims_of(value)
    if theirs is None or own is None:
        return True
    return len(theirs) == len(own) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(theirs, own, strict=True)
    )
