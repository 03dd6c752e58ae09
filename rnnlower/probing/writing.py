"""The text of a target file, completed by an earlier file, and the differences between two targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from rnnlower.probing.operator_probes import tried_operators
from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.targets.format import Claim, ControlFlow, Limit
from rnnlower.targets.target import Target
from rnnlower.targets.target_schema import toml_value
from rnnlower.targets.vocabulary import standard_operators

_WIDTH = 100

PROBED = "rnnlower probe"
"""The text in the source of a probed claim."""
_UNTRIED = "; what they do not test is taken over from what was known before"
_KEPT_KEYS = ("domains", "functions", "copies_constants")
_REMEDY_KEYS = {*Limit.__struct_fields__} - {"ops", "dtypes", "source", "guess", "remedy"}


def toml_text(data: Mapping[str, Any]) -> str:
    """Return the TOML text of a target file: plain values, tables, and lists of tables."""
    lines = [f"{key} = {toml_value(value)}" for key, value in data.items() if isinstance(value, str | bool)]
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


def nonempty(**values: Any) -> dict[str, Any]:
    """Return the keys whose values are not false or empty, the defaults of a target file."""
    return {name: value for name, value in values.items() if value}


def list_changes(old: Target, new: Target) -> list[str]:
    """Describe how the new target differs, one line per difference.

    Ignored are sources, versions, and operators of the old target that a probe has no test for.
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
            f"{place}: {name}: {_format_change(was.get(name), now.get(name))}"
            for name in dict.fromkeys([*was, *now])
            if was.get(name) != now.get(name)
        ]
    return lines


def _format_change(old: Any, new: Any) -> str:
    plain = [value is None or _is_words(value) for value in (old, new)]
    if not all(plain) or old is None or new is None:
        return f"{_format(old)} -> {_format(new)}"
    gone = [f"-{word}" for word in old if word not in new]
    return " ".join([*gone, *(f"+{word}" for word in new if word not in old)])


def _is_words(value: Any) -> bool:
    return (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(v, str) for v in value)
    )


def _format(value: Any) -> str:
    return "nothing" if value is None else toml_value(list(value) if isinstance(value, tuple) else value)


def _claims_by_table(target: Target) -> dict[str, dict[str, Any]]:
    """Return the claims of a target, by table or operator."""
    names = ("ops", "opset", "control_flow", "shapes", "dtypes")
    claims = {name: _fields(getattr(target, name)) for name in names}
    claims["ops"]["allowed"] = sorted(target.op_types)
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
    skipped = {"source", "guess", "tried", "remedy", "absent", *_KEPT_KEYS}
    skipped |= set() if isinstance(claim, ControlFlow) else {"ops"}
    fields = {name: value for name, value in msgspec.structs.asdict(claim).items() if name not in skipped}
    return {name: sorted(value) if _is_words(value) else value for name, value in fields.items()}


def merge_earlier(
    tables: Mapping[str, Any], before: Mapping[str, Any], tried: Collection[str] = ()
) -> dict[str, Any]:
    """Return the tables of a file, completed with those of an earlier file of the runtime.

    The completed parts are its title, costs and cautions, untried operators, and remedies.

    Args:
        tables: The findings of a probe.
        before: The earlier file.
        tried: The operators that were tried.
    """
    result = dict(tables) | {"title": before.get("title", tables["title"])}
    ops = before.get("ops", {})
    result["ops"] = tables["ops"] | {name: ops[name] for name in _KEPT_KEYS if name in ops}
    earlier = (
        {*ops["allowed"]} if "allowed" in ops else standard_operators() if "absent" in ops else frozenset()
    )
    others = earlier - {*ops.get("absent", ()), *tried, *RECURRENT_OPS}
    names = {*tables["ops"]["allowed"], *others}
    if others:
        result["ops"]["source"] += _UNTRIED
    # Those of other domains last.
    result["ops"]["allowed"] = sorted(names, key=lambda name: ("." in name, name))
    earlier_limits = before.get("limits", ())
    result["limits"] = _merge_limits([_with_remedy(limit, earlier_limits) for limit in tables["limits"]])
    known = [caution for caution in before.get("cautions", ()) if PROBED not in caution.get("source", "")]
    result["cautions"] = [*tables["cautions"], *known]
    # A probe finds out how products are summed and which integers are computed; older claims are dropped.
    found = ("accumulates", "quantized", "unclipped")
    gates = {name: value for name, value in before.get("arithmetic", {}).items() if name not in found}
    if "gates" in gates:
        result["arithmetic"] = gates | result.get("arithmetic", {})
    return result | {name: before[name] for name in before if name not in (*result, "arithmetic")}


def _merge_limits(limits: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge limits that are the same for several operators."""
    groups: list[dict[str, Any]] = []
    for limit in limits:
        same = next((group for group in groups if group | {"ops": limit["ops"]} == limit), None)
        if same is None:
            groups.append(dict(limit))
        else:
            same["ops"] = [*same["ops"], *limit["ops"]]
    return groups


def _with_remedy(limit: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the limit with the remedy of an earlier limit of the same kind."""
    remedies = (
        each["remedy"]
        for each in before
        if "remedy" in each
        and {*limit["ops"]} & {*each["ops"]}
        and any(key in limit and key in each for key in _REMEDY_KEYS)
    )
    return dict(limit) | nonempty(remedy=next(remedies, ""))
