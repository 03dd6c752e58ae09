"""The models of a ``Config``: a recurrent node, the sources of its inputs, and its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from support.config_inputs import Scope, provide

if TYPE_CHECKING:
    from support.configs import Config

CONDITIONS = {"if": ("cond",), "if_in_if": ("cond", "cond_inner"), "if_in_loop": ("cond",)}
"""The boolean graph inputs of the places that have some."""
STACKED = ("loop", "if_in_loop", "scan")
"""The places that run the node more than once and stack its results."""
ITERATIONS = 2
"""How often they run it."""

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


def build(config: Config) -> onnx.ModelProto:
    """Return the model of ``config``."""
    main = Scope(config)
    in_main = config.place == "main"
    inner = main if in_main else Scope(config, "inner_", config.place == "function")
    graph_inputs = _graph_inputs(config)
    x = "X"
    if config.x_dims == "unknown_rank":
        exact = {"allowzero": 1} if config.opset >= 14 else {}
        x = main.add("Reshape", ["X", "X_shape"], "X_shaped", **exact)
    values, constants = {"X": x}, config.constants()
    for name, how in config.provisions.items():
        # What the graph's inputs feed, and a Loop's first state, cannot live in the body.
        outside = config.captured or how in ("input", "initializer_input", "expanded")
        outside = outside or (config.carries_state and name == "initial_h")
        values[name] = provide(main if outside or in_main else inner, name, how, constants.get(name), x)
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
    """Return the dimensions that a graph declares for an input or output of the node."""
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
            shape = _dims(config, name) if how == "input" else list(config.shape(name))
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
    return inputs


def _result_info(config: Config, key: str, name: str) -> onnx.ValueInfoProto:
    dims = _dims(config, config.results[key][0])
    if config.place in STACKED and key == name:
        dims = [ITERATIONS, *dims]
    return helper.make_tensor_value_info(name, _elem_type(config), dims)


def _add_recurrent(scope: Scope, values: dict[str, str], attributes: Sequence[AttributeProto] = ()) -> None:
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
    """Return ``names`` without those at the end that the config wants omitted."""
    while not names[-1] and getattr(config, formals[len(names) - 1]) == "omitted":
        names = names[:-1]
    return names


def _in_main(main: Scope, inner: Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    _add_recurrent(main, values)
    return []


def _branch(scope: Scope, name: str) -> onnx.GraphProto:
    config = scope.config
    outputs = [_result_info(config, key, scope.prefix + key) for key in config.results]
    return helper.make_graph(scope.nodes, name, [], outputs, scope.initializers)


def _zeros(config: Config, prefix: str) -> onnx.GraphProto:
    """Return a branch that gives zeros of the right shapes."""
    scope = Scope(config, prefix)
    for key, (name, _) in config.results.items():
        value = np.zeros(config.shape(name)).astype(helper.tensor_dtype_to_np_dtype(_elem_type(config)))
        scope.constant(key, value, as_node=True)
    return _branch(scope, "zeros")


def _in_if(main: Scope, inner: Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """Return the node in the then branch of as many nested Ifs as there are conditions."""
    config = main.config
    _add_recurrent(inner, values)
    scope, conditions = inner, CONDITIONS[config.place]
    for depth, condition in reversed(list(enumerate(conditions))):
        outer = Scope(config, f"level{depth}_") if depth else main
        branches = {
            "then_branch": _branch(scope, "then"),
            "else_branch": _zeros(config, f"else{depth}_"),
        }
        outputs = [outer.prefix + key for key in config.results]
        outer.nodes.append(helper.make_node("If", [condition], outputs, name=f"If_{depth}", **branches))
        scope = outer
    return []


def _carry_state(inner: Scope, values: dict[str, str]) -> tuple[list[Any], list[Any]]:
    """Return the body's input and output that carry the hidden state; the node reads the input."""
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


def _in_if_in_loop(main: Scope, inner: Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """Return the node in an If in a Loop that carries X; its results are stacked."""
    body = Scope(main.config, "body_")
    return _loop_over(main, body, values, lambda: _in_if(body, inner, values))


def _in_loop(main: Scope, inner: Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """Return the node in a Loop that carries the state or, without one, X; its results are stacked."""
    return _loop_over(main, inner, values, lambda: _add_recurrent(inner, values))


def _loop_over(
    main: Scope, inner: Scope, values: dict[str, str], fill: Callable[[], object]
) -> list[onnx.FunctionProto]:
    """Return a Loop with the body ``inner``, to which ``fill`` adds what computes the results."""
    config = main.config
    start = values["initial_h"] if config.carries_state else values["X"]
    carried_in, carried_out = _carry_state(inner, values)
    if not carried_in:
        x = values["X"] = f"{inner.prefix}X"
        for name, infos in ((x, carried_in), (f"{x}_next", carried_out)):
            infos.append(helper.make_tensor_value_info(name, _elem_type(config), _dims(config, "X")))
    fill()
    inner.add("Identity", ["inner_Y_h" if config.carries_state else x], carried_out[0].name)
    inner.add("Identity", [f"{inner.prefix}cond"], f"{inner.prefix}cond_next")
    inputs = [
        helper.make_tensor_value_info(f"{inner.prefix}iteration", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{inner.prefix}cond", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info(f"{inner.prefix}cond_next", TensorProto.BOOL, []), *carried_out]
    outputs += [_result_info(config, key, inner.prefix + key) for key in config.results]
    body = helper.make_graph(inner.nodes, "body", inputs + carried_in, outputs, inner.initializers)
    trips = main.constant("trips", np.array(ITERATIONS, np.int64))
    names = ["carried_last", *config.results]
    main.nodes.append(helper.make_node("Loop", [trips, "", start], names, name="Loop_0", body=body))
    return []


def _in_scan(main: Scope, inner: Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """Return the node in a Scan over a stack of X's that carries the state, if any, with stacked results."""
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


def _in_function(main: Scope, inner: Scope, values: dict[str, str]) -> list[onnx.FunctionProto]:
    """Return the node in a model-local function; its attributes refer to the function's."""
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
    "if_in_loop": _in_if_in_loop,
    "scan": _in_scan,
    "function": _in_function,
}
