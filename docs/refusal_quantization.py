"""Recordings that do not fit, and models that are not quantized."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper, numpy_helper
from refusal_models import Case, cell, double, insert, lens, node, set_attribute, text, then, x
from refusal_quantized import quantized

import rnnlower

CALIBRATE = "calibrate model.onnx good.npz -o out.npz"
QUANTIZE = "quantize model.onnx -o out.onnx --calibration"
TFLITE = f"{QUANTIZE} good.npz --scheme tflite"

LOOP = """
    Y = Loop (n, c, X) <
        body = b (int64 i, bool d, float[2, 1, 3] a) => (bool d, float[2, 1, 3] r) { r = Neg (a) }
    >
"""


def read_twice(model: onnx.ModelProto) -> None:
    """Let another node read R, too."""
    name = model.graph.node[0].input[2]
    model.graph.node.append(helper.make_node("Identity", [name], ["copy"]))
    model.graph.output.append(helper.make_tensor_value_info("copy", TensorProto.FLOAT, None))


def scale_weights(model: onnx.ModelProto) -> None:
    """Make W tiny, next to a bias that is not."""
    name = model.graph.node[0].input[1]
    (tensor,) = (each for each in model.graph.initializer if each.name == name)
    tensor.CopyFrom(numpy_helper.from_array(1e-9 * numpy_helper.to_array(tensor), name))


def spaced(model: onnx.ModelProto) -> None:
    """Put a space into the name of the input."""
    model.graph.input[0].name = model.graph.node[0].input[0] = "X 1"


def in_branch() -> onnx.ModelProto:
    """Return a model whose recurrent node is in a branch."""
    return text(
        17,
        "float[2, 1, 3] X",
        """
            of_w = Constant <value_ints = [1, 2, 3]> ()
            of_r = Constant <value_ints = [1, 2, 2]> ()
            W = ConstantOfShape <value = float[1] {0.5}> (of_w)
            R = ConstantOfShape <value = float[1] {0.5}> (of_r)
            total = ReduceSum <keepdims = 0> (X)
            zero = Sub (total, total)
            c = Equal (total, zero)
            Y = If (c) <
                then_branch = first () => (float a) { a = RNN <hidden_size = 2> (X, W, R) },
                else_branch = second () => (float b) { n = Neg (X) b = RNN <hidden_size = 2> (n, W, R) }
            >
        """,
    )


def strings(model: onnx.ModelProto) -> None:
    """Add an output that holds no numbers."""
    words = helper.make_tensor("words", TensorProto.STRING, [1], [b"cell"])
    model.graph.node.append(helper.make_node("Constant", [], ["words"], value=words))
    model.graph.output.append(helper.make_tensor_value_info("words", TensorProto.STRING, [1]))


QUANTIZATION = [
    Case("a file that is no archive", CALIBRATE.replace("good.npz", "model.onnx")),
    Case("a single array", CALIBRATE.replace("good.npz", "plain.npz")),
    Case("a recording without an input", CALIBRATE.replace("good.npz", "none.npz")),
    Case("a recording of something else", CALIBRATE.replace("good.npz", "name.npz")),
    Case("a recording with too few axes", CALIBRATE.replace("good.npz", "rank.npz")),
    Case("a recording of another type", CALIBRATE.replace("good.npz", "integers.npz")),
    Case("a recording that is not finite", CALIBRATE.replace("good", "nan")),
    Case("a folder that does not exist", CALIBRATE.replace("out.npz", "there/out.npz")),
    Case("ranges in a folder that does not exist", f"{CALIBRATE} --ranges there/r.json"),
    Case("ranges that are no .json", f"{CALIBRATE} --ranges ranges.npz"),
    Case(
        "a state that overflows",
        f"{CALIBRATE} --ranges r.json",
        model=text(
            17,
            "float[2, 1, 3] X",
            """
                of_w = Constant <value_ints = [1, 2, 3]> ()
                of_r = Constant <value_ints = [1, 2, 2]> ()
                W = ConstantOfShape <value = float[1] {1e38}> (of_w)
                R = ConstantOfShape <value = float[1] {1e38}> (of_r)
                Y = RNN <hidden_size = 2, activations = ["Relu"]> (X, W, R)
            """,
        ),
    ),
    Case("a recording of another size", CALIBRATE.replace("good.npz", "shape.npz")),
    Case("stacks of different heights", CALIBRATE.replace("good", "stacks"), lens(TensorProto.INT32)),
    Case("lengths beyond the input's type", CALIBRATE.replace("good", "beyond"), lens(TensorProto.INT32)),
    Case("an empty stack", CALIBRATE.replace("good", "empty")),
    Case(
        "calls of different lengths",
        f"{CALIBRATE} longer.npz",
        x(TensorProto.FLOAT, "T", 1, 3),
    ),
    Case(
        "a recording that is shorter than a chunk",
        CALIBRATE,
        model=rnnlower.stream(cell(), chunk=4, input_shapes={"X": [8, 1, 3]}),
    ),
    Case("a format that does not exist", f"{CALIBRATE} --format csv"),
    Case("a folder that exists", "calibrate model.onnx good.npz -o nothing --format qnn"),
    Case("an input with a space in its name", "calibrate model.onnx spaced.npz -o data --format qnn", spaced),
    Case("a reader in the place of its data", f"{CALIBRATE} --format python"),
    Case("ranges in the place of the data", "calibrate model.onnx good.npz -o out.json --ranges out.json"),
    Case("a Loop", CALIBRATE, model=text(17, "float[2, 1, 3] X, int64 n, bool c", LOOP)),
    Case("no recurrent node", CALIBRATE, model=text(17, "float[2, 1, 3] X", "Y = Neg (X)")),
    Case(
        "a model that is quantized already",
        f"{QUANTIZE} good.npz",
        model=text(
            17,
            "float[2, 1, 3] X, float s, int8 z",
            "q = QuantizeLinear (X, s, z) Y = DequantizeLinear (q, s, z)",
        ),
    ),
    Case("a node that is quantized already", f"{QUANTIZE} good.npz", model=quantized()),
    Case("weights in float64", f"{QUANTIZE} good.npz", double("X", "W", "R", "B", "Y", "Y_h", "Y_c")),
    Case("a node in a branch", f"{CALIBRATE} --ranges r.json", model=in_branch()),
    Case("a model that onnxruntime does not run", CALIBRATE, then(insert(node("Nothing", ["X"], ["n"])))),
    Case("one recording", f"{QUANTIZE} good.npz"),
    Case("a weight that another node reads", f"{QUANTIZE} good.npz --no-verify", read_twice),
    Case("a scheme that does not exist", f"{QUANTIZE} good.npz --scheme fixed"),
    Case("powers of two without a sign", f"{QUANTIZE} good.npz --scheme pow2 --activations uint16"),
    Case("a GRU in the scheme of TensorFlow Lite", TFLITE, model=cell("GRU")),
    Case("other activations in that scheme", TFLITE, set_attribute("activations", ["Relu", "Tanh", "Tanh"])),
    Case("a clip in that scheme", TFLITE, set_attribute("clip", 3.0)),
    Case("16 bits in that scheme", f"{TFLITE} --activations int16"),
    Case("activations that do not exist", f"{QUANTIZE} good.npz --activations int4"),
    Case("states of a model without them", f"{QUANTIZE} good.npz --integer-states --no-verify"),
    Case(
        "integer states of 8 bits",
        f"{QUANTIZE} many_recordings.npz --integer-states --activations int8-only --no-verify",
        model=rnnlower.stream(cell(), chunk=2),
    ),
    Case(
        "recorded states",
        f"{QUANTIZE} with_states.npz --integer-states",
        model=rnnlower.stream(cell(), chunk=2),
    ),
    Case(
        "some of the states",
        CALIBRATE.replace("good", "some_states"),
        model=rnnlower.stream(cell(), chunk=2),
    ),
    Case(
        "weights too small for a bias in that scheme",
        TFLITE.replace("good", "many_recordings"),
        scale_weights,
    ),
    Case("a target that keeps recurrent nodes", f"{QUANTIZE} good.npz --target sonnx"),
    Case("a target without such products", f"{QUANTIZE} good.npz --no-verify --target ort-qnn"),
    Case("a target without such integers", f"{QUANTIZE} good.npz --no-verify --target tensorrt"),
    Case("a target without integers", f"{QUANTIZE} good.npz --no-verify --target mnn"),
    Case("an output of strings", f"{QUANTIZE} many_recordings.npz", strings),
    Case("less than no headroom", f"{QUANTIZE} good.npz --headroom 0.5"),
    Case("ranges alone", f"{QUANTIZE} ranges.json"),
    Case("ranges of another model", f"{QUANTIZE} ranges.json --no-verify"),
    Case("a file that holds no ranges", f"{QUANTIZE} no_ranges.json --no-verify"),
    Case("a ratio that is not reached", f"{QUANTIZE} many_recordings.npz --min-sqnr 200"),
]
