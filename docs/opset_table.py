"""Write docs/opsets.md: what happens to every operator at every version step, up and down.

python docs/opset_table.py          # write the page
python docs/opset_table.py --check  # exit code 1 if the page is not current
"""

from __future__ import annotations

import pathlib
import sys

from rnnlower.graph.versions import Parameter, Version, operators, version_at, versions
from rnnlower.opset.adapters import Adapter, describe_adapter
from rnnlower.opset.families import REVIEWED, ROWS
from rnnlower.opset.version_fit import MAX_OPSET

PAGE = pathlib.Path(__file__).with_name("opsets.md")
INTRODUCTION = """\
# Operators and opsets

<!-- Written by docs/opset_table.py. -->

The treatment of every operator of the default domain by `rnnlower convert`, at every version step, up and
down. A node has to cross every step between its own opset and the requested one.

- **compatible**: the node crosses unchanged. Downward, the older version has to allow the node: a node with a
  later attribute (other than its default), a later input or output, or a later element type is refused,
  with its name, the step and the reason.
- **adapted**: the node is rewritten. Some of these rewritings need a constant, a rank or an element type;
  if that is unknown, the node is refused as well.
- **refused**: the other version cannot express the node.

Steps that are not in this table, from a newer onnx, are refused.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [INTRODUCTION, f"The operators are those of opset 1 to {min(MAX_OPSET, REVIEWED)}.", ""]
    counts = {"compatible": 0, "adapted": 0, "refused": 0}
    table: list[str] = []
    for op_type in operators():
        numbers = [number for number in versions(op_type) if number <= REVIEWED]
        for low, high in zip([0, *numbers], numbers, strict=False):
            if low == 0 and high == 1:
                continue
            up, down = _up(op_type, low, high), _down(op_type, low, high)
            for text in (up, down):
                if text != "-":
                    counts[text.split(":")[0].split(",")[0]] += 1
            step = f"{low} to {high}" if low else f"new in {high}"
            table.append(f"| {op_type} | {step} | {up} | {down} |")
    lines += [", ".join(f"{count} ways {kind}" for kind, count in counts.items()) + ".", ""]
    lines += ["| operator | step | up | down |", "|---|---|---|---|", *table, ""]
    return "\n".join(lines)


def _up(op_type: str, low: int, high: int) -> str:
    if low == 0:
        return "-"
    row = ROWS.get((op_type, low, high))
    new = version_at(op_type, high)
    if row is not None and row.up is not None:
        return _described(row.up)
    assert new is not None
    if new.deprecated:
        return "refused: the operator was taken out"
    return f"compatible: {row.why}" if row is not None and row.down is None else "compatible"


def _down(op_type: str, low: int, high: int) -> str:
    row = ROWS.get((op_type, low, high))
    if row is not None and row.down is not None:
        return _described(row.down)
    if low == 0:
        return "refused: nothing older says the same"
    old, new = version_at(op_type, low), version_at(op_type, high)
    assert old is not None
    assert new is not None
    missing = sorted(_types(new) - _types(old))
    kind = "compatible" if row is None or row.up is not None else f"compatible: {row.why}"
    return f"{kind}, but not {', '.join(missing)}" if missing else kind


def _described(adapter: Adapter) -> str:
    return f"adapted: {describe_adapter(adapter)}".replace("|", r"\|")


def _types(version: Version) -> set[str]:
    def names(parameters: tuple[Parameter, ...]) -> set[str]:
        return {type_ for parameter in parameters for type_ in parameter.types}

    tensors = {each for each in names(version.inputs) | names(version.outputs) if each.startswith("tensor(")}
    others = {each.split("(")[0] for each in names(version.inputs) | names(version.outputs)} - {"tensor"}
    return {each[len("tensor(") : -1] for each in tensors} | others


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
