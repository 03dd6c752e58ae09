"""The page of refusals says what the commands say."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / "docs" / "refusals.py"


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("refusals", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    if module.versions() not in text:
        pytest.skip(f"the page was not made with {module.versions()}")
    assert text == module.page(), "run python docs/refusals.py"
