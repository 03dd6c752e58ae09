"""The test whether a target runs a recurrent node as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OpsetError
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.inlining import functions_with, inline_functions
from rnnlower.graph.operator_kinds import REARRANGING
from rnnlower.graph.walk import LocatedNode, origin, qualified_op_type, reachable
from rnnlower.recurrent.finding import find_recurrent, infer_input_types, is_recurrent
from rnnlower.recurrent.node import ResolvedNode, Semantics
from rnnlower.recurrent.operators import INPUT_NAMES, OUTPUT_NAMES
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.sonnx import find_departures
from rnnlower.targets.format import Claim, RecurrentRule
from rnnlower.targets.misfits import Misfit
from rnnlower.targets.target import Target

_ORIGIN = "rnnlower.native"

Reason = tuple[str, Claim]
"""Why a target does not run a node, and the claim that says so."""

_VERDICTS = {
    "refused": "{target} refuses {what}",
    "wrong": "{target} gets {what} silently wrong",
    "unknown": "whether {target} gets {what} right is not known",
}


_MIXING_OPS = frozenset(("Conv", "ConvTranspose", "Einsum", "Gather", "Gemm", "MatMul"))
_SIZES = {"batch": "batch size", "time": "sequence length"}


def find_native_misfits(
    model: ir.Model, target: Target, semantics: Semantics, facts: Facts
) -> dict[ir.Node, list[Misfit]]:
    """Return, for each recurrent node, why the target does not run it as it is; an empty list if it does.

    The nodes are judged by the types and sizes that follow from the model's inputs, which are noted on their
    inputs, and nodes of functions at the calls, as in a lowering.
    """
    found = find_recurrent(model)
    pairs = [(located, located) for located in found]
    if any(located.path.startswith("function:") for located in found):
        pairs = list(_pair_with_calls(model, found))
    else:
        infer_input_types(model, facts)
    judged: dict[ir.Node, list[Misfit]] = {located.node: [] for located in found}
    for located, twin in pairs:
        judged[located.node] += NativeCheck(twin, target, semantics).misfits()
    return {node: list(dict.fromkeys(misfits)) for node, misfits in judged.items()}


def _pair_with_calls(
    model: ir.Model, found: Sequence[LocatedNode]
) -> Iterator[tuple[LocatedNode, LocatedNode]]:
    """Yield the nodes with their twins in a copy without functions, one for each call."""
    copy = model.clone()
    for located, twin in zip(found, find_recurrent(copy), strict=True):
        twin.node.meta[_ORIGIN] = located
    # Functions of several opsets cannot be inlined before they are converted: they are judged in place.
    with contextlib.suppress(OpsetError):
        inline_functions(copy, functions_with(copy, is_recurrent))
    infer_input_types(copy)
    for twin in find_recurrent(copy):
        located = twin.node.meta[_ORIGIN]
        yield located, dataclasses.replace(twin, name=located.name, path=located.path, inner=bool(twin.path))


@dataclasses.dataclass(frozen=True)
class NativeCheck:
    """The check whether a target runs a recurrent node of known types and sizes as it is.

    Attributes:
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
    """

    located: LocatedNode
    target: Target
    semantics: Semantics

    @functools.cached_property
    def node(self) -> ResolvedNode:
        """The node, parsed."""
        return parse_recurrent(self.located, self.semantics, lenient=True)

    @property
    def rules(self) -> list[RecurrentRule]:
        """The target's rules about the operator, for these semantics."""
        rules = [rule for rule in self.target.recurrent if self.located.node.op_type in rule.ops]
        given = [{*(rule.semantics or ())} for rule in rules]
        return [
            _restrict_to_agreed(rule) if "agreed" in words and self.semantics not in words else rule
            for rule, words in zip(rules, given, strict=True)
        ]

    def misfits(self) -> list[Misfit]:
        """Return why the target does not run the node as it is."""
        node, profile = self.located, next((rule for rule in self.target.recurrent if rule.profile), None)
        if profile is None:
            remedy = wording.call("lower", target=self.target.address)
            found = [(text, remedy, claim) for text, claim in self._reasons()]
        else:
            errors = (each for each in find_departures(node) if each.level == "error")
            found = [(f"{each.subject} {each.what}", each.remedy, profile) for each in errors]
        return [
            Misfit(node.path, node.name, node.node.op_type, text, remedy, claim.source, claim.guess)
            for text, remedy, claim in found
        ]

    def rule(self) -> RecurrentRule | None:
        """Return the rule that the node fits, if there is one."""
        return next((rule for rule in self.rules if not rule.profile and not self.violated_keys(rule)), None)

    def violated_keys(self, rule: RecurrentRule) -> frozenset[str]:
        """Return the properties of the node that violate a rule, as keys of its `wrong`."""
        return frozenset(key for key, _ in self._violations(rule))

    def _reasons(self) -> list[Reason]:
        node, target = self.located.node, self.target
        if not self.rules:
            return [(f"{target.name} has no {qualified_op_type(node)}", target.ops)]
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return [("its attributes depend on the function's caller", self.rules[0])]
        judged = [(rule, list(self._violations(rule))) for rule in self.rules]
        rule, violations = min(judged, key=lambda pair: len(pair[1]))
        return [
            (
                _VERDICTS["wrong" if key in rule.wrong else rule.otherwise].format(
                    target=target.name, what=f"{node.op_type} with {what}"
                ),
                rule,
            )
            for key, what in violations
        ]

    def _violations(self, rule: RecurrentRule) -> Iterator[tuple[str, str]]:
        """Yield the properties that violate a rule: the key of `wrong`, and a description."""
        node, is_nested = self.node, self.located.is_nested
        if rule.semantics is not None and self.semantics not in rule.semantics:
            yield "semantics", wording.option("semantics", self.semantics)
        if rule.dtypes is not None and (node.dtype is None or str(node.dtype.numpy()) not in rule.dtypes):
            yield "type", "an unknown type" if node.dtype is None else f"type {node.dtype.numpy()}"
        if 0 in (node.seq_length, node.batch_size):
            yield "empty", "no time steps or no rows"
        yield from _size_violations(rule, node, is_nested)
        if rule.directions is not None and node.direction not in rule.directions:
            yield node.direction, f"direction {node.direction}"
        if not rule.nested and is_nested:
            yield "nested", "a place in a body"
        yield from _input_violations(rule, node)
        for name, allowed in rule.attributes.items():
            value = _effective_attribute(node, name)
            # An attribute that must be absent may not be written with its default either.
            taken = (None, *map(as_stored, allowed))
            if (name in node.node.attributes) if not allowed else value not in taken:
                yield name, f"attribute {name} = {value}"
        yield from _activation_violations(rule, node)


def _input_violations(rule: RecurrentRule, node: ResolvedNode) -> Iterator[tuple[str, str]]:
    if op_type := find_repeating_op(node.inputs["X"], rule.not_behind):
        yield "repeated", f"an X that {op_type} repeats"
    for name in node.inputs:
        if rule.inputs is not None and name not in ("X", "W", "R", *rule.inputs):
            yield name, f"input {name}"
    for name in rule.needs:
        if name not in node.inputs and name not in node.outputs and name not in node.node.attributes:
            yield name, f"no {name}"
    for name in rule.not_empty:
        if name in _empty_names(node):
            yield name, f"an empty name for {name}"
    if rule.most_inputs is not None and len(node.node.inputs) > rule.most_inputs:
        yield "inputs", f"{len(node.node.inputs)} inputs written, empty ones included,"
    for name in rule.constant:
        if name in node.inputs and constant_of(node.inputs[name]) is None:
            yield name, f"an input {name} that is not a constant"
    for name in rule.fixed:
        if name in node.inputs and origin(node.inputs[name]) == "runtime":
            yield name, f"an input {name} that constants do not determine"
    if rule.one_reader and node.batch_size != 1 and _count_recurrent_readers(node.inputs["X"]) > 1:
        yield "one_reader", "an X that another recurrent node reads"
    given = (node.inputs.get(name) for name in node.state_names)
    states = [state for state in given if state is not None and constant_of(state) is None]
    if rule.two_states and len(states) > len({*states}):
        yield "two_states", "one value as initial_h and initial_c"


def _count_recurrent_readers(value: ir.Value) -> int:
    """Return how many recurrent nodes read a value, or what a runtime may find equal to it.

    A runtime merges equal operators, and removes those of no effect, such as an Add of 0.
    """
    root = _without_light_ops(value)
    found = reachable([root], lambda each: [out for node, _ in each.uses() for out in _light_outputs(node)])
    same = [each for each in found if _without_light_ops(each) is root]
    return sum(is_recurrent(node) and not place for each in same for node, place in each.uses())


def _light_outputs(node: ir.Node) -> Sequence[ir.Value]:
    return () if node.op_type in _MIXING_OPS or is_recurrent(node) else node.outputs


def _without_light_ops(value: ir.Value) -> ir.Value:
    """Return the value from which operators without weights compute a value alone."""
    while (node := value.producer()) is not None and _light_outputs(node):
        data = {each for each in node.inputs if each is not None and constant_of(each) is None}
        if len(data) != 1:
            break
        (value,) = data
    return value


def _restrict_to_agreed(rule: RecurrentRule) -> RecurrentRule:
    """Restrict a rule to nodes that mean the same in both semantics.

    These differ in clip, rows without time steps, and the defaults of alpha and beta.
    """
    allowed = INPUT_NAMES if rule.inputs is None else rule.inputs
    taken_away = {"activations"} | {"clip"} - {*rule.attributes} | {"sequence_lens"} & {*allowed}
    return msgspec.structs.replace(
        rule,
        semantics=None,
        inputs=tuple(name for name in allowed if name != "sequence_lens"),
        attributes={**rule.attributes, "clip": ()},
        activations=("default",),
        wrong=(*rule.wrong, *sorted(taken_away)),
    )


def _size_violations(rule: RecurrentRule, node: ResolvedNode, is_nested: bool) -> Iterator[tuple[str, str]]:
    shape = node.inputs["X"].shape
    given = all(node.inputs[name].is_graph_input() for name in node.state_names if name in node.inputs)
    for name, axis in (("batch", 1 - node.layout), ("time", node.layout)):
        size = None if shape is None else shape[axis]
        if isinstance(size, int) and size >= 0:
            continue
        if name in rule.static:
            yield name, f"a {_SIZES[name]} that is not a number"
        elif is_nested and name in rule.static_nested:
            yield name, f"a {_SIZES[name]} that is not a number, in a body"
        elif not given and name in rule.static_with_states:
            yield name, f"a {_SIZES[name]} that is not a number, and initial states that are not graph inputs"
    most, batch = rule.max_batch, node.batch_size
    if most is not None and ("batch" not in rule.static if batch is None else batch > most):
        yield "batch", f"batch size {'unknown' if batch is None else batch}"
    if node.hidden_size < (rule.min_hidden_size or 1):
        yield "hidden_size", f"hidden_size {node.hidden_size}"
    if rule.min_input_size is not None and (node.input_size or 0) < rule.min_input_size:
        yield "input_size", f"input_size {'unknown' if node.input_size is None else node.input_size}"


def _empty_names(node: ResolvedNode) -> set[str]:
    """Return the inputs and outputs that are written as empty names."""
    inputs = {name for name, value in zip(INPUT_NAMES, node.node.inputs, strict=False) if value is None}
    return inputs | {
        name for name, value in zip(OUTPUT_NAMES, node.node.outputs, strict=False) if not value.name
    }


def _activation_violations(rule: RecurrentRule, node: ResolvedNode) -> Iterator[tuple[str, str]]:
    names = [[activation.name for activation in functions] for functions in node.activations]
    used = sorted({name for functions in names for name in functions})
    own = all(functions == list(node.cell.activations) for functions in names)
    allowed = rule.activations
    if allowed is not None and not ({*used} <= {*allowed} or ("default" in allowed and own)):
        yield "activations", f"activations {', '.join(used)}"
    if rule.same_activations and len(set(node.activations)) > 1:
        yield "activations", "different activations for its directions"


def _effective_attribute(node: ResolvedNode, name: str) -> Any:
    """Return the effective value: the given one, or the default of the ONNX spec."""
    resolved = {
        "layout": node.layout,
        "input_forget": int(node.input_forget),
        "linear_before_reset": int(node.linear_before_reset),
        "clip": node.clip,
    }
    if name in resolved:
        return resolved[name]
    attribute = node.node.attributes.get(name)
    return None if attribute is None else as_stored(attribute.value)


def as_stored(value: Any) -> Any:
    """Return a value as an attribute stores it, whose floats are float32; tuples become lists."""
    if isinstance(value, list | tuple):
        return [as_stored(each) for each in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def find_repeating_op(value: ir.Value | None, op_types: Collection[str], *, alone: bool = False) -> str:
    """Return the one of these operators that repeats an axis of size 1 to compute the value, or ``""``.

    Operators that only rearrange elements may follow it, and a Concat with other values. With `alone`,
    nothing else may read the values in between.
    """
    while value is not None and (producer := value.producer()) is not None:
        if alone and len(value.uses()) > 1:
            return ""
        if producer.domain == "" and producer.op_type in op_types:
            return producer.op_type if _may_expand(producer.inputs[0], value) else ""
        if producer.domain == "" and producer.op_type == "Concat":
            parts = (find_repeating_op(part, op_types) for part in producer.inputs)
            return next(filter(None, parts), "")
        if producer.domain or producer.op_type not in REARRANGING | {"Cast"}:
            return ""
        value = producer.inputs[0]
    return ""


def _may_expand(before: ir.Value | None, after: ir.Value) -> bool:
    """Return whether an axis of size 1 may grow, judging by the known shapes."""
    if before is None or before.shape is None or after.shape is None or len(after.shape) > len(before.shape):
        return True
    sizes = zip(before.shape, after.shape, strict=True)
    return any(old != new and (old == 1 or not isinstance(old, int)) for old, new in sizes)
