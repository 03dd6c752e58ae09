"""The probe of a runtime from scratch, and the resulting target."""

from __future__ import annotations

import datetime
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from rnnlower.engines.known import Engine, find_engine
from rnnlower.errors import UnverifiableError
from rnnlower.probing import operators, types
from rnnlower.probing.asking import Asker, Tell
from rnnlower.probing.keeping import PROBED, kept
from rnnlower.probing.lowered import adaptations, cautions, control_flow, gates, open_sizes, outputs, sums
from rnnlower.probing.quantized import quantized_rules
from rnnlower.probing.recurrent import recurrent_rules
from rnnlower.probing.writing import toml_text
from rnnlower.recurrent.operators import QUANTIZED_LSTM
from rnnlower.targets.reading import parse_target, read_toml
from rnnlower.targets.target import Target

__all__ = ["probe", "probe_text"]


def probe(
    engine: str, *, output: str | os.PathLike[str] | None = None, progress: Tell | None = None
) -> Target:
    """Try a runtime feature by feature, and return what it computes correctly as a target.

    A crash or a hang of the runtime is an answer. A probe takes minutes. With ``output``, the answers are
    kept next to the file until it is written, and an interrupted probe resumes from there. An existing file
    keeps what a probe cannot find out: its title, costs, remedies, times and other domains.

    Args:
        engine: A name of ``rnnlower engines``, or ``'cmd:PROGRAM {model} {inputs} {outputs}'``.
        output: The path of the target's TOML file, if one is wanted.
        progress: Called with a description before each question.

    Returns:
        The target, as :func:`rnnlower.targets.find_target` reads it from the file.

    Raises:
        OptionError: There is no such engine.
        UnverifiableError: It is not installed, or does not even run products and sums.
    """
    path = None if output is None else pathlib.Path(output)
    text = probe_text(engine, path, progress)
    name = engine.partition(":")[0] if path is None else path.stem
    if path is not None:
        part = path.with_name(f"{path.name}.new")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
        _partial(path).unlink(missing_ok=True)
    return parse_target(name, text)


def probe_text(name: str, path: pathlib.Path | None, tell: Tell | None) -> str:
    """Return the text of the target file; answers are kept in ``PATH.partial``."""
    engine = find_engine(name)
    if not engine.installed:
        raise UnverifiableError(f"{engine.title} is not installed ({engine.missing})", remedy=engine.install)
    before = read_toml(path) if path is not None and path.exists() else {}
    with Asker(engine, None if path is None else _partial(path), tell or (lambda words: None)) as asker:
        tables = _tables(asker)
    return toml_text(kept(tables, before, operators.tried_operators()))


def _partial(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.partial")


def _tables(asker: Asker) -> dict[str, Any]:
    """Return the tables of the file, in order."""
    engine = asker.engine
    opsets = operators.opset_range(asker)
    if not opsets:
        asker.finish()  # Another run could use none of these answers.
        raise UnverifiableError(f"{engine.label} does not run a product and a sum at opset 13")
    dynamic = operators.is_dynamic(asker)
    ops = operators.operators(asker, opsets[1])
    dtypes = types.dtypes(asker)
    limits = operators.limits(asker, ops, opsets, dynamic)
    if (cut := operators.opsets_to_cut(opsets, limits)) != opsets:
        # Older versions are asked where the range begins.
        opsets = cut
        limits = operators.limits(asker, ops, opsets, dynamic)
    source = {"source": _source(engine)}
    tested = {"source": f"{source['source']}: ONNX's node tests of each operator"}
    tables: dict[str, Any] = {
        "title": engine.title,
        "engine": engine.name,
        "opset": {"range": opsets} | source,
        "control_flow": {"ops": []} | source,
        "shapes": {"static": not dynamic} | source,
        "dtypes": {"allowed": dtypes} | source,
        "ops": {"allowed": ops} | outputs(asker) | sums(asker, ops) | tested,
        "limits": [limit | source for limit in (*limits, *types.lacking(asker, ops, dtypes))],
    }
    flow = control_flow(asker, tables, dynamic)
    tables["control_flow"] = flow | source
    dynamic = dynamic and open_sizes(asker, tables)
    tables["shapes"] = {"static": not dynamic} | source
    if found := types.arithmetic(asker, dtypes) | gates(asker, tables):
        tables["arithmetic"] = found | source
    rules = recurrent_rules(asker, dynamic, flow["ops"], dtypes)
    tables["recurrent"] = [rule | source for rule in rules]
    tables["recurrent"] = [each for rule in adaptations(asker, tables) for each in (rule, *_under_spec(rule))]
    if quantized := quantized_rules(asker):
        tables["recurrent"] += [rule | source for rule in quantized]
        tables["ops"]["allowed"] = [*ops, f"com.microsoft.{QUANTIZED_LSTM}"]
    tables["cautions"] = [caution | source for caution in cautions(asker, tables)]
    return tables | {"tried": {"version": engine.version or "unknown"} | source}


def _under_spec(rule: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rule for ``--semantics spec`` of one that is correct under ``ort`` only.

    The two agree but for clip, rows without time steps, and the defaults of alpha and beta.
    """
    if rule.get("semantics") != ["ort"]:
        return []
    wrong = ["clip"] if "clip" not in rule["attributes"] else []
    wrong += ["sequence_lens"] if "sequence_lens" in rule["inputs"] else []
    wrong += ["activations"] if len(rule["activations"]) > 1 else []
    changed = {
        "inputs": [name for name in rule["inputs"] if name != "sequence_lens"],
        "attributes": rule["attributes"] | {"clip": []},
        "activations": ["default"],
        "semantics": ["spec"],
        "wrong": sorted({*rule.get("wrong", ()), *wrong}),
    }
    return [{**rule, **changed}]


def _source(engine: Engine) -> str:
    return f"{engine.label}, {PROBED}, {datetime.date.today().isoformat()}"
