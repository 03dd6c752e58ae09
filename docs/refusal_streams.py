"""Models that cannot be streamed, or padded."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, helper
from refusal_models import (
    Case,
    branches,
    insert,
    lens,
    node,
    rename_input,
    set_attribute,
    text,
    then,
    x,
)

BETWEEN = """
    t = Transpose <perm = [1, 0, 2]> (X)
    k = Transpose <perm = [0, 2, 1]> (t)
    s = MatMul (t, k)
    [look] w = Softmax (s)
    Y = MatMul (w, t)
"""
MASKED = BETWEEN.replace(
    "[look] w = Softmax (s)",
    """
    n = Shape <start = 0, end = 1> (X)
    b = Concat <axis = 0> (n, n)
    z = ConstantOfShape (b)
    [mask] m = Add (s, z)
    w = Softmax (m)
    """,
)
JOINED = """
    n = Shape <start = 0, end = 1> (X)
    rest = Constant <value_ints = [7, 1]> ()
    s = Concat <axis = 0> (n, rest)
    k = ConstantOfShape (s)
    [join] x = Concat <axis = 2> (k, X)
    t = Transpose <perm = [1, 0, 2]> (x)
    w = Constant <value = float[1, 1, 2] {1, 1}> ()
    r = Constant <value = float[1, 1, 1] {1}> ()
    Y = RNN <hidden_size = 1> (t, w, r)
"""
DIVIDED = JOINED.replace("k = ConstantOfShape (s)", "f = Cast <to = 1> (n) k = Expand (f, s)").replace(
    "[join] x = Concat <axis = 2> (k, X)", "[divide] y = Div (X, k) x = Concat <axis = 2> (y, y)"
)
STREAM = "stream model.onnx -o out.onnx"
PAD = "pad model.onnx -o out.onnx --max T=8"

STREAMED = {
    "rnnlower.state": "{}",
    "rnnlower.stream": '{"chunk": 4, "inputs": {"X": 0}, "outputs": {}, "delay": 0}',
}
PADDED = {
    "rnnlower.pad": '{"max": {"T": 8}, "least": {"T": 1}, "inputs": {"X": 0}, "outputs": {}, '
    '"lengths": {"T": "length"}, "symbols": {"X": "T"}, "form": "length"}'
}


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


def input_as_output(model: ModelProto) -> None:
    """Make X an output, too."""
    model.graph.output.append(model.graph.input[0])


def more(steps: int) -> object:
    """Return another input over time."""
    value = helper.make_tensor_value_info("Z", TensorProto.FLOAT, [steps, 3])
    return lambda model: model.graph.input.append(value)


def renamed(**names: str) -> object:
    """Return the change of names of inputs and outputs."""

    def change(model: ModelProto) -> None:
        graph = model.graph
        for value in (*graph.input, *graph.output):
            value.name = names.get(value.name, value.name)
        for each in graph.node:
            each.input[:] = [names.get(name, name) for name in each.input]
            each.output[:] = [names.get(name, name) for name in each.output]

    return change


def of_type(name: str, elem_type: int) -> object:
    """Return the change of an input's type."""

    def change(model: ModelProto) -> None:
        (value,) = (each for each in model.graph.input if each.name == name)
        value.type.tensor_type.elem_type = elem_type

    return change


def of_opset(version: int) -> object:
    """Return the change of the opset."""

    def change(model: ModelProto) -> None:
        model.opset_import[0].version = version

    return change


PARTS = "stream model.onnx other.onnx -o out.onnx"


def relu_of(inputs: str) -> ModelProto:
    """Return a model that computes Relu of X."""
    return text(17, inputs, "Y = Relu (X)")


relu = relu_of("float[T, 3] X, float[T, 3] C")
apart = renamed(X="A", Y="B")

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
        "an output that is an input, beside a convolution that looks ahead",
        f"{STREAM} --allow-delay",
        then(conv(1, 1), only_steps, input_as_output),
    ),
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
    Case(
        "attention over all steps",
        f"{STREAM} --time-axis X:0",
        model=text(17, "float[T, 1, 3] X", BETWEEN),
    ),
    Case(
        "attention whose mask is too large",
        f"{STREAM} --time-axis X:0 --chunk 5000",
        model=text(17, "float[T, 1, 3] X", MASKED),
    ),
    Case(
        "a constant with a dynamic batch that is joined to each step",
        STREAM,
        model=text(17, "float[N, 7, 1] X", JOINED),
    ),
    Case(
        "a constant that follows from the number of a dynamic batch",
        STREAM,
        model=text(17, "float[N, 7, 1] X", DIVIDED),
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
    Case("a state that is not there", f"{STREAM} --state Z=X"),
    Case("a state of another shape", f"{STREAM} --state Y=X"),
    Case(
        "a state whose end is no output",
        STREAM,
        model=text(
            17,
            "float[3] X, float[1, 6, 3] W, float[1, 6, 2] R, float[1, 1, 2] h",
            "shape = Constant <value_ints = [1, 1, 3]> () x = Reshape (X, shape) "
            "Y = GRU <hidden_size = 2> (x, W, R, , , h)",
        ),
    ),
    Case("several steps a call", f"{STREAM} --state Y=X --chunk 4", model=relu),
    Case("code for a dynamic batch", f"{STREAM} --time-axis X:0 --emit c", model=relu_of("float[T, B] X")),
    Case("code for a type", f"{STREAM} --time-axis X:0 --emit c", model=relu_of("float16[T, 3] X")),
    Case("code in a language", f"{STREAM} --emit java"),
    Case("code in the place of the model", "stream model.onnx -o model.c --emit c"),
    Case("code next to standard output", "stream model.onnx -o - --emit c"),
    Case("one file, and a connection", f"{STREAM} --connect Y=X"),
    Case("one file twice", "stream model.onnx model.onnx -o out.onnx --connect Y=X"),
    Case("files without a connection", PARTS, apart, relu),
    Case("a connection of nothing", f"{PARTS} --connect Z=X", apart, relu),
    Case("a connection without an input", f"{PARTS} --connect B", apart, relu),
    Case("an input that is fed twice", f"{PARTS} --connect B=X --connect Y=X", apart, relu),
    Case("an output in two files", f"{PARTS} --connect Y=A", renamed(X="A"), relu),
    Case("a file that feeds itself", f"{PARTS} --connect B=A --connect B=X", apart, relu),
    Case("files that feed each other", f"{PARTS} --connect B=X --connect Y=A", apart, relu),
    Case("files of two opsets", f"{PARTS} --connect B=X", then(apart, of_opset(13)), relu),
    Case(
        "an input of two files, of two types",
        f"{PARTS} --connect B=X",
        then(apart, of_type("C", TensorProto.DOUBLE)),
        relu,
    ),
    Case(
        "a Scan from the end",
        f"{STREAM} --time-axis X:0 --no-lift",
        model=text(
            17,
            "float[T, 3] X, float[3] h",
            "last, Y = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = b "
            "(float[3] s, float[3] x) => (float[3] t, float[3] y) { t = Add (s, x) y = Relu (t) }> (h, X)",
        ),
    ),
    Case("forms of what stays", f"{STREAM} --gates separate"),
    Case("a strategy and a target", f"{STREAM} --strategy unroll --target tract"),
    Case("a model that is streamed", STREAM, lambda m: helper.set_model_props(m, STREAMED)),
    Case("a model that is padded", STREAM, lambda m: helper.set_model_props(m, PADDED)),
]

PADDING = [
    Case("a length that no input has", PAD, x(TensorProto.FLOAT, 5, 1, 3)),
    Case("chunks of one size", PAD, lambda m: helper.set_model_props(m, STREAMED)),
    Case("a model that is padded already", PAD, lambda m: helper.set_model_props(m, PADDED)),
    Case("a model without nodes", PAD, model=text(17, "float[T, 3] Y", "")),
    Case(
        "an input of a padded model that is set",
        "scan model.onnx -o out.onnx --dim T=8 --set X=0",
        lambda m: helper.set_model_props(m, PADDED),
    ),
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
    Case(
        "positions of several numbers",
        f"{PAD} --per-row",
        model=text(
            17, "float[B, T, 3] X", "n = Constant <value = int64[1, 2] {0, 1}> () Y = GatherND (X, n)"
        ),
    ),
    Case(
        "positions that change with the length, as an output",
        PAD,
        model=text(
            17,
            "float[T, 3] X",
            "n = Shape <end = 1> (X) z = Constant <value_ints = [0]> () t = Squeeze (n, z) "
            "o = Constant <value_int = 0> () s = Mul (t, t) r = Range (o, s, t) Y = Cast <to = 1> (r)",
        ),
    ),
    Case("several models on standard output", "pad model.onnx -o - --max T=8,16"),
    Case(
        "a source of one length",
        f"{PAD} --time-axis X:0",
        model=text(17, "float[8, 3] X", "i = Constant <value_int = 7> () Y = Gather <axis = 0> (X, i)"),
    ),
    Case(
        "a maximum that the model does not accept",
        PAD.replace("8", "9"),
        model=text(17, "float[T] X", "n = Constant <value_ints = [-1, 2]> () Y = Reshape (X, n)"),
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
