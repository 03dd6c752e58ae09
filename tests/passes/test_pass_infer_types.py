"""InferTypesPass: what a recurrent node reads gets its type and shape."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.passes.static_shapes import InferTypesPass

MODEL = """
<ir_version: 8, opset_import: ["" : 17, "custom" : 1]>
main (float[N, 5, 3] features, float[1, 8, 3] W, float[1, 8, 8] R) => (float[5, 1, N, 8] Y)
{
    doubled = Add (features, features)
    x = PRODUCER (doubled)
    Y = RNN <hidden_size = 8> (x, W, R)
}
"""


def infer(producer: str) -> tuple[ir.Model, bool]:
    own = ir.from_onnx_text(MODEL.replace("PRODUCER", producer))
    return own, InferTypesPass()(own).modified


def test_the_input_of_a_recurrent_node_gets_its_type_and_shape() -> None:
    own, modified = infer("Transpose <perm = [1, 0, 2]>")
    assert modified
    x = own.graph.node(1).outputs[0]
    assert x.dtype == ir.DataType.FLOAT
    assert x.shape == [5, "N", 3]


def test_other_values_stay_as_they_are() -> None:
    own, _ = infer("Transpose <perm = [1, 0, 2]>")
    doubled = own.graph.node(0).outputs[0]
    assert doubled.shape is None
    assert doubled.type is None


def test_what_cannot_be_inferred_stays_unknown() -> None:
    own, modified = infer("custom.Strange")
    assert not modified
    assert own.graph.node(1).outputs[0].shape is None


def test_a_shape_that_the_exporter_wrote_down_wrongly_gives_way() -> None:
    own = ir.from_onnx_text(MODEL.replace("PRODUCER", "Transpose <perm = [1, 0, 2]>"))
    own.graph.node(1).outputs[0].shape = ir.Shape([7, "N", 3])
    InferTypesPass()(own)
    assert own.graph.node(1).outputs[0].shape == [5, "N", 3]


def test_nothing_to_learn_from_static_inputs() -> None:
    own = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[5, 2, 3] X, float[1, 8, 3] W, float[1, 8, 8] R) => (float[5, 1, 2, 8] Y)
        { Y = RNN <hidden_size = 8> (X, W, R) }
    """)
    assert not InferTypesPass()(own).modified
