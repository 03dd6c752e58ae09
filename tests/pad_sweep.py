"""A sweep over random stacks of layers: padded, and compared with the source at several lengths.

``python tests/pad_sweep.py 2000`` prints how many are wrong, how many are refused, and how many of the same
sources are wrong when they are merely padded with zeros. Any wrong one is printed with its layers.
"""

from __future__ import annotations

import collections
import json
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import rnnlower

MOST, SIZE = 24, 4
LENGTHS = (5, 7, 8, 11, 16, 23, 24)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
Layer = tuple[str, str]


def _as_channels(nodes: str) -> str:
    """Return the nodes from i to o between Transposes: [T, 1, C] to [1, C, T] and back."""
    return f"@i = Transpose <perm = [1, 2, 0]> (@x) {nodes} @y = Transpose <perm = [2, 0, 1]> (@o)"


def _recurrent(op_type: str, direction: str) -> str:
    weights = {"LSTM": ("WL", "RL"), "GRU": ("WG", "RG"), "RNN": ("WN", "RN")}[op_type]
    many = direction == "bidirectional"
    own = ", ".join(f"{name}{2 if many else 1}" for name in weights)
    shape = f"@n = Constant <value_ints = [0, 0, -1]> () @r = Reshape (@t, @n) @y = MatMul (@r, P{1 + many})"
    return (
        f'@h = {op_type} <hidden_size = 4, direction = "{direction}"> (@x, {own}) '
        f"@t = Transpose <perm = [0, 2, 1, 3]> (@h) {shape}"
    )


def _state(op_type: str) -> str:
    own = {"LSTM": "WL2, RL2", "GRU": "WG2, RG2", "RNN": "WN2, RN2"}[op_type]
    return (
        f'@h, @s = {op_type} <hidden_size = 4, direction = "bidirectional"> (@x, {own}) '
        "@a = Constant <value_ints = [0]> () @m = ReduceSum <keepdims = 1> (@s, @a) @y = Add (@x, @m)"
    )


def _slice(begin: int, end: int, step: int) -> str:
    return (
        f"@b = Constant <value_ints = [{begin}]> () @e = Constant <value_ints = [{end}]> () "
        f"@a = Constant <value_ints = [0]> () @p = Constant <value_ints = [{step}]> () "
        "@y = Slice (@x, @b, @e, @a, @p)"
    )


LAYERS: dict[str, str] = {
    **{
        f"{op} {direction}": _recurrent(op, direction)
        for op in ("LSTM", "GRU", "RNN")
        for direction in ("forward", "reverse", "bidirectional")
    },
    **{f"{op} final state": _state(op) for op in ("LSTM", "GRU", "RNN")},
    "linear": "@m = MatMul (@x, P1) @p = Add (@m, b) @y = Tanh (@p)",
    "conv": _as_channels("@c = Conv <pads = [1, 1]> (@i, C, b) @o = Sigmoid (@c)"),
    "dilated conv": _as_channels("@o = Conv <pads = [2, 2], dilations = [2]> (@i, C, b)"),
    "strided conv": _as_channels("@o = Conv <pads = [1, 1], strides = [2]> (@i, C, b)"),
    "batch norm": _as_channels("@o = BatchNormalization (@i, b, b, b, v)"),
    "transposed conv": _as_channels("@o = ConvTranspose <strides = [2]> (@i, D)"),
    "max pool": _as_channels("@o = MaxPool <kernel_shape = [3], pads = [1, 1]> (@i)"),
    "strided max pool": _as_channels("@o = MaxPool <kernel_shape = [2], strides = [2]> (@i)"),
    "mean pool": _as_channels("@o = AveragePool <kernel_shape = [3], pads = [1, 1]> (@i)"),
    "instance norm": _as_channels("@o = InstanceNormalization (@i, b, b)"),
    "squeeze excite": _as_channels("@g = GlobalAveragePool (@i) @s = Sigmoid (@g) @o = Mul (@i, @s)"),
    "layer norm": "@y = LayerNormalization (@x, b, b)",
    "mean subtracted": "@m = ReduceMean <axes = [0]> (@x) @y = Sub (@x, @m)",
    "largest subtracted": "@m = ReduceMax <axes = [0]> (@x) @y = Sub (@x, @m)",
    "smallest subtracted": "@m = ReduceMin <axes = [0]> (@x) @y = Sub (@x, @m)",
    "softmax gate": "@s = Softmax <axis = 0> (@x) @y = Add (@x, @s)",
    "attention": (
        "@q = Transpose <perm = [1, 0, 2]> (@x) @k = Transpose <perm = [1, 2, 0]> (@x) "
        "@w = MatMul (@q, @k) @p = Softmax <axis = 2> (@w) @o = MatMul (@p, @q) "
        "@y = Transpose <perm = [1, 0, 2]> (@o)"
    ),
    "positions": (
        "@n = Shape (@x) @z = Constant <value_int = 0> () @d = Gather (@n, @z) "
        "@o = Constant <value_int = 1> () @r = Range (@z, @d, @o) @f = Cast <to = 1> (@r) @g = Sin (@f) "
        "@a = Constant <value_ints = [1, 2]> () @u = Unsqueeze (@g, @a) @y = Add (@x, @u)"
    ),
    "mask of its own": (
        "@n = Shape (@x) @o = ConstantOfShape <value = float[1] {1.0}> (@n) "
        "@a = Constant <value_ints = [0]> () "
        "@s = ReduceSum <keepdims = 1> (@o, @a) @y = Div (@x, @s)"
    ),
    "divided by the length": (
        "@n = Shape (@x) @f = Cast <to = 1> (@n) @z = Constant <value_int = 0> () @d = Gather (@f, @z) "
        "@q = Sqrt (@d) @y = Div (@x, @q)"
    ),
    "sum from the end": "@z = Constant <value_int = 0> () @y = CumSum <reverse = 1> (@x, @z)",
    "flip": _slice(-1, -(2**63), -1),
    "without the first": _slice(1, 2**63 - 1, 1),
    "without the last": _slice(0, -1, 1),
    "every second": _slice(0, 2**63 - 1, 2),
    "last step added": (
        "@z = Constant <value_ints = [-1]> () @l = Gather <axis = 0> (@x, @z) @y = Add (@x, @l)"
    ),
}
HEADS = {
    "all steps": "y = Identity (@x)",
    "mean": "y = ReduceMean <axes = [0]> (@x)",
    "last": "z = Constant <value_int = -1> () y = Gather <axis = 0> (@x, z)",
    "largest": "y = ReduceMax <axes = [0], keepdims = 0> (@x)",
}
_SHAPES = {
    **{f"W{c}{d}": (d, g * SIZE, SIZE) for c, g in (("L", 4), ("G", 3), ("N", 1)) for d in (1, 2)},
    **{f"R{c}{d}": (d, g * SIZE, SIZE) for c, g in (("L", 4), ("G", 3), ("N", 1)) for d in (1, 2)},
    "P1": (SIZE, SIZE),
    "P2": (2 * SIZE, SIZE),
    "C": (SIZE, SIZE, 3),
    "D": (SIZE, SIZE, 2),
    "b": (SIZE,),
    "v": (SIZE,),
}


def make(seed: int) -> tuple[list[str], onnx.ModelProto]:
    """Return a random model with the names of its layers."""
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.choice([*LAYERS], rng.integers(1, 6))]
    head = str(rng.choice([*HEADS]))
    text, last = "", "x"
    for number, name in enumerate(names):
        text += LAYERS[name].replace("@x", last).replace("@", f"n{number}_") + " "
        last = f"n{number}_y"
    text += HEADS[head].replace("@x", last)
    rank = "float[A, 1, 4] y" if head not in ("last", "largest") else "float[1, 4] y"
    model = onnx.parser.parse_model(f"{HEAD} main (float[T, 1, 4] x) => ({rank}) {{ {text} }}")
    read = {name for node in model.graph.node for name in node.input}
    for name, shape in _SHAPES.items():
        if name in read:
            array = np.abs(rng.normal(1, 0.2, shape)) if name == "v" else rng.normal(0, 0.5, shape)
            model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return [*names, head], model


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def judge(seed: int) -> tuple[str, bool, str]:
    """Return the verdict on a random model, whether mere padding is wrong, and a description."""
    names, model = make(seed)
    source = _session(model)
    try:
        padded = rnnlower.pad(model, max={"T": MOST})
    except rnnlower.UnsupportedModelError as error:
        return "refused", False, f"{names}: {error}"
    (entry,) = (each.value for each in padded.metadata_props if each.key == "rnnlower.pad")
    told, fixed = json.loads(entry), _session(padded)
    outputs = told["outputs"]
    rng, worst, naive, ran = np.random.default_rng([seed, 1]), 0.0, False, 0
    for length in LENGTHS:
        if length < told["least"]["T"]:
            continue
        x = rng.normal(size=(length, 1, SIZE)).astype(np.float32)
        try:
            (expected,) = source.run(None, {"x": x})
        except Exception:
            continue  # The source itself takes no sequence as short as this.
        ran += 1
        rest = rng.normal(0, 100, (MOST - length, 1, SIZE)).astype(np.float32)
        zeros = np.concatenate([x, np.zeros_like(rest)])
        feeds = {"x": np.concatenate([x, rest]), "length": np.array([length])}
        found, merely = fixed.run(None, feeds)[0], source.run(None, {"x": zeros})[0]
        if "y" in outputs:
            size = eval(outputs["y"]["size"], {"T": length})
            found, merely = found[:size], merely[:size]
        if found.shape != expected.shape:
            return "wrong", naive, f"{names}: {found.shape} for {expected.shape} at {length}"
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        worst = max(worst, float(np.abs(found - expected).max(initial=0)) / scale)
        naive |= float(np.abs(merely - expected).max(initial=0)) / scale > 1e-3
    if not ran:
        return "too short", naive, str(names)
    return ("right" if worst < 2e-5 else "wrong"), naive, f"{names}: {worst:.1e}"


def main(count: int) -> int:
    """Judge this many models; return the number of wrong ones."""
    verdicts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    merely = 0
    for seed in range(count):
        verdict, naive, words = judge(seed)
        verdicts[verdict] += 1
        merely += naive
        if verdict == "refused":
            reasons[words.partition("]: ")[2][:110]] += 1
        elif verdict == "wrong":
            print(f"seed {seed} {words}", flush=True)
    print(
        f"{count} models x {len(LENGTHS)} lengths: {dict(verdicts)}; merely padded with zeros: {merely} wrong"
    )
    for reason, times in reasons.most_common(12):
        print(f"{times:5} {reason}")
    return verdicts["wrong"]


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)))
