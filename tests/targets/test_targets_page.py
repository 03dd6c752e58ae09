"""The page of the targets: it agrees with their files."""

from __future__ import annotations

import importlib.util
import pathlib

SCRIPT = pathlib.Path(__file__).parents[2] / "docs" / "targets.py"


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location("targets_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run python docs/targets.py"
