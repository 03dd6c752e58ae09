"""Operators of other domains with the name of one of the ONNX standard: `lift` knows nothing of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import onnx
import pytest
from support.configs import Config
from support.judge import all_nodes, recurrent_left
from support.small_models import lowered_by

import rnnlower

COUNTED = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 2, 3] X, float[2, 3] h0, int64[B] lengths) => (float[2, 3] h, float[K, 2, 3] Y)
<float[3, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3, 3] R = {9, 8, 7, 6, 5, 4, 3, 2, 1}> {
    shape = Shape (X)
    one = Constant <value = int64 {1}> ()
    zero = Constant <value = int64 {0}> ()
    axis = Constant <value_ints = [-1]> ()
    many = Constant <value = int64 {9223372036854775807}> ()
    T = Gather (shape, zero)
    going = Less (zero, T)
    last, h, Y = Loop (many, going, zero, h0) <body = b (int64 i, bool c, int64 t, float[2, 3] s)
    => (bool d, int64 u, float[2, 3] n, float[2, 3] y) {
        x = Gather (X, t)
        a = MatMul (x, W)
        r = MatMul (s, R)
        z = Add (a, r)
        new = Tanh (z)
        row = Less (t, lengths)
        column = Unsqueeze (row, axis)
        n = Where (column, new, s)
        y = Identity (n)
        u = Add (t, one)
        under = Less (u, T)
        d = And (under, c)
    }>
}"""


def _models() -> Iterator[onnx.ModelProto]:
    yield onnx.parser.parse_model(COUNTED)
    config = Config(
        op_type="GRU",
        seq_length=2,
        sequence_lens="input",
        initial_h="input",
        Y_h="graph",
        direction="reverse",
    )
    for strategy in ("scan", "unroll"):
        yield lowered_by(config.build(), strategy)


@pytest.mark.parametrize("number", range(3), ids=["loop", "scan", "unroll"])
def test_no_operator_of_another_domain_is_taken_for_one_of_onnx(number: int) -> None:
    """Each operator in turn is of another domain; what it computes is in the result still."""
    source = onnx.shape_inference.infer_shapes([*_models()][number])
    assert recurrent_left(rnnlower.lift(source))
    for index, node in enumerate(all_nodes(source)):
        if node.op_type in ("Constant", "Loop", "Scan"):
            continue
        model = copy.deepcopy(source)
        [*all_nodes(model)][index].domain = "own"
        model.opset_import.add(domain="own", version=1)
        assert any(each.domain == "own" for each in all_nodes(rnnlower.lift(model))), node
