"""Engines that run models: onnxruntime, the NumPy reference, other runtimes, any command.

Nothing here imports lowering code. The package is callable: ``rnnlower.engines()`` lists the engines.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.catalog import Engine


class _Engines(ModuleType):
    def __call__(self) -> list[Engine]:
        """List the engines, installed or not; see :class:`rnnlower.engines.catalog.Engine`."""
        from rnnlower.engines.catalog import engines

        return engines()


sys.modules[__name__].__class__ = _Engines
