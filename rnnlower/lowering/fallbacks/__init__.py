"""Operators expressed by other operators, for runtimes that lack them.

`FALLBACKS` is the one table, for emitted nodes and for all others. Each form computes the operator's outputs
with other operators, which may have fallbacks of their own. A form returns ``None`` where it does not hold:
the next one is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnnlower.lowering.fallbacks.arithmetic import ARITHMETIC, Fallback
from rnnlower.lowering.fallbacks.data_movement import SHAPING
from rnnlower.lowering.fallbacks.fused import FUSED
from rnnlower.lowering.fallbacks.pooling import POOLING
from rnnlower.lowering.fallbacks.quantized_operators import QUANTIZED
from rnnlower.lowering.fallbacks.signals import SIGNALS

__all__ = ["FALLBACKS", "Fallback"]

FALLBACKS: Mapping[str, Sequence[Fallback]] = {
    **ARITHMETIC,
    **FUSED,
    **POOLING,
    **QUANTIZED,
    **SHAPING,
    **SIGNALS,
}
"""The forms of each operator, the preferred one first; those of other domains have it in their names."""
