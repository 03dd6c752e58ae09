"""The interfaces of graphs: differences that show before anything runs, and states with their inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.errors import OptionError
from rnnlower.files.metadata import state_stem
from rnnlower.verification.inputs.uses import Facts, dims_of

_FREE_INITIALIZERS_IR = 4
"""Since then an initializer need not be an input. Written here again: this room shares no such code."""

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def required_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs without an initializer as default."""
    initialized = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initialized]


def feedable_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller may feed, including those whose initializer is a default value."""
    defaults = model.ir_version >= _FREE_INITIALIZERS_IR
    return [*model.graph.input] if defaults else required_inputs(model.graph)


def overridable_inputs(model: onnx.ModelProto) -> list[str]:
    """Return the names of the inputs that a caller may feed or leave at their default value."""
    required = {value.name for value in required_inputs(model.graph)}
    return [value.name for value in feedable_inputs(model) if value.name not in required]


def accepted_by(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that the model can be fed."""
    accepted = {value.name for value in feedable_inputs(model)}
    return {name: value for name, value in feeds.items() if name in accepted}


def float_casts(ours: Iterable[onnx.ValueInfoProto], theirs: Iterable[onnx.ValueInfoProto]) -> dict[str, str]:
    """Return the names that are floats of two types in `ours` and `theirs`, and both types in words."""
    others = {value.name: _type(value) for value in theirs}
    names = {int(kind): np.dtype(tensor_dtype_to_np_dtype(kind)).name for kind in _FLOATS}
    return {
        value.name: f"{names[_type(value)]} in the reference and {names[others[value.name]]} in the candidate"
        for value in ours
        if {_type(value), others.get(value.name)} <= _FLOATS and others[value.name] != _type(value)
    }


def _type(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type


def interface_problems(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    sets: Collection[str] = (),
    casts: Mapping[str, str] | None = None,
) -> tuple[list[str], bool]:
    """Return differences between the models' inputs and outputs, and whether both can take the same inputs.

    The candidate may lack the inputs named in `sets`; those in `casts` are fed in its own type.
    """
    problems, runnable = [], True
    theirs = {value.name: value for value in candidate.graph.input}
    ours = {value.name for value in reference.graph.input}
    lasting, defaults = feedable_inputs(reference), overridable_inputs(reference)
    for value in lasting:
        other = theirs.get(value.name)
        if other is None and (value.name in defaults or value.name in sets):
            # A caller who never fed it misses nothing: a note, but not a difference.
            continue
        if other is None:
            problems.append(f"the candidate has no input {value.name!r}")
        elif _type(other) != _type(value) and value.name not in (casts or ()):
            problems.append(f"input {value.name!r} has another type in the candidate")
            runnable = False
    for value in required_inputs(candidate.graph):
        if value.name not in ours:
            problems.append(f"the candidate needs an input {value.name!r} that the reference lacks")
            runnable = False
        elif value.name in defaults:
            problems.append(f"input {value.name!r} has no default value in the candidate")
            runnable = False
    ours_in_order = [value.name for value in lasting if value.name in theirs]
    theirs_in_order = [value.name for value in candidate.graph.input if value.name in ours_in_order]
    if ours_in_order != theirs_in_order:
        problems.append(f"the inputs are ordered {theirs_in_order} instead of {ours_in_order}")
    expected, found = [o.name for o in reference.graph.output], [o.name for o in candidate.graph.output]
    problems += [f"the candidate has no output {name!r}" for name in expected if name not in found]
    problems += [f"the candidate has an additional output {name!r}" for name in found if name not in expected]
    if sorted(expected) == sorted(found) and expected != found:
        problems.append(f"the outputs are ordered {found} instead of {expected}")
    return problems, runnable


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
