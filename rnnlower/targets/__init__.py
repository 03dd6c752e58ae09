"""What runtimes can run, as data: a TOML file in this folder for each; `target.py` says what stands in one.

`fit.py` finds the nodes of a model that do not fit a target, `plan.py` chooses how a node is lowered for one.
"""

from __future__ import annotations

from rnnlower.targets.reading import find_target, target_names
from rnnlower.targets.target import Target

__all__ = ["Target", "find_target", "target_names"]
