"""Models that are refused because of the content of their files, whatever the command."""

from __future__ import annotations

from onnx import AttributeProto, NodeProto, TensorProto, helper
from refusal_models import (
    Case,
    at,
    attribute,
    branches,
    call,
    cell,
    external,
    function,
    function_of,
    inner_weight,
    insert,
    large,
    node,
    opset,
    outer_output,
    rename_input,
    sparse,
    sparse_initializer,
    tensor,
    text,
    then,
    valueless,
    x,
)

FLOAT, UINT8, INT32 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT32
SCAN = "scan model.onnx -o out.onnx"
TEXTS = TensorProto(name="rare", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"b"])
EMPTY_CONSTANT = NodeProto(
    op_type="Constant", output=["c"], attribute=[AttributeProto(name="value", type=AttributeProto.TENSOR)]
)
MAPS = helper.make_value_info(
    "probabilities",
    helper.make_sequence_type_proto(helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, []))),
)
FILES = [
    Case("no such file", SCAN, model=None),
    Case("a folder", "scan . -o out.onnx"),
    Case("not ONNX", SCAN, model=b"<html></html>"),
    Case("a Git LFS pointer", SCAN, model=b"version https://git-lfs.github.com/spec/v1\n"),
    Case("truncated", SCAN, model=cell().SerializeToString()[:-30]),
    Case("empty", SCAN, model=b""),
]
TOO_MANY_INPUTS = text(
    17,
    "float[2] h, float[3, 2] X",
    """last, Y = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] x) => (float[2] t, float[2] y) {
        t = Add (s, x)
        y = Neg (t)
    }> (h, X, X)""",
)
GRAPHS = [
    Case(
        "a cycle",
        SCAN,
        then(rename_input(0, "looped"), insert(node("Squeeze", ["Y"], ["looped"]), position=1)),
    ),
    Case(
        "a calling convention that is not JSON",
        "inspect model.onnx",
        lambda m: helper.set_model_props(m, {"rnnlower.pad": "{"}),
    ),
    Case("an input that nothing produces", SCAN, rename_input(0, "nowhere")),
    Case("an output that nothing produces", SCAN, lambda m: setattr(m.graph.output[0], "name", "Z")),
    Case("a map among the outputs", SCAN, lambda m: m.graph.output.append(MAPS)),
    Case("a name given twice", SCAN, insert(node("Identity", ["X"], ["Y"], name="copy"), position=1)),
    Case(
        "a size below 0",
        f"{SCAN} --dim T=5",
        then(
            rename_input(0, "part"),
            insert(
                node("Constant", [], ["one"], value_ints=[1]),
                node("Constant", [], ["last"], value_ints=[2]),
                node("MaxPool", ["X"], ["pooled"], kernel_shape=[9]),
                node("Slice", ["pooled", "one", "one", "last"], ["part"]),
            ),
        ),
    ),
    Case(
        "shape inference without end",
        SCAN,
        then(
            rename_input(0, "part"),
            insert(
                node("Constant", [], ["first"], value_ints=[0]),
                node("Constant", [], ["last"], value_ints=[3]),
                node("MaxPool", ["X"], ["pooled"], kernel_shape=[1]),
                node("Slice", ["pooled", "first", "last"], ["part"]),
            ),
        ),
        environment=(("RNNLOWER_ENGINE_SECONDS", "1e-9"),),
    ),
    Case("a Constant without a value", SCAN, valueless),
    Case("a body that returns what is not its own", SCAN, outer_output, branches()),
    Case("an initializer of a body that hides a value", SCAN, inner_weight, branches()),
    Case("a Scan or Loop that does not fit its body", SCAN, model=TOO_MANY_INPUTS),
    Case(
        "a function that calls itself",
        SCAN,
        then(function("Cell", [node("Cell", ["x"], ["y"], domain="own")]), opset("own", 1)),
    ),
    Case(
        "a name that is no text",
        SCAN,
        model=cell().SerializeToString().replace(b"cell", b"\xff\xfe\xfd\xfc"),
    ),
    Case("an opset below 1", SCAN, model=cell(opset=0)),
    Case("an opset that is not known yet", SCAN, model=cell(opset=99)),
    Case("two versions of the operators", SCAN, opset("ai.onnx", 12)),
    Case("two versions of another domain", SCAN, then(opset("own", 1), opset("own", 2))),
    Case("no version of the format", SCAN, lambda m: m.ClearField("ir_version")),
    Case("an attribute without a type", SCAN, attribute(lambda a: a.ClearField("type"))),
    Case("an attribute whose value is of another type", SCAN, attribute(lambda a: setattr(a, "f", 1.0))),
    Case("an attribute without a value", SCAN, insert(EMPTY_CONSTANT)),
    Case("an attribute without a name", SCAN, attribute(lambda a: a.ClearField("name"))),
    Case(
        "an attribute given twice",
        SCAN,
        lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0]),
    ),
    Case("a required attribute left out", SCAN, insert(node("Cast", ["X"], ["c"], name="cast"))),
    Case("a constant of two values", SCAN, insert(node("Constant", [], ["c"], value_int=1, value_float=1.0))),
    Case("a sparse constant", SCAN, sparse),
    Case("sparse external data", SCAN, sparse_initializer(lambda s: setattr(s.values, "data_location", 1))),
    Case("sparse strings", SCAN, sparse_initializer(lambda s: s.values.CopyFrom(TEXTS))),
    Case("a sparse tensor without a size", SCAN, sparse_initializer(lambda s: s.dims.__setitem__(0, 0))),
    Case(
        "sparse values that are no list",
        SCAN,
        sparse_initializer(lambda s: s.values.dims.__setitem__(slice(None), [1, 2])),
    ),
    Case("sparse indices of another shape", SCAN, sparse_initializer(at(1, 2, 3))),
    Case("a sparse index outside of the shape", SCAN, sparse_initializer(at(-1, 5))),
    Case("sparse indices that do not ascend", SCAN, sparse_initializer(at(5, 5))),
    Case(
        "a sparse tensor that is too large as a dense one",
        SCAN,
        sparse_initializer(lambda s: s.dims.__setitem__(slice(None), [2**20, 2**20])),
    ),
    Case("too few inputs", SCAN, insert(node("Max", [], ["c"], name="largest"))),
    Case("too many outputs", SCAN, lambda m: m.graph.node[0].output.extend(["Y_c", "more"])),
    Case("a value of no known type", SCAN, x(99, "T", 1, 3)),
    Case("more elements than anything holds", SCAN, x(FLOAT, 2**40, 2**40, 3)),
    Case("a call that does not fit its function", SCAN, call(given="X W R B")),
    Case("a function of another version of a domain", SCAN, call(own=2)),
    Case(
        "a graph as an argument of a function",
        SCAN,
        model=text(
            17,
            "bool c",
            """
                Y = own.F <
                    then = first () => (float a) { a = Constant <value_float = 1.0> () },
                    else = second () => (float b) { b = Constant <value_float = 2.0> () }
                > (c)
            """,
            function_of(
                """
                    <then, else> (c) => (y) {
                        y = If <then_branch: graph = @then, else_branch: graph = @else> (c)
                    }
                """,
                17,
            ),
        ),
    ),
]
TENSORS = [
    Case("too little data", SCAN, tensor(lambda t: setattr(t, "raw_data", t.raw_data[:-4]))),
    Case("no known type", SCAN, tensor(lambda t: setattr(t, "data_type", 99))),
    Case("a negative size", SCAN, tensor(lambda t: t.dims.__setitem__(0, -1))),
    Case("a shape that nothing can hold", SCAN, tensor(lambda t: t.dims.extend([2**40, 2**40]))),
    Case("no name of a file", SCAN, external("")),
    Case("no such file", SCAN, external("weights.bin")),
    Case("outside of the folder", SCAN, external("../weights.bin")),
    Case("a symbolic link", SCAN, external("link.bin", length=96)),
    Case("a hard link", SCAN, external("one.bin", length=96)),
    Case("a file too short", SCAN, external("short.bin")),
    Case("another length", SCAN, external("short.bin", length=4)),
    Case("an offset below 0", SCAN, external("short.bin", offset=-1)),
    Case("strings", SCAN, then(external("short.bin"), tensor(lambda t: setattr(t, "data_type", 8)))),
    Case(
        "the model's data as the result's name",
        "scan model.onnx -o weights.data",
        external("weights.data", length=96),
    ),
    Case("too large for one file", f"{SCAN} --external-data never", large("large.bin", 2**31)),
]
