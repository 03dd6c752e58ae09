"""The rows of the tables of results, shared by the terminal and the HTML page.

Each function returns the names of the columns, and the rows: words, numbers, and ``None`` for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnnlower.benchmarking.bench_result import BenchVariant, Timing
    from rnnlower.files.metadata import PadMetadata
    from rnnlower.inspection import Port, RecurrentNode
    from rnnlower.lifting.lifted_nodes import LiftedNode
    from rnnlower.lowering.replacing import LoweredNode
    from rnnlower.opset import OpsetReport
    from rnnlower.verification import OutputComparison

Rows = list[tuple[Any, ...]]
Cells = tuple[tuple[str, ...], Rows]


def place_text(path: str) -> str:
    """Return the location of a node as tables show it."""
    return path or "main graph"


def lowered_nodes(nodes: Sequence[LoweredNode]) -> Cells:
    """Return what became of each recurrent node."""
    columns = ("node", "op", "place", "direction", "strategy", "steps", "emitted ops")
    return columns, [
        (
            *(node.name, node.op_type, place_text(node.path), node.direction, node.strategy),
            *("dynamic" if node.steps is None else node.steps, node.emitted_ops),
        )
        for node in nodes
    ]


def op_counts(before: Mapping[str, int], after: Mapping[str, int], *, changed: bool | None) -> Cells:
    """Return the number of nodes by operator; of those that changed, or of those that did not."""
    rows = [(op, before.get(op, 0), after.get(op, 0)) for op in sorted({*before, *after})]
    kept = [row for row in rows if changed is None or (row[1] != row[2]) == changed]
    total = ("all", sum(before.values()), sum(after.values()))
    return ("op", "before", "after"), kept if changed is False else [*kept, total]


def adapted_nodes(report: OpsetReport) -> Cells:
    """Return the nodes that had to change for the opset."""
    return ("node", "op", "place", "step", "change"), [
        (
            *(each.name or f"(makes {each.output})", each.op_type, place_text(each.path)),
            *(f"{each.old} -> {each.new}", each.reason),
        )
        for each in report.adapted
    ]


def adapted_operators(report: OpsetReport) -> Cells:
    """Return the operators that had to change for the opset."""
    grouped = report.grouped().items()
    columns = ("op", "nodes", "step", "change")
    return columns, [(op_type, count, step, reason) for (op_type, step, reason), count in grouped]


def lifted_nodes(nodes: Sequence[LiftedNode]) -> Cells:
    """Return what became a recurrent node."""
    return ("node", "place", "form", "becomes", "direction", "units"), [
        (node.name, place_text(node.path), node.form, node.op_type, node.direction, node.hidden_size)
        for node in nodes
        if node.op_type is not None
    ]


def padded_values(metadata: PadMetadata) -> Cells:
    """Return the inputs and outputs over time with their valid sizes."""
    rows: Rows = [
        (name, axis, symbol := metadata.symbols[name], f"{symbol} = {metadata.max[symbol]}")
        for name, axis in metadata.inputs.items()
    ]
    rows += [(name, output["axis"], output["size"], None) for name, output in metadata.outputs.items()]
    return ("input or output", "axis", "valid", "of"), rows


def padded_lengths(metadata: PadMetadata) -> str:
    """Return a sentence on the inputs that hold the lengths of the sequences."""
    given = ", ".join(f"{name} ({symbol})" for symbol, name in metadata.lengths.items())
    text = f"the {metadata.form}{' of each row' if metadata.rows else ''} is given in {given}"
    for symbol, number in metadata.multiples.items():
        text += f"; {symbol} is a multiple of {number}"
    return text


def recurrent_nodes(nodes: Sequence[RecurrentNode], sizes: Sequence[str]) -> Cells:
    """Return the recurrent nodes; ``sizes`` name the columns of steps, batch, input and units."""
    foreign = any(node.domain for node in nodes)
    columns = ("node", "op", *["domain"] * foreign, "place", "direction", *sizes, "dtype")
    return (*columns, "inputs", "outputs", "attributes", "weights"), [
        (
            *(node.name, node.op_type, *[node.domain or "ai.onnx"] * foreign, place_text(node.path)),
            node.direction,
            *(size_text(size) for size in (node.seq_len, node.batch, node.input_size, node.hidden_size)),
            *(node.dtype or "?", " ".join(node.inputs), " ".join(node.outputs)),
            *(" ".join(f"{name}={value}" for name, value in node.attributes.items()), node.weights),
        )
        for node in nodes
    ]


def shape_text(port: Port) -> str:
    """Return the shape of a graph input or output; nothing if its rank is not known."""
    return "" if port.shape is None else f"[{', '.join(str(size_text(size)) for size in port.shape)}]"


def size_text(size: int | str | None) -> int | str:
    """Return the size of a dimension as tables show it."""
    return "?" if size is None else size


def outputs(comparisons: Sequence[OutputComparison]) -> Cells:
    """Return the largest error of each output, the allowed one, and their ratio."""
    return ("output", "dtype", "largest error", "allowed", "used"), [
        (each.name, each.dtype or "?", f"{each.error:.2g}", *_allowed(each)) for each in comparisons
    ]


def _allowed(output: OutputComparison) -> tuple[str, str]:
    if output.used is None:
        # Nothing differs, or rounding decides between two correct results.
        return "" if output.allowed is None else f"{output.allowed:.2g}", ""
    return "0" if output.allowed is None else f"{output.allowed:.2g}", share_text(output.used)


def share_text(used: float) -> str:
    """Return a share of a limit: as a percentage, or as a multiple from 10 on; nothing if it is infinite."""
    if not math.isfinite(used):
        return ""
    return f"{used:.1%}" if used < 10 else f"{used:.1f}x" if used < 1e4 else f"{used:.1e}x"


def timed_forms(variants: Sequence[BenchVariant]) -> Cells:
    """Return the times and sizes of each form of a model."""
    return ("form", "latency ms", "p10 - p90", "ratio", "session ms", "file bytes", "ops"), [
        (
            *(each.name, *_times(each.latency), None if each.ratio is None else f"{each.ratio:.2f}"),
            _times(each.session)[0],
            *(None if count is None else f"{count:,}" for count in (each.file_bytes, each.ops)),
        )
        for each in variants
    ]


def _times(timing: Timing | None) -> tuple[str, str]:
    if timing is None:
        return "", ""
    return f"{timing.median:.4g}", f"{timing.p10:.4g} - {timing.p90:.4g}"
