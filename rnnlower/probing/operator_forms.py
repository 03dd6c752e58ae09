"""Forms of operators in which runtimes differ, and the target limits that describe a failing form."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper

from rnnlower.probing.asking import Question, model_question, parse_model, parse_nodes, question

Values = Mapping[str, Any]

_OPSET = 13


@dataclasses.dataclass(frozen=True)
class OperatorForm:
    """A node in one form.

    Attributes:
        node: The node in ONNX's text syntax, and those that read its output, one per line.
        inputs: The inputs; a tuple is the shape of random numbers.
        limit: The key of the target's limit, and the value to exclude.
        opset: The version of the default domain.
        fed: The letters of the graph inputs, apart from X; the other inputs are initializers.
    """

    op_type: str
    node: str
    inputs: Values
    limit: tuple[str, Any]
    opset: int = _OPSET
    fed: str = ""

    def question(self) -> Question:
        """Return the question whether a runtime computes the form correctly."""
        return question(self.node, _make_arrays(self.inputs), self.opset, {*self.inputs} - {"X", *self.fed})

    def __str__(self) -> str:
        return f"{'; '.join(self.node.splitlines())} at opset {self.opset}, {self.limit[0]} {self.limit[1]}"


def _make_arrays(inputs: Values) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(value).astype(np.float32) if isinstance(value, tuple) else np.asarray(value)
        for name, value in inputs.items()
    }


_OFF_ON = np.array([0.0, 1.0], np.float32)
# Nodes with their inputs: `s` is a graph input; the others, apart from X, are constants.
_FED_FORMS: tuple[tuple[str, Values], ...] = (
    ("Y = Reshape (X, s)", {"X": (2, 6), "s": [3, 4]}),
    ("Y = Expand (X, s)", {"X": (1, 4), "s": [3, 4]}),
    ("Y = Tile (X, s)", {"X": (2, 4), "s": [1, 3]}),
    ("Y = Squeeze (X, s)", {"X": (1, 4, 1), "s": [0]}),
    ("Y = Unsqueeze (X, s)", {"X": (3, 4), "s": [1]}),
    ("A, C = Split <axis = 0> (X, s)", {"X": (5, 4), "s": [2, 3]}),
    ("Y = ReduceSum (X, s)", {"X": (5, 4), "s": [1]}),
    ("Y = Gather (X, s)", {"X": (5, 4), "s": [3, 1]}),
    ("Y = Pad (X, s)", {"X": (2, 4), "s": [0, 1, 0, 2]}),
    ("Y = MatMul (X, s)", {"X": (2, 4), "s": (4, 3)}),
    ("Y = Gemm (X, s, C)", {"X": (2, 4), "s": (4, 3), "C": (3,)}),
    ("Y = Gemm (X, W, s)", {"X": (2, 4), "W": (4, 3), "s": (3,)}),
    ("Y = PRelu (X, s)", {"X": (2, 4), "s": (4,)}),
    ("Y = OneHot (X, s, v)", {"X": [2, 0, 1], "s": 3, "v": _OFF_ON}),
    ("Y = OneHot (X, d, s)", {"X": [2, 0, 1], "d": 3, "s": _OFF_ON}),
    ("Y = Slice (X, s, e, a)", {"X": (5, 4), "s": [1], "e": [4], "a": [0]}),
    ("Y = Slice (X, b, s, a)", {"X": (5, 4), "b": [1], "s": [4], "a": [0]}),
)
_FORMS_BY_ATTRIBUTE: tuple[tuple[str, str, Any, str, Values], ...] = (
    ("DepthToSpace", "mode", "CRD", "Y = DepthToSpace <blocksize = 2> (X)", {"X": (1, 8, 2, 3)}),
    ("Gemm", "transA", 0, "Y = Gemm <transA = 1> (X, W)", {"X": (4, 2), "W": (4, 3)}),
    ("Gemm", "transB", 0, "Y = Gemm <transB = 1> (X, W)", {"X": (2, 4), "W": (3, 4)}),
    ("Gemm", "alpha", 1.0, "Y = Gemm <alpha = 0.5> (X, W)", {"X": (2, 4), "W": (4, 3)}),
    ("Gemm", "beta", 1.0, "Y = Gemm <beta = 0.5> (X, W, C)", {"X": (2, 4), "W": (4, 3), "C": (3,)}),
    ("Pad", "mode", "constant", 'Y = Pad <mode = "reflect"> (X, p)', {"X": (2, 4), "p": [0, 1, 0, 1]}),
    (
        "Pad",
        "mode",
        "constant",
        'Z = Pad <mode = "reflect"> (X, p)\nY = Neg (Z)',
        {"X": (1, 2, 6), "p": [0, 0, 2, 0, 0, 2]},
    ),
)
_RANGE = {name: np.float32(value) for name, value in (("b", 0), ("e", 4), ("d", 1))}
_FORMS_BY_VERSION: tuple[tuple[str, int, str, Values], ...] = (
    ("DepthToSpace", 10, "Y = DepthToSpace <blocksize = 2> (X)", {"X": (1, 8, 2, 3)}),
    ("Split", 11, "A, C = Split <axis = 0, split = [2, 3]> (X)", {"X": (5, 4)}),
    ("Split", 13, "A, C = Split <axis = 0> (X, s)", {"X": (5, 4), "s": [2, 3]}),
    ("Split", 18, "A, C = Split <axis = 0, num_outputs = 2> (X)", {"X": (6, 4)}),
    ("Squeeze", 11, "Y = Squeeze <axes = [0]> (X)", {"X": (1, 4, 1)}),
    ("Squeeze", 13, "Y = Squeeze (X, s)", {"X": (1, 4, 1), "s": [0]}),
    ("Unsqueeze", 11, "Y = Unsqueeze <axes = [0]> (X)", {"X": (4, 2)}),
    ("Unsqueeze", 13, "Y = Unsqueeze (X, s)", {"X": (4, 2), "s": [0]}),
    ("Slice", 9, "Y = Slice <starts = [1], ends = [9], axes = [0]> (X)", {"X": (5, 4)}),
    ("Slice", 13, "Y = Slice (X, b, e, a)", {"X": (5, 4), "b": [-4], "e": [2**62], "a": [0]}),
    ("Clip", 10, "Y = Clip <min = -0.5, max = 0.5> (X)", {"X": (5, 4)}),
    ("Clip", 13, "Y = Clip (X, l, h)", {"X": (5, 4), "l": np.float32(-0.5), "h": np.float32(0.5)}),
    ("ReduceSum", 11, "Y = ReduceSum <axes = [1]> (X)", {"X": (5, 4)}),
    ("ReduceSum", 13, "Y = ReduceSum (X, a)", {"X": (5, 4), "a": [1]}),
    ("Pad", 10, "Y = Pad <pads = [0, 1, 0, 1]> (X)", {"X": (5, 4)}),
    ("Pad", 13, "Y = Pad (X, p)", {"X": (5, 4), "p": [0, 1, 0, 1]}),
    # ONNX's own tests of these feed scalars, have a depth with an axis, or more outputs.
    ("Range", 11, "Z = Range (b, e, d)\nY = Add (X, Z)", {"X": (2, 4), **_RANGE}),
    ("OneHot", 11, "Y = OneHot (X, d, v)", {"X": [2, 0, 1], "d": 3, "v": _OFF_ON}),
    ("LayerNormalization", 17, "Y = LayerNormalization (X, w, b)", {"X": (2, 4), "w": (4,), "b": (4,)}),
)


def _forms() -> Iterator[OperatorForm]:
    for text, inputs in _FED_FORMS:
        (node,) = parse_nodes(text)
        yield OperatorForm(node.op_type, text, inputs, ("constant", [*node.input].index("s")), fed="s")
    for op_type, name, default, text, inputs in _FORMS_BY_ATTRIBUTE:
        yield OperatorForm(op_type, text, inputs, ("attributes", (name, default)))
    for op_type, opset, text, inputs in _FORMS_BY_VERSION:
        version = onnx.defs.get_schema(op_type, opset).since_version
        yield OperatorForm(op_type, text, inputs, ("versions", version), opset)
    yield OperatorForm("Cast", "Y = Cast <to = 6> (X)", {"X": (2, 4)}, ("versions", 13))
    yield OperatorForm("Gather", "Y = Gather (X, s)", {"X": (5, 4), "s": [[3, 1], [0, 2]]}, ("vector", 1))
    ellipsis = 'Y = Einsum <equation = "...i,ji->...j"> (X, W)'
    yield OperatorForm("Einsum", ellipsis, {"X": (2, 3, 4), "W": (5, 4)}, ("spelled", "equation"))
    for kind, indices in (("Elements", [[-1, 0, -2, 1]]), ("ND", [[-1]])):
        values = {"X": (5, 4), "s": indices, "u": (1, 4)}
        yield OperatorForm(f"Gather{kind}", f"Y = Gather{kind} (X, s)", values, ("not_negative", 1))
        yield OperatorForm(f"Scatter{kind}", f"Y = Scatter{kind} (X, s, u)", values, ("not_negative", 1))
    vectors: tuple[Values, Values] = {"X": (4,), "W": (2, 4, 3)}, {"X": (2, 5, 4), "W": (4,)}
    for index, factors in enumerate(vectors):
        yield OperatorForm("MatMul", "Y = MatMul (X, W)", factors, ("not_vector", index))
    each = {"X": (1, 4, 5), "W": (4, 1, 3)}
    yield OperatorForm("ConvTranspose", "Y = ConvTranspose <group = 4> (X, W)", each, ("no_depthwise", True))
    backward = {"X": (5, 4), "b": [-1], "e": [-(2**62)], "a": [0], "p": [-1]}
    yield OperatorForm("Slice", "Y = Slice (X, b, e, a, p)", backward, ("not_negative", 4))
    # A model of constants alone would have no input.
    bare, full = (
        f"Z = ConstantOfShape {value}(s)\nY = Add (X, Z)" for value in ("", "<value = float[1] {0}> ")
    )
    values = {"s": [2, 4], "X": (2, 4)}
    yield OperatorForm("ConstantOfShape", bare, values, ("written", "value"))
    yield OperatorForm("ConstantOfShape", full, values, ("constant", 0), fed="s")
    yield OperatorForm("ConstantOfShape", full, values, ("versions", 9))
    zero = ("attributes", ("allowzero", 0))
    yield OperatorForm("Reshape", "Y = Reshape <allowzero = 1> (X, s)", {"X": (2, 6), "s": [3, 4]}, zero, 14)
    yield OperatorForm("Squeeze", "Y = Squeeze (X)", {"X": (1, 4, 1)}, ("written", "axes"), 11)
    # The gates of a step: where they are wrong, they are as a product and a sum.
    gates = "G = Gemm <transB = 1> (X, W, s)\nS = Sigmoid (G)\nA, C, Y = Split <axis = 1> (S)"
    yield OperatorForm("Gemm", gates, {"X": (2, 64), "W": (192, 64), "s": (2, 192)}, ("constant", 2), fed="s")
    yield OperatorForm("Transpose", "Y = Transpose (X)", {"X": (2, 4)}, ("written", "perm"))
    half, whole = (("attributes", ("onesided", value)) for value in (0, 1))
    yield OperatorForm("DFT", "Y = DFT <axis = 1, onesided = 1> (X)", {"X": (1, 8, 1)}, half, 17)
    yield OperatorForm("DFT", "Y = DFT <axis = 1, inverse = 1, onesided = 1> (X)", {"X": (1, 5, 2)}, half, 17)
    frames = {"X": (1, 12, 1), "h": 4, "w": (8,)}
    yield OperatorForm("STFT", "Y = STFT <onesided = 0> (X, h, w)", frames, whole, 17)


FORMS = tuple(_forms())
_WITH_VALUES = (
    ("Elu", "alpha", 1.0, "Y = Elu <alpha = 0.5> (X)"),
    # OpenVINO takes 0 for the default, in either.
    ("HardSigmoid", "alpha", 0.2, "Y = HardSigmoid <alpha = 0.3, beta = 0.0> (X)"),
    ("HardSigmoid", "alpha", 0.2, "Y = HardSigmoid <alpha = 0.0, beta = 0.3> (X)"),
    ("LeakyRelu", "alpha", 0.01, "Y = LeakyRelu <alpha = 0.5> (X)"),
)
NEEDED = (
    OperatorForm(
        "ScatterND",
        "Z = ScatterND (X, i, u)\nY = Add (X, Z)",
        {"X": (4, 3), "i": [[1], [3]], "u": (2, 3)},
        ("read", "twice"),
        fed="u",
    ),
    *(
        OperatorForm(op_type, node, {"X": (4, 16)}, ("attributes", (name, default)))
        for op_type, name, default, node in _WITH_VALUES
    ),
    OperatorForm("Split", "A, C, Y = Split <axis = 1> (X)", {"X": (2, 48)}, ("written", "split")),
    # An exporter writes the length, and a window follows.
    OperatorForm(
        "DFT",
        "Z = DFT <axis = 2> (X, n)\nM = Mul (Z, w)\nY = Reshape (M, s)",
        {"X": (1, 2, 8, 2), "n": 8, "w": (1, 8, 1), "s": [1, 32]},
        ("read", "in its shape"),
        17,
    ),
)
"""Forms that an operator must support to count: several readers of its result, values, equal parts."""

# Multiples of the scale, since some runtimes remove a pair of quantizers.
_STEPS = (np.arange(8, dtype=np.float32).reshape(2, 4) - 4) / 20
_QUANTIZED = {"X": _STEPS, "s": np.float32(0.05), "z": np.array(7, np.uint8)}
BETWEEN = (
    OperatorForm("Cast", "I = Cast <to = 6> (X)\nY = Add (I, I)", {"X": (2, 4)}, ("between", "operators")),
    OperatorForm(
        "DequantizeLinear",
        "Q = QuantizeLinear (X, s, z)\nY = DequantizeLinear (Q, s, z)",
        _QUANTIZED,
        ("between", "operators"),
    ),
)
"""Forms of operators that some runtimes compute between other operators, but not as graph outputs."""

SIZED = {
    "ConstantOfShape": "z = ConstantOfShape <value = float[1] {0}> (s) Y = Add (X, z)",
    "Expand": "Y = Expand (row, s)",
    "Reshape": "r = Reshape (X, s) Y = Sigmoid (r)",
    "Slice": "z = Concat <axis = 0> (X, X) Y = Slice (z, n, m, first)",
    "Tile": "Y = Tile (row, t)",
}
"""Operators with an input that is often computed from a dynamic size: here ``n`` rows of four features."""


def sized_question(op_type: str) -> Question:
    """Ask whether an operator's input may be computed from the sizes of X."""
    model = parse_model(f"""
        question (float[rows, 4] X) => (float[rows, 4] Y)
        <float[1, 4] row = {{1, 2, 3, 4}}, int64[1] first = {{0}},
         int64[1] one = {{1}}, int64[1] four = {{4}}>
        {{
            sizes = Shape (X) n = Gather <axis = 0> (sizes, first) m = Add (n, n)
            s = Concat <axis = 0> (n, four) t = Concat <axis = 0> (n, one)
            {SIZED[op_type]}
        }}
    """)
    return model_question(model, *(_make_arrays({"X": (rows, 4)}) for rows in (3, 5)))


def split_question(outputs: int) -> Question:
    """Ask whether a Split into this many outputs is correct."""
    names = [f"y{index}" for index in range(outputs)]
    split = helper.make_node("Split", ["X", "s"], names, axis=0)
    inputs = _make_arrays({"X": (outputs, 4), "s": [1] * outputs})
    return question([split], inputs, _OPSET, {"s"})


RANKED = {
    "Add": "Y = Add (X, Z)",
    "Mul": "Y = Mul (X, Z)",
    "Concat": "Y = Concat <axis = 0> (X, Z)",
    "Sigmoid": "Y = Sigmoid (X)",
    "Tanh": "Y = Tanh (X)",
    "MatMul": "Y = MatMul (X, Z)",
    "Transpose": "Y = Transpose <perm = {}> (X)",
    "Reshape": "Y = Reshape (X, s)",
    "Split": "Y, Z2 = Split <axis = 0> (X, p)",
    "Slice": "Y = Slice (X, b, e, a)",
}
"""Operators that are tried at several ranks."""


def rank_question(op_type: str, rank: int) -> Question:
    """Ask whether an operator is correct at this rank."""
    nodes, shape = parse_nodes(RANKED[op_type].format([*reversed(range(rank))])), (2,) * rank
    values = {"X": shape, "Z": shape, "s": [*shape[2:], 4], "p": [1, 1], "b": [1], "e": [2], "a": [rank - 1]}
    inputs = _make_arrays({name: values[name] for name in nodes[0].input})
    return question(nodes, inputs, _OPSET, {*inputs} - {"X", "Z"})


def opset_question(opset: int) -> Question:
    """Ask whether a model of this opset is accepted, with operators whose form is the same at all opsets."""
    lines = ["A = MatMul (X, W)", "C = Add (A, b)", "D = Sigmoid (C)", "E = Tanh (C)", "F = Mul (D, E)"]
    lines += ["G = Concat <axis = 0> (F, C)", "H = Transpose <perm = [1, 0]> (G)", "Y = Reshape (H, s)"]
    inputs = _make_arrays({"X": (2, 4), "W": (4, 4), "b": (4,), "s": [2, 8]})
    return question("\n".join(lines), inputs, opset, {"W", "b", "s"})
