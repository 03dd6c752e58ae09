"""The page of refusals: it shows the commands' messages, and every message of the source."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from types import ModuleType

import pytest
from support.places import ROOT

import rnnlower.errors

SOURCES = [*(ROOT / "rnnlower").glob("**/*.py"), *(ROOT / "passes").glob("**/*.py")]
ERRORS = {name for name in vars(rnnlower.errors) if name.endswith("Error")}
RAISED = {*ERRORS, "refuse", "invalid", "unsupported"}
WRAPPED = {"reading.py", "given.py"}
"""Where a ValueError becomes an error of rnnlower."""


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("refusals")


def test_the_page_is_current(refusals: ModuleType) -> None:
    text = refusals.PAGE.read_text(encoding="utf-8")
    if refusals.versions() not in text:
        pytest.skip(f"the page was not made with {refusals.versions()}")
    assert text == refusals.page(), "run python docs/refusals.py"


def test_every_message_of_the_source_is_on_the_page(refusals: ModuleType) -> None:
    page = refusals.PAGE.read_text(encoding="utf-8")
    missing = ["...".join(parts) for parts in messages() if not says(page, parts)]
    assert not missing, "add a case to docs/refusal_cases.py"


def says(page: str, parts: list[str]) -> bool:
    """Return whether a line has the parts in this order."""
    return re.search(".*".join(re.escape(part) for part in parts if part), page) is not None


def messages() -> Iterator[list[str]]:
    """Yield the constant parts of each message in a `raise`, if they contain a word."""
    for path in SOURCES:
        # The evaluator's words come behind those of the verification that asks it, and those of
        # exporters need PyTorch: tests/exporters has them.
        if {"reference", "exporters"} & {*path.parts}:
            continue
        raised = RAISED | {"ValueError"} if path.name in WRAPPED else RAISED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and called(node.func) in raised:
                parts = constants(node.args[0])
                if re.search(r"\w", "".join(parts)):
                    yield parts


def called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def constants(message: ast.expr) -> list[str]:
    """Return the text, cut where something is put in."""
    if isinstance(message, ast.Constant):
        return [str(message.value)]
    if isinstance(message, ast.JoinedStr):
        parts = [""]
        for value in message.values:
            if isinstance(value, ast.Constant):
                parts[-1] += str(value.value)
            else:
                parts.append("")
        return parts
    if isinstance(message, ast.BinOp):
        left, right = constants(message.left), constants(message.right)
        return [*left[:-1], left[-1] + right[0], *right[1:]]
    return ["", ""]
