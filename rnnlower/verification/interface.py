"""The interfaces of two graphs: differences that show before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

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
