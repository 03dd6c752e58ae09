"""ExpandDefinitionsPass: operators written out by onnx's own definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run
from support.opset_cases import node_cases
from support.target_files import MINIMAL, write

import rnnlower
from rnnlower.engines.reference import evaluate
from rnnlower.graph.walk import walk
from rnnlower.passes import ExpandDefinitionsPass

# The cases of a module hold every attribute of the operator.
MODULES = ["celu", "gelu", "groupnormalization", "hardswish", "layernormalization", "linear_attention"]
MODULES += ["meanvariancenormalization", "mish", "reduce_log_sum_exp", "rmsnormalization"]
CASES = list(node_cases(MODULES))
DEFINED = ["LayerNormalization", "Gelu", "HardSwish", "Mish", "Celu", "GroupNormalization", "LinearAttention"]
DEFINED += ["RMSNormalization", "ReduceLogSumExp", "MeanVarianceNormalization"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op_type", DEFINED)
def test_a_definition_computes_what_the_operator_does(op_type: str) -> None:
    tried = 0
    for case in CASES:
        if [node.op_type for node in case.model.graph.node] != [op_type]:
            continue
        own = ir.from_proto(case.model)
        expanding = ExpandDefinitionsPass(lambda node: node.op_type == op_type)
        if not expanding(own).modified:
            continue
        result = ir.to_proto(own)
        onnx.checker.check_model(result, full_check=True)
        assert op_type not in {node.op_type for node, _ in walk(own.graph)}
        known = own.opset_imports[""] <= 26
        outputs = run(result, case.feeds) if known else evaluate(result, case.feeds)
        for value, want in zip(result.graph.output, case.outputs, strict=True):
            np.testing.assert_allclose(outputs[value.name], want, rtol=1e-3, atol=1e-4)
        tried += 1
    assert tried


def test_a_node_is_replaced_by_its_definition() -> None:
    own = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[2] x) => (float[2] y) { y = HardSwish (x) }'
    )
    expanding = ExpandDefinitionsPass(lambda node: node.op_type == "HardSwish")
    assert expanding(own).modified
    assert [node.op_type for node in own.graph] == ["HardSigmoid", "Mul"]
    assert own.opset_imports == {"": 17}
    assert expanding.expanded == {"HardSwish": ["y"]}


def test_a_node_whose_definition_holds_other_missing_operators_stays() -> None:
    own = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[2] x) => (float[2] y) { y = HardSwish (x) }'
    )
    assert not ExpandDefinitionsPass(lambda node: node.op_type in ("HardSwish", "HardSigmoid"))(own).modified


def test_a_target_that_lacks_the_operator_gets_its_definition(tmp_path: Path) -> None:
    target = write(tmp_path, MINIMAL | {"ops": 'absent = ["LayerNormalization", "Flatten", "Shape"]'})
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 1, 4] x, float[4] s) => (float[2, 1, 4] y)
        { y = LayerNormalization <axis = -1> (x, s) }
    """)
    lowered = rnnlower.lower(model, target=target)
    assert isinstance(lowered, onnx.ModelProto)
    assert not rnnlower.check(lowered, target=target)
    assert rnnlower.verify(model, lowered)
