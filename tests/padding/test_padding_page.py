"""docs/padding.md: its loop runs, and its table says what docs/padding.py measures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.padded_models import padded_case
from support.padding_page import MAXIMUM, ROOT, block, expected, page_model

import rnnlower

sys.path.insert(0, str(ROOT / "docs"))
import padding

LINES = (ROOT / "docs" / "padding.md").read_text(encoding="utf-8").splitlines()


def test_the_loop_in_python_is_right_at_every_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = page_model()
    onnx.save(rnnlower.pad(source, max={"T": MAXIMUM}), "padded.onnx")
    page: dict[str, Any] = {}
    exec(block("python"), page)
    for x, y in expected(source).values():
        np.testing.assert_allclose(page["run"](x), y, atol=1e-6)


@pytest.mark.parametrize("title", padding.SMALL)
def test_the_table_says_what_is_measured(title: str) -> None:
    (line,) = (each for each in LINES if each.startswith(f"| {title} |"))
    row = padding.row(title, padded_case(padding.SMALL[title]), "T", 128)
    said, found = ([float(cell) for cell in each.split("|")[2:-1]] for each in (line, row))
    np.testing.assert_allclose(found, said, rtol=0.2, atol=1e-6)


@pytest.mark.parametrize("title", padding.PUBLISHED)
def test_published_models_are_in_the_table(title: str) -> None:
    assert [each for each in LINES if each.startswith(f"| {title} |")]
