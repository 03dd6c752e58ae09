"""Graph outputs that depend on random operators, so that their values cannot be compared."""

from __future__ import annotations

import onnx

from rnnlower.verification.models import default_opset

_RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
)


def random_outputs(model: onnx.ModelProto) -> set[str]:
    """Return the graph outputs whose values are random or undefined."""
    opset = default_opset(model.opset_import)
    functions = {(f.domain, f.name): f for f in model.functions}
    random: set[str] = set()

    def draws(node: onnx.NodeProto) -> bool:
        if node.op_type in _RANDOM:
            return True
        if node.op_type == "Dropout":
            tests = any(a.name == "is_test" and a.i for a in node.attribute)
            return (opset < 7 and not tests) or (len(node.input) > 2 and bool(node.input[2]))
        function = functions.get((node.domain, node.op_type))
        inner = [*(function.node if function else ()), *(n for a in node.attribute for n in a.g.node)]
        return any(draws(n) or any(name in random for name in n.input) for n in inner)

    for node in model.graph.node:
        if any(name in random for name in node.input) or draws(node):
            random.update(name for name in node.output if name)
        if node.op_type == "BatchNormalization" and opset < 14:
            # saved_mean and saved_var: "to speed up gradient computation", in any form that does so.
            random.update(name for name in node.output[3:] if name)
    return {o.name for o in model.graph.output if o.name in random}
