"""Targets: the abilities of runtimes as data, one TOML file per runtime, in the format of `format.py`.

`fit.py` finds the nodes of a model that do not fit a target, `choosing.py` chooses how a node runs on one.
"""

from __future__ import annotations

from rnnlower.targets.reading import find_target, target_names
from rnnlower.targets.target import Target

__all__ = ["Target", "find_target", "target_names"]
