"""Models that cannot be streamed, or padded."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, helper
from refusal_models import (
    Case,
    branches,
    cell,
    insert,
    lens,
    node,
    rename_input,
    set_attribute,
    text,
    then,
    x,
)

STREAM = "stream model.onnx -o out.onnx"
PAD = "pad model.onnx -o out.onnx --max T=8"


def before(*nodes_: object) -> object:
    """Return nodes between X and the recurrent node, which reads `x`."""
    return then(rename_input(0, "x"), insert(*nodes_))  # type: ignore[arg-type]


def conv(*pads: int, stride: int = 1) -> object:
    """Return a convolution over time before the recurrent node, of X turned for it."""
    return before(
        node("Constant", [], ["kernel"], value_floats=[1.0] * 3),
        node("Constant", [], ["kernel_shape"], value_ints=[1, 1, 3]),
        node("Reshape", ["kernel", "kernel_shape"], ["weights"]),
        node("Transpose", ["X"], ["turned"], perm=[2, 1, 0]),
        node("Conv", ["turned", "weights"], ["wide"], name="conv", pads=list(pads), strides=[stride]),
        node("Transpose", ["wide"], ["x"], perm=[2, 1, 0]),
    )


def only_final(model: ModelProto) -> None:
    """Leave the final state alone as an output."""
    del model.graph.output[0]


def only_steps(model: ModelProto) -> None:
    """Leave the output over time alone as an output."""
    del model.graph.output[1:]


def more(steps: int) -> object:
    """Return another input over time."""
    value = helper.make_tensor_value_info("Z", TensorProto.FLOAT, [steps, 3])
    return lambda model: model.graph.input.append(value)


reflected = before(
    node("Constant", [], ["pads"], value_ints=[2, 0, 0, 0, 0, 0]),
    node("Pad", ["X", "pads"], ["x"], name="mirror", mode="reflect"),
)

STREAMS = [
    Case("a duration without a rate", f"{STREAM} --chunk 10ms"),
    Case("a duration that is no number of steps", f"{STREAM} --chunk 10ms --rate 16010"),
    Case("a rate without a duration", f"{STREAM} --chunk 4 --rate 16000"),
    Case("a recurrence from the end", STREAM, set_attribute("direction", b"reverse")),
    Case("lengths at run time", STREAM, lens(TensorProto.INT32, 1)),
    Case(
        "a mean over time",
        STREAM,
        before(node("ReduceMean", ["X"], ["m"], name="mean", axes=[0]), node("Sub", ["X", "m"], ["x"])),
    ),
    Case("an operator that nothing is known of", STREAM, before(node("Einstein", ["X"], ["x"], name="odd"))),
    Case("a convolution that looks ahead", STREAM, conv(1, 1)),
    Case(
        "a reflected start that is longer than a chunk",
        f"{STREAM} --allow-delay",
        then(reflected, only_steps),
    ),
    Case(
        "a start that is reflected, for chunks of any length",
        f"{STREAM} --allow-delay --chunk any",
        then(reflected, only_steps),
    ),
    Case(
        "a spectrum of the whole sequence",
        f"{STREAM} --time-axis X:0",
        before(node("DFT", ["X"], ["z"], name="dft", axis=0), node("ReduceSum", ["z"], ["x"], keepdims=1)),
    ),
    Case("a stride that the chunk does not fit", STREAM, conv(2, 0, stride=2)),
    Case(
        "strides that leave no chunk",
        STREAM,
        then(x(TensorProto.FLOAT, 5, 1, 3), conv(2, 0, stride=2), only_final),
    ),
    Case("a sequence without steps", STREAM, x(TensorProto.FLOAT, 0, 1, 3)),
    Case("a chunk that is longer than the sequence", f"{STREAM} --chunk 6", x(TensorProto.FLOAT, 5, 1, 3)),
    Case(
        "two lengths",
        f"{STREAM} --time-axis X:0 --time-axis Z:0",
        then(x(TensorProto.FLOAT, 5, 1, 3), more(6)),
    ),
    Case(
        "one step, whose axis is one of many",
        STREAM,
        then(
            x(TensorProto.FLOAT, 3),
            before(
                node("Constant", [], ["shape"], value_ints=[1, 1, 3]), node("Reshape", ["X", "shape"], ["x"])
            ),
        ),
    ),
    Case("recurrent nodes in branches", STREAM, model=branches()),
    Case(
        "a chunk that does not divide the sequence, of which the end alone counts",
        f"{STREAM} --chunk 2",
        then(x(TensorProto.FLOAT, 5, 1, 3), only_final),
    ),
    Case("no recurrent node", STREAM, model=text(17, "float[T, 3] X", "Y = Relu (X)")),
    Case("no such input", f"{STREAM} --time-axis Z:0"),
    Case("no such axis", f"{STREAM} --time-axis X:3"),
    Case("an axis that is no number", f"{STREAM} --time-axis X"),
    Case("no such strategy", f"{STREAM} --strategy unfold"),
    Case("a chunk that is no number", f"{STREAM} --chunk all"),
    Case("a chunk of any length, of a model of one", f"{STREAM} --chunk any", x(TensorProto.FLOAT, 5, 1, 3)),
    Case(
        "a chunk of any length, of which the first steps are dropped",
        f"{STREAM} --chunk any --allow-delay",
        then(
            only_steps,
            before(
                node("Constant", [], ["start"], value_ints=[9]),
                node("Constant", [], ["end"], value_ints=[2**40]),
                node("Constant", [], ["axis"], value_ints=[0]),
                node("Slice", ["X", "start", "end", "axis"], ["x"], name="cut"),
            ),
        ),
    ),
    Case("forms of what stays", f"{STREAM} --gates separate"),
    Case("a strategy and a target", f"{STREAM} --strategy unroll --target tract"),
]

PADDING = [
    Case("a length that no input has", PAD, x(TensorProto.FLOAT, 5, 1, 3)),
    Case(
        "an operator without a rule",
        PAD,
        then(
            x(TensorProto.FLOAT, "T", 1, 3),
            before(
                node("NonZero", ["X"], ["n"], name="positions"),
                node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
                node("ReduceSum", ["f"], ["m"], keepdims=0),
                node("Sub", ["X", "m"], ["x"]),
            ),
        ),
    ),
    Case("a maximum without a size", "pad model.onnx -o out.onnx --max T"),
    Case("a maximum of one step", "pad model.onnx -o out.onnx --max T=1"),
    Case("an axis of an input that is not there", f"{PAD} --time-axis Z:0"),
    Case("an axis for two lengths", f"{PAD} --max S=4 --time-axis X:0"),
    Case("an input with two axes of one length", PAD, x(TensorProto.FLOAT, "T", "T", 3)),
    Case(
        "an output with two axes of one length",
        PAD,
        model=text(17, "float[T, 3] X", "t = Transpose (X) Y = MatMul (X, t)"),
    ),
    Case("padding in an old opset", PAD, model=cell(opset=8)),
    Case("several models on standard output", "pad model.onnx -o - --max T=8,16"),
    Case(
        "a source of one length",
        f"{PAD} --time-axis X:0",
        model=text(17, "float[8, 3] X", "i = Constant <value_int = 7> () Y = Gather <axis = 0> (X, i)"),
    ),
    Case(
        "lengths of rows that are not there",
        f"{PAD} --per-row",
        model=text(17, "float[T] X", "Y = Relu (X)"),
    ),
    Case(
        "lengths of rows of two batches",
        f"{PAD} --per-row",
        model=text(17, "float[2, T] X, float[3, T] Z", "y = Softmax (X) w = Softmax (Z) Y = MatMul (y, w)"),
    ),
    Case(
        "a number of steps of rows",
        f"{PAD} --per-row",
        model=text(17, "float[B, T] X", "n = Shape (X) Y = Cast <to = 1> (n)"),
    ),
]
