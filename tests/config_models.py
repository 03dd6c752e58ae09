"""The models behind ``Config``: a recurrent node, how its inputs come, and the place it lives in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from configs import Config

__all__ = ["CONDITIONS", "ITERATIONS", "build", "dequantized"]

CONDITIONS = {"if": ("cond",), "if_in_if": ("cond", "cond_inner")}
"""The boolean graph inputs of the places that have some."""
ITERATIONS = 2
"""How often a Loop or Scan body runs the node."""

_QUANTUM, _ZERO_POINT = 1 / 64, 3
_FORMALS = {
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "RNN": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
}
_OUTPUTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}
_ATTRIBUTE_TYPES = {
    "direction": AttributeProto.STRING,
    "activations": AttributeProto.STRINGS,
    "activation_alpha": AttributeProto.FLOATS,
    "activation_beta": AttributeProto.FLOATS,
    "clip": AttributeProto.FLOAT,
}
_DIMS: dict[str, tuple[Any, Any, Any]] = {
    # What X declares for time, batch and input size, where it is not the number.
    "static": (..., ..., ...),
    "batch": (..., "N", ...),
    "time": ("T", ..., ...),
    "symbolic": ("T", "N", ...),
    "unknown": (None, None, None),
    "negative": (-1, -1, ...),
    "unknown_rank": (None, None, None),
}


@dataclass
class _Scope:
    """The nodes and initializers of one graph or function; ``prefix`` keeps names apart."""

    config: Config
    prefix: str = ""
    is_function: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: np.ndarray, *, as_node: bool = False) -> str:
        """An initializer, or a Constant node where asked for and in functions."""
        name = self.prefix + name
        tensor = numpy_helper.from_array(np.ascontiguousarray(value), name)
        if as_node or self.is_function:
            return self.add("Constant", [], name, value=tensor)
        self.initializers.append(tensor)
        return name

    def unsqueeze(self, x: str, output: str) -> str:
        if self.config.opset >= 13:
            axes = self.constant(f"{output}_axes".removeprefix(self.prefix), np.array([0], np.int64))
            return self.add("Unsqueeze", [x, axes], output)
        return self.add("Unsqueeze", [x], output, axes=[0])

    def slice(self, x: str, start: int, end: int, output: str) -> str:
        if self.config.opset >= 10:
            bounds = [
                self.constant(f"{output}_{which}".removeprefix(self.prefix), np.array([value], np.int64))
                for which, value in (("start", start), ("end", end))
            ]
            return self.add("Slice", [x, *bounds], output)
        return self.add("Slice", [x], output, axes=[0], starts=[start], ends=[end])


def dequantized(value: np.ndarray) -> np.ndarray:
    """``value`` as DequantizeLinear gives it back: multiples of a power of two, so in no dtype rounded."""
    return ((_quantized(value).astype(np.int32) - _ZERO_POINT) * _QUANTUM).astype(value.dtype)


def _quantized(value: np.ndarray) -> np.ndarray:
    steps = np.round(value.astype(np.float64) / _QUANTUM) + _ZERO_POINT
    return np.clip(steps, -128, 127).astype(np.int8)


def build(config: Config) -> onnx.ModelProto:
    """The model of ``config``."""
    main = _Scope(config)
    in_main = config.place == "main"
    inner = main if in_main else _Scope(config, "inner_", config.place == "function")
    graph_inputs = _graph_inputs(config)
    x = "X"
    if config.x_dims == "unknown_rank":
        x = main.add("Reshape", ["X", "X_shape"], "X_shaped")
    values, constants = {"X": x}, config.constants()
    for name, how in config.provisions.items():
        # What the graph's inputs feed, and a Loop's first state, cannot live in the body.
        outside = config.captured or how in ("input", "initializer_input", "expanded")
        outside = outside or (config.carries_state and name == "initial_h")
        values[name] = _provide(main if outside or in_main else inner, name, how, constants.get(name), x)
    if config.provisions.get("initial_c") == "same":
        values["initial_c"] = values["initial_h"]
    functions = _PLACES[config.place](main, inner, values)
    outputs = [_result_info(config, key, key) for key in config.results]
    if config.ir_version < 4:
        declared = {info.name for info in graph_inputs}
        graph_inputs += [_tensor_info(t) for t in main.initializers if t.name not in declared]
    graph = helper.make_graph(main.nodes, "random", graph_inputs, outputs, main.initializers)
    imports = [helper.make_opsetid("", config.opset)]
    if functions:
        imports.append(helper.make_opsetid("local", 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=config.ir_version, functions=functions)


def _tensor_info(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)


def _elem_type(config: Config) -> int:
    return TensorProto.DataType.Value(
        {"float32": "FLOAT", "float64": "DOUBLE"}.get(config.dtype, config.dtype.upper())
    )


def _dims(config: Config, name: str) -> list[Any]:
    """The dimensions that a graph declares for an input or output of the node."""
    time, batch, size = _DIMS[config.x_dims]
    free = {"T": time, "N": batch, "I": size, "D": ..., "H": ...}
    if name in ("X", "Y"):
        letters = ("NT" if config.layout else "TN") + "I"
        if name == "Y":
            letters = "NTDH" if config.layout else "TDNH"
    elif name.startswith(("initial", "Y_")):
        letters = "NDH" if config.layout else "DNH"
    elif name == "sequence_lens":
        letters = "N"
    else:
        return list(config.shape(name))
    shape = zip(letters, config.shape(name), strict=True)
    return [number if free[letter] is ... else free[letter] for letter, number in shape]


def _graph_inputs(config: Config) -> list[onnx.ValueInfoProto]:
    elem_type = _elem_type(config)
    inputs = []
    for name in CONDITIONS.get(config.place, ()):
        inputs.append(helper.make_tensor_value_info(name, TensorProto.BOOL, []))
    if config.x_dims == "unknown_rank":
        inputs.append(helper.make_tensor_value_info("X", elem_type, [None]))
        inputs.append(helper.make_tensor_value_info("X_shape", TensorProto.INT64, [None]))
    else:
        dims = _dims(config, "X")
        dims = [ITERATIONS, *dims] if config.place == "scan" else dims
        inputs.append(helper.make_tensor_value_info("X", elem_type, dims))
    for name, how in config.provisions.items():
        if how in ("input", "initializer_input"):
            kind = TensorProto.INT32 if name == "sequence_lens" else elem_type
            dims = _dims(config, name) if how == "input" else config.shape(name)
            inputs.append(helper.make_tensor_value_info(name, kind, dims))
    return inputs


def _result_info(config: Config, key: str, name: str) -> onnx.ValueInfoProto:
    dims = _dims(config, config.results[key][0])
    if config.place in ("loop", "scan") and key == name:
        dims = [ITERATIONS, *dims]
    return helper.make_tensor_value_info(name, _elem_type(config), dims)


def _provide(scope: _Scope, name: str, how: str, value: np.ndarray | None, x: str) -> str:
    """Make the node's input ``name`` the way ``how`` says; return the value's name."""
    if how in ("input", "same"):
        return name
    assert value is not None
    if how == "constant":
        return scope.constant(name, value, as_node=True)
    if how == "computed":
        return _computed(scope, name, value)
    if how == "dequantized":
        zero_point = np.array(_ZERO_POINT, np.int8)
        parts = {"quantized": _quantized(value), "scale": np.array(_QUANTUM, value.dtype), "zero": zero_point}
        names = [scope.constant(f"{name}_{part}", array) for part, array in parts.items()]
        return scope.add("DequantizeLinear", names, scope.prefix + name)
    if how == "expanded":
        return _expanded(scope, name, value, x)
    return scope.constant(name, value)


def _computed(scope: _Scope, name: str, value: np.ndarray) -> str:
    """``value``, stored with the halves of each entry swapped: Unsqueeze <- Concat <- Slice put it right."""
    entries = []
    for k, entry in enumerate(value):
        stem = f"{name}_{k}"
        half = len(entry) // 2
        swapped = scope.constant(f"{stem}_swapped", np.concatenate([entry[half:], entry[:half]]))
        stem = scope.prefix + stem
        if half:
            cut = len(entry) - half
            front = scope.slice(swapped, cut, len(entry), f"{stem}_front")
            back = scope.slice(swapped, 0, cut, f"{stem}_back")
            swapped = scope.add("Concat", [front, back], f"{stem}_joined", axis=0)
        entries.append(scope.unsqueeze(swapped, f"{stem}_entry"))
    if not entries:
        return scope.constant(name, value)
    return scope.add("Concat", entries, scope.prefix + name, axis=0)


def _expanded(scope: _Scope, name: str, value: np.ndarray, x: str) -> str:
    """``value``, whose batch size is 1, at the batch size of X."""
    config = scope.config
    batch_axis = (0 if config.layout else 1) + (config.place == "scan")
    shape = scope.add("Shape", [x], f"{name}_x_shape")
    axis = scope.constant(f"{name}_axis", np.array([batch_axis], np.int64))
    batch = scope.add("Gather", [shape, axis], f"{name}_batch", axis=0)
    directions = scope.constant(f"{name}_directions", np.array([config.num_directions], np.int64))
    hidden = scope.constant(f"{name}_hidden", np.array([config.hidden_size], np.int64))
    dims = [batch, directions, hidden] if config.layout else [directions, batch, hidden]
    target = scope.add("Concat", dims, f"{name}_shape", axis=0)
    return scope.add("Expand", [scope.constant(f"{name}_row", value), target], name)


def _add_recurrent(scope: _Scope, values: dict[str, str], attributes: Sequence[AttributeProto] = ()) -> None:
    """Add the node and the consumers of its outputs."""
    config = scope.config
    outputs = []
    for name in _OUTPUTS[config.op_type]:
        how = getattr(config, name)
        outputs.append("" if how in ("empty", "omitted") else scope.prefix + name)
    node = helper.make_node(
        config.op_type,
        _trimmed(config, _FORMALS[config.op_type], [values.get(n, "") for n in _FORMALS[config.op_type]]),
        _trimmed(config, _OUTPUTS[config.op_type], outputs),
        **({} if attributes else config.attributes),
    )
    node.attribute.extend(attributes)
    scope.nodes.append(node)
    for key, (name, _) in config.results.items():
        if key != name:
            scope.add(config.consumer, [scope.prefix + name], scope.prefix + key)


def _trimmed(config: Config, formals: Sequence[str], names: list[str]) -> list[str]:
    """``names`` without those at the end that the config wants omitted."""
    while not names[-1] and getattr(config, formals[len(names) - 1]) == "omitted":
        names = names[:-1]
    return names


def _in_main(main: _Scope, inner: _Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    _add_recurrent(main, values)
    return []


def _branch(scope: _Scope, name: str) -> onnx.GraphProto:
    config = scope.config
    outputs = [_result_info(config, key, scope.prefix + key) for key in config.results]
    return helper.make_graph(scope.nodes, name, [], outputs, scope.initializers)


def _zeros(config: Config, prefix: str) -> onnx.GraphProto:
    """A branch that gives zeros of the right shapes."""
    scope = _Scope(config, prefix)
    for key, (name, _) in config.results.items():
        value = np.zeros(config.shape(name)).astype(helper.tensor_dtype_to_np_dtype(_elem_type(config)))
        scope.constant(key, value, as_node=True)
    return _branch(scope, "zeros")


def _in_if(main: _Scope, inner: _Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """The node in the then branch of as many nested Ifs as there are conditions."""
    config = main.config
    _add_recurrent(inner, values)
    scope, conditions = inner, CONDITIONS[config.place]
    for depth, condition in reversed(list(enumerate(conditions))):
        outer = _Scope(config, f"level{depth}_") if depth else main
        branches = {
            "then_branch": _branch(scope, "then"),
            "else_branch": _zeros(config, f"else{depth}_"),
        }
        outputs = [outer.prefix + key for key in config.results]
        outer.nodes.append(helper.make_node("If", [condition], outputs, name=f"If_{depth}", **branches))
        scope = outer
    return []


def _carry_state(inner: _Scope, values: dict[str, str]) -> tuple[list[Any], list[Any]]:
    """The body's input and output that carry the hidden state; the node reads the input."""
    config = inner.config
    if not config.carries_state:
        return [], []
    if config.provisions.get("initial_c") == "same":
        values["initial_c"] = "inner_state"
    values["initial_h"] = "inner_state"
    return (
        [helper.make_tensor_value_info("inner_state", _elem_type(config), _dims(config, "initial_h"))],
        [helper.make_tensor_value_info("inner_state_next", _elem_type(config), _dims(config, "Y_h"))],
    )


def _in_loop(main: _Scope, inner: _Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """The node in a Loop that carries the state or, without one, X; its results are stacked."""
    config = main.config
    start = values["initial_h"] if config.carries_state else values["X"]
    carried_in, carried_out = _carry_state(inner, values)
    if not carried_in:
        values["X"] = "inner_X"
        for name, infos in (("inner_X", carried_in), ("inner_X_next", carried_out)):
            infos.append(helper.make_tensor_value_info(name, _elem_type(config), _dims(config, "X")))
    _add_recurrent(inner, values)
    inner.add("Identity", ["inner_Y_h" if config.carries_state else "inner_X"], carried_out[0].name)
    inner.add("Identity", ["inner_cond"], "inner_cond_next")
    inputs = [
        helper.make_tensor_value_info("inner_iteration", TensorProto.INT64, []),
        helper.make_tensor_value_info("inner_cond", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("inner_cond_next", TensorProto.BOOL, []), *carried_out]
    outputs += [_result_info(config, key, inner.prefix + key) for key in config.results]
    body = helper.make_graph(inner.nodes, "body", inputs + carried_in, outputs, inner.initializers)
    trips = main.constant("trips", np.array(ITERATIONS, np.int64))
    names = ["carried_last", *config.results]
    main.nodes.append(helper.make_node("Loop", [trips, "", start], names, name="Loop_0", body=body))
    return []


def _in_scan(main: _Scope, inner: _Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """The node in a Scan over a stack of X's that carries the state, if any; its results are stacked."""
    config = main.config
    starts = [values["initial_h"]] if config.carries_state else []
    x, values["X"] = values["X"], "inner_X"
    carried_in, carried_out = _carry_state(inner, values)
    _add_recurrent(inner, values)
    if config.carries_state:
        inner.add("Identity", ["inner_Y_h"], carried_out[0].name)
    inputs = [
        *carried_in,
        helper.make_tensor_value_info("inner_X", _elem_type(config), _dims(config, "X")),
    ]
    outputs = carried_out + [_result_info(config, key, inner.prefix + key) for key in config.results]
    body = helper.make_graph(inner.nodes, "body", inputs, outputs, inner.initializers)
    names = ["carried_last"] * len(starts) + list(config.results)
    node = helper.make_node("Scan", [*starts, x], names, name="Scan_0", body=body, num_scan_inputs=1)
    main.nodes.append(node)
    return []


def _in_function(main: _Scope, inner: _Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """The node in a model-local function; its attributes refer to the function's."""
    config = main.config
    outside = {name: value for name, value in values.items() if not value.startswith(inner.prefix)}
    formals = {value: f"inner_{name}" for name, value in reversed(outside.items())}
    inside = {name: formals.get(value, value) for name, value in values.items()}
    names = list(config.attributes)
    if config.all_refs:
        names = sorted(onnx.defs.get_schema(config.op_type, config.opset).attributes)
    references = []
    for name in names:
        kind = _ATTRIBUTE_TYPES.get(name, AttributeProto.INT)
        references.append(AttributeProto(name=name, type=kind, ref_attr_name=f"fn_{name}"))
    _add_recurrent(inner, inside, references)
    function = helper.make_function(
        "local",
        "Recurrent",
        list(formals.values()),
        [inner.prefix + key for key in config.results],
        inner.nodes,
        [helper.make_opsetid("", config.opset)],
        [f"fn_{name}" for name in names],
    )
    given = {f"fn_{name}": value for name, value in config.attributes.items()}
    call = helper.make_node("Recurrent", list(formals), list(config.results), domain="local", **given)
    main.nodes.append(call)
    return [function]


_PLACES = {
    "main": _in_main,
    "if": _in_if,
    "if_in_if": _in_if,
    "loop": _in_loop,
    "scan": _in_scan,
    "function": _in_function,
}
