"""Probing: tests of a runtime, feature by feature, whose results become a target file.

`asking.py` runs questions, which are small models; the modules ``*_probes.py`` ask them and draw the
conclusions; `writing.py` writes the file.
"""

from __future__ import annotations

from rnnlower.probing.prober import probe

__all__ = ["probe"]
