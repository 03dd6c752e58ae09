"""Conversion of a model from one opset of the default domain to another, one version step at a time.

At every opset boundary on the way, every node whose operator changed there is looked up in the table of
adapters. If the table has no row, the step only widened or narrowed what the operator accepts, and the node
crosses if it is legal on the other side.
"""

from __future__ import annotations

import onnx
import onnx.helper
import onnx_ir as ir

from rnnlower.errors import OpsetError
from rnnlower.files import beyond_ir
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.rollback import rollback_on_failure
from rnnlower.graph.versions import (
    Version,
    changed_in,
    first_version,
    needed_opset,
    note_on_newer_operator,
    version_at,
)
from rnnlower.graph.walk import default_opset, is_read, node_label, root_graphs, subgraphs_of, walk
from rnnlower.opset.conversion_state import Adaptation, Conversion, NodePredicate, OpsetReport, Subject
from rnnlower.opset.families import REVIEWED, ROWS
from rnnlower.opset.functions_and_training import (
    convert_training,
    drop_uncalled_functions,
    inline_all_functions,
    inlining_opset,
)
from rnnlower.opset.step import VersionStep
from rnnlower.opset.value_types import ValueTypes
from rnnlower.opset.version_fit import (
    MAX_OPSET,
    MIN_OPSET,
    TypesOf,
    describe_misfit,
    form_misfit,
    type_misfit,
)

# Models below this opset have no functions.
FIRST_OPSET_WITH_FUNCTIONS = 15
# An attribute of the first opsets that never had an effect.
LEGACY_ATTRIBUTE = "consumed_inputs"
# Below this opset, onnx infers shapes for almost no operator version.
INFERRED_FROM = 6


def convert_opset(model: ir.Model, target: int, keep: NodePredicate | None = None) -> OpsetReport:
    """Convert `model` to the opset `target` of the default domain, in place.

    Every node of the main graph, of every subgraph and of every function is converted. Other domains, names,
    metadata and initializers stay. Functions are inlined when `target` is below 15. `ir_version` is raised to
    the version released with `target`, and never lowered. A model without an import of the default domain is
    treated as opset 1. Nodes for which `keep` holds are not converted: the caller will replace them.

    Raises:
        OpsetError: Something cannot be expressed in `target`; the model is then unchanged.
    """
    if not MIN_OPSET <= target <= MAX_OPSET:
        raise OpsetError(
            f"opset {target} is not one of {MIN_OPSET} to {MAX_OPSET}, which the installed onnx knows"
        )
    source = default_opset(model)
    opsets = [("the model", source)]
    for each in model.functions.values():
        opsets.append((f"function {each.domain}::{each.name}", each.opset_imports.get("", source)))
    for owner, opset in opsets:
        if opset > MAX_OPSET:
            raise OpsetError(
                f"{owner} has opset {opset}, but the installed onnx knows {MAX_OPSET} at most",
                remedy="update onnx",
            )
    if not _needs_work(model, target):
        return OpsetReport(source, target, model.ir_version)
    report = OpsetReport(source, target, model.ir_version, changed=True)
    with rollback_on_failure(model):
        types = ValueTypes(model)
        training = convert_training(model, types, lambda part: convert_opset(part, target))
        _convert_stepwise(Conversion(model, types, report, keep))
    rest = beyond_ir.find(model)
    if rest is not None and training is not None:
        rest.training_info = training
    return report


def _needs_work(model: ir.Model, target: int) -> bool:
    imports = [graph.opset_imports for graph in root_graphs(model)]
    return "" not in imports[0] or any(each.get("", target) != target for each in imports)


def _convert_stepwise(conversion: Conversion) -> None:
    model, source, target = conversion.model, conversion.report.source, conversion.report.target
    initializers = len(model.graph.initializers)
    without_functions = model.functions and target < FIRST_OPSET_WITH_FUNCTIONS
    if without_functions:
        drop_uncalled_functions(conversion)
    first = needed_opset(model)
    steps = [first] if first > max(source, target) else []
    steps += [inlining_opset(conversion), target] if without_functions else [target]
    for opset in steps:
        for function in model.functions.values():
            old, name = function.opset_imports.get("", source), "::".join(function.identifier()[:2])
            _convert_graph(conversion, function.graph, old, opset, f"function:{name}")
            if "" in function.opset_imports:
                function.opset_imports[""] = opset
        _convert_graph(conversion, model.graph, model.graph.opset_imports.get("", source), opset, "")
        model.graph.opset_imports[""] = opset
        if model.functions and without_functions:
            inline_all_functions(conversion)
    _raise_ir_version(model, target, len(model.graph.initializers) > initializers)
    conversion.report.ir_version = model.ir_version


def _raise_ir_version(model: ir.Model, target: int, new_initializers: bool) -> None:
    releases = onnx.helper.OP_SET_ID_VERSION_MAP.items()
    needed = min(
        ir_version for (domain, opset), ir_version in releases if domain == "ai.onnx" and opset >= target
    )
    if new_initializers:
        needed = max(needed, FREE_INITIALIZERS_IR)
    model.ir_version = max(model.ir_version, needed)


def _convert_graph(conversion: Conversion, root: ir.Graph, source: int, target: int, path: str) -> None:
    direction = 1 if target > source else -1
    for node, where in walk(root, path, conversion.labels):
        if _must_fit(conversion, node) and (first := _version(node, source, where).since) > source:
            note = note_on_newer_operator(node.op_type, source, first)
            conversion.report.notes += [] if note in conversion.report.notes else [note]
    for opset in range(source, target, direction):
        changed = changed_in(max(opset, opset + direction))
        if source < opset == INFERRED_FROM and root is conversion.model.graph:
            root.opset_imports[""] = opset
            conversion.types.learn(conversion.model)
        for node, where in [*walk(root, path, conversion.labels)]:
            if node.op_type in changed:
                _cross_version_step(conversion, node, opset, opset + direction, where)


def _must_fit(conversion: Conversion, node: ir.Node) -> bool:
    if node.domain or node.op_identifier() in conversion.model.functions:
        return False
    return conversion.keep is None or not conversion.keep(node)


def _version(node: ir.Node, opset: int, path: str) -> Version:
    version = version_at(node.op_type, opset) or first_version(node.op_type)
    if version is None:
        where = f" in {path}" if path else ""
        raise OpsetError(
            f"opset {opset} has no operator {node.op_type}",
            node=Subject(node, path, f"{node_label(node)}{where}"),
            remedy="the model is not valid, or the operator belongs to another domain",
        )
    return version


def _cross_version_step(conversion: Conversion, node: ir.Node, opset: int, neighbor: int, path: str) -> None:
    graph = node.graph
    if not isinstance(graph, ir.Graph) or not _must_fit(conversion, node):
        return
    old = _version(node, opset, path)
    new = version_at(node.op_type, neighbor)
    if new is old or old.since > opset:
        return
    step = VersionStep(conversion, graph, node, (old, new), (opset, neighbor), path)
    inputs = [value for value in node.inputs if value is not None]
    _adapt(step, is_up=neighbor > opset)
    if step.opset == opset:
        # Emitted nodes have yet to be converted.
        for emitted in list(step.emitted):
            inner = [each for body in subgraphs_of(emitted) for each, _ in walk(body)]
            for each in (emitted, *inner):
                _cross_version_step(conversion, each, opset, neighbor, path)
    _drop_unused(inputs)


def _adapt(step: VersionStep, *, is_up: bool) -> None:
    """Bring the node to its other version by the row of the step, if there is one; report what changed."""
    node, old, new, report = step.node, step.old, step.new, step.conversion.report
    since = new.since if new else 0
    low, high = sorted((old.since, since))
    row = ROWS.get((node.op_type, low, high))
    adapter = None if row is None else row.up if is_up else row.down
    fits_ahead = new is not None and is_up and form_misfit(node, new) is None
    if adapter is not None and fits_ahead and form_misfit(node, old) is not None:
        # Some exporters declare an older opset than they write.
        adapter = None
        report.notes.append(f"{node_label(node)} already has the form of {new}, and stays as it is")
    if high > REVIEWED:
        step.refuse("this step is newer than the table of steps", "update rnnlower")
    if new is None and adapter is None:
        step.refuse("no older operators express the same")
    before = _snapshot(node)
    if adapter is not None:
        adapter(step)
    if node.graph is not None and new is not None:
        _settle_defaults(step, new)
        _check_fit(step, new)
    if row is not None and (step.emitted or before != _snapshot(node)):
        name, reason = str(node.name or ""), row.change(up=since > old.since)
        change = Adaptation(name, step.made, old.op_type, step.path, old.since, since, reason)
        report.adapted.append(change)


def _snapshot(node: ir.Node) -> tuple[object, ...]:
    names = [None if value is None else value.name for value in node.outputs]
    return (dict(node.attributes), list(node.inputs), names)


def _drop_unused(pending: list[ir.Value]) -> None:
    """Remove the producers of inputs that nothing reads any more, and nodes that only they read."""
    while pending:
        node = pending.pop().producer()
        if node is None or node.domain or node.graph is None:
            continue
        if [*subgraphs_of(node)] or any(is_read(each) for each in node.outputs):
            continue
        pending += [each for each in node.inputs if each is not None]
        node.graph.remove(node, safe=True)


def _settle_defaults(step: VersionStep, new: Version) -> None:
    """Drop attributes that equal the old default; write out a default that the new version changed."""
    old = step.old
    for name, attribute in list(step.node.attributes.items()):
        if attribute.is_ref() or name in new.attributes:
            continue
        formal = old.attributes.get(name)
        if name == LEGACY_ATTRIBUTE or (
            formal and formal.default is not None and attribute.value == formal.default
        ):
            step.drop(name)
    for name, formal in new.attributes.items():
        before = old.attributes.get(name)
        default = before.default if before else None
        if default is not None and default != formal.default and name not in step.node.attributes:
            step.set(name, default)


def _check_fit(step: VersionStep, new: Version) -> None:
    types = step.conversion.types
    uncalled = not types.uncalled.isdisjoint(step.node.outputs)
    types_of: TypesOf = (lambda value: frozenset()) if uncalled else types.types
    reason = describe_misfit(step.node, new, types_of, None if uncalled else step.old)
    if reason and new.since > step.old.since and form_misfit(step.node, new) is None:
        # The form is right, so the types are wrong. If they were wrong before, this step is not the obstacle:
        # exporters that declare an older opset than they write use types that came later.
        before = type_misfit(step.node, step.old, types_of)
        if before:
            step.conversion.report.notes.append(f"{node_label(step.node)} was not valid before: {before}")
            return
    if reason:
        step.refuse(reason, "declare it in value_info" if "is not known" in reason else "")
