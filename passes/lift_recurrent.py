"""Lifting of recurrences: a Loop, a Scan or a straight line that computes an LSTM, GRU or RNN becomes one."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.inlining import functions_with, inline_functions
from rnnlower.graph.loop_signature import loops_and_scans
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rollback import rollback_on_failure
from rnnlower.graph.walk import LocatedNode, display_name, node_names, subgraphs_of, walk
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.attention import has_matrix_state
from rnnlower.lifting.attention_emission import lift_attentions
from rnnlower.lifting.causal_convolutions import find_convolutions, lift_convolution
from rnnlower.lifting.chains import PRODUCTS, find_chains
from rnnlower.lifting.frames import scan_frame
from rnnlower.lifting.lifted_nodes import FrameLifter, Lifted, LiftedNode, join_directions
from rnnlower.lifting.line_lifting import LineLifter
from rnnlower.lifting.line_rolling import matrix_lines
from rnnlower.lifting.line_search import match_line
from rnnlower.lifting.line_steps import Line
from rnnlower.lifting.loops import loop_frame
from rnnlower.passes.base import Pass
from rnnlower.passes.joined_values import has_read_parts, has_writes, join_writes, read_parts
from rnnlower.passes.matrix_lines import NothingLiftedError, lift_matrix_lines
from rnnlower.passes.sequences import StackSequencesPass
from rnnlower.passes.simpler_control_flow import TakeBranchesPass
from rnnlower.passes.simpler_steps import has_simpler_steps, simplify_steps
from rnnlower.passes.step_choices import has_other_choices, write_choices
from rnnlower.recurrent.finding import matches_pattern
from rnnlower.recurrent.node import Semantics, check_semantics

_FRAMES = {"Loop": loop_frame, "Scan": scan_frame}
_Lines = tuple[list[Lifted], list[LiftedNode]]
"""The lines that were lifted, and the reports on those that stay."""


def _lifted_nodes_are_gone(model: ir.Model, lifting: LiftRecurrentPass) -> bool:
    """Return whether no Loop or Scan that was lifted is left."""
    gone = {(each.path, each.name) for each in lifting.lifted if each.op_type and each.form != "line"}
    return not gone & {(located.path, located.name) for located, _ in loops_and_scans(model)}


class _Trial:
    """A copy of a model, in which each Loop and Scan is made simpler at most once.

    Attributes:
        copies: For each Loop and Scan of the model that was not tried yet, its copy and the node around that.
    """

    def __init__(self, model: ir.Model) -> None:
        copied = model.clone()
        self.facts, self.names = Facts(copied), NameSource(all_names(copied))
        originals = [each.node for each, _ in loops_and_scans(model)]
        self.copies = dict(zip(originals, loops_and_scans(copied), strict=True))


@dataclasses.dataclass(eq=False)
class LiftRecurrentPass(Pass):
    """Replaces recurrences in other forms by recurrent nodes, where the equations are exactly theirs.

    Before::

        (float[T, 1, 2] X, float[1, 2] h) => (float[T, 1, 2] Y)
        <float[2, 2] W = {1, 2, 3, 4}, float[2, 2] R = {5, 6, 7, 8}> {
            last, Y = Scan <num_scan_inputs = 1, body = step (float[1, 2] before, float[1, 2] x)
            => (float[1, 2] after, float[1, 2] y) {
                input = MatMul (x, W)
                kept = MatMul (before, R)
                sum = Add (input, kept)
                after = Tanh (sum)
                y = Identity (after)
            }> (h, X)
        }

    After ``LiftRecurrentPass()``::

        (float[T, 1, 2] X, float[1, 2] h) => (float[T, 1, 2] Y)
        <float[1, 2, 2] W = {1, 3, 2, 4}, float[1, 2, 2] R = {5, 7, 6, 8},
         int64[1] first = {0}, int64[1] second = {1}> {
            start = Unsqueeze (h, first)
            all, last = RNN <hidden_size = 2> (X, W, R, , , start)
            Y = Squeeze (all, second)
        }

    Args:
        nodes: Shell wildcards; only Loop and Scan nodes whose name matches one of them are lifted.
        steps: The least number of steps of a straight line.
        lines: Whether to lift straight lines.
        frames: Whether to lift Loops and Scans, and to look into functions.
        convolutions: Whether to lift causal convolutions.
        zero_pasts: Whether to lift also those without a past, or with one of zeros.
        matrices: Whether to lift Loops and Scans whose state is a matrix.
        shifts: Whether to lift also matrices that are read before they change, with one step more.
        gaps: Whether to lift what has rows that skip steps: their steps are put in another order.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
        empty: Whether to lift also what has no steps, where onnxruntime's operators do not return the
            initial state: if they are lowered.

    Attributes:
        lifted: All recurrences that were examined, with the reason for each that was not lifted.
    """

    ENSURES = (_lifted_nodes_are_gone,)

    nodes: Sequence[str] | None = None
    _: dataclasses.KW_ONLY
    steps: int = 2
    lines: bool = True
    frames: bool = True
    convolutions: bool = True
    zero_pasts: bool = True
    matrices: bool = True
    shifts: bool = True
    gaps: bool = True
    semantics: Semantics = "ort"
    empty: bool = False
    lifted: list[LiftedNode] = field(init=False, default_factory=list)
    _trial: _Trial | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        check_semantics(self.semantics)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Lift the recurrences."""
        in_functions = self._inline_liftable_functions(model) if self.frames else []
        is_modified = self._lift(model)
        self.lifted += in_functions
        return ir.passes.PassResult(model, modified=is_modified)

    def _inline_liftable_functions(self, model: ir.Model) -> list[LiftedNode]:
        """Inline the functions that hold something to lift; return what stays in the others."""
        wanted = {*_FRAMES, *(PRODUCTS if self.lines else ())}
        functions = [
            function
            for function in functions_with(model, lambda node: not node.domain and node.op_type in wanted)
            if all(
                model.opset_imports.get(key, version) == version
                for key, version in function.opset_imports.items()
            )
        ]
        if not functions:
            return []
        known, tried = self._lift_in_copy(model, []), self._lift_in_copy(model, functions)
        for function in functions if _count_lifted(tried) > _count_lifted(known) else ():
            own = {node for node, _ in walk(function)}
            holders = functions_with(model, own.__contains__)
            if holders and _count_lifted(opened := self._lift_in_copy(model, holders)) > _count_lifted(known):
                inline_functions(model, holders)
                self.facts.forget()
                known = opened
        return [node for node in tried if node.reason is not None and node not in known]

    def _lift_in_copy(self, model: ir.Model, functions: Sequence[ir.Function]) -> list[LiftedNode]:
        """Lift in a copy of the model in which these functions are inlined; return what was examined."""
        trial = model.clone()
        inline_functions(trial, [trial.functions[function.identifier()] for function in functions])
        lifting = self._with_facts(Facts(trial))
        lifting._lift(trial)
        return lifting.lifted

    def _with_facts(self, facts: Facts) -> LiftRecurrentPass:
        """Return the same pass for another model."""
        other = copy.copy(self)
        other.facts = facts
        return other

    def _lift(self, model: ir.Model) -> bool:
        """Lift recurrences outside functions; return whether the model has changed."""
        stacked = self.frames and StackSequencesPass()(model, self.facts).modified
        if stacked:
            TakeBranchesPass()(model, self.facts)
        names = NameSource(all_names(model))
        self._names, self._trial = node_names(model), None
        lifted: list[Lifted] = []
        kept: list[LiftedNode] = []
        states: list[LiftedNode] = []
        for located, owner in list(loops_and_scans(model)) if self.frames else ():
            if not self._is_wanted(located):
                continue
            try:
                made = self._lift_frame(names, located, owner)
            except NotLiftableError as error:
                form = located.node.op_type.lower()
                kept.append(LiftedNode(located.name, located.path, form, reason=str(error)))
                continue
            lifted += [each for each in made if isinstance(each, Lifted)]
            states += [each for each in made if isinstance(each, LiftedNode)]
            self._trial = None
        graphs = _graphs(model, self._names)
        for graph, path in graphs.items() if self.lines and self.matrices else ():
            lift_matrix_lines(self.facts, names, graph, partial(self._locate_line, path), states, kept)
        for graph, path in graphs.items() if self.convolutions else ():
            self._lift_convolutions(names, graph, path, states, kept)
        for graph, path in graphs.items() if self.lines else ():
            own, left = self._lift_lines(names, graph, path)
            lifted += own
            kept += left
        lifted = join_directions(self.facts, names, lifted)
        self.lifted = [*(each.report for each in lifted), *states, *kept]
        return bool(stacked or lifted or states)

    def _lift_frame(
        self, names: NameSource, located: LocatedNode, owner: ir.Node | None
    ) -> list[Lifted] | list[LiftedNode]:
        """Lift a Loop or Scan as it is, with a simpler body, or with gaps.

        Returns:
            What replaces it, or the reports on its states if they are matrices.

        Raises:
            NotLiftableError: It stays; the reason is about it as it is.
        """
        lifter = FrameLifter(self.facts, names, self.semantics, empty=self.empty)
        try:
            frame = _FRAMES[located.node.op_type](self.facts, located.node, owner)
            try:
                return lifter.lift(located, frame)
            except NotLiftableError as error:
                if not self.matrices or not has_matrix_state(self.facts, frame):
                    raise
                return lift_attentions(self.facts, names, located, frame, error, shifts=self.shifts)
        except NotLiftableError:
            with contextlib.suppress(NotLiftableError):
                if self._is_lifted_if_simpler(located):
                    return self._lift_simpler(names, located, owner)
                if self.gaps:
                    frame = _FRAMES[located.node.op_type](self.facts, located.node, owner)
                    return lifter.lift(located, dataclasses.replace(frame, has_gaps=True))
            raise

    def _is_lifted_if_simpler(self, located: LocatedNode) -> bool:
        """Return whether a Loop or Scan is lifted once its body is simpler.

        A copy of the model in which others were not lifted serves again; what is lifted in it is tried in a
        new one.
        """
        node = located.node
        if not has_simpler_steps(self.facts, node):
            return False
        inner = {each for body in subgraphs_of(node) for each, _ in walk(body) if each.op_type in _FRAMES}
        trial = self._trial
        if trial is not None and inner <= trial.copies.keys() and not self._is_lifted_in(trial, node):
            return False
        self._trial = _Trial(self.facts.model)
        return self._is_lifted_in(self._trial, node)

    def _is_lifted_in(self, trial: _Trial, node: ir.Node) -> bool:
        try:
            self._with_facts(trial.facts)._lift_simpler(trial.names, *trial.copies.pop(node))
        except NotLiftableError:
            return False
        return True

    def _lift_simpler(self, names: NameSource, located: LocatedNode, owner: ir.Node | None) -> list[Lifted]:
        """Make the body of a Loop or Scan simpler, and lift it."""
        located = simplify_steps(self.facts, names, located)
        frame = _FRAMES[located.node.op_type](self.facts, located.node, owner)
        lifter = FrameLifter(self.facts, names, self.semantics, empty=self.empty)
        try:
            return lifter.lift(located, frame)
        except NotLiftableError:
            if not self.gaps:
                raise
            return lifter.lift(located, dataclasses.replace(frame, has_gaps=True))

    def _lift_convolutions(
        self, names: NameSource, graph: ir.Graph, path: str, lifted: list[LiftedNode], kept: list[LiftedNode]
    ) -> None:
        for node in find_convolutions(self.facts, graph, with_past=not self.zero_pasts):
            located = self._located(node, path)
            if not self._is_wanted(located):
                continue
            try:
                lifted.append(lift_convolution(self.facts, names, located))
            except NotLiftableError as error:
                kept.append(LiftedNode(located.name, path, "line", reason=str(error)))

    def _located(self, node: ir.Node, path: str) -> LocatedNode:
        while node not in self._names and node.op_type in ("Slice", "Squeeze", "Unsqueeze"):
            # The model has the operator whose result this one cuts or reshapes.
            source = node.inputs[0]
            maker = None if source is None else source.producer()
            if maker is None:
                break
            node = maker
        return LocatedNode(node, self._names.get(node) or display_name(node), path, self.facts.opset)

    def _locate_line(self, path: str, states: Sequence[ir.Value]) -> LocatedNode | None:
        """Return the first operator of a line's second step; ``None`` if the line is not to be lifted."""
        first = states[2].producer()
        if first is None or len(states) <= self.steps:
            return None
        located = self._located(first, path)
        return located if self._is_wanted(located) else None

    def _is_wanted(self, located: LocatedNode) -> bool:
        return self.nodes is None or any(matches_pattern(located, pattern) for pattern in self.nodes)

    def _lift_lines(self, names: NameSource, graph: ir.Graph, path: str) -> _Lines:
        """Lift straight lines.

        States that steps join and cut again are read before they are joined, those that they multiply
        by a mask are chosen by it, and those that they write into a tensor are joined.
        """
        reasons: list[LiftedNode] = []
        if any(has(self.facts, graph) for has in (has_read_parts, has_other_choices, has_writes)):
            with contextlib.suppress(NothingLiftedError), rollback_on_failure(self.facts.model):
                join_writes(self.facts, names, graph)
                read_parts(self.facts, names, graph)
                write_choices(self.facts, names, graph)
                lifted, reasons = self._lift_plain_lines(names, graph, path)
                if not lifted:
                    raise NothingLiftedError
                return lifted, reasons
            self.facts.forget()
        lifted, kept = self._lift_plain_lines(names, graph, path)
        # What else reads the states shows only once they are read before they are joined.
        return lifted, reasons if reasons and not lifted else kept

    def _lift_plain_lines(self, names: NameSource, graph: ir.Graph, path: str) -> _Lines:
        lifted: list[Lifted] = []
        failed: list[tuple[list[ir.Value], LiftedNode]] = []
        is_outdated = False
        for chain, is_likely in list(find_chains(self.facts, graph)):
            # A line may start from the last state of one that was lifted.
            is_outdated |= _is_removed(chain[0]) and not _is_removed(chain[-1])
            readers = (node for node, _ in chain[0].uses())
            first = chain[1].producer() if len(chain) > 1 else next(readers, None)
            if first is None or any(_is_removed(value) for value in chain):
                continue
            located = self._located(first, path)
            if not self._is_wanted(located):
                continue
            is_line = len(chain) > 1 and is_likely
            try:
                line = match_line(self.facts, graph, chain, self.semantics)
                # For a step inside a body, the body's node says more.
                is_line, count = is_line or not path, len(line.steps)
                if count < self.steps:
                    steps = f"{count} step" if count == 1 else f"{count} steps"
                    raise NotLiftableError(f"it has {steps}, and a line has at least {self.steps}")
                lifted.append(self._lift_line(names, located, graph, line))
            except NotLiftableError as error:
                if is_line:
                    failed.append((chain, LiftedNode(located.name, path, "line", reason=str(error))))
        if is_outdated and lifted:
            more, kept = self._lift_plain_lines(names, graph, path)
            return [*lifted, *more], kept
        return lifted, [each for chain, each in failed if not any(map(_is_removed, chain))]

    def _lift_line(self, names: NameSource, located: LocatedNode, graph: ir.Graph, line: Line) -> Lifted:
        make = partial(LineLifter, self.facts, names, self.semantics, located, graph, line)
        try:
            return make().lift()
        except NotLiftableError as error:
            if not self.gaps:
                raise
            try:
                return make(has_gaps=True).lift()
            except NotLiftableError:
                raise error from None


def _count_lifted(nodes: Sequence[LiftedNode]) -> int:
    """Return how many were lifted."""
    return sum(node.op_type is not None for node in nodes)


def has_lines(model: ir.Model, facts: Facts) -> bool:
    """Return whether there may be straight lines in the graphs of a model."""
    return any(
        any(is_likely for _, is_likely in find_chains(facts, graph))
        or any(True for _ in matrix_lines(facts, graph))
        for graph in _graphs(model)
    )


def _is_removed(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.graph is None


def _graphs(model: ir.Model, names: Mapping[ir.Node, str] | None = None) -> dict[ir.Graph, str]:
    """Return the main graph and those of branches and bodies that have nodes, with their paths."""
    nodes = walk(model.graph, names=names)
    return {node.graph: path for node, path in nodes if isinstance(node.graph, ir.Graph)}
