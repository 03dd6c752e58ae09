"""The rule of each operator that padding may reach; any other operator is refused."""

from __future__ import annotations

from collections.abc import Mapping

from rnnlower.padding.arithmetic import ARITHMETIC
from rnnlower.padding.data_movement import DATA_MOVEMENT
from rnnlower.padding.gathering import GATHERING
from rnnlower.padding.sequence_operators import SEQUENCE_OPERATORS
from rnnlower.padding.validity_walk import Rule
from rnnlower.padding.windows import WINDOWS

RULES: Mapping[str, Rule] = {**ARITHMETIC, **SEQUENCE_OPERATORS, **DATA_MOVEMENT, **GATHERING, **WINDOWS}
