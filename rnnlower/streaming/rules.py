"""The rule of each known operator over time, one row per operator; any other operator is refused."""

from __future__ import annotations

from rnnlower.streaming.bounds import BOUNDS
from rnnlower.streaming.flow import Rule
from rnnlower.streaming.movement import MOVEMENT
from rnnlower.streaming.pointwise import ALONG, POINTWISE
from rnnlower.streaming.recurrence import RECURRENCE
from rnnlower.streaming.reshaping import RESHAPING
from rnnlower.streaming.windows import WINDOWS

RULES: dict[str, Rule] = {**POINTWISE, **ALONG, **MOVEMENT, **RESHAPING, **BOUNDS, **WINDOWS, **RECURRENCE}
