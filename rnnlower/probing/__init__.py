"""Probing: trying out what a runtime computes correctly, and writing the result as a target file.

`asking.py` runs questions, which are small models; `trying_operators.py` and `trying_nodes.py` ask them and
draw the conclusions; `writing.py` writes them to a file.
"""

from __future__ import annotations

from rnnlower.probing.prober import probe

__all__ = ["probe"]
