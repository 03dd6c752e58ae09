"""The pass that changes GRU nodes to the variant that PyTorch computes."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.passes.base import Pass
from rnnlower.recurrent.finding import find_recurrent

_FIRST_OPSET = 3
_NAME = "linear_before_reset"


def _every_gru_is_linear(model: ir.Model, assuming: AssumeLinearBeforeResetPass) -> bool:
    nodes = [located.node for located in find_recurrent(model) if located.node.op_type == "GRU"]
    return all(node.attributes.get_int(_NAME, 0) == 1 for node in nodes)


class AssumeLinearBeforeResetPass(Pass):
    """Gives linear_before_reset=1 to every GRU of the model, functions included.

    torch's newer exporter with onnxscript before 0.7.1 left it at its default, 0 (pytorch/pytorch#189225).

    Before::

        (float[5, 1, 2] X, float[1, 3, 2] W, float[1, 3, 1] R) => (float[5, 1, 1, 1] Y) {
            Y = GRU <hidden_size = 1> (X, W, R)
        }

    After ``AssumeLinearBeforeResetPass()``::

        (float[5, 1, 2] X, float[1, 3, 2] W, float[1, 3, 1] R) => (float[5, 1, 1, 1] Y) {
            Y = GRU <hidden_size = 1, linear_before_reset = 1> (X, W, R)
        }

    Attributes:
        changed: Number of nodes that had another form.
    """

    ENSURES = (_every_gru_is_linear,)

    changed = 0

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Set the attribute.

        Raises:
            UnsupportedModelError: A GRU is older than the attribute.
        """
        self.changed = 0
        for located in find_recurrent(model):
            node = located.node
            if node.op_type != "GRU":
                continue
            if located.opset < _FIRST_OPSET:
                raise UnsupportedModelError(
                    f"GRU-1 has no {_NAME}, so it cannot be set",
                    node=located,
                    remedy=f"convert the model first: `{wording.call('convert', opset=_FIRST_OPSET)}`",
                )
            given = node.attributes.get(_NAME)
            if given is None or given.is_ref() or given.as_int() != 1:
                node.attributes[_NAME] = ir.AttrInt64(_NAME, 1)
                self.changed += 1
        return ir.passes.PassResult(model, modified=bool(self.changed))
