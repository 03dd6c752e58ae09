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
from collections.abc import Iterator, Sequence
from importlib import metadata

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
from runtime_grid import COLUMNS, FEATURES, Outcome, attempt, product, rows, sized
from support.runtimes import RUNTIMES, Runtime

from rnnlower.engines.opened import Attempts

PAGE = pathlib.Path(__file__).with_name("runtimes.md")
INTRODUCTION = """\
# Real runtimes

<!-- Written by docs/runtimes.py. -->

LSTM, GRU and RNN nodes on runtimes from PyPI: what becomes of the node itself, and of what
`rnnlower lower --target` makes of it. Each attempt is judged by the tests' oracle, which follows the
operators' text:

- *right*: the numbers agree, within 2e-4 of the largest;
- *wrong*: the runtime gives other numbers or shapes, and says nothing;
- *refuses*: it says that it cannot;
- *crashes*: the process ends.

The table of a runtime gives a node one feature beside the defaults (float32, 3 steps, 2 rows, opset 14); what
stands in it is the native attempt. Lowered, every node is right unless its cell says otherwise. The second
line below the table counts all combinations of sequence_lens, clip, other activations, layout = 1, initial
states and peepholes, for each cell and direction. The third counts plain nodes at real sizes: 1, 3 and 50
steps, 1 and 16 rows, 8 and 64 features, 16, 64 and 256 units, every other one with initial states. The list
has the runtime's words for the nodes that it refuses or that end its process.
"""
_LONG, _SHORT = 50, 3
_MOST_WORDS = 200


def main(targets: Sequence[str]) -> None:
    sections = _sections()
    for target in targets or [name for name, runtime in RUNTIMES.items() if runtime.engine.installed]:
        sections[target] = "\n".join(_section(RUNTIMES[target])) + "\n"
        bodies = [sections[name] for name in sorted(sections)]
        PAGE.write_text("\n".join([INTRODUCTION, *bodies]), encoding="utf-8")


def _sections() -> dict[str, str]:
    """Return the sections that the page has, by target."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = [f"## {part}".rstrip() + "\n" for part in text.split("\n## ")[1:]]
    return {part.split()[1]: part for part in parts}


def _section(runtime: Runtime) -> Iterator[str]:
    yield f"## {runtime.target}"
    yield ""
    today = datetime.date.today().isoformat()
    yield f"{runtime.engine.label}, {today}, with onnx {metadata.version('onnx')}."
    yield ""
    with Attempts(runtime.engine) as attempts:
        tried = itertools.islice(rows(), 0, None, runtime.every)
        cells = {(row, column): attempt(attempts, runtime, config) for row, column, config in tried}
        if runtime.every > 1:
            yield f"Compiling takes it long: one node of {runtime.every} is tried, the others are left blank."
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
        nodes = itertools.islice(sized(_SHORT if runtime.every > 1 else _LONG), 0, None, runtime.every)
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
            short = why if len(why) <= _MOST_WORDS else f"... {why[-_MOST_WORDS:]}"
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
        known = ("right", "wrong", "refuses", "crashes", "hangs")
        numbers = [f"{verdict} {counter[verdict]}" for verdict in known if counter[verdict]]
        both.append(f"{how} {', '.join(numbers)}")
    return f"{len(outcomes)} nodes; {'; '.join(both)}"


if __name__ == "__main__":
    main(sys.argv[1:])
