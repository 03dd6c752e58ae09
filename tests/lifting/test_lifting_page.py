"""docs/lifting.md: its example works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "lifting.md").read_text("utf-8"), re.DOTALL)
    assert code is not None
    exec(code[1], {})
    assert capsys.readouterr().out.startswith("[('scan', 'GRU',")
