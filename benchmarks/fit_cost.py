"""Fits the costs of a target: times the candidates of a grid of nodes on its runtime, prints the prices.

python benchmarks/fit_cost.py --on tract --json fit_tract.json

Rows that the file holds are not measured again, so that a long grid can be measured in parts (``--sizes``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
from measuring import VARIANTS, feeds_of, recurrent

from rnnlower.engines.catalog import Engine, find_engine
from rnnlower.engines.opened_models import EngineError, OpenedModel, open_on
from rnnlower.lowering.pricing import KINDS, NATIVE, price_kind, price_names
from rnnlower.lowering.replacing import Plan
from rnnlower.lowering.sketching import Candidate, cheapest
from rnnlower.lowering.weights import private_weights
from rnnlower.passes import AdaptRecurrentPass, LowerRecurrentPass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets import Target, find_target
from rnnlower.targets.choosing import Chooser
from rnnlower.targets.format import Costs

SIZES = (
    *(
        "4,1,64,64",
        "8,1,16,16",
        "20,1,256,256",
        "50,1,64,64",
        "100,1,128,128",
        "100,1,256,256",
        "200,1,32,32",
    ),
    *("60,4,96,96", "20,8,256,256", "8,16,64,64", "50,16,128,128", "30,24,32,32"),
)
"""Time steps, batch, input_size, hidden_size."""
VARIANT_NAMES = ("lstm", "bilstm", "gru", "gru_linear", "rnn")
RUNS_A_SESSION = 10_000
"""How often a session is assumed to run: what loading a node costs is shared by so many runs."""
_SECONDS_A_TURN = 0.03


def counted(target: Target) -> Target:
    """Return the target with a price for something, so that its candidates are counted."""
    costs = target.costs or Costs(microseconds={}, source="-")
    own = {kind: {"nodes": 1.0} for kind in KINDS}
    return msgspec.structs.replace(
        target, costs=msgspec.structs.replace(costs, microseconds={"nodes": 1.0}, native=own, strategies=())
    )


def found_in(model: ir.Model, target: Target) -> list[Candidate]:
    """Return the candidates for the model's node, counted."""
    (located,) = find_recurrent(model)
    return Chooser(counted(target), private_weights([located.node], ())).candidates(located)


def candidates_of(
    source: onnx.ModelProto, target: Target, most_unrolled: int
) -> Iterator[tuple[Candidate, onnx.ModelProto]]:
    """Yield the candidates for the model's node, each with the model that it makes."""
    for candidate in found_in(ir.from_proto(source), target):
        model = ir.from_proto(source)
        (own,) = find_recurrent(model)
        if candidate.strategy == "unroll" and candidate.counts.loaded > most_unrolled:
            continue
        if candidate.strategy == "adapt":
            AdaptRecurrentPass(target)(model)
        elif candidate.form is not None:
            plan = Plan(candidate.strategy, form=candidate.form)
            LowerRecurrentPass({own.node: plan}, [own], dialect=target)(model)
        yield candidate, ir.to_proto(model)


def measured(
    models: Mapping[str, onnx.ModelProto], feeds: Mapping[str, Any], engine: Engine, rounds: int
) -> dict[str, tuple[float, float]]:
    """Return microseconds of the fastest run of each model, and of loading it; the models take turns."""
    with contextlib.ExitStack() as stack:
        opened: dict[str, OpenedModel] = {}
        for name, model in models.items():
            try:
                own = stack.enter_context(contextlib.closing(open_on(engine, model, 1)))
                own.measure(feeds, 0, 1)
                opened[name] = own
            except EngineError as error:
                print(f"  {name}: {error}", flush=True)
        loading: dict[str, float] = {}
        best = dict.fromkeys(opened, math.inf)
        for _ in range(rounds):
            for name, own in opened.items():
                runs = 2 if best[name] == math.inf else int(min(200, max(2, _SECONDS_A_TURN / best[name])))
                loading[name], times = own.measure(feeds, 1, runs)
                best[name] = min(best[name], *times)
    return {name: (1e6 * best[name], 1e6 * loading[name]) for name in best}


def measure(arguments: argparse.Namespace, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the grid that are not known yet."""
    target = find_target(arguments.on)
    engine = find_engine(target.engine or arguments.on)
    done = {(row["variant"], tuple(row["size"])) for row in known}
    for variant in arguments.variants:
        for text in arguments.sizes:
            size = tuple(int(number) for number in text.split(","))
            if (variant, size) in done:
                continue
            source = recurrent(VARIANTS[variant], size)
            found = list(candidates_of(source, target, arguments.most_unrolled))
            models = {str(candidate): model for candidate, model in found}
            times = measured(models, feeds_of(VARIANTS[variant], size), engine, arguments.rounds)
            print(variant, text, {name: round(own[0]) for name, own in times.items()}, flush=True)
            for candidate, _ in found:
                if str(candidate) in times:
                    run, load = times[str(candidate)]
                    yield {
                        "variant": variant,
                        "size": size,
                        "candidate": str(candidate),
                        "microseconds": run,
                        "loading": load,
                    }


def with_counts(rows: Sequence[dict[str, Any]], target: Target) -> Iterator[dict[str, Any]]:
    """Yield the rows, with what there is in each of what has a price."""
    for variant, size in dict.fromkeys((row["variant"], tuple(row["size"])) for row in rows):
        source = ir.from_proto(recurrent(VARIANTS[variant], size))
        kind = price_kind(parse_recurrent(find_recurrent(source)[0]))
        counts = {
            str(candidate): dataclasses.asdict(candidate.counts) for candidate in found_in(source, target)
        }
        for row in rows:
            if (row["variant"], tuple(row["size"])) == (variant, size) and row["candidate"] in counts:
                yield {**row, "kind": kind, "counts": counts[row["candidate"]]}


def columns(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the key of a price: the kind of operator, or ``""`` for all others, and the name."""
    own = [(kind, name) for kind in KINDS for name in price_names(native=True)]
    found = [("", "run"), *(("", name) for name in price_names(native=False) if name != "loaded"), *own]
    return [column for column in found if any(amount(row, column) for row in rows)]


def amount(row: dict[str, Any], column: tuple[str, str]) -> float:
    """Return the amount of what a price is for."""
    kind, name = column
    if name == "run":
        return 1.0
    if kind not in ("", row["kind"]):
        return 0.0
    return float(row["counts"].get(f"{NATIVE if kind else ''}{name}", 0.0))


def fit(matrix: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return nonnegative coefficients of least absolute relative error, robust to outliers."""
    relative = matrix / times[:, None]
    scale = relative.max(axis=0)
    relative = relative / scale
    weights = np.ones(len(times))
    for _ in range(30):
        solution = non_negative(relative * weights[:, None], weights)
        error = np.abs(relative @ solution - 1)
        weights = 1 / np.sqrt(np.maximum(error, 0.01))
    return solution / scale


def non_negative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the least squares of coefficients that are not below 0, one coefficient after the other."""
    products, target = matrix.T @ matrix, matrix.T @ wanted
    solution = np.zeros(len(target))
    for _ in range(500):
        for i in range(len(target)):
            solution[i] = max(0.0, solution[i] + (target[i] - products[i] @ solution) / products[i, i])
    return solution


def loading_of_a_node(rows: Sequence[dict[str, Any]]) -> float:
    """Return microseconds of a run: how loading grows with the nodes, shared by the runs of a session."""
    nodes = np.array([row["counts"]["loaded"] for row in rows])
    times = np.array([row["loading"] for row in rows])
    slope = np.polyfit(nodes, times, 1)[0]
    return float(max(slope, 0.0)) / RUNS_A_SESSION


def as_toml(found: Mapping[tuple[str, str], float]) -> str:
    """Return the lines of the table ``[costs]``."""

    def inline(prices: Mapping[str, float]) -> str:
        return "{ " + ", ".join(f"{name} = {price:.3g}" for name, price in prices.items() if price) + " }"

    own = {kind: {n: p for (k, n), p in found.items() if k == kind} for kind, _ in found if kind}
    lines = [f"microseconds = {inline({n: p for (k, n), p in found.items() if not k and n != 'run'})}"]
    lines += [f"native.{kind} = {inline(prices)}" for kind, prices in own.items()]
    return "\n".join(lines)


def report(rows: Sequence[dict[str, Any]], without: Sequence[str]) -> None:
    """Fit the rows and tells how good the prices are, and what choosing by them costs."""
    names = [column for column in columns(rows) if column[1] not in without]
    times = np.array([row["microseconds"] for row in rows])
    matrix = np.array([[amount(row, name) for name in names] for row in rows])
    found = dict(zip(names, fit(matrix, times), strict=True))
    found["", "loaded"] = loading_of_a_node(rows)
    print(as_toml(found))
    prices = np.array([sum(found[n] * amount(row, n) for n in found if n[1] != "run") for row in rows])
    run = found["", "run"]
    error = np.abs((prices + run) / times - 1)
    print(f"a run in itself {run:.1f} us; median error {np.median(error):.0%}, worst {error.max():.0%}")
    worst = []
    for point in dict.fromkeys((row["variant"], tuple(row["size"])) for row in rows):
        own = [i for i, row in enumerate(rows) if (row["variant"], tuple(row["size"])) == point]
        choices = [Candidate(rows[i]["candidate"], None, {}, None, prices[i]) for i in own]
        taken = rows[own[choices.index(cheapest(choices))]]
        best = min((rows[i] for i in own), key=lambda row: row["microseconds"])
        ratio = taken["microseconds"] / best["microseconds"]
        worst.append((ratio, point, taken["candidate"], best["candidate"]))
    within = np.mean([ratio <= 1.1 for ratio, *_ in worst])
    print(f"the choice is within 1.10 of the fastest in {within:.0%} of {len(worst)} points")
    for ratio, point, taken, best in sorted(worst, reverse=True)[:8]:
        print(f"  {ratio:.2f} {point}: {taken}, not {best}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--on", default="onnxruntime", metavar="TARGET")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANT_NAMES))
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--most-unrolled", type=int, default=3000, help="nodes of a straight line")
    parser.add_argument("--without", nargs="*", default=(), help="prices that are left out of the fit")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.json and arguments.json.exists():
        rows = json.loads(arguments.json.read_text())["rows"]
    for row in measure(arguments, rows):
        rows.append(row)
        if arguments.json:
            arguments.json.write_text(json.dumps({"on": arguments.on, "rows": rows}, indent=1))
    report(list(with_counts(rows, find_target(arguments.on))), arguments.without)


if __name__ == "__main__":
    main()
