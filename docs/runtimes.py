"""Write docs/runtimes.md: recurrent nodes on real runtimes, as they are and lowered for the runtime.

python docs/runtimes.py                   # every runtime that is installed: pip install -e ".[test,runtimes]"
python docs/runtimes.py opencv tract      # the sections of these, leaving the others as they are
"""

from __future__ import annotations

import collections
import datetime
import itertools
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
from runtime_grid import COLUMNS, FEATURES, Outcome, attempt, product, rows, sized
from support.runtimes import RUNTIMES, Runtime

from rnnlower.engines.opened_models import Attempts

PAGE = pathlib.Path(__file__).with_name("runtimes.md")
INTRODUCTION = """\
# Real runtimes

<!-- Written by docs/runtimes.py. -->

LSTM, GRU and RNN nodes on real runtimes: the results of the node itself, and of the graph that
`rnnlower lower --target` writes for the runtime.

{summary}
Each attempt is judged by an oracle that follows the operators' text:

- *right*: the numbers agree, within 2e-4 of the largest, or 2e-2 where the runtime computes in float16;
- *wrong*: the runtime gives other numbers or shapes without a message;
- *refuses*: it reports that it cannot run the node;
- *crashes*: its process ends.

Each section below has a table of nodes with one feature added to the defaults (float32, opset 14, 8 features,
16 units, 16 rows; 50 steps, or 3 where compiling takes long). A cell is the native attempt; the lowered graph
is right unless the cell says otherwise. Softplus and ThresholdedRelu are used for the cell only; gates have
Sigmoid. *Combinations* are all combinations of sequence_lens, clip, other activations, layout = 1, initial
states and peepholes, for each cell and direction, at 3 steps of 2 rows. *Real sizes* are plain nodes of 1, 3
and 50 steps, 1 and 16 rows, 8 and 64 features, 16, 64 and 256 units, every other one with initial states. The
list has the runtime's messages for the nodes that it refuses or that end its process.
"""
_LONG, _SHORT, _ROWS = 50, 3, 16
_VERDICTS = ("right", "wrong", "refuses", "crashes", "hangs")
_MAX_WORDS = 200


def main(targets: Sequence[str]) -> None:
    sections = _sections()
    for target in targets or [name for name, runtime in RUNTIMES.items() if runtime.engine.installed]:
        sections[target] = "\n".join(_section(RUNTIMES[target])) + "\n"
        bodies = [sections[name] for name in sorted(sections)]
        summary = "\n".join(_summary(sections))
        PAGE.write_text("\n".join([INTRODUCTION.format(summary=summary), *bodies]), encoding="utf-8")


def _sections() -> dict[str, str]:
    """Return the sections that the page has, by target."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = [f"## {part}".rstrip() + "\n" for part in text.split("\n## ")[1:]]
    return {part.split()[1]: part for part in parts}


def _summary(sections: Mapping[str, str]) -> Iterator[str]:
    """Yield a table of the runtimes, from the counts of their sections."""
    yield "| target | runtime, date | nodes | native | lowered |"
    yield "|---" * 5 + "|"
    for target, section in sorted(sections.items()):
        nodes, counts = 0, (collections.Counter[str](), collections.Counter[str]())
        for line in re.findall(r"^\w.*: (\d+ nodes; native .*)\.$", section, re.MULTILINE):
            number, *both = line.split("; ")
            nodes += int(number.split()[0])
            for counter, words in zip(counts, both, strict=True):
                counter.update({each: int(n) for each, n in re.findall(r"(\w+) (\d+)", words)})
        label = re.search(r"^(.*), with onnx", section, re.MULTILINE)
        assert label is not None, target
        native, lowered = (
            ", ".join(f"{each} {counter[each]}" for each in _VERDICTS if counter[each]) for counter in counts
        )
        yield f"| [{target}](#{target}) | {label[1]} | {nodes:,} | {native} | {lowered} |"
    yield ""


def _section(runtime: Runtime) -> Iterator[str]:
    yield f"## {runtime.target}"
    yield ""
    today = datetime.date.today().isoformat()
    yield f"{runtime.engine.label}, {today}, with onnx {metadata.version('onnx')}."
    yield ""
    with Attempts(runtime.engine) as attempts:
        steps = _SHORT if runtime.every > 1 else _LONG
        tried = itertools.islice(rows(steps, _ROWS), 0, None, runtime.every)
        cells = {(row, column): attempt(attempts, runtime, config) for row, column, config in tried}
        if runtime.every > 1:
            yield f"Compiling takes long: one node in {runtime.every} is tried; the others are left blank."
            yield ""
        yield f"| | {' | '.join(' '.join(column) for column in COLUMNS)} |"
        yield "|---" * (len(COLUMNS) + 1) + "|"
        for feature in FEATURES:
            if not any(feature == row for row, _ in cells):
                continue
            row = [_cell(cells.get((feature, column))) for column in COLUMNS]
            yield f"| {feature} | {' | '.join(row)} |"
        yield ""
        every = "" if runtime.every == 1 else f", one of {runtime.every}"
        yield f"One feature{every}: {_counts(list(cells.values()))}."
        combined = [attempt(attempts, runtime, config) for config in product(every=runtime.every)]
        yield ""
        yield f"Combinations{every}: {_counts(combined)}."
        nodes = itertools.islice(sized(steps), 0, None, runtime.every)
        large = [attempt(attempts, runtime, config) for config in nodes]
        yield ""
        yield f"Real sizes{every}: {_counts(large)}."
        yield from _words([*cells.values(), *combined, *large])


def _words(outcomes: Sequence[tuple[Outcome, Outcome]]) -> Iterator[str]:
    """Yield a list of what the runtime says, each once, with the number of nodes."""
    for index, how in enumerate(("native", "lowered")):
        said: dict[str, list[str]] = collections.defaultdict(list)
        for why in (pair[index].why for pair in outcomes if pair[index].verdict not in ("right", "wrong")):
            # Alike but for names and numbers.
            said[re.sub(r"[\d.]+|'[^']*'|\"[^\"]*\"|0x\w+", "", why)].append(why)
        if said:
            yield ""
        for each in sorted(said.values(), key=len, reverse=True):
            # The reason stands at the end.
            why = each[0].replace("`", "")
            short = why if len(why) <= _MAX_WORDS else f"... {why[-_MAX_WORDS:]}"
            yield f"- {how}, {len(each)}: `{short}`"


def _cell(outcomes: tuple[Outcome, Outcome] | None) -> str:
    if outcomes is None:
        return ""
    native, lowered = (outcome.verdict for outcome in outcomes)
    return native if lowered == "right" else f"{native}; lowered: **{lowered}**"


def _counts(outcomes: Sequence[tuple[Outcome, Outcome]]) -> str:
    """Return ``171 nodes; native right 16, wrong 24, refuses 131; lowered right 171``."""
    both = []
    for index, how in enumerate(("native", "lowered")):
        counter = collections.Counter(pair[index].verdict for pair in outcomes)
        numbers = [f"{verdict} {counter[verdict]}" for verdict in _VERDICTS if counter[verdict]]
        both.append(f"{how} {', '.join(numbers)}")
    return f"{len(outcomes)} nodes; {'; '.join(both)}"


if __name__ == "__main__":
    main(sys.argv[1:])
