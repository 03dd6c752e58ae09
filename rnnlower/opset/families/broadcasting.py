"""Broadcasting: 7 replaced `broadcast` and `axis` by NumPy's rules; Sum, Max, Min, Mean got them in 8."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.opset.adapters import Row
from rnnlower.opset.step import VersionStep

ARITHMETIC = "Add Sub Mul Div"
LOGIC = "And Or Xor Equal Greater Less Pow"
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal"})
TO_THE_END = 2**31 - 1


def spell_out_axis(step: VersionStep) -> None:
    """`axis` aligns B's dimensions with A's from that axis on: ones are appended to B's shape."""
    broadcast, axis = step.take("broadcast"), step.take("axis")
    if not broadcast or axis is None:
        return
    step.set_input(1, align(step, step.required_input(0), step.required_input(1), axis))


def align(step: VersionStep, a: ir.Value, b: ir.Value, axis: int) -> ir.Value:
    """Append ones to the shape of `b`, so that its first dimension is aligned with `axis` of `a`."""
    rank_b = step.known_rank(b)
    rank_a = step.rank(a)
    if axis < 0:
        # -1 was the usual way to request the suffix, even if B has several dimensions.
        axis = step.known_rank(a) - rank_b if axis == -1 else step.known_rank(a) + axis
    if rank_a is None:
        return _align_at_run_time(step, a, b, axis + rank_b)
    missing = rank_a - axis - rank_b
    if missing < 0:
        step.refuse(f"axis {axis} leaves no room for the {rank_b} dimension(s) of {b.name!r} in {rank_a}")
    return step.with_axes("Unsqueeze", b, range(rank_b, rank_b + missing)) if missing else b


def _align_at_run_time(step: VersionStep, a: ir.Value, b: ir.Value, end: int) -> ir.Value:
    # rank(a) - end ones: the tail of a's shape from `end` on, turned into ones.
    shape = step.op("Shape", a)
    ones = step.op("Add", step.op("Mul", shape, step.const(0)), step.const(1))
    tail = step.slice(ones, end, TO_THE_END)
    return step.reshape(b, step.op("Concat", step.op("Shape", b), tail, axis=0))


def say_broadcast(step: VersionStep) -> None:
    """Before 7, B has A's shape, or one element, or is a contiguous part of A's shape."""
    a, b = step.required_input(0), step.required_input(1)
    if _same_shape(step, a, b):
        return
    part = _contiguous_part(step, a, b)
    if part is None:
        part = _contiguous_part(step, b, a) if step.node.op_type in COMMUTATIVE else None
        if part is None:
            step.refuse(
                f"the shapes of {a.name!r} and {b.name!r} are not known to be equal, or to broadcast as "
                "the older version does"
            )
        a, b = b, a
        step.set_inputs(a, b)
    step.set("broadcast", 1)
    start, core = part
    if core and core != step.static_shape(b):
        step.set_input(1, step.reshape(b, core))
        step.set("axis", start)


def _same_shape(step: VersionStep, a: ir.Value, b: ir.Value) -> bool:
    first, second = step.shape(a), step.shape(b)
    if first is None or second is None or len(first) != len(second):
        return False
    known = all(isinstance(size, int) or size.value is not None for size in first)
    return known and first == second


def _contiguous_part(step: VersionStep, a: ir.Value, b: ir.Value) -> tuple[int, tuple[int, ...]] | None:
    """Return the axis of A's shape where B's shape without outer ones begins, and that; else ``None``."""
    whole, sizes = step.shape(a), step.static_shape(b)
    if sizes == ():
        return 0, ()
    if whole is None or sizes is None or len(sizes) > len(whole):
        return None
    core = _without_outer_ones(sizes)
    start = len(whole) - len(sizes) + (sizes.index(core[0]) if core else 0)
    return (start, core) if tuple(whole[start : start + len(core)]) == core else None


def _without_outer_ones(sizes: tuple[int, ...]) -> tuple[int, ...]:
    core = list(sizes)
    while core and core[-1] == 1:
        core.pop()
    while core and core[0] == 1:
        core.pop(0)
    return tuple(core)


def gemm_up(step: VersionStep) -> None:
    """NumPy's rules include what `broadcast` allowed for C."""
    step.drop("broadcast")


def gemm_down(step: VersionStep) -> None:
    """Before 7, C has the result's shape, one element, or the result's last dimension."""
    sizes = step.static_shape(step.required_input(2))
    result = step.shape(step.output(0))
    if sizes is None:
        step.refuse("the shape of C is not known", "declare it in value_info")
    if len(sizes) == 2 and result is not None and tuple(result) == sizes:
        return
    if len(sizes) == 2 and sizes != (1, 1):
        if sizes[0] != 1:
            step.refuse("C is broadcast along the last dimension")
        step.set_input(2, step.reshape(step.required_input(2), sizes[1:]))
    step.set("broadcast", 1)


def prelu_up(step: VersionStep) -> None:
    """A slope of one dimension applies to the channels; NumPy's rules would align it with the last one."""
    slope = step.required_input(1)
    rank = step.known_rank(slope)
    if rank == 0 or step.static_shape(slope) == (1,):
        return
    if rank != 1:
        step.refuse(f"PRelu-6 has a slope of one dimension, this one has {rank}")
    step.set_input(1, align(step, step.required_input(0), slope, 1))


def prelu_down(step: VersionStep) -> None:
    """Before 7 the slope has one element, or one per channel."""
    slope, x_rank = step.required_input(1), step.rank(step.required_input(0))
    sizes = step.static_shape(slope)
    if sizes is None or x_rank is None:
        step.refuse("the shapes of X and of the slope are not known", "declare them in value_info")
    if all(size == 1 for size in sizes):
        if len(sizes) != 1:
            step.set_input(1, step.reshape(slope, [1]))
        return
    full = (1,) * (x_rank - len(sizes)) + sizes
    if any(size != 1 for axis, size in enumerate(full) if axis != 1):
        step.refuse("the slope varies along dimensions other than the channels")
    if len(sizes) != 1:
        step.set_input(1, step.reshape(slope, [full[1]]))


def only_equal_shapes(step: VersionStep) -> None:
    """Before 8 all inputs have one shape; Sum and Mean of others become chains of Add."""
    first, *rest = (value for value in step.node.inputs if value is not None)
    if all(_same_shape(step, first, each) for each in rest):
        return
    if step.node.op_type not in ("Sum", "Mean"):
        step.refuse("its inputs are not known to have one shape")
    total = first
    for each in rest:
        total = step.op("Add", total, each)
    if step.node.op_type == "Mean":
        total = step.op("Div", total, step.const(1 + len(rest), step.known_dtype(first)))
    step.replace(total)


def gemm_without_c_down(step: VersionStep) -> None:
    """C may be left out from 11 on: a zero that broadcasts has the same effect."""
    if step.input(2) is None:
        zero = step.const([0], step.known_dtype(step.required_input()))
        step.set_inputs(step.required_input(0), step.required_input(1), zero)


ROWS = (
    Row(ARITHMETIC, 6, 7, "NumPy's broadcasting replaced broadcast and axis", spell_out_axis, say_broadcast),
    Row(LOGIC, 1, 7, "NumPy's broadcasting replaced broadcast and axis", spell_out_axis, say_broadcast),
    Row("Gemm", 6, 7, "NumPy's broadcasting of C replaced broadcast", gemm_up, gemm_down),
    Row("PRelu", 6, 7, "a slope per channel has to be shaped for NumPy's broadcasting", prelu_up, prelu_down),
    Row("Sum Max Min Mean", 6, 8, "the inputs may broadcast from 8 on", down=only_equal_shapes),
    Row("Gemm", 9, 11, "C may be left out", down=gemm_without_c_down),
)
