"""docs/streaming.md: its example runs, with the documented result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(ROOT)
    exec("\n".join(blocks), {})
