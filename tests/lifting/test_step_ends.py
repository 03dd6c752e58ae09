"""The values that may be the state after a step whose end nothing shows."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.lifting.chains import candidate_ends


def test_no_end_is_looked_for_behind_more_activations_than_a_cell_has() -> None:
    """A stack of layers costs as many trials as its layers, not as their square."""
    layers = [f"p{n} = MatMul (y{n}, R) a{n} = Add (p{n}, x) y{n + 1} = Tanh (a{n})" for n in range(5)]
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 4] x, float[2, 4] y0, float[4, 4] R) => (float[2, 4] y5) {{ {" ".join(layers)} }}
    """
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    ends = candidate_ends(Facts(model), model.graph, model.graph.inputs[1])
    assert [end.name for end in ends] == ["a2", "p2", "y2", "a1", "p1", "y1", "a0", "p0"]
