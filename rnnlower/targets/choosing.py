"""The choice, by price, of how a node runs on a target: as it is, adapted, or lowered.

All candidates are in one list. The target's costs price them (`sketching.py`); if none are known, rules
choose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.rewiring import detach
from rnnlower.graph.walk import LocatedNode
from rnnlower.lowering import sketching
from rnnlower.lowering.pricing import Counts
from rnnlower.lowering.replacing import Plan
from rnnlower.lowering.weights import Weights
from rnnlower.recurrent.node import ResolvedNode, Semantics
from rnnlower.targets.adapting import AdaptedNode, find_changes
from rnnlower.targets.native import NativeCheck
from rnnlower.targets.target import Target

_MAX_UNROLLED = 256
"""Steps of a straight line beyond which runtimes take long to load it."""

Native = Literal["auto", "keep", "lower"]
"""When a runtime's own operators stay: if that is fastest, whenever they are right, or never."""


@dataclasses.dataclass(frozen=True)
class KeptNode:
    """A recurrent node that stays as it is.

    Attributes:
        prices: The estimated cost of each candidate, in microseconds per run.
    """

    name: str
    op_type: str
    path: str
    reason: str
    prices: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The decision on a node.

    Attributes:
        kind: ``keep``, ``adapt`` or ``lower``.
        prices: The estimated cost of each candidate, in microseconds per run.
        changes: The changes around the target's own operator.
    """

    kind: str
    reason: str = ""
    prices: Mapping[str, float] = dataclasses.field(default_factory=dict)
    changes: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Chooser:
    """The choice for the nodes of a model.

    Attributes:
        private: The weights that may be cut; see `Weights`.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
        native: When the target's own operator stays.
        preferences: The requested properties of lowered nodes.
        sketches: Known candidates; new ones are added.
    """

    target: Target
    private: Container[ir.Value]
    semantics: Semantics = "ort"
    native: Native = "auto"
    preferences: sketching.Preferences = dataclasses.field(default_factory=sketching.Preferences)
    sketches: sketching.Sketches = dataclasses.field(default_factory=dict)

    def choose(self, located: LocatedNode) -> Choice:
        """Return the decision on a node whose types and sizes are noted."""
        check = NativeCheck(located, self.target, self.semantics)
        changes = None if self.native == "lower" else find_changes(check)
        if changes is None:
            return Choice("lower")
        own = self._native_candidate(check, changes)
        reason = _why_kept(check) if own.strategy == "keep" else ""
        if self.native == "keep" or own.price is None:
            return Choice(own.strategy, reason, changes=changes)
        found = [own, *self._lowered_candidates(check)]
        prices = _prices(found)
        if sketching.cheapest(found).strategy not in ("keep", "adapt"):
            return Choice("lower", prices=prices)
        if len(found) > 1:
            reason = "; ".join(filter(None, (reason, _price_reason(prices))))
        return Choice(own.strategy, reason, prices, changes)

    def candidates(self, located: LocatedNode) -> list[sketching.Candidate]:
        """Return the ways to run a node whose types and sizes are noted; the target's own operator first."""
        check = NativeCheck(located, self.target, self.semantics)
        changes = find_changes(check)
        own = [] if changes is None else [self._native_candidate(check, changes)]
        return [*own, *self._lowered_candidates(check)]

    def plan(
        self,
        node: ResolvedNode,
        weights: Weights,
        opset: int,
        strategy: str | None = None,
        native: Mapping[str, float] | None = None,
        *,
        is_nested: bool = False,
    ) -> Plan:
        """Return the plan for a node that is lowered: the cheapest candidate.

        Args:
            opset: The opset to write in, if it has all operators.
            strategy: The strategy, if it is asked for.
            native: The prices of the target's own operator, which costs more.
            is_nested: Whether the node is in a body.

        Raises:
            MissingOperatorError: There is no candidate.
        """
        strategies, reason = (
            ([strategy], "asked for") if strategy else _strategies(self.target, node, is_nested)
        )
        task = sketching.Task(node, weights, opset, self.target, self.preferences)
        compared = bool(native) or not strategy
        found = sketching.find_candidates(task, strategies, self.sketches, compared=compared)
        best = sketching.cheapest(found)
        prices = {**(native or {}), **_prices(found)}
        factor = 1 if best.strategy == "unroll" and strategy is None else self.preferences.unroll_factor
        assert best.form is not None
        return Plan(best.strategy, factor, reason or _price_reason(prices), best.form, prices, best.needs)

    def _native_candidate(self, check: NativeCheck, changes: frozenset[str]) -> sketching.Candidate:
        """Return the candidate that is the target's own operator, with these changes."""
        node, target = check.node, self.target
        strategy = "adapt" if changes else "keep"
        if node.dtype is None or node.inputs["X"].shape is None or not target.prices.native:
            return sketching.Candidate(strategy, None, {}, Counts())
        e = sketching.sketch_emitter(node, check.located.opset, target)
        try:
            AdaptedNode(e, node, changes).emit()
            return sketching.native_candidate(e, node, target, strategy)
        finally:
            detach(e.everything)

    def _lowered_candidates(self, check: NativeCheck) -> list[sketching.Candidate]:
        """Return the candidates that are lowered forms; none if the node cannot be lowered."""
        node = check.node
        if node.dtype is None or not node.hidden_size:
            return []
        strategies, _ = _strategies(self.target, node, check.located.is_nested)
        if strategies == ["unroll"] and node.seq_length is None:
            return []
        weights = Weights(self.private, node.dtype)
        task = sketching.Task(node, weights, check.located.opset, self.target, self.preferences)
        try:
            return sketching.find_candidates(task, strategies, self.sketches)
        except (MissingOperatorError, OpsetError):
            return []


def _why_kept(check: NativeCheck) -> str:
    rule, target = check.rule(), check.target
    if rule is not None and rule.tried and target.tried is not None:
        return f"{target.name} {target.tried.version} ran this form right at {rule.tried}"
    return f"{target.name} says that it takes this form, which was not tried"


def _prices(found: Sequence[sketching.Candidate]) -> dict[str, float]:
    return {str(each): round(each.price, 1) for each in found if each.price is not None}


def _price_reason(prices: Mapping[str, float]) -> str:
    return f"the cheapest of {', '.join(f'{name} {price:g} us' for name, price in prices.items())}"


def _strategies(target: Target, node: ResolvedNode, is_nested: bool) -> tuple[list[str], str]:
    """Return the strategies to choose from by price; or the one that a rule chooses, with its reason."""
    steps, loops = node.seq_length, target.control_flow.ops
    if is_nested and steps is not None and target.control_flow.flat:
        return ["unroll"], f"{target.name} takes no loops in bodies"
    if target.costs is None or steps is None:
        return _strategy_by_rule(target, node)
    found = [strategy for strategy, op_type in (("scan", "Scan"), ("loop", "Loop")) if op_type in loops]
    if _needs_loop(target, node):
        found.remove("scan")
    open_batch = _is_open_batch(target, node)
    if not found or (steps <= _MAX_UNROLLED and not open_batch):
        found.insert(0, "unroll")
    found = [each for each in found if not target.costs.strategies or each in target.costs.strategies]
    return (found, "") if found else _strategy_by_rule(target, node)


def loop_strategy(target: Target, *, dynamic: bool) -> str | None:
    """Return "scan" or "loop", whichever the target is to run; None if it has neither.

    Args:
        dynamic: Whether the number of steps is dynamic.
    """
    flow = target.control_flow
    # There may be no steps at all then, which an If or the Scan itself must take.
    scan = "Scan" in flow.ops and (not dynamic or flow.empty_scan or "If" in flow.ops)
    if "Loop" in flow.ops and (not scan or (dynamic and flow.dynamic == "Loop")):
        return "loop"
    return "scan" if "Scan" in flow.ops else None


def _is_open_batch(target: Target, node: ResolvedNode) -> bool:
    """Return whether unrolling is ruled out because the batch size is dynamic."""
    return target.control_flow.unroll_batch and node.batch_size is None and node.seq_length != 1


def _needs_loop(target: Target, node: ResolvedNode) -> bool:
    """Return whether the target needs a Loop because the steps read weights that are not constant."""
    names = {*node.inputs} & {"R", "B", "P"}
    return (
        target.control_flow.captured == "Loop"
        and {"Loop", "Scan"} <= {*target.control_flow.ops}
        and any(constant_of(node.inputs[name]) is None for name in names)
    )


def _strategy_by_rule(target: Target, node: ResolvedNode) -> tuple[list[str], str]:
    """Return the strategy for a target without known costs, and the reason."""
    steps = node.seq_length
    loop = loop_strategy(target, dynamic=steps is None)
    if loop is None:
        return ["unroll"], f"{target.name} has no Scan and no Loop"
    few = steps is not None and steps <= _MAX_UNROLLED
    if few and not _is_open_batch(target, node):
        return ["unroll"], f"{steps} steps are few"
    length = "the number of steps is dynamic" if steps is None else f"{steps} steps are many"
    if few:
        length = "the batch size is dynamic"
    if steps is None and target.control_flow.dynamic == "Loop" and loop == "loop":
        return ["loop"], f"{length}, for which {target.name} needs a Loop"
    if _needs_loop(target, node):
        return ["loop"], f"{length}, and {target.name} needs a Loop for weights that are not constant"
    if loop == "scan":
        return ["scan"], length
    lack = "If" if "Scan" in target.control_flow.ops else "Scan"
    return ["loop"], f"{length}, and {target.name} has no {lack}"
