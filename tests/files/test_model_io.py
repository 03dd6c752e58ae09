"""Reading of models: what is kept, how it is read, and that arguments are never changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from support.judge import recurrent_left
from support.places import MODELS
from support.small_models import recurrent_model

import rnnlower
from rnnlower.files.checks import check_proto
from rnnlower.files.model_io import stage_model


def static_model(**options: object) -> onnx.ModelProto:
    return recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}, **options)


@pytest.mark.parametrize("node_domain", ["", "ai.onnx"])
@pytest.mark.parametrize("imported", ["", "ai.onnx"])
def test_both_names_of_the_default_domain(imported: str, node_domain: str) -> None:
    model = static_model()
    model.opset_import[0].domain = imported
    model.graph.node[0].domain = node_domain
    for lowered in (rnnlower.scan(model), ir.to_proto(rnnlower.scan(ir.from_proto(model)))):
        assert recurrent_left(lowered) == []
        assert list(lowered.opset_import) == [helper.make_opsetid("", 17)]


def test_two_versions_of_the_default_domain() -> None:
    model = static_model()
    model.opset_import.append(helper.make_opsetid("ai.onnx", 13))
    with pytest.raises(rnnlower.InvalidModelError, match="17 and 13"):
        rnnlower.scan(model)


def test_a_missing_opset_import_is_version_1() -> None:
    model = recurrent_model(opset=1, inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}, output_sequence=1)
    del model.opset_import[:]
    lowered = rnnlower.unroll(model)
    assert recurrent_left(lowered) == []
    assert lowered.opset_import[0].version == 7


def test_metadata_and_doc_strings_are_kept() -> None:
    model = static_model()
    model.ir_version = 10
    model.doc_string, model.producer_name, model.domain, model.model_version = "model", "maker", "field", 7
    graph = model.graph
    graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "scale"))
    graph.initializer[-1].doc_string = "read by nobody"
    for part in (graph, graph.input[0], graph.output[0], graph.node[0]):
        part.doc_string = "text"
    for part in (model, graph, graph.input[0], graph.output[0], graph.node[0]):
        part.metadata_props.add(key="key", value="value")
    for name in ("X", "Y"):
        annotation = graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    model.opset_import.append(helper.make_opsetid("of.nobody", 2))
    lowered = rnnlower.scan(model)
    for field in ("doc_string", "producer_name", "domain", "model_version", "metadata_props", "opset_import"):
        assert getattr(lowered, field) == getattr(model, field)
    for field in ("name", "doc_string", "metadata_props", "quantization_annotation", "input", "output"):
        assert getattr(lowered.graph, field) == getattr(graph, field)
    assert graph.initializer[-1] in lowered.graph.initializer
    producers = {out: node for node in lowered.graph.node for out in node.output}
    for out in ("Y", "Y_h"):
        assert producers[out].doc_string == "text"
        assert producers[out].metadata_props == graph.node[0].metadata_props


def test_ir_model_and_its_tensors_stay_as_they_are() -> None:
    """Renaming a value renames its tensor, which a clone shares."""
    model = static_model()
    own = ir.from_proto(model)
    tensors = {name: value.const_value for name, value in own.graph.initializers.items()}
    rnnlower.unroll(own)
    assert {name: value.const_value for name, value in own.graph.initializers.items()} == tensors
    assert [tensor.name for tensor in tensors.values() if tensor is not None] == list(tensors)


@pytest.mark.parametrize("kind", ["lstm13_in_if_in_loop_captured", "lstm18_function_absent_ref_attr"])
def test_an_ir_model_and_the_tensors_of_its_constants_stay_as_they_are(kind: str) -> None:
    """Constants that become initializers elsewhere get other names."""
    own = ir.load(MODELS / f"{kind}.onnx")
    before = ir.to_proto(own)
    rnnlower.lower(own, target="tract")
    assert ir.to_proto(own) == before


@pytest.mark.parametrize("suffix", ["onnx", "textproto", "json", "onnxtxt"])
def test_a_file_that_is_no_model_is_refused_in_every_format(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_text("{")
    with pytest.raises(rnnlower.InvalidModelError, match="is not an ONNX model"):
        rnnlower.scan(path)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "a Git LFS pointer"),
        (b"\x18\0\0\0ORTM\0\0\0\0", "in ORT format"),
        (b"\x1c\0\0\0TFL3\x14\0", "a TFLite model"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"PK\x03\x04\x14\0", "a zip archive"),
        (b"<html>", "or is truncated"),
    ],
)
def test_a_file_of_another_format_is_named(start: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(start)
    with pytest.raises(rnnlower.InvalidModelError, match=f"is not an ONNX model, .*{reason}"):
        rnnlower.scan(path)


def test_textual_form(tmp_path: Path) -> None:
    path = tmp_path / "model.textproto"
    path.write_text(str(static_model()))
    assert rnnlower.scan(path) == rnnlower.scan(static_model())


def test_textual_forms_are_not_written(tmp_path: Path) -> None:
    own = ir.from_proto(static_model())
    with pytest.raises(rnnlower.OptionError, match=r"model\.onnx"), stage_model(own, tmp_path / "model.json"):
        pass
    assert not list(tmp_path.iterdir())


def test_two_versions_of_a_domain_are_refused(tmp_path: Path) -> None:
    model = recurrent_model()
    model.opset_import.append(onnx.helper.make_opsetid("", 9))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(rnnlower.InvalidModelError, match=r"imports versions \d+ and 9 of the default domain"):
        rnnlower.inspect(tmp_path / "model.onnx")


def test_nodes_that_come_before_what_their_bodies_read() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> main (float[2] X, bool c) => (float[2] Y)
        {
            Y = If (c) <
                then_branch = first () => (float[2] a) { a = Neg (late) },
                else_branch = second () => (float[2] b) { b = Abs (X) }
            >
            late = Exp (X)
        }
    """)
    result = rnnlower.convert(model, opset=18)
    assert [node.op_type for node in result.graph.node] == ["Exp", "If"]
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y = Neg (x)", "nothing produces the output 'z'"),
        ("z = Neg (x)  z = Exp (x)", "unnamed Exp node (output 'z') produces 'z', which exists already"),
        ("x = Neg (x)  z = Exp (x)", "unnamed Neg node (output 'x') produces 'x', which exists already"),
    ],
)
def test_invalid_names_in_a_function_are_refused(body: str, said: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        main (float[2] X) => (float[2] Y) {{ Y = own.F (X) }}
        <domain: "own", opset_import: ["" : 17]> F (x) => (z) {{ {body} }}
    """)
    with pytest.raises(rnnlower.InvalidModelError, match=None) as caught:
        rnnlower.convert(model, opset=18)
    assert f"function own::F: {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        (
            "first () => (float[2] a) <float[2] w = {1, 2}> { a = Neg (w) }",
            "initializer of a body has the name 'w'",
        ),
        (
            "first () => (float[2] a) { V = Neg (X)  a = Abs (V) }",
            "(output 'V') produces 'V', which exists already",
        ),
        ("first () => (float[2] Y) { Y = Neg (X) }", None),
        ("first () => (float[2] a) { late = Neg (X)  a = Abs (late) }", None),
    ],
)
def test_names_of_a_body_beside_those_around_it(inside: str, said: str | None) -> None:
    """A name from before the body must not be given again; the If's own, and later ones, may."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2] X, bool c) => (float[2] Y, float[2] late, float[2] V) <float[2] w = {{1, 1}}>
        {{
            V = Mul (X, w)
            Y = If (c) <
                then_branch = {inside},
                else_branch = second () => (float[2] b) {{ b = Abs (X) }}
            >
            late = Exp (X)
        }}
    """)
    if said is None:
        assert rnnlower.verify(model, rnnlower.convert(model, opset=18))
        return
    with pytest.raises(rnnlower.InvalidModelError) as caught:
        rnnlower.convert(model, opset=18)
    assert said in str(caught.value)


def test_an_output_that_is_declared_a_scalar() -> None:
    model = static_model()
    for output in model.graph.output:
        del output.type.tensor_type.shape.dim[:]
    assert recurrent_left(rnnlower.unroll(model)) == []


def test_small_tensors_of_a_data_file_move_into_the_model(tmp_path: Path) -> None:
    """Also while somebody looks at them: here whoever has read the model."""
    path, output = tmp_path / "model.onnx", tmp_path / "moved" / "model.onnx"
    output.parent.mkdir()
    onnx.save_model(static_model(), path, save_as_external_data=True, location="data", size_threshold=0)
    model = ir.load(path)
    views = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    with stage_model(model, output, "always") as stage:
        stage.accepted = True
    written = {tensor.name: tensor for tensor in onnx.load(output).graph.initializer}
    for name, view in views.items():
        assert np.array_equal(onnx.numpy_helper.to_array(written[name]), view)
    locations = [
        tensor.data_location for tensor in onnx.load(output, load_external_data=False).graph.initializer
    ]
    assert set(locations) == {onnx.TensorProto.DEFAULT}


def test_bools_are_written_as_bytes() -> None:
    """OpenCV ends its process at those in `int32_data`."""
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        main (float[2] x) => (float[2] z) <bool[2] first = {1, 0}> {
            second = Constant <value = bool[2] {0, 1}> ()
            y = Where (first, x, x)
            z = Where (second, x, y)
        }""")
    tensors = [*source.graph.initializer, source.graph.node[0].attribute[0].t]
    assert all(tensor.int32_data for tensor in tensors)
    for written in (rnnlower.unroll(source), ir.to_proto(rnnlower.unroll(ir.from_proto(source)))):
        nodes = [node for node in written.graph.node if node.op_type == "Constant"]
        held = [*written.graph.initializer, *(node.attribute[0].t for node in nodes)]
        assert [tensor.raw_data for tensor in held] == [b"\x01\x00", b"\x00\x01"]


@pytest.mark.parametrize("name", ["FLOAT6E2M3", "FLOAT6E3M2", "INT2", "UINT4"])
def test_numbers_of_fewer_than_8_bits_are_packed(name: str) -> None:
    dtype = TensorProto.DataType.Value(name)
    for raw in (True, False):
        values: Any = onnx.numpy_helper.from_array(np.zeros(5, ir.DataType(dtype).numpy())).raw_data
        tensor = helper.make_tensor("w", dtype, [5], values if raw else [0] * 5, raw=raw)
        out = helper.make_tensor_value_info("y", dtype, [5])
        graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [out], [tensor])
        check_proto(helper.make_model(graph), "the model")


def test_an_initializer_has_the_shape_of_its_tensor_whatever_value_info_says() -> None:
    model = rnnlower.scan(recurrent_model())
    for number, tensor in enumerate(model.graph.initializer):
        sizes = [f"size_{number}_{axis}" for axis in range(len(tensor.dims))]
        model.graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, sizes))
    assert recurrent_left(rnnlower.lift(model))


@pytest.mark.parametrize("kind", [onnx.ModelProto, ir.Model])
def test_a_graph_as_an_argument_of_a_function_is_refused(kind: type) -> None:
    model = onnx.parser.parse_model(
        """
            <ir_version: 9, opset_import: ["" : 17, "own" : 1]>
            main (float[3] x, bool c) => (float[3] y) {
                y = own.F <
                    first = positive () => (float[3] a) { a = Relu (x) },
                    second = negative () => (float[3] b) { b = Neg (x) }
                > (c)
            }
            <domain: "own", opset_import: ["" : 17]>
            F <first, second> (c) => (y) {
                y = If <then_branch: graph = @first, else_branch: graph = @second> (c)
            }
        """
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"'then_branch' of 'y' is a graph.*inline"):
        rnnlower.unroll(ir.from_proto(model) if kind is ir.Model else model)


SLICE_BY_SCALARS = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2, N, 3] x) => (float[1, N, 3] y) <int64 one = {1}, int64[1] first = {0}> {
        t = Sigmoid (x)
        two = Constant <value_int = 2> ()
        y = Slice (t, one, two, first)
    }
"""


@pytest.mark.parametrize("kind", ["proto", "ir", "path"])
def test_bounds_of_slices_that_are_scalars_get_their_axis(kind: str, tmp_path: Path) -> None:
    """onnxruntime refuses such a Slice, so the verification corrects a reference, but no candidate."""
    model = onnx.parser.parse_model(SLICE_BY_SCALARS)
    onnx.save(model, path := tmp_path / "model.onnx")
    source = {"proto": model, "ir": ir.from_proto(model), "path": path}[kind]
    result = rnnlower.unroll(source)
    read = ir.to_proto(result) if isinstance(result, ir.Model) else result
    vectors = {value.name: value for value in onnx.shape_inference.infer_shapes(read).graph.value_info}
    bounds = [
        vectors[name] for node in read.graph.node if node.op_type == "Slice" for name in node.input[1:3]
    ]
    assert [len(value.type.tensor_type.shape.dim) for value in bounds] == [1, 1]
    assert rnnlower.verify(path if kind == "path" else model, read)
    assert not rnnlower.verify(read, model)
    next(node for node in read.graph.node if node.op_type == "Sigmoid").op_type = "Tanh"
    assert not rnnlower.verify(model, read)


def test_scalar_bounds_in_a_function_and_in_a_branch() -> None:
    """The function's own `one` is a vector."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        main (float[4, N, 3] x, bool b) => (float[P, N, 3] y)
        <int64 one = {1}, int64 two = {2}, int64[1] first = {0}> {
            f = own.Middle (x)
            y = If (b) <
                then_branch = g () => (float[P, N, 3] u) { u = Slice (f, one, two, first) },
                else_branch = g () => (float[P, N, 3] v) { v = Identity (f) }
            >
        }
        <domain: "own", opset_import: ["" : 17]> Middle (x) => (y) {
            one = Constant <value_ints = [1, 0]> ()
            end = Constant <value_ints = [9, 9]> ()
            axis = Constant <value_int = 0> ()
            last = Constant <value_int = 3> ()
            cut = Slice (x, axis, last, axis)
            y = Slice (cut, one, end)
        }
    """)
    result = rnnlower.unroll(model)
    assert rnnlower.verify(model, result)
    assert not rnnlower.verify(result, model)
