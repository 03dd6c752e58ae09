"""If, Loop and Scan."""

from __future__ import annotations

from rnnlower.opset.families.batched_scan import scan_9_up
from rnnlower.opset.families.shaping import OLD_TEXT
from rnnlower.opset.step import Row, Step


def same_shapes(step: Step) -> None:
    """Before 11 the branches of an If return results of the same shape."""
    branches = [step.attr("then_branch"), step.attr("else_branch")]
    for then, other in zip(branches[0].outputs, branches[1].outputs, strict=True):
        first, second = step.shape(then), step.shape(other)
        if first is None or second is None:
            continue
        pairs = zip(first, second, strict=False)
        differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
        if differ or len(first) != len(second):
            step.refuse(
                f"its branches give different shapes ({then.name!r}: {first}, {other.name!r}: {second})"
            )


def carries_something(step: Step) -> None:
    """Loop-1 has at least one loop-carried value."""
    if step.input(2) is None:
        step.refuse("Loop-1 needs at least one loop-carried value")


def scan_9_down(step: Step) -> None:
    """Scan-8 has a batch axis: the batch is one row."""
    scans = step.attr("num_scan_inputs")
    for name in ("scan_input_axes", "scan_output_axes", "scan_output_directions"):
        if any(step.attr(name) or ()):
            step.refuse(f"{name}={list(step.attr(name))}: Scan-8 scans the axis after the batch, forwards")
    directions = step.attr("scan_input_directions")
    step.drop("scan_input_axes", "scan_output_axes", "scan_output_directions", "scan_input_directions")
    if directions and any(directions):
        step.set("directions", list(directions))
    inputs = [step.unsqueeze(value, [0]) for value in step.node.inputs if value is not None]
    step.set_inputs(None, *inputs)
    step.set("num_scan_inputs", scans)
    for position in range(len(step.node.outputs)):
        step.wrap_output(position, lambda value: step.squeeze(value, [0]))


def scan_axes_down(step: Step) -> None:
    """Negative axes are counted from the front, if the ranks are known."""
    scans = step.attr("num_scan_inputs")
    inputs = [value for value in step.node.inputs if value is not None]
    states = len(inputs) - scans
    for name, values in (
        ("scan_input_axes", inputs[states:]),
        ("scan_output_axes", list(step.node.outputs)[states:]),
    ):
        axes = step.attr(name)
        if axes and any(axis < 0 for axis in axes):
            pairs = zip(axes, values, strict=True)
            step.set(name, [axis if axis >= 0 else axis + step.known_rank(value) for axis, value in pairs])


ROWS = (
    Row("Scan", 9, 11, OLD_TEXT, down=scan_axes_down),
    Row("If", 1, 11, "the branches may give different shapes", down=same_shapes),
    Row("Loop", 1, 11, "a loop may carry no values", down=carries_something),
    Row("Scan", 8, 9, "the batch axis was removed", scan_9_up, scan_9_down),
)
