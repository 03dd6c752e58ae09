"""Loops and Scans around the step of a cell."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

RNN = "xw = MatMul (x, W)  hr = MatMul (h, R)  sum = Add (xw, hr)  h_new = Tanh (sum)"
GRU = """
    xz = MatMul (x, W)  hz = MatMul (h, R)  az = Add (xz, hz)  z = Sigmoid (az)
    xn = MatMul (x, W2)  hn = MatMul (h, R2)  an = Add (xn, hn)  n = Tanh (an)
    less = Sub (h, n)  part = Mul (z, less)  h_new = Add (n, part)
"""
LSTM = """
    xw = MatMul (x, W4)  hr = MatMul (h, R4)  sum = Add (xw, hr)
    ai, ao, af, ag = Split <axis = 1, num_outputs = 4> (sum)
    i = Sigmoid (ai)  o = Sigmoid (ao)  f = Sigmoid (af)  g = Tanh (ag)
    kept = Mul (f, c)  fresh = Mul (i, g)  c_new = Add (kept, fresh)  squashed = Tanh (c_new)
    h_new = Mul (o, squashed)
"""
STEPS = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}
SIZES = {"W": (3, 4), "R": (4, 4), "W2": (3, 4), "R2": (4, 4), "W4": (3, 16), "R4": (4, 16)}


def model_of(form: str, cell: str, *, reverse: bool = False, guard: str = "") -> onnx.ModelProto:
    """Return a model of open length that returns all H and the last states."""
    names = ["h", "c"] if cell == "LSTM" else ["h"]
    states = "".join(f", float[2, 4] {name}" for name in names)
    results = "".join(f", float[2, 4] {name}_out" for name in names)
    copies = " ".join(f"{name}_out = Identity ({name}_new)" for name in names) + " y = Identity (h_new)"
    starts, ends = "".join(f", {name}0" for name in names), ", ".join(f"{name}_end" for name in names)
    head = f"{ends}, Y = "
    if form == "scan":
        turned = ", scan_input_directions = [1], scan_output_directions = [1]" if reverse else ""
        loop = f"""{head} Scan <num_scan_inputs = 1, body = step ({states[2:]}, float[2, 3] x) =>
            ({results[2:]}, float[2, 4] y) {{ {STEPS[cell]} {copies} }}{turned}> ({starts[2:]}, X)"""
    else:
        place = "place = Sub (last_one, t)" if reverse else "place = Identity (t)"
        loop = f"""sizes = Shape (X)  T = Gather <axis = 0> (sizes, zero)  last_one = Sub (T, one)
            {head} Loop <body = step (int64 t, bool go{states}) =>
            (bool goes{results}, float[2, 4] y) {{
                {place}  x = Gather <axis = 0> (X, place)  goes = Identity (go) {STEPS[cell]} {copies}
            }}> (T, on{starts})"""
    after = guard or " ".join(f"{name}_last = Identity ({name}_end)" for name in names)
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    main (float[T, 2, 3] X{"".join(f", float[2, 4] {name}0" for name in names)})
    => (float[T, 2, 4] Y{"".join(f", float[2, 4] {name}_last" for name in names)})
    <int64 zero = {{0}}, int64 one = {{1}}, bool on = {{1}}, float nothing = {{0}}> {{
        {loop}
        {after}
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    used = set(STEPS[cell].replace("(", " ").replace(")", " ").replace(",", " ").split())
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name)
        for name, size in SIZES.items()
        if name in used
    )
    onnx.checker.check_model(model, full_check=True)
    return model


TWO_LAYERS = """<ir_version: 10, opset_import: ["" : 18]>
main (float[STEPS, 2, 3] X, float[2, 4] h0, float[2, 4] g0) => (float[STEPS, 2, 4] Y, float[2, 4] last) {
    h_end, last, Y = Scan <num_scan_inputs = 1, body = step (float[2, 4] h, float[2, 4] g, float[2, 3] x)
    => (float[2, 4] h_out, float[2, 4] g_out, float[2, 4] y) {
        xw = MatMul (x, W)  hr = MatMul (h, R)  sum = Add (xw, hr)  h_new = Tanh (sum)
        yw = MatMul (h_new, W2)  gr = MatMul (g, R)  sums = Add (yw, gr)  g_new = Tanh (sums)
        h_out = Identity (h_new)  g_out = Identity (g_new)  y = Identity (g_new)
    }> (h0, g0, X)
}"""


def two_layers(steps: int) -> onnx.ModelProto:
    """Return a Scan of two RNNs, of which the second reads the states of the first."""
    model = onnx.parser.parse_model(TWO_LAYERS.replace("STEPS", str(steps)))
    for name, size in (("W", (3, 4)), ("W2", (4, 4)), ("R", (4, 4))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(size, np.float32), name))
    return model
