"""The choices behind a random ``Config``, written once for NumPy and hypothesis.

Every function asks ``choose(options)`` for one of some options. The plainest stands first, so that hypothesis
shrinks toward it; an option that stands there twice is twice as likely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Choose = Callable[[Sequence[Any]], Any]

_BOUNDED = ["Tanh", "Sigmoid", "HardSigmoid", "Softsign", "ScaledTanh"]
_UNBOUNDED = ["Relu", "LeakyRelu", "Elu", "Softplus", "ThresholdedRelu", "Affine"]
_FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
_PARAMETERS = [0.5, 1.0, 0.2, 1.5, 0.0, -0.3]
_OLD_OPSETS = {"LSTM": [6, 1, 2, 5], "GRU": [6, 1, 2, 3, 5], "RNN": [6, 1, 4]}


def draw_config(choose: Choose) -> dict[str, Any]:
    """Return the arguments of a random legal ``Config``."""
    drawn: dict[str, Any] = {"op_type": choose(["LSTM", "GRU", "RNN"])}
    drawn["dtype"] = choose(["float32"] * 6 + ["float16", "float64", "bfloat16"])
    drawn["opset"] = _opset(choose, drawn["op_type"], drawn["dtype"])
    drawn |= _place(choose, drawn["opset"])
    drawn |= _sizes(choose)
    drawn |= _attributes(choose, drawn["op_type"], drawn["opset"])
    drawn |= _activations(choose, drawn)
    drawn |= _inputs(choose, drawn)
    drawn |= _outputs(choose, drawn["op_type"], drawn["opset"])
    drawn |= _scales(choose, drawn)
    drawn["seed"] = choose(range(16))
    return drawn


def _opset(choose: Choose, op_type: str, dtype: str) -> int:
    if dtype == "bfloat16":
        return choose([22, 23, 24, 26])
    if choose([False] * 6 + [True]):
        return choose(_OLD_OPSETS[op_type])
    return choose([14, 17, 18, 21, 22, 7, 8, 9, 10, 11, 12, 13, 15, 16, 19, 20, 24, 26])


def _place(choose: Choose, opset: int) -> dict[str, Any]:
    """Draw the place of the node, and the IR version that allows it."""
    places = ["main"] * 4
    if opset >= 7:
        places += ["if", "if_in_if", "loop", "if_in_loop"]
    if opset >= 9:
        places.append("scan")
    if opset >= 15:
        places.append("function")
    place = choose(places)
    drawn = {"place": place, "x_dims": _x_dims(choose, opset, place)}
    if place != "main":
        drawn["captured"] = choose([True, False])
    if place == "function":
        drawn["all_refs"] = choose([False, True])
    versions = [8, 10] if place == "function" or opset > 12 else [8, 4, 7]
    drawn["ir_version"] = choose([*versions, 3] if place == "main" and opset < 9 else versions)
    return drawn


def _x_dims(choose: Choose, opset: int, place: str) -> str:
    """Draw the declared shape of X; -1 only in the main graph, as shape inference fails on it in others."""
    options = ["static"] * 3 + ["symbolic", "batch", "time", "unknown"]
    options += ["unknown_rank"] if opset >= 14 else []
    return choose([*options, "negative"] if place == "main" else options)


def _sizes(choose: Choose) -> dict[str, int]:
    empty = choose(["none"] * 15 + ["seq_length", "batch_size"])
    return {
        "seq_length": 0 if empty == "seq_length" else choose([2, 1, 3, 4, 5, 7]),
        "batch_size": 0 if empty == "batch_size" else choose([2, 1, 3, 13]),
        "input_size": choose([3, 1, 2, 5]),
        "hidden_size": choose([2, 1, 3, 4]),
    }


def _attributes(choose: Choose, op_type: str, opset: int) -> dict[str, Any]:
    directions = [None, "forward", "reverse", "bidirectional", "reverse", "bidirectional"]
    if op_type == "GRU" and opset < 3:
        directions.append("foward")
    drawn = {
        "hidden_size_given": choose([True] * 9 + [False]),
        "direction": choose(directions),
        "clip": choose([None, None, None, 0.5, 0.1, 3.0]),
    }
    if op_type == "LSTM":
        drawn["input_forget"] = choose([None, 0, 1])
    if op_type == "GRU" and opset >= 3:
        drawn["linear_before_reset"] = choose([None, 0, 1, 1])
    if opset >= 14:
        drawn["layout"] = choose([None, None, 0, 1])
    if opset < 7:
        drawn["output_sequence"] = choose([None, 0, 1])
    return drawn


def _activations(choose: Choose, drawn: dict[str, Any]) -> dict[str, Any]:
    count = _FUNCTIONS[drawn["op_type"]] * (2 if drawn["direction"] == "bidirectional" else 1)
    explicit: dict[str, Any] = {}
    if choose([False, True]):
        pools = [_BOUNDED, _BOUNDED, _BOUNDED + _UNBOUNDED]
        explicit["activations"] = tuple(choose(choose(pools)) for _ in range(count))
    for name in ("activation_alpha", "activation_beta"):
        length = choose([0, *range(count + 2)])
        if length:
            explicit[name] = tuple(choose(_PARAMETERS) for _ in range(length))
    return explicit


def _inputs(choose: Choose, drawn: dict[str, Any]) -> dict[str, str]:
    """Draw the source of each input; see ``Config``."""
    opset, dtype = drawn["opset"], drawn["dtype"]
    given = ["initializer", "initializer", "constant", "input", "initializer_input"]
    if opset >= 7:
        given += ["computed", "computed"]
    weights = list(given)
    if opset >= 19 or (opset >= 10 and dtype == "float32"):
        weights += ["dequantized"] if dtype != "float64" else []
    absent = ["omitted", "empty"]
    # onnxruntime has no Expand of bfloat16.
    states = [*given, "expanded"] if opset >= 8 and dtype != "bfloat16" else given
    # Constant gives int32 from opset 9 on.
    lengths = ["initializer", "input", "input"] + (["constant"] if opset >= 9 else [])
    inputs = {
        "W": choose(weights),
        "R": choose(weights),
        "B": choose(weights + absent * 2),
        "sequence_lens": choose(absent * 4 + lengths),
        "initial_h": choose(absent * 3 + states),
    }
    if drawn["op_type"] == "LSTM":
        same = ["same"] * 2 if inputs["initial_h"] not in absent else []
        inputs["initial_c"] = choose(absent * 3 + states + same)
        inputs["P"] = choose(absent * 4 + weights)
    return inputs


def _outputs(choose: Choose, op_type: str, opset: int) -> dict[str, str]:
    """Draw the uses of each output: at least one is used. GRU-1 must have Y_h."""
    names = ["Y", "Y_h", "Y_c"] if op_type == "LSTM" else ["Y", "Y_h"]
    used = ["graph", "consumed", "both"]
    needed = "Y_h" if op_type == "GRU" and opset < 3 else choose(names)
    return {name: choose(used if name == needed else ["omitted", "empty", "unused", *used]) for name in names}


def _scales(choose: Choose, drawn: dict[str, Any]) -> dict[str, float]:
    """Return magnitudes up to saturation, except where an unbounded function would blow up."""
    unbounded = {*_UNBOUNDED, "ScaledTanh"} & set(drawn.get("activations") or ())
    if unbounded and drawn["clip"] is None:
        return {"x_scale": choose([0.5, 0.1, 1.0]), "weight_scale": choose([0.3, 0.1])}
    return {"x_scale": choose([1.0, 0.01, 10.0]), "weight_scale": choose([0.5, 0.1, 3.0])}
