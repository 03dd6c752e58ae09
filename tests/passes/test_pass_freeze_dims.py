"""FreezeDimsPass: before and after on small models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rnnlower.errors import OptionError
from rnnlower.passes.declared_sizes import FreezeDimsPass

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[T, N, 4] X, float[N, T, 2] Z, float[?, ?] Q) => (float[T, N, 4] Y, float[N, 4] S)
<float[T, N, 4] inner, float[4] flat>
{
    inner = Neg (X)
    flat = Reshape (inner, shape)
    Y = Abs (inner)
    S = ReduceSum <keepdims = 0> (Y, axis)
}
"""


def symbolic_model() -> ir.Model:
    built = ir.from_onnx_text(MODEL.replace("float[?, ?]", "float[U, V]"))
    built.graph.inputs[2].shape = ir.Shape(["?", "?"])
    return built


def freeze(
    dims: Mapping[str, int] | None = None, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[dict[str, Any], bool]:
    """Return the shapes by name after the pass, and whether it says that it changed something."""
    own = symbolic_model()
    result = FreezeDimsPass(dims, input_shapes)(own)
    values = [*own.graph.inputs, *(out for node in own.graph for out in node.outputs)]
    shapes = {
        value.name: None if value.shape is None else tuple(map(_plain, value.shape)) for value in values
    }
    return shapes, result.modified


def _plain(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def test_a_dimension_is_fixed_everywhere() -> None:
    shapes, modified = freeze({"T": 5})
    assert modified
    assert (shapes["X"], shapes["Z"], shapes["Y"]) == ((5, "N", 4), ("N", 5, 2), (5, "N", 4))
    assert shapes["S"] == ("N", 4)


def test_inside_of_the_graph_a_frozen_name_is_not_trusted() -> None:
    shapes, _ = freeze({"T": 5})
    assert shapes["inner"] is None
    assert shapes["flat"] == (4,)


def test_inside_of_the_graph_types_stay() -> None:
    own = symbolic_model()
    FreezeDimsPass({"T": 5})(own)
    inner = own.graph.node(0).outputs[0]
    assert (inner.shape, inner.dtype) == (None, ir.DataType.FLOAT)


def test_what_is_refused_leaves_the_model_as_it_was() -> None:
    own = symbolic_model()
    before = ir.to_proto(own)
    with pytest.raises(OptionError, match="no input named 'W'"):
        FreezeDimsPass({}, {"X": [5, 2, 4], "W": [1]})(own)
    assert ir.to_proto(own) == before


def test_an_input_shape_fixes_its_symbols_everywhere() -> None:
    shapes, _ = freeze(input_shapes={"X": [5, 2, 4]})
    assert (shapes["X"], shapes["Z"], shapes["Y"], shapes["S"]) == ((5, 2, 4), (2, 5, 2), (5, 2, 4), (2, 4))


def test_a_question_mark_names_nothing() -> None:
    shapes, _ = freeze(input_shapes={"Q": [7, 9]})
    assert shapes["Q"] == (7, 9)


def test_without_options_nothing_changes() -> None:
    shapes, modified = freeze()
    assert not modified
    assert shapes["inner"] == ("T", "N", 4)


def test_sizes_may_be_numpy_integers() -> None:
    shapes, _ = freeze({"T": np.int32(5)}, {"X": [5, 2, 4], "Z": (np.int64(2), 5, 2)})
    assert shapes["X"] == (5, 2, 4)
    assert {type(size) for size in shapes["Z"]} == {int}


def test_dims_and_input_shapes_may_agree() -> None:
    shapes, _ = freeze({"T": 5}, {"X": [5, 2, 4], "Z": [2, 5, 2]})
    assert shapes["Z"] == (2, 5, 2)


@pytest.mark.parametrize(
    ("dims", "input_shapes", "message"),
    [
        ({"S": 3}, {}, "no dimension named 'S'; it has .*N.*T"),
        ({"?": 3}, {}, r"no dimension named '\?'; it has N, T$"),
        ({"T": -1}, {}, "'T' cannot have the size -1"),
        ({}, {"W": [1]}, "no input named 'W'; it has X, Z, Q"),
        ({}, {"X": [5, 2]}, "'X' has rank 3"),
        ({}, {"X": [5, 2, 3]}, "'X' cannot have the size 3 on axis 2"),
        ({}, {"X": [5, -2, 4]}, "'X' cannot have the size -2 on axis 1"),
        ({"T": 6}, {"X": [5, 2, 4]}, "'X' cannot have the size 5 on axis 0"),
        ({}, {"X": [5, 2, 4], "Z": [2, 6, 2]}, "'Z' cannot have the size 6 on axis 1"),
    ],
)
def test_contradicting_options_are_refused(
    dims: dict[str, int], input_shapes: dict[str, list[int]], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        freeze(dims, input_shapes)


def test_subgraphs_and_negative_sizes() -> None:
    own = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[T, 4] X, bool c) => (float[T, 4] Y)
        {
            Y = If (c) <
                then_branch = yes () => (float[T, 4] a) { a = Neg (X) },
                else_branch = no () => (float[T, 4] b) { b = Abs (X) }
            >
        }
    """)
    own.graph.inputs[0].shape = ir.Shape([-1, 4])
    FreezeDimsPass({"T": 3}, {"X": [3, 4]})(own)
    assert own.graph.inputs[0].shape == [3, 4]
    assert [graph.outputs[0].shape for graph in own.graph.subgraphs()] == [[3, 4], [3, 4]]


def test_a_declared_size_below_0_is_unknown_beside_a_frozen_one() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[T, 4] X, float[T, 4] H) => (float[T, 4] Y)
        {
            inner = Add (X, H)
            Y = Neg (inner)
        }
    """
    own = ir.from_onnx_text(text)
    values = [*own.graph.inputs, *own.graph.outputs, own.graph.node(0).outputs[0]]
    for value in values:
        value.shape, value.type = ir.Shape([-1, 4]), ir.TensorType(ir.DataType.FLOAT)
    FreezeDimsPass()(own)
    assert [value.shape for value in values] == [[-1, 4]] * 4
    FreezeDimsPass(input_shapes={"X": [2, 4]})(own)
    X, H, Y, inner = values
    assert X.shape == [2, 4]
    assert H.shape == Y.shape == inner.shape == [None, 4]
    onnx.checker.check_model(ir.to_proto(own), full_check=True)
