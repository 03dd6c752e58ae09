"""Candidates for the lowering of a node, in each strategy and form, emitted outside of any model.

A sketch shows the opset that a candidate needs, whether the dialect has its operators, and its price.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import ScratchPool, constant_of
from rnnlower.graph.names import NameSource, Scope
from rnnlower.graph.rewiring import detach
from rnnlower.lowering.dialect import Dialect
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.forms import GATE_FORMS, PLAIN, Form, FormCase
from rnnlower.lowering.pricing import NATIVE, Counts, count_costs, price_kind
from rnnlower.lowering.replacing import Gates
from rnnlower.lowering.sequence import axes_of_node, lower_node
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.lowering.weights import Weights, compute_type_of
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import OUTPUT_NAMES

USUAL_STEPS, _USUAL_ROWS = 100, 1
"""Sizes by which a node of dynamic length or batch is priced."""

_ERROR_OF_PRICES = 0.03
"""The relative difference up to which prices count as equal."""

_MAX_BYTES = 128
"""The largest constant that may be a shape or an index, which sizes depend on."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run a node.

    Attributes:
        strategy: The strategy; ``keep`` or ``adapt``, where the operator stays.
        form: The form of the step, if there is one.
        needs: The opset that each of its operators needs, where the model's is too low.
        counts: How much there is of what has a price.
        price: Microseconds of a run; ``None`` where nothing is known of the costs.
    """

    strategy: str
    form: Form | None
    needs: Mapping[str, int]
    counts: Counts
    price: float | None = None

    def __str__(self) -> str:
        return self.strategy if self.form is None else f"{self.strategy} ({self.form.name})"


@dataclasses.dataclass(frozen=True)
class Preferences:
    """The requested properties of a lowering other than the strategy.

    Attributes:
        unroll_factor: Time steps per iteration of a Scan or Loop.
        gates: Whether gates share products.
        compute_type: The type in which narrower floats are computed.
    """

    unroll_factor: int = 1
    gates: Gates = "auto"
    compute_type: ir.DataType | None = None


@dataclasses.dataclass(frozen=True)
class Task:
    """A node to lower, with all that its candidates depend on apart from strategy and form.

    Attributes:
        node: The node, whose type is known.
        opset: The opset to write in, if it has all operators.
        dialect: The operators that may be emitted.
        preferences: The requested properties of the lowering.
    """

    node: ResolvedNode
    weights: Weights
    opset: int
    dialect: Dialect
    preferences: Preferences = Preferences()

    def key(self) -> Iterator[Hashable]:
        """Yield all that the candidates depend on: values by identity if their content affects candidates."""
        node, weights = self.node, self.weights
        yield from (self.opset, self.dialect.name, self.preferences)
        for field in dataclasses.fields(node):
            if field.name not in ("node", "inputs", "outputs"):
                yield getattr(node, field.name)
        yield from (node.used(name) for name in OUTPUT_NAMES)
        for name, value in node.inputs.items():
            shape = None if value.shape is None else tuple(map(str, value.shape))
            is_opaque = constant_of(value) is None if name == "X" else weights.constant(value) is not None
            yield name, shape, value.dtype, weights.in_memory(value), None if is_opaque else value

    def emitter(self, opset: int) -> Emitter:
        """Return an emitter for a sketch, at an opset."""
        return sketch_emitter(self.node, opset, self.dialect, self.preferences)


Sketches = dict[Hashable, list[Candidate]]
"""Known candidates by the `Task.key`: models often have equal nodes."""


def find_candidates(
    task: Task, strategies: Sequence[str], sketches: Sketches | None = None, *, compared: bool = True
) -> list[Candidate]:
    """Return the candidates that the dialect has the operators for, in the order of the strategies and forms.

    Args:
        task: The node and all that its candidates depend on.
        strategies: Keys of `STRATEGIES`.
        sketches: Known candidates; new ones are added.
        compared: Whether others compete with them. If false, a single candidate is not priced.

    Raises:
        MissingOperatorError: There is no candidate.
    """
    if sketches is not None:
        key = (*strategies, compared, *task.key())
        if key not in sketches:
            sketches[key] = find_candidates(task, strategies, compared=compared)
        return sketches[key]
    ways = [(strategy, form) for strategy in strategies for form in _forms(task, strategy)]
    costs = task.dialect.prices.microseconds if compared or len(ways) > 1 else {}
    found, missing = [], []
    for strategy, form in ways:
        try:
            found.append(_sketch(task, strategy, form, costs))
        except MissingOperatorError as error:
            missing.append(error)
    if not found:
        raise missing[0]
    return found


def cheapest(found: Sequence[Candidate]) -> Candidate:
    """Return the candidate of the lowest price, or an earlier one within the error of prices.

    If no prices are known, it is the first.
    """
    lowest = min(candidate.price or 0.0 for candidate in found)
    return next(each for each in found if (each.price or 0.0) <= lowest * (1 + _ERROR_OF_PRICES))


def native_candidate(e: Emitter, node: ResolvedNode, dialect: Dialect, strategy: str) -> Candidate:
    """Return the runtime's own operators, which the emitter holds, with what is around them."""
    prices = dialect.prices
    if price_kind(node) not in prices.native or node.is_quantized:
        return Candidate(strategy, None, {}, Counts())
    counts = _counts(e, node, dialect)
    own = {f"{NATIVE}{name}": price for name, price in prices.native[price_kind(node)].items()}
    return Candidate(strategy, None, {}, counts, counts.price({**prices.microseconds, **own}))


def _forms(task: Task, strategy: str) -> Sequence[Form]:
    """Return the forms of the strategy that are allowed."""
    node, gates = task.node, task.preferences.gates
    if gates in GATE_FORMS:
        return [GATE_FORMS[gates]]
    forms = [form for form in STRATEGIES[strategy].forms if form.name in task.dialect.prices.forms]
    if not forms or node.is_quantized:
        return [PLAIN]
    e = task.emitter(task.opset)
    case = FormCase(e, node, task.weights, axes_of_node(e, node))
    detach(e.everything)
    return [form for form in forms if form.fits(case)] or [PLAIN]


def _sketch(task: Task, strategy: str, form: Form, costs: Mapping[str, float]) -> Candidate:
    needs: dict[str, int] = {}

    def counts(node: ResolvedNode) -> Counts:
        with _emit_sketches(dataclasses.replace(task, node=node), strategy, form, needs) as e:
            return _counts(e, node, task.dialect) if costs else Counts()

    node, steps = task.node, task.node.seq_length
    # Rows of known lengths may end after the third step.
    lengths = constant_of(node.inputs.get("sequence_lens"))
    if strategy == "unroll" and steps is not None and steps > 3 and lengths is None:
        three = counts(dataclasses.replace(node, seq_length=3))
        total = counts(dataclasses.replace(node, seq_length=2)).of_line(three, steps) if costs else three
    else:
        total = counts(node)
    return Candidate(strategy, form, needs, total, total.price(costs) if costs else None)


@contextlib.contextmanager
def _emit_sketches(task: Task, strategy: str, form: Form, needs: dict[str, int]) -> Iterator[Emitter]:
    """Yield the emitter of the candidate, at the opset that has all of its operators."""
    while True:
        e = task.emitter(max([task.opset, *needs.values()]))
        try:
            lower_node(e, task.node, task.weights, strategy, form, task.preferences.unroll_factor)
            yield e
            return
        except OpsetError as error:
            if error.opset is None or error.opset <= e.opset:
                raise
            needs[f"{error.operator}-{error.opset}"] = error.opset
        finally:
            detach(e.everything)


def sketch_emitter(
    node: ResolvedNode, opset: int, dialect: Dialect, preferences: Preferences | None = None
) -> Emitter:
    """Return an emitter that writes where no model sees it."""
    assert node.dtype is not None
    names = NameSource(str(value.name) for value in node.inputs.values())
    dtype = node.dtype if preferences is None else compute_type_of(node.dtype, preferences.compute_type)
    return Emitter(opset, Scope(names, "sketch/"), dtype, ScratchPool(names), dialect)


def _counts(e: Emitter, node: ResolvedNode, dialect: Dialect) -> Counts:
    """Count the emitted nodes."""
    steps, rows, size = node.seq_length or USUAL_STEPS, node.batch_size or _USUAL_ROWS, node.input_size or 1
    units = [node.num_directions, len(node.cell.gates) * node.hidden_size]
    known = {"X": [rows, steps, size] if node.layout else [steps, rows, size]}
    if not node.is_quantized:
        known |= {"W": [*units, size], "R": [*units, node.hidden_size]}
    scratch = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": e.opset}), ir_version=10)
    # Constants that are shapes or indices are small, and no weight is looked at.
    facts = Facts(scratch, largest=_MAX_BYTES)
    for name, value in node.inputs.items():
        tensor = constant_of(value)
        shape = value.shape or (() if tensor is None else tensor.shape)
        # A negative number is an old way to leave a size open.
        open_as_one = [dim if isinstance(dim, int) and dim >= 0 else 1 for dim in shape]
        facts.assume(value, tuple(known.get(name) or open_as_one), ir.DataType.FLOAT)
    facts.visit(*e.nodes)
    return count_costs(e.nodes, facts, steps, dialect.prices.fused)
