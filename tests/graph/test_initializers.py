"""InitializerPool and the tensors that it is given: they belong to others, too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

import rnnlower
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import remove_orphans
from rnnlower.passes import UnrollControlFlowPass

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2] x) => (float[2] y, float[2] z, float[2] v) <int64 n = {2}, bool on = {1}>
    {
        y = Loop (n, on, x) <
            body = b (int64 i, bool c, float[2] h) => (bool c, float[2] g)
                <float[2] k = {1, 2}> { g = Add (h, k) }
        >
        z = Loop (n, on, x) <
            body = b2 (int64 i, bool c, float[2] h) => (bool c, float[2] g)
                <float[2] k = {3, 4}> { g = Add (h, k) }
        >
        v = If (on) <
            then_branch = p () => (float[2] f) <float[2] k = {7, 8}> { f = Sub (x, k) },
            else_branch = q () => (float[2] e) { e = Neg (x) }
        >
    }
"""


def test_unrolling_alone_leaves_the_source_as_it_is() -> None:
    source = onnx.parser.parse_model(MODEL)
    before = source.SerializeToString()
    own = ir.from_proto(source)
    twin = own.clone()
    UnrollControlFlowPass()(own)
    onnx.checker.check_model(ir.to_proto(own), full_check=True)
    assert rnnlower.verify(source, own)
    assert source.SerializeToString() == before
    assert rnnlower.verify(source, twin)


def test_a_tensor_keeps_its_name_and_the_initializer_gets_one() -> None:
    model = ir.from_onnx_text(MODEL)
    pool = InitializerPool(model, NameSource(all_names(model)))
    tensor = ir.Tensor(np.array([7.0, 8.0], np.float32), name="mine")
    value = pool.intern(tensor, "w")
    assert tensor.name == "mine"
    assert value.name == "w"
    (written,) = [each for each in ir.to_proto(model).graph.initializer if each.name == value.name]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(written), [7, 8])


def test_an_initializer_whose_readers_are_gone_is_in_the_graph_when_it_is_needed_again() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[2] x) => (float[2] y) { y = Neg (x) }'
    )
    pool = InitializerPool(model, NameSource(all_names(model)))
    zero = pool.integers((0,))
    remove_orphans([zero])
    assert not model.graph.initializers
    assert pool.integers((0,)) is zero
    assert pool.intern(ir.Tensor(np.array([0]))) is zero
    assert zero.graph is model.graph
