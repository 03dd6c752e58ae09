"""The inputs and outputs of two models: their differences, and the states among them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower import wording
from rnnlower.arguments import dictionary
from rnnlower.errors import OptionError
from rnnlower.files.metadata import state_stem
from rnnlower.verification.inputs.uses import GraphFacts, dims_of
from rnnlower.verification.models import FLOATS, feedable_inputs, overridable_inputs, required_inputs


def float_casts(ours: Iterable[onnx.ValueInfoProto], theirs: Iterable[onnx.ValueInfoProto]) -> dict[str, str]:
    """Return the names whose float types differ between `ours` and `theirs`, with a description of both."""
    others = {value.name: _type(value) for value in theirs}
    names = {int(kind): np.dtype(tensor_dtype_to_np_dtype(kind)).name for kind in FLOATS}
    return {
        value.name: f"{names[_type(value)]} in the reference and {names[others[value.name]]} in the candidate"
        for value in ours
        if {_type(value), others.get(value.name)} <= FLOATS and others[value.name] != _type(value)
    }


def _type(value: onnx.ValueInfoProto) -> Any:
    return _element_type(value.type)


def _element_type(kind: onnx.TypeProto) -> Any:
    """Return a tensor's element type; for a sequence or an optional value, which of them, and of what."""
    container = kind.WhichOneof("value")
    if container in ("sequence_type", "optional_type"):
        return container, _element_type(getattr(kind, container).elem_type)
    return kind.tensor_type.elem_type


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
            remedy = f"if it was set there, set it here, too ({wording.sets(value.name)})"
            problems.append(f"the candidate has no input {value.name!r}; {remedy}")
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
    kinds = {value.name: _type(value) for value in candidate.graph.output}
    for value in reference.graph.output:
        pair = _type(value), kinds.get(value.name, _type(value))
        # The element types of tensors are compared once they are computed; 0 is unknown.
        if all(pair) and pair[0] != pair[1] and not all(isinstance(kind, int) for kind in pair):
            problems.append(f"output {value.name!r} has another type in the candidate")
    expected, found = [o.name for o in reference.graph.output], [o.name for o in candidate.graph.output]
    problems += [f"the candidate has no output {name!r}" for name in expected if name not in found]
    problems += [f"the candidate has an additional output {name!r}" for name in found if name not in expected]
    if {*expected} == {*found} and expected != found:
        problems.append(f"the outputs are ordered {found} instead of {expected}")
    return problems, runnable


def find_state_pairs(
    graph: onnx.GraphProto,
    facts: GraphFacts,
    given: Mapping[str, str] | None = None,
    fixed: Collection[str] = (),
) -> dict[str, str]:
    """Return pairs of a state output and the state input that it feeds in the next call.

    Inputs that are initial states of recurrent nodes are paired with outputs of the same type and a
    compatible shape: by name (``h`` and ``hn``, ``cache`` and ``cache_out``), or else by order. ``given``
    pairs are only checked. ``fixed`` inputs always have one value, and are no states.

    Raises:
        OptionError: A given name is not an output or input, or the two do not fit.
    """
    inputs = {value.name: value for value in required_inputs(graph)}
    outputs = {value.name: value for value in graph.output}
    if given is not None:
        for output, name in dictionary("states", given).items():
            if output not in outputs or name not in {*inputs} - {*fixed}:
                raise OptionError(f"state {output}={name}: the model has no such output or no such input")
            if not _are_compatible(outputs[output], inputs[name]):
                raise OptionError(f"state {output}={name}: the two differ in type or shape")
            if [*given.values()].count(name) > 1:
                raise OptionError(f"state {output}={name}: another output feeds the same input")
        return dict(given)
    pairs: dict[str, str] = {}
    states = [name for name in inputs if "state" in facts.uses[name].roles]
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
    return {output: name for output, name in pairs.items() if name not in fixed}


def _may_feed(output: onnx.ValueInfoProto, value: onnx.ValueInfoProto) -> bool:
    """Return whether the output may be the state of the input; values of rank 0 or 1 rarely are."""
    theirs, own = dims_of(output), dims_of(value)
    return theirs is not None and own is not None and len(own) > 1 and _are_compatible(output, value)


def _are_compatible(output: onnx.ValueInfoProto, value: onnx.ValueInfoProto) -> bool:
    if output.type.tensor_type.elem_type != value.type.tensor_type.elem_type:
        return False
    theirs, own = dims_of(output), dims_of(value)
    if theirs is None or own is None:
        return True
    return len(theirs) == len(own) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(theirs, own, strict=True)
    )
