"""Write the generated part of docs/passes.md: every pass and every pipeline, from their docstrings.

python docs/passes.py [--check]
"""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence

import rnnlower.passes
from rnnlower.passes.checking import CHECK
from rnnlower.passes.command_options import ConvertOptions, StreamOptions
from rnnlower.passes.converting import CONVERT
from rnnlower.passes.lifting import LIFT
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.padding import PAD
from rnnlower.passes.pipeline import LOWER
from rnnlower.passes.steps.work import Step
from rnnlower.passes.streaming import STREAM
from rnnlower.quantizing.model_preparation import PREPARATION

PAGE = pathlib.Path(__file__).with_suffix(".md")
MARKER = "<!-- What follows is written by docs/passes.py. -->\n"
PIPELINES: dict[str, Sequence[Step]] = {
    "`unroll`, `scan`, `loop`, `lower`": LOWER,
    "`lift`": LIFT,
    "`pad`": PAD,
    "`stream`": STREAM,
    "`convert`": CONVERT,
    "`check`": CHECK,
    "`calibrate`, `quantize`": PREPARATION,
}
_SECTION = re.compile(r"^(?:Args|Attributes|Raises):$", re.MULTILINE)
_CODE = re.compile(r"::\n\n((?:    .*\n|\n)+)")


def page() -> str:
    """Return the whole page."""
    written, found, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    assert found, f"{PAGE} has no line {MARKER!r}"
    return written + MARKER + "\n".join([*_passes(), *_pipelines()])


def _passes() -> Iterator[str]:
    yield "\n## All passes\n"
    for name in rnnlower.passes.__all__:
        cls = getattr(rnnlower.passes, name)
        described, *_ = _SECTION.split(inspect.getdoc(cls) or "")
        words, _, graphs = described.partition("\n\n")
        arguments = ", ".join(inspect.signature(cls).parameters)
        yield f"### {name}\n\n`{name}({arguments})`: {' '.join(words.split())}\n"
        for kind, conditions in (("Requires", cls.REQUIRES), ("Ensures", cls.ENSURES)):
            if conditions:
                yield f"{kind}: {'; '.join(_words(each.__name__) for each in conditions)}.\n"
        yield _markdown(graphs + "\n")


def _markdown(docstring: str) -> str:
    """Return a docstring with its literal blocks as fenced ones."""
    prose, *blocks = _CODE.split(docstring)
    parts = [prose.replace("``", "`")]
    for code, more in zip(blocks[::2], blocks[1::2], strict=True):
        parts.append(f":\n\n```text\n{inspect.cleandoc(code)}\n```\n\n" + more.replace("``", "`"))
    return "".join(parts).strip() + "\n"


def _pipelines() -> Iterator[str]:
    yield "## The pipelines\n"
    yield "A step runs where all under *when* holds: options that are given, keys of the target's file, or\n"
    yield from dict.fromkeys(_conditions())
    yield ""
    for commands, steps in PIPELINES.items():
        yield f"### {commands}\n\n| step | before | after | why here | when |\n|---|---|---|---|---|"
        yield from map(_row, steps)
        yield ""


def _row(step: Step) -> str:
    words = " ".join((inspect.getdoc(step.run) or "").split())
    before, _, after = words.partition("Before: ")[2].partition(" After: ")
    asked: list[str] = []
    assert step.when(_Asked(asked))
    when = " and ".join(f"`{each}`" for each in asked)
    cells = (_words(step.run.__name__), before or "the graph stays as it is", after, step.reason, when)
    return f"| {' | '.join(cell.rstrip('.') for cell in cells)} |"


class _Asked:
    """Options of which everything is true, and which note the names that a condition asks for."""

    def __init__(self, names: list[str], name: str = "") -> None:
        self._names, self._name = names, name

    def __getattr__(self, name: str) -> _Asked:
        return _Asked(self._names, name)

    def __bool__(self) -> bool:
        self._names.append(self._name)
        return True


def _conditions() -> Iterator[str]:
    """Yield a line on each property that a condition asks for, from its docstring."""
    for kind in (LoweringOptions, StreamOptions, ConvertOptions):
        for name, found in inspect.getmembers(kind, lambda member: isinstance(member, property)):
            _, is_condition, words = " ".join((found.__doc__ or "").split()).partition("True if ")
            if is_condition:
                yield f"- `{name}`: {words}"


def _words(name: str) -> str:
    return name.strip("_").replace("_", " ")


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
