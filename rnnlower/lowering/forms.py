"""Forms of a step: the layout of its values and weights, and the product with the state.

A form is a row of `STRAIGHT_FORMS` or `BODY_FORMS`. Cells (`cells.py`) do not depend on the form: they
get their gates from `Products`, which uses the form.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.timeseries import Axes
from rnnlower.lowering.weights import DirectionWeights, Weights
from rnnlower.recurrent.node import ResolvedNode

if TYPE_CHECKING:
    from rnnlower.lowering.cells import Products

THRESHOLDS: Mapping[str, str] = {
    "large_batch": "rows from which a step spends its time on the elements rather than on starting ops",
    "largest_pair": "units up to which both directions in one step cost less than one after the other",
    "long_line": "steps of a straight line beyond which it takes long to search for products to fuse",
    "most_joined": "bytes of W and R beyond which a step that reads both waits for memory",
    "least_joined_LSTM": "elements of H in a step from which copying X next to H costs less than copying "
    "the input products",
    "least_joined_GRU": "the same for GRU",
    "least_joined_RNN": "the same for RNN",
}
"""The sizes at which forms are allowed; a target's table ``[costs]`` has those that were measured there."""

_REVERSE_SEQUENCE = 10
_BY_ACTIVATION: Mapping[str, tuple[str, ...]] = {"LSTM": ("iof", "c"), "GRU": ("zr", "h"), "RNN": ("i",)}
"""The gates of each cell that share an activation."""

_TOGETHER: Mapping[str, tuple[str, ...]] = {**_BY_ACTIVATION, "LSTM": ("iofc",)}
"""The gates that can share a product."""


@dataclasses.dataclass(frozen=True)
class GateGroup:
    """Neighboring gates that share a product; `first` and `last` count rows in units of hidden_size."""

    gates: str
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class StepWeights:
    """The weights that the products of a step read, by group of gates.

    Attributes:
        R: The factor of the state, in the layout of the form.
        W: The factor of X, if the step has a separate product for it.
        bias: The bias, if the step multiplies X.
        transposed: Whether the layout of R is ``[hidden_size, units]``.
    """

    R: Mapping[str, ir.Value]
    W: Mapping[str, ir.Value] = dataclasses.field(default_factory=dict)
    bias: Mapping[str, ir.Value] = dataclasses.field(default_factory=dict)
    transposed: bool = False


@dataclasses.dataclass(frozen=True)
class FormCase:
    """The data by which a form decides whether it is allowed."""

    e: Emitter
    node: ResolvedNode
    weights: Weights
    axes: Axes

    def threshold(self, threshold: str) -> float:
        """Return the value of one of the `THRESHOLDS`; infinity if it was not measured."""
        return self.e.dialect.prices.thresholds.get(threshold, math.inf)


@dataclasses.dataclass(frozen=True)
class Form:
    """The basic form: rows ``[batch, units]``, one direction at a time, X multiplied before all steps.

    Attributes:
        name: The form's name in reports.
        max_separate_gates: Gates that share an activation have a product each if there are at most this many.
            onnxruntime fuses a product with the activation after it: for few rows that is cheaper than to
            split one product in two; for many rows it is also cheaper than a split in three (a copy).
        max_joint_hidden_size: Units up to which the steps of both directions share one body: the weights of
            larger ones evict each other from the caches.
    """

    name: str
    max_separate_gates: int = 1
    max_joint_hidden_size: float = math.inf

    lead: ClassVar[tuple[int, ...]] = ()
    """The sizes of the axes before the rows of a value."""

    together: ClassVar[Mapping[str, tuple[str, ...]]] = _BY_ACTIVATION
    """The gates of each cell that may share a product with X."""

    takes_input: ClassVar[bool] = False
    """Whether the steps take X itself rather than its products."""

    def fits(self, case: FormCase) -> bool:
        """Return whether the form is allowed for a node."""
        return True

    def directions(self, node: ResolvedNode) -> Sequence[int | None]:
        """Return the direction of each lane; ``None`` for a lane of all directions."""
        return range(node.num_directions)

    def groups(self, node: ResolvedNode) -> Sequence[GateGroup]:
        """Return the gates that share a product with X."""
        return _group_gates(
            node, self.together[node.op_type], 1 if node.clip is not None else self.max_separate_gates
        )

    def state_groups(self, node: ResolvedNode) -> Sequence[GateGroup]:
        """Return the gates that share a product with H."""
        return self.groups(node)

    def step_weights(self, node: ResolvedNode, weights: DirectionWeights) -> StepWeights:
        """Return the weights of a direction's steps."""
        R, groups = node.inputs["R"], self.state_groups(node)
        return StepWeights({group.gates: weights.matrix(R, *gate_rows(node, group)) for group in groups})

    def multiplied_input(self, products: Products, group: str) -> ir.Value:
        """Emit the addend of a group: ``X W^T + bias``."""
        return products.x[group]

    def multiply(self, products: Products, group: str, h: ir.Value, addend: ir.Value | None) -> ir.Value:
        """Emit ``h R^T + addend`` for a group of gates."""
        weights = products.p.weights
        return products.e.gemm(
            h,
            weights.R[group],
            addend,
            transposed=not weights.transposed,
            role="h" if h is products.h else "r*h",
            direction=products.p.direction,
        )

    def reset(self, products: Products, r: ir.Value, h: ir.Value) -> ir.Value:
        """``r (h R^T + Rbh)``, GRU's reset gate after the product."""
        p, bias = products.p, products.p.recurrent_bias
        product = products.recurrent("h", h, bias)
        if bias is not None:
            product = p.announce(products.e, product, "h sum")
        return p.announce(products.e, products.e.op("Mul", r, product), "r*sum")


class StraightForm(Form):
    """Weights stored in the file, transposed once: a Gemm without attributes is shorter."""

    def fits(self, case: FormCase) -> bool:
        time = case.axes.time
        return not isinstance(time, int) or time * case.node.num_directions <= case.threshold("long_line")

    def step_weights(self, node: ResolvedNode, weights: DirectionWeights) -> StepWeights:
        R = node.inputs["R"]
        if not weights.in_memory(R):
            return super().step_weights(node, weights)
        groups = self.state_groups(node)
        transposed = {group.gates: weights.transposed(R, *gate_rows(node, group)) for group in groups}
        return StepWeights(transposed, transposed=True)


class LongForm(StraightForm):
    """All gates of an LSTM in one product that is not fused with an activation.

    For each product that it fuses, onnxruntime visits all nodes: quadratic in a long line.
    """

    together = _TOGETHER

    def fits(self, case: FormCase) -> bool:
        return not super().fits(case)


class FusedForm(Form):
    """As few products as the cell allows."""

    together = _TOGETHER

    def state_groups(self, node: ResolvedNode) -> Sequence[GateGroup]:
        return [GateGroup("zrh", 0, 3)] if node.linear_before_reset else self.groups(node)


class PairForm(FusedForm, StraightForm):
    """Both directions of one row at once, ``[2, 1, units]``: half as many ops, but no packed products.

    A block-diagonal product would be even faster for few units, but NaN or infinity times zero
    would leak from one direction into the other.
    """

    lead = (2,)

    def fits(self, case: FormCase) -> bool:
        node = case.node
        return (
            case.axes.batch == 1
            and node.reversed_directions == (False, True)
            and node.hidden_size <= case.threshold("largest_pair")
            and case.e.opset >= _REVERSE_SEQUENCE
            and node.activations[0] == node.activations[1]
            and case.weights.in_memory(node.inputs["W"], node.inputs["R"])
        )

    def directions(self, node: ResolvedNode) -> Sequence[int | None]:
        return [None]

    def multiply(self, products: Products, group: str, h: ir.Value, addend: ir.Value | None) -> ir.Value:
        product = products.e.op("MatMul", h, products.p.weights.R[group])
        return product if addend is None else products.e.op("Add", product, addend)


class JoinedForm(Form):
    """Many rows, X and H multiplied at once: ``[X H] [W R]^T``.

    For many rows, one product of X for all steps is no faster, and Gemm would copy its addend.
    """

    takes_input = True

    def fits(self, case: FormCase) -> bool:
        node, batch = case.node, case.axes.batch
        if not isinstance(batch, int) or batch < case.threshold("large_batch") or node.input_size is None:
            return False
        if batch * node.hidden_size < case.threshold(f"least_joined_{node.op_type}"):
            return False
        rows = len(node.cell.gates) * node.hidden_size
        size = rows * (node.input_size + node.hidden_size) * case.e.dtype.itemsize
        return size <= case.threshold("most_joined") and case.weights.in_memory(
            node.inputs["W"], node.inputs["R"]
        )

    def step_weights(self, node: ResolvedNode, weights: DirectionWeights) -> StepWeights:
        W, R = node.inputs["W"], node.inputs["R"]
        of_state, of_input, bias = {}, {}, {}
        for group in self.state_groups(node):
            gates, rows = group.gates, gate_rows(node, group)
            bias[gates] = emit_bias(node, weights, group) or weights.e.scalar(0.0)
            if multiplied_after_reset(node, gates):
                of_input[gates] = weights.matrix(W, *rows)
                of_state[gates] = weights.matrix(R, *rows)
            else:
                of_state[gates] = weights.joined(W, R, *rows)
        return StepWeights(of_state, of_input, bias)

    def multiplied_input(self, products: Products, group: str) -> ir.Value:
        weights = products.p.weights
        if group not in weights.W:
            return weights.bias[group]
        return products.e.gemm(products.x["X"], weights.W[group], weights.bias[group])

    def multiply(self, products: Products, group: str, h: ir.Value, addend: ir.Value | None) -> ir.Value:
        operand = h if group in products.p.weights.W else products.joined_input(h)
        return super().multiply(products, group, operand, addend)


class ManyRowsForm(Form):
    """Many rows, with the product of X computed before the steps."""

    def fits(self, case: FormCase) -> bool:
        return isinstance(case.axes.batch, int) and case.axes.batch >= case.threshold("large_batch")


class SeparateForm(Form):
    """One product per gate, for quantizers and NPUs that need a separate range for each product."""

    def groups(self, node: ResolvedNode) -> Sequence[GateGroup]:
        return _group_gates(node, _BY_ACTIVATION[node.op_type], len(node.cell.gates))

    def reset(self, products: Products, r: ir.Value, h: ir.Value) -> ir.Value:
        """``r (h R^T) + r Rbh``: the product keeps the range that it has without the bias."""
        e, bias = products.e, products.p.recurrent_bias
        product = e.op("Mul", r, products.recurrent("h", h, None))
        return product if bias is None else e.op("Add", product, e.op("Mul", r, bias))


PLAIN = Form("rows")

GATE_FORMS: Mapping[str, Form] = {
    "separate": SeparateForm("separate gates"),
    "fused": FusedForm("fused gates"),
}
"""The forms that `--gates` selects, on any runtime."""

STRAIGHT_FORMS: Sequence[Form] = (LongForm("long line"), StraightForm("straight line"))
"""The forms in a straight line, best first."""

BODY_FORMS: Sequence[Form] = (
    PairForm("pair"),
    JoinedForm("joined input", max_separate_gates=3, max_joint_hidden_size=128),
    ManyRowsForm("many rows", max_separate_gates=3, max_joint_hidden_size=128),
    Form("few rows", max_separate_gates=2, max_joint_hidden_size=256),
)
"""The forms in the body of a Scan or Loop, best first."""


def multiplied_after_reset(node: ResolvedNode, gates: str) -> bool:
    """Return whether the product of these gates with R stays separate from that with W."""
    return node.linear_before_reset and gates == "h"


def gate_rows(node: ResolvedNode, group: GateGroup) -> tuple[int, int]:
    """Return the rows of a group in W, R and each half of B."""
    return group.first * node.hidden_size, group.last * node.hidden_size


def emit_bias(node: ResolvedNode, weights: DirectionWeights, group: GateGroup) -> ir.Value | None:
    """Return the vector that is added to a group's ``X W^T``."""
    B, (first, last) = node.inputs.get("B"), gate_rows(node, group)
    if B is None:
        return None
    if multiplied_after_reset(node, group.gates):
        return weights.vector(B, first, last, [-1])
    return weights.bias_sum(B, first, last, len(node.cell.gates) * node.hidden_size)


def _group_gates(node: ResolvedNode, groups: Sequence[str], max_separate_gates: int) -> Sequence[GateGroup]:
    """Return the groups of a node. The coupled forget gate (``input_forget``) has none: ``f = 1 - i``."""
    if node.input_forget:
        groups = ("io", "c")
    # A peephole term is added to the addend of a single gate's product.
    max_separate_gates = 4 if "P" in node.inputs else max_separate_gates
    parts = [part for group in groups for part in (group if len(group) <= max_separate_gates else [group])]
    order = node.cell.gates
    return [GateGroup(gates, order.index(gates[0]), order.index(gates[0]) + len(gates)) for gates in parts]
