"""What a runtime gets right, found by trying it, and written as a target's file.

`asking.py` puts questions, which are small models; `operators.py` and `recurrent.py` ask them and draw the
conclusions; `writing.py` makes a file of those.
"""

from __future__ import annotations

from rnnlower.probing.driver import probe

__all__ = ["probe"]
