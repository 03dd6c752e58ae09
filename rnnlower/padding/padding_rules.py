"""The rule of each operator that padding may reach; any other operator is refused."""

from __future__ import annotations

from collections.abc import Mapping

from rnnlower.padding.combining import COMBINING
from rnnlower.padding.ends import ENDING
from rnnlower.padding.moving import MOVING
from rnnlower.padding.picking import PICKING
from rnnlower.padding.validity_walk import Rule
from rnnlower.padding.windows import WINDOWS

RULES: Mapping[str, Rule] = {**COMBINING, **ENDING, **MOVING, **PICKING, **WINDOWS}
