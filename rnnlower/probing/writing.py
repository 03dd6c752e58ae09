"""The text of a target file, and the differences between two targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rnnlower.probing.trying_operators import tried_operators
from rnnlower.targets.format import Claim, ControlFlow
from rnnlower.targets.target import Target
from rnnlower.targets.target_schema import toml_value

_WIDTH = 100


def toml_text(data: Mapping[str, Any]) -> str:
    """Return the TOML text of a target file: plain values, tables, and lists of tables."""
    lines = [f"{key} = {toml_value(value)}" for key, value in data.items() if isinstance(value, str)]
    source = data.get("source")
    for key, value in data.items():
        tables = [(f"[{key}]", value)] if isinstance(value, dict) else []
        if isinstance(value, list):
            tables = [(f"[[{key}]]", row) for row in value]
        for head, table in tables:
            said = {name: what for name, what in table.items() if name != "source" or what != source}
            lines += ["", head, *(_line(name, what) for name, what in said.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    line = f"{name} = {toml_value(value)}"
    if len(line) <= _WIDTH or not isinstance(value, list):
        return line
    rows, row = [], "   "
    for item in value:
        word = f" {toml_value(item)},"
        if len(row) + len(word) > _WIDTH:
            rows.append(row)
            row = "   "
        row += word
    return "\n".join([f"{name} = [", *rows, row, "]"])


def changes(old: Target, new: Target) -> list[str]:
    """Describe how the new target differs, one line per difference.

    Sources and versions are ignored, and operators of the old one of which a probe has nothing to try.
    """
    before, after = _claims_by_table(old), _claims_by_table(new)
    known = {*after["ops"]["allowed"], *tried_operators()}
    before["ops"]["allowed"] = [name for name in before["ops"]["allowed"] if name in known]
    lines = []
    for place in dict.fromkeys([*before, *after]):
        if place not in before or place not in after:
            lines.append(f"{place}: {'new' if place in after else 'gone'}")
            continue
        was, now = before[place], after[place]
        lines += [
            f"{place}: {name}: {_difference(was.get(name), now.get(name))}"
            for name in dict.fromkeys([*was, *now])
            if was.get(name) != now.get(name)
        ]
    return lines


def _difference(old: Any, new: Any) -> str:
    plain = [value is None or _is_words(value) for value in (old, new)]
    if not all(plain) or old is None or new is None:
        return f"{_shown(old)} -> {_shown(new)}"
    gone = [f"-{word}" for word in old if word not in new]
    return " ".join([*gone, *(f"+{word}" for word in new if word not in old)])


def _is_words(value: Any) -> bool:
    return (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(v, str) for v in value)
    )


def _shown(value: Any) -> str:
    return "nothing" if value is None else toml_value(list(value) if isinstance(value, tuple) else value)


def _claims_by_table(target: Target) -> dict[str, dict[str, Any]]:
    """Return the claims of a target, by table or operator."""
    ops = {
        "allowed": sorted(target.op_types),
        "overwrites_outputs": target.ops.overwrites_outputs,
        "copied_outputs": sorted(target.ops.copied_outputs),
        "loses_nan": sorted(target.ops.loses_nan),
        "inexact_behind_sum": target.ops.inexact_behind_sum,
    }
    claims: dict[str, dict[str, Any]] = {"ops": ops}
    claims |= {name: _fields(getattr(target, name)) for name in ("opset", "control_flow", "shapes", "dtypes")}
    if target.arithmetic is not None:
        claims["arithmetic"] = _fields(target.arithmetic)
    for limit in target.limits:
        for op_type in limit.ops:
            claims.setdefault(f"limits of {op_type}", {}).update(_fields(limit))
    for rule in target.recurrent:
        forms = "/".join(map(str, rule.attributes.get("linear_before_reset", ())))
        states = " with states" if "initial_h" in rule.needs else ""
        form = f" linear_before_reset={forms}" if forms else ""
        claims[f"native {', '.join(rule.ops)}{form}{states}"] = _fields(rule)
    return claims


def _fields(claim: Claim) -> dict[str, Any]:
    skipped = {"source", "guess", "tried", "remedy"} | (set() if isinstance(claim, ControlFlow) else {"ops"})
    fields = {name: value for name, value in msgspec.structs.asdict(claim).items() if name not in skipped}
    return {name: sorted(value) if _is_words(value) else value for name, value in fields.items()}
