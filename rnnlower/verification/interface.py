"""What two graphs ask for and give: the differences that show before anything runs."""

from __future__ import annotations

import onnx

__all__ = ["interface_problems", "required_inputs"]


def required_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that have no initializer to stand in for them."""
    initialized = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initialized]


def interface_problems(reference: onnx.GraphProto, candidate: onnx.GraphProto) -> tuple[list[str], bool]:
    """Differences between the graphs' inputs and outputs; whether both can take the same inputs at all."""
    problems, runnable = [], True
    theirs = {value.name: value for value in candidate.input}
    ours = {value.name for value in reference.input}
    for value in required_inputs(reference):
        other = theirs.get(value.name)
        if other is None:
            problems.append(f"the candidate has no input {value.name!r}")
        elif other.type.tensor_type.elem_type != value.type.tensor_type.elem_type:
            problems.append(f"input {value.name!r} has another type in the candidate")
            runnable = False
    for value in required_inputs(candidate):
        if value.name not in ours:
            problems.append(f"the candidate wants an input {value.name!r} that the reference lacks")
            runnable = False
    ours_in_order = [value.name for value in required_inputs(reference) if value.name in theirs]
    theirs_in_order = [value.name for value in candidate.input if value.name in ours_in_order]
    if ours_in_order != theirs_in_order:
        problems.append(f"the inputs are ordered {theirs_in_order} instead of {ours_in_order}")
    expected, found = [o.name for o in reference.output], [o.name for o in candidate.output]
    problems += [f"the candidate has no output {name!r}" for name in expected if name not in found]
    problems += [f"the candidate has an output {name!r} more" for name in found if name not in expected]
    if sorted(expected) == sorted(found) and expected != found:
        problems.append(f"the outputs are ordered {found} instead of {expected}")
    return problems, runnable
