"""What runs a model: onnxruntime, the NumPy reference, other runtimes, any command.

Nothing here imports lowering code. The package is callable: ``rnnlower.engines()`` lists what is here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.known import Engine


class _Engines(ModuleType):
    def __call__(self) -> list[Engine]:
        """What can run models here, and what could: see :class:`rnnlower.engines.known.Engine`."""
        from rnnlower.engines.known import engines

        return engines()


sys.modules[__name__].__class__ = _Engines
