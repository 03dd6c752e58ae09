"""A NumPy evaluator of whole models: onnx's, with the gaps that matter here closed.

Beyond the recurrent operators (:mod:`.recurrent_ops`), Loop and Scan, and older versions
(:mod:`.old_ops`), this repairs how ``onnx.reference.ReferenceEvaluator`` treats

* model-local functions: any order, attribute defaults, omitted attributes and trailing inputs, and operators
  replaced inside them;
* omitted outputs, which it stores under the name ``""`` and then feeds to every omitted input;
* nodes that stand before those that they read;
* sparse initializers, which it cannot read;
* optional values, which it wraps in lists;
* the attribute ``consumed_inputs`` of opset 1 to 5, and the domain written as ``ai.onnx``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from rnnlower.engines.reference.activation_functions import Array, Elementwise, Semantics, is_approximated
from rnnlower.engines.reference.old_ops import find_old_op
from rnnlower.engines.reference.recurrent_ops import OMITTED, DynamicQuantizeLSTM, recurrent_ops
from rnnlower.engines.reference.state_ops import STATE_OPS
from rnnlower.engines.session import RunError
from rnnlower.errors import InvalidModelError, UnsupportedModelError


def _stack(values: Sequence[Array], body: Any, index: int) -> Array:
    """Return the stack; without iterations as the body declares it, with 0 for unknown dimensions."""
    if values:
        return np.stack(values)
    tensor = body.output_types_[index].tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim]
    return np.empty((0, *shape), tensor_dtype_to_np_dtype(tensor.elem_type))


# Seconds after which a Loop is given up: it may never end.
MAX_LOOP_SECONDS = 600.0


def read_names(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Yield the names that nodes read, and their subgraphs from outside."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                own = {name for inner in graph.node for name in inner.output}
                own |= {value.name for value in (*graph.input, *graph.initializer)}
                yield from {*read_names(graph.node), *(value.name for value in graph.output)} - own


class _Body(OpRun):  # type: ignore[misc,unused-ignore]
    """An operator with a ``body`` that can read the enclosing scope.

    onnx's own versions stack scan outputs along the wrong axis if they have rank 2 or more (Loop), support
    neither axes nor directions (Scan), treat an omitted Loop condition as false, and cannot do zero
    iterations.
    """

    body: Any

    def need_context(self) -> bool:
        return True

    @cached_property
    def _reads(self) -> set[str]:
        return {*self.body.output_names, *read_names(self.body.nodes_)}

    def _iterate(self, context: dict[str, Any], inputs: Sequence[Any]) -> list[Any]:
        feeds = {name: context[name] for name in self._reads if name in context}
        feeds.update(zip(self.body.input_names, inputs, strict=True))
        outputs: list[Any] = self.body.run(None, feeds, attributes={})
        return outputs


class Loop(_Body):
    """Loop of versions 1, 11, 13 and later."""

    def _run(self, M: Array | None, cond: Array | None, *carried: Any, **attributes: Any) -> tuple[Any, ...]:
        context = attributes["context"]
        state = list(carried)
        stacks: list[list[Array]] = [[] for _ in self.body.output_names[1 + len(state) :]]
        keep_going = True if cond is None else bool(np.asarray(cond).item())
        limit = None if M is None else int(np.asarray(M).item())
        iteration = 0
        deadline = time.monotonic() + MAX_LOOP_SECONDS
        while keep_going and (limit is None or iteration < limit):
            inputs = [np.array(iteration, np.int64), np.array(keep_going), *state]
            condition, *outputs = self._iterate(context, inputs)
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"a Loop has not ended after {MAX_LOOP_SECONDS:.0f} s and {iteration:,} steps"
                )
            # If the cond input is omitted, the body's condition counts.
            keep_going = bool(np.asarray(condition).item())
            state = outputs[: len(state)]
            for stack, value in zip(stacks, outputs[len(state) :], strict=True):
                stack.append(value)
            iteration += 1
        first = 1 + len(state)
        return (*state, *(_stack(s, self.body, first + k) for k, s in enumerate(stacks)))


def _per_value(values: Sequence[int] | None, count: int) -> list[int]:
    return list(values) if values else [0] * count


def _scan(op: _Body, context: dict[str, Any], states: list[Any], slices: Sequence[Array], length: int) -> Any:
    """Run ``op.body`` over the leading axis of ``slices``; return the final states and the stacks."""
    stacks: list[list[Array]] = [[] for _ in op.body.output_names[len(states) :]]
    for step in range(length):
        outputs = op._iterate(context, [*states, *(s[step] for s in slices)])
        for stack, value in zip(stacks, outputs[len(states) :], strict=True):
            stack.append(value)
        states = outputs[: len(states)]
    return states, [_stack(s, op.body, len(states) + k) for k, s in enumerate(stacks)]


class Scan_9(_Body):  # noqa: N801 (named after the version)
    """Scan of versions 9, 11 and later: axes and directions, including zero steps."""

    def _run(self, *args: Any, **attributes: Any) -> tuple[Any, ...]:
        count = attributes["num_scan_inputs"]
        states, scanned = list(args[: len(args) - count]), args[len(args) - count :]
        axes = _per_value(attributes.get("scan_input_axes"), count)
        backwards = _per_value(attributes.get("scan_input_directions"), count)
        slices = [np.moveaxis(x, axis, 0) for x, axis in zip(scanned, axes, strict=True)]
        slices = [x[::-1] if back else x for x, back in zip(slices, backwards, strict=True)]
        if len({x.shape[0] for x in slices}) != 1:
            raise ValueError("scan inputs differ in length")
        states, stacks = _scan(self, attributes["context"], states, slices, slices[0].shape[0])
        out_axes = _per_value(attributes.get("scan_output_axes"), len(stacks))
        out_backwards = _per_value(attributes.get("scan_output_directions"), len(stacks))
        stacks = [s[::-1] if back else s for s, back in zip(stacks, out_backwards, strict=True)]
        return (*states, *(np.moveaxis(s, 0, axis) for s, axis in zip(stacks, out_axes, strict=True)))


class Scan_8(_Body):  # noqa: N801 (named after the version)
    """Scan of version 8: a leading batch dimension on all values, and optional sequence lengths."""

    def _run(self, sequence_lens: Array | None, *args: Any, **attributes: Any) -> tuple[Any, ...]:
        count = attributes["num_scan_inputs"]
        backwards = _per_value(attributes.get("directions"), count)
        num_states = len(args) - count
        batch, length = args[num_states].shape[:2]
        lengths = np.full(batch, length) if sequence_lens is None else sequence_lens
        rows = []
        for b in range(batch):
            slices = [
                x[b, : lengths[b]][::-1] if back else x[b, : lengths[b]]
                for x, back in zip(args[num_states:], backwards, strict=True)
            ]
            states, stacks = _scan(
                self, attributes["context"], [s[b] for s in args[:num_states]], slices, int(lengths[b])
            )
            padded = [np.pad(s, [(0, length - s.shape[0])] + [(0, 0)] * (s.ndim - 1)) for s in stacks]
            rows.append([*states, *padded])
        return tuple(np.stack(column) for column in zip(*rows, strict=True))


class Optional(OpRun):  # type: ignore[misc,unused-ignore]
    """Optional: the element itself, or None, as onnxruntime returns it; onnx's own version returns a list."""

    def run(self, *inputs: Any, **settings: Any) -> tuple[Any, ...]:
        # onnx's check of the results does not know None.
        return self._run(*inputs)

    def _run(self, x: Any = None) -> tuple[Any, ...]:
        return (x,)


FunctionKey = tuple[str, ...]


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
        marks_unset: See :func:`.recurrent_ops`.

    Recurrent operators compute float64 data in float64, float16 and bfloat16 in float32, and round at the
    end. bfloat16 arrays have the dtype ``ml_dtypes.bfloat16``.

    Raises:
        UnsupportedModelError: An operator, attribute or activation is unknown.
        InvalidModelError: Shapes of weights or states do not fit.
        ValueError: In ``run``: an input is missing, or sequence_lens outside 0..T.
        RunError: In ``run``: another node does not run on its inputs.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        semantics: Semantics = "ort",
        precise: bool = True,
        inexact: Elementwise | None = None,
        marks_unset: bool = False,
    ) -> None:
        opsets = _opset_versions(model.opset_import)
        recurrent = recurrent_ops(semantics, precise=precise, inexact=inexact, marks_unset=marks_unset)
        settings = {
            "recurrent": {cls.__name__: cls for cls in (*recurrent, *STATE_OPS)},
            "inexact": None if inexact is None else staticmethod(inexact),
            "foreign": {
                ("com.microsoft", "DynamicQuantizeLSTM"): DynamicQuantizeLSTM,
                **{("com.microsoft", cls.__name__): cls for cls in STATE_OPS},
            },
            "local_functions": {_function_key(f.domain, f.name, f.overload): f for f in model.functions},
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


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} node {node.name or node.output[0]!r}"


def _wrap_errors(op: OpRun, node: onnx.NodeProto, inexact: Elementwise | None) -> OpRun:
    """Make NumPy's errors name the node: alone they speak of arrays that the user has never seen."""
    run: Callable[..., Any] = op.run

    def named(*inputs: Any, **settings: Any) -> Any:
        try:
            results = run(*inputs, **settings)
        except (TypeError, ValueError, IndexError, ArithmeticError) as error:
            if str(error).startswith(f"{node.op_type} node"):
                raise
            shapes = ", ".join(str(list(each.shape)) for each in inputs if isinstance(each, np.ndarray))
            raise RunError(f"{_label(node)} does not run on shapes {shapes}: {error}") from error

        return results if inexact is None else tuple(map(inexact, results))

    op.__dict__["run"] = named
    return op


def _function_key(domain: str, name: str, overload: str) -> FunctionKey:
    return ("" if domain == "ai.onnx" else domain, name, overload)


def _opset_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    opsets = {entry.domain: entry.version for entry in imports}
    opsets[""] = opsets.get("", opsets.get("ai.onnx", 1))
    return opsets


class _GraphEvaluator(ReferenceEvaluator):
    inexact: ClassVar[Callable[..., Array] | None] = None
    recurrent: ClassVar[dict[str, type[OpRun]]] = {}
    foreign: ClassVar[dict[FunctionKey, type[OpRun]]] = {}
    local_functions: ClassVar[dict[FunctionKey, onnx.FunctionProto]] = {}

    def _init(self) -> None:
        sparse = [each for each in self.inits_ if isinstance(each, onnx.SparseTensorProto)]
        self.inits_ = [each for each in self.inits_ if not isinstance(each, onnx.SparseTensorProto)]
        super()._init()
        self.rt_inits_.update((each.values.name, _to_dense(each)) for each in sparse)
        made = {name: index for index, node in enumerate(self.nodes_) for name in node.output if name}
        sources = {
            index: {made[name] for name in read_names([node]) if name in made} - {index}
            for index, node in enumerate(self.nodes_)
        }
        # Converters append nodes, and onnxruntime sorts them.
        if any(max(needed, default=-1) > index for index, needed in sources.items()):
            self.rt_nodes_ = [self.rt_nodes_[k] for k in TopologicalSorter(sources).static_order()]

    def _load_impl(self, node: onnx.NodeProto, input_types: Any = None) -> Any:
        changed = _normalize_node(node, self.opsets[""])
        implementation = self._find(changed, input_types)
        inexact = self.inexact if is_approximated(changed.op_type) else None
        return lambda _, run_params: _wrap_errors(implementation(changed, run_params), changed, inexact)

    def _find(self, node: onnx.NodeProto, input_types: Any) -> Callable[..., OpRun]:
        function = self.local_functions.get(_function_key(node.domain, node.op_type, node.overload))
        if function is not None:
            return lambda n, run_params: _FunctionCall(n, run_params, type(self)(_bind_call(function, n)))
        if node.domain == "":
            version = self.opsets[""]
            scan = Scan_8 if version == 8 else Scan_9
            own: dict[str, Any] = {**self.recurrent, "Loop": Loop, "Optional": Optional, "Scan": scan}
            replaced = own.get(node.op_type) or find_old_op(node.op_type, version)
            if replaced is not None:
                return replaced
        if (node.domain, node.op_type) in self.foreign:
            return self.foreign[node.domain, node.op_type]
        if node.domain not in self.opsets:
            raise InvalidModelError(f"{_label(node)}: no opset import for the domain {node.domain!r}")
        try:
            return super()._load_impl(node, input_types)  # type: ignore[no-any-return]
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"the reference evaluator has no {node.domain or 'ai.onnx'}::{node.op_type}"
            ) from error


def _to_dense(sparse: onnx.SparseTensorProto) -> Array:
    values, indices = onnx.numpy_helper.to_array(sparse.values), onnx.numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    where = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
    dense.reshape(-1)[where] = values
    return dense


def _normalize_node(node: onnx.NodeProto, version: int) -> onnx.NodeProto:
    """Return ``node``, or a copy without what the evaluator cannot handle (see the module's docstring)."""
    consumed = version < 6 and any(a.name == "consumed_inputs" for a in node.attribute)
    if not (consumed or node.domain == "ai.onnx" or "" in node.output):
        return node
    copy = deepcopy(node)
    if node.domain == "ai.onnx":
        copy.domain = ""
    for index, name in enumerate(copy.output):
        copy.output[index] = name or f"{OMITTED} {index} of {node.op_type}>"
    if consumed:
        kept = [a for a in node.attribute if a.name != "consumed_inputs"]
        del copy.attribute[:]
        copy.attribute.extend(kept)
    return copy


def _bind_call(function: onnx.FunctionProto, call: onnx.NodeProto) -> onnx.FunctionProto:
    """Return ``function`` with its attribute references replaced by the values of ``call``."""
    values = {a.name: a for a in function.attribute_proto}
    values.update((a.name, a) for a in call.attribute)
    bound = deepcopy(function)
    del bound.attribute[:], bound.attribute_proto[:]
    if not any(entry.domain == "" for entry in bound.opset_import):
        bound.opset_import.add(domain="", version=_opset_versions(function.opset_import)[""])
    _bind_nodes(bound.node, values)
    return bound


def _bind_nodes(nodes: Iterable[onnx.NodeProto], values: Mapping[str, onnx.AttributeProto]) -> None:
    for node in nodes:
        bound = []
        for attribute in node.attribute:
            source = values.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
            if source is not None:
                bound.append(deepcopy(source))
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
