"""The parts of a target file that a probe cannot find out, kept when the runtime is probed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.targets.format import standard_operators

PROBED = "rnnlower probe"
"""The text in the source of a probed claim."""
_UNTRIED = "; what they do not test is taken over from what was known before"
_OF_OPS = ("domains", "functions", "copies_constants")
_OF_A_LIMIT = (
    "written",
    "alone_behind",
    "vector",
    "not_negative",
    "constant",
    "attributes",
    "versions",
    "max_outputs",
)


def kept(tables: Mapping[str, Any], before: Mapping[str, Any], tried: Collection[str] = ()) -> dict[str, Any]:
    """Return the tables of a file, completed with those of an earlier file of the runtime.

    The completed parts are its title, costs and cautions, untried operators, and remedies.

    Args:
        tables: What was found out.
        before: The earlier file.
        tried: The operators that were tried.
    """
    result = dict(tables) | {"title": before.get("title", tables["title"])}
    ops = before.get("ops", {})
    result["ops"] = tables["ops"] | {name: ops[name] for name in _OF_OPS if name in ops}
    earlier = (
        {*ops["allowed"]} if "allowed" in ops else standard_operators() if "absent" in ops else frozenset()
    )
    others = earlier - {*ops.get("absent", ()), *tried, *RECURRENT_OPS}
    names = {*tables["ops"]["allowed"], *others}
    if others:
        result["ops"]["source"] += _UNTRIED
    # Those of other domains last.
    result["ops"]["allowed"] = sorted(names, key=lambda name: ("." in name, name))
    result["limits"] = _grouped([_with_remedy(limit, before.get("limits", ())) for limit in tables["limits"]])
    known = [caution for caution in before.get("cautions", ()) if PROBED not in caution["source"]]
    result["cautions"] = [*tables["cautions"], *known]
    # How it sums, and which integers it has, is found out, or else not known.
    found = ("accumulates", "quantized", "unclipped")
    gates = {name: value for name, value in before.get("arithmetic", {}).items() if name not in found}
    if "gates" in gates:
        result["arithmetic"] = gates | result.get("arithmetic", {})
    return result | {name: before[name] for name in before if name not in (*result, "arithmetic")}


def _grouped(limits: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the limits, those that say the same of several operators as one."""
    groups: list[dict[str, Any]] = []
    for limit in limits:
        same = next((group for group in groups if group | {"ops": limit["ops"]} == limit), None)
        if same is None:
            groups.append(dict(limit))
        else:
            same["ops"] = [*same["ops"], *limit["ops"]]
    return groups


def _with_remedy(limit: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the limit, with the remedy of an earlier one of the same kind."""
    remedies = (
        each["remedy"]
        for each in before
        if "remedy" in each
        and {*limit["ops"]} & {*each["ops"]}
        and any(key in limit and key in each for key in _OF_A_LIMIT)
    )
    remedy = next(remedies, "")
    return dict(limit) | ({"remedy": remedy} if remedy else {})
