"""The style of docstrings that CONTRIBUTING.md describes; ruff's D rules check the rest."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("rnnlower", "passes", "tests", "docs", "benchmarks", "models")

QUESTION = re.compile(r"(What|Whether|How|Where|Who|Which|When|Why)\b")
VERBS = (
    r"(Add|Build|Call|Check|Continue|Convert|Copie|Count|Cut|Emit|Follow|Give|Keep|Let|Make|Mark|Move|Note|Prepend"
    r"|Print|Put|Raise|Read|Refuse|Remove|Rename|Replace|Return|Run|Say|Set|Show|Take|Tell|Turn|Write|Yield)"
)


def first_lines(path: pathlib.Path) -> Iterator[tuple[int, ast.AST, str]]:
    """Yield the line number, the owner and the first line of each docstring of a file."""
    left: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    for owner in left:
        # No expression holds a docstring.
        left += (each for each in ast.iter_child_nodes(owner) if not isinstance(each, ast.expr))
        if isinstance(owner, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(owner)
            if text:
                yield owner.body[0].lineno, owner, text.splitlines()[0]


def problem_of(owner: ast.AST, line: str) -> str:
    """Describe how the first line breaks the dialect; empty if it does not."""
    if isinstance(owner, ast.FunctionDef) and owner.name.startswith("test_"):
        return ""
    if QUESTION.match(line):
        return "begins like a question"
    if isinstance(owner, ast.ClassDef):
        return "is an imperative" if re.match(VERBS + r"\b", line) else ""
    is_function = isinstance(owner, ast.FunctionDef)
    return "is in the third person" if is_function and re.match(VERBS + r"s\b", line) else ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_first_lines_are_imperatives_or_noun_phrases(folder: str) -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{number}: {problem}: {line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "site" not in path.parts
        for number, owner, line in first_lines(path)
        if (problem := problem_of(owner, line))
    ]
    assert problems == []


def test_the_rule_finds_the_faults() -> None:
    def check(text: str) -> str:
        (owner,) = ast.parse(text).body
        return problem_of(owner, ast.get_docstring(owner) or "")

    assert check('def f():\n    """Returns a model."""') == "is in the third person"
    assert check('class A:\n    """What a node needs."""') == "begins like a question"
    assert check('class A:\n    """Set an attribute."""') == "is an imperative"
    assert check('def f():\n    """Return whether a node fits."""') == ""
    assert check('def test_f():\n    """What a test shows."""') == ""


BRITISH = re.compile(
    r"(optim|normal|initial|organ|recogn|serial|general|minim|maxim|summar|real|util|vector|quant|special|standard"
    r"|custom|parallel|material|final|local|stabil|equal|character|memor|prior|synchron|token|visual|emphas)"
    r"is(e|ed|es|er|ers|ing|ation|ations)(?![a-z])"
    r"|analys(e|ed|ing)(?![a-z])|(behavi|col|fav|neighb|hon|lab|flav)our|(licen|defen)ce|cent(re|red|res)(?![a-z])"
    r"|(label|model|cancel|travel)l(ed|ing)|catalogue|judgement|artefact|(to|after)wards(?![a-z])"
    r"|whilst|(?<![a-z])grey|programme(?!d|r)"
)
TEXTS = {".py", ".md", ".toml", ".yml", ".sh", ".css", ".json", ""}


def test_the_spelling_is_american() -> None:
    """Names in the code count as well."""
    places = [ROOT, *(each for folder in (*FOLDERS, ".ci") for each in (ROOT / folder).rglob("*"))]
    files = {file for place in places for file in ([place] if place.is_file() else place.glob("*"))}
    found = [
        f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for file in sorted(files)
        if file.is_file()
        and file.suffix in TEXTS
        and file.name not in ("LICENSE", pathlib.Path(__file__).name)
        for text in [file.read_text(encoding="utf-8").lower()]
        for match in BRITISH.finditer(text)
    ]
    assert found == []
