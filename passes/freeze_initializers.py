"""Constants out of graph inputs that have an initializer.

Before::

    (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> {
        y = Mul (x, w)
    }

After ``FreezeInitializersPass()``::

    (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        y = Mul (x, w)
    }
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.suppression import quiet_libraries
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import initializers_suit_ir_version
from rnnlower.wording import counted

_FEW = 4


def _no_input_has_a_default(model: ir.Model, owner: object) -> bool:
    return not any(value.is_initializer() for value in model.graph.inputs)


class FreezeInitializersPass(Pass):
    """Takes initializers that are graph inputs, too, as constants, and removes these inputs.

    Before IR version 4 every initializer had to be an input, which nobody could feed; the version is raised.

    Attributes:
        frozen: The names of the inputs that were removed.
    """

    ENSURES = (_no_input_has_a_default, initializers_suit_ir_version)

    def __init__(self) -> None:
        super().__init__()
        self.frozen: list[str] = []

    @property
    def notes(self) -> list[str]:
        """Messages for the user."""
        names = ", ".join(map(repr, self.frozen[:_FEW])) + (", ..." if len(self.frozen) > _FEW else "")
        what = f"{counted(len(self.frozen), 'graph input')} with an initializer became constants: {names}"
        return [what] if self.frozen else []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.frozen = [str(value.name) for value in model.graph.inputs if value.is_initializer()]
        if self.frozen:
            with quiet_libraries():
                RemoveInitializersFromInputsPass()(model)
            model.ir_version = max(model.ir_version, FREE_INITIALIZERS_IR)
        return ir.passes.PassResult(model, modified=bool(self.frozen))
