"""The rule of each operator that padding may reach; any other operator is refused."""

from __future__ import annotations

from collections.abc import Mapping

from rnnlower.padding.bodies import LOOPS
from rnnlower.padding.layout_operators import LAYOUT_OPERATORS
from rnnlower.padding.reductions import REDUCTIONS
from rnnlower.padding.sequence_operators import SEQUENCE_OPERATORS
from rnnlower.padding.validity_walk import Rule
from rnnlower.padding.windows import WINDOWS

RULES: Mapping[str, Rule] = {
    **REDUCTIONS,
    **SEQUENCE_OPERATORS,
    **LAYOUT_OPERATORS,
    **WINDOWS,
    **LOOPS,
}
