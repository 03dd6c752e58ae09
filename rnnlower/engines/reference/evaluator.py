"""A NumPy evaluator of whole models: onnx's, with the gaps that matter here closed.

Beyond the recurrent operators (:mod:`.recurrent_ops`), Loop and Scan (:mod:`.control_flow`) and older
versions (:mod:`.old_ops`), this repairs how ``onnx.reference.ReferenceEvaluator`` treats

* model-local functions: any order, attribute defaults, omitted attributes and trailing inputs, and operators
  replaced inside them;
* omitted outputs, which it stores under the name ``""`` and then feeds to every omitted input;
* nodes that stand before those that they read;
* the attribute ``consumed_inputs`` of opset 1 to 5, and the domain written as ``ai.onnx``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from graphlib import TopologicalSorter
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from rnnlower.engines.reference.activation_functions import Array, Bound, Semantics, is_inexact_somewhere
from rnnlower.engines.reference.control_flow import Loop, Scan_8, Scan_9, inputs_of
from rnnlower.engines.reference.old_ops import find_old_op
from rnnlower.engines.reference.quantized_ops import OMITTED, DynamicQuantizeLSTM
from rnnlower.engines.reference.recurrent_ops import recurrent_ops
from rnnlower.engines.reference.state_ops import STATE_OPS
from rnnlower.engines.session import RunError
from rnnlower.errors import InvalidModelError, UnsupportedModelError

FunctionKey = tuple[str, str]


def evaluate(
    model: onnx.ModelProto, inputs: Mapping[str, Array], *, semantics: Semantics = "ort"
) -> dict[str, Array]:
    """Evaluate ``model`` on ``inputs`` with NumPy; return the graph outputs by name.

    Shorthand for ``Evaluator(model, semantics=semantics).run(inputs)``; see :class:`Evaluator`.
    """
    return Evaluator(model, semantics=semantics).run(inputs)


class Evaluator:
    """An evaluator that runs a model any number of times.

    Args:
        model: The model, with its external data loaded. It is not changed.
        semantics: ``"ort"`` or ``"spec"``, for the recurrent operators (see :mod:`.recurrent_ops`).
        precise: Compute float32 data of recurrent operators in float64, not in float32.
        inexact: Applied to what every Sigmoid and Tanh gives, to see what their errors lead to.

    Recurrent operators compute float64 data in float64, float16 and bfloat16 in float32, and round at the
    end. bfloat16 arrays have the dtype ``ml_dtypes.bfloat16``.

    Raises:
        UnsupportedModelError: An operator, attribute or activation is unknown.
        InvalidModelError: Shapes of weights or states do not fit.
        ValueError: ``semantics`` is unknown; in ``run``: an input is missing, or sequence_lens outside 0..T.
        RunError: In ``run``: another node does not run on its inputs.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        semantics: Semantics = "ort",
        precise: bool = True,
        inexact: Bound | None = None,
    ) -> None:
        if semantics not in ("ort", "spec"):
            raise ValueError(f"semantics must be 'ort' or 'spec', not {semantics!r}")
        opsets = _opsets(model.opset_import)
        settings = {
            "recurrent": {
                cls.__name__: cls
                for cls in (*recurrent_ops(semantics, precise=precise, inexact=inexact), *STATE_OPS)
            },
            "inexact": None if inexact is None else staticmethod(inexact),
            "foreign": {
                ("com.microsoft", "DynamicQuantizeLSTM"): DynamicQuantizeLSTM,
                **{("com.microsoft", cls.__name__): cls for cls in STATE_OPS},
            },
            "local_functions": {_key(f.domain, f.name): f for f in model.functions},
        }
        # The settings are class attributes, because the evaluator only passes the class to subgraphs.
        evaluator_class = type("_GraphEvaluator", (_GraphEvaluator,), settings)
        self._evaluator = evaluator_class(model.graph, opsets)
        initialized = {i.name for i in model.graph.initializer}
        self._required = [i.name for i in model.graph.input if i.name not in initialized]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the graph outputs by name; ``inputs`` with an initializer are optional."""
        missing = [name for name in self._required if name not in inputs]
        if missing:
            raise ValueError(f"no value for the graph input {missing[0]!r}")
        with np.errstate(all="ignore"):
            values = self._evaluator.run(None, dict(inputs))
        return dict(zip(self._evaluator.output_names, values, strict=True))


def _naming_node(op: OpRun, node: onnx.NodeProto, inexact: Bound | None) -> OpRun:
    """Make NumPy's errors name the node: alone they speak of arrays that the user has never seen."""
    run: Callable[..., Any] = op.run

    def named(*inputs: Any, **settings: Any) -> Any:
        try:
            results = run(*inputs, **settings)
        except (TypeError, ValueError, IndexError, ArithmeticError) as error:
            if str(error).startswith(f"{node.op_type} node"):
                raise
            shapes = ", ".join(str(list(each.shape)) for each in inputs if isinstance(each, np.ndarray))
            label = f"{node.op_type} node {node.name or node.output[0]!r}"
            raise RunError(f"{label} does not run on shapes {shapes}: {error}") from error

        return results if inexact is None else tuple(map(inexact, results))

    op.__dict__["run"] = named
    return op


def _key(domain: str, name: str) -> FunctionKey:
    return ("" if domain == "ai.onnx" else domain, name)


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    opsets = {entry.domain: entry.version for entry in imports}
    opsets[""] = opsets.get("", opsets.get("ai.onnx", 1))
    return opsets


class _GraphEvaluator(ReferenceEvaluator):
    inexact: ClassVar[Callable[..., Array] | None] = None
    recurrent: ClassVar[dict[str, type[OpRun]]] = {}
    foreign: ClassVar[dict[FunctionKey, type[OpRun]]] = {}
    local_functions: ClassVar[dict[FunctionKey, onnx.FunctionProto]] = {}

    def _init(self) -> None:
        super()._init()
        made = {name: index for index, node in enumerate(self.nodes_) for name in node.output if name}
        sources = {
            index: {made[name] for name in inputs_of([node]) if name in made} - {index}
            for index, node in enumerate(self.nodes_)
        }
        # Converters append nodes, and onnxruntime sorts them.
        if any(max(needed, default=-1) > index for index, needed in sources.items()):
            self.rt_nodes_ = [self.rt_nodes_[k] for k in TopologicalSorter(sources).static_order()]

    def _load_impl(self, node: onnx.NodeProto, input_types: Any = None) -> Any:
        changed = _normalized(node, self.opsets[""])
        implementation = self._find(changed, input_types)
        inexact = self.inexact if is_inexact_somewhere(changed.op_type) else None
        return lambda _, run_params: _naming_node(implementation(changed, run_params), changed, inexact)

    def _find(self, node: onnx.NodeProto, input_types: Any) -> Callable[..., OpRun]:
        function = self.local_functions.get(_key(node.domain, node.op_type))
        if function is not None:
            return lambda n, run_params: _FunctionCall(n, run_params, type(self)(_bound(function, n)))
        if node.domain == "":
            version = self.opsets[""]
            own: dict[str, Any] = {**self.recurrent, "Loop": Loop, "Scan": Scan_8 if version == 8 else Scan_9}
            replaced = own.get(node.op_type) or find_old_op(node.op_type, version)
            if replaced is not None:
                return replaced
        if (node.domain, node.op_type) in self.foreign:
            return self.foreign[node.domain, node.op_type]
        if node.domain not in self.opsets:
            raise InvalidModelError(f"node {node.name!r}: no opset import for the domain {node.domain!r}")
        try:
            return super()._load_impl(node, input_types)  # type: ignore[no-any-return]
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"the reference evaluator has no {node.domain or 'ai.onnx'}::{node.op_type}"
            ) from error


def _normalized(node: onnx.NodeProto, version: int) -> onnx.NodeProto:
    """Return ``node``, or a copy without what the evaluator cannot handle (see the module's docstring)."""
    consumed = version < 6 and any(a.name == "consumed_inputs" for a in node.attribute)
    if not (consumed or node.domain == "ai.onnx" or "" in node.output):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    if node.domain == "ai.onnx":
        copy.domain = ""
    for index, name in enumerate(copy.output):
        copy.output[index] = name or f"{OMITTED} {index} of {node.op_type}>"
    if consumed:
        kept = [a for a in node.attribute if a.name != "consumed_inputs"]
        del copy.attribute[:]
        copy.attribute.extend(kept)
    return copy


def _bound(function: onnx.FunctionProto, call: onnx.NodeProto) -> onnx.FunctionProto:
    """Return ``function`` with its attribute references replaced by the values of ``call``."""
    values = {a.name: a for a in function.attribute_proto}
    values.update((a.name, a) for a in call.attribute)
    bound = onnx.FunctionProto()
    bound.CopyFrom(function)
    del bound.attribute[:], bound.attribute_proto[:]
    if not any(entry.domain == "" for entry in bound.opset_import):
        bound.opset_import.add(domain="", version=_opsets(function.opset_import)[""])
    _bind_nodes(bound.node, values)
    return bound


def _bind_nodes(nodes: Iterable[onnx.NodeProto], values: Mapping[str, onnx.AttributeProto]) -> None:
    for node in nodes:
        bound = []
        for attribute in node.attribute:
            source = values.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
            if source is not None:
                bound.append(onnx.AttributeProto())
                bound[-1].CopyFrom(source)
                bound[-1].name = attribute.name
                if source is attribute:
                    _bind_nodes(bound[-1].g.node, values)
        del node.attribute[:]
        node.attribute.extend(bound)


class _FunctionCall(OpRun):  # type: ignore[misc,unused-ignore]
    op_schema = None

    def __init__(self, node: onnx.NodeProto, run_params: dict[str, Any], body: ReferenceEvaluator) -> None:
        super().__init__(node, run_params)
        self.body_ = body

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        feeds = dict.fromkeys(self.body_.input_names)
        feeds.update(zip(self.body_.input_names, inputs, strict=False))
        return tuple(self.body_.run(None, feeds, attributes={}))
