"""Run whole models on real runtimes: the file itself, and the model that `lower` makes for the runtime.

    python tests/whole_models.py FOLDER... --on tinygrad opencv --cells cells.jsonl
    python tests/whole_models.py --table cells.jsonl

Inputs are those recorded with the models (see real_models.py), or seeded ones of the declared shapes. Each
cell runs in a child process with a time limit; cells that are in the file already are not run
again. An input that decides branches is set to the value that is fed.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype
from real_models import recorded
from support.judge import differences, run

import rnnlower
from rnnlower.engines.catalog import find_engine
from rnnlower.engines.opened_models import EngineError, open_on
from rnnlower.engines.reference import Evaluator
from rnnlower.targets import find_target, target_names

Arrays = Mapping[str, np.ndarray]
Cell = dict[str, Any]
FORMS = ("native", "lowered")
GENERATED = "generated"
_KEY = ("model", "case", "target", "form")
_BATCH, _LENGTH = 2, 16
_WORDS = 400


def cases(path: pathlib.Path) -> dict[str, tuple[Arrays, Arrays]]:
    """Return inputs and outputs by the name of the case."""
    found = {name: (inputs, outputs) for name, inputs, outputs in recorded(path)}
    if found:
        return found
    model = onnx.load(path)
    inputs = _generated(model.graph)
    return {GENERATED: (inputs, _expected(model, inputs))}


def _case_names(path: pathlib.Path) -> list[str]:
    """Return the plain ones first: their names are the shortest."""
    return sorted((name for name, *_ in recorded(path)), key=len) or [GENERATED]


def _generated(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Return seeded inputs of the declared shapes: small floats, and few steps for possible lengths."""
    rng = np.random.default_rng(0)
    initialized = {tensor.name for tensor in graph.initializer}
    inputs = {}
    for value in graph.input:
        tensor = value.type.tensor_type
        shape = [
            dim.dim_value or (_BATCH if dim.dim_param.startswith("b") else _LENGTH)
            for dim in tensor.shape.dim
        ]
        dtype = np.dtype(tensor_dtype_to_np_dtype(tensor.elem_type))
        if value.name in initialized:
            continue
        if dtype.kind == "f":
            inputs[value.name] = np.asarray(rng.random(shape), dtype)
        elif dtype.kind == "b":
            inputs[value.name] = np.asarray(rng.random(shape) < 0.5)
        else:
            # Packed sequences want lengths that fall.
            inputs[value.name] = np.array(np.flip(np.sort(rng.integers(1, 5, shape), axis=None)), dtype)
            inputs[value.name] = inputs[value.name].reshape(shape)
    return inputs


def _expected(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """Return the outputs by onnxruntime, or by NumPy where that has no kernel; random ones are left out."""
    try:
        first, second = (run(model, inputs) for _ in range(2))
    except Exception as error:
        # onnxruntime has a class of error for every status, without a common base of its own.
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        first, second = (Evaluator(model).run(inputs) for _ in range(2))
    return {name: value for name, value in first.items() if np.array_equal(value, second[name], True)}


def lowered_file(path: pathlib.Path, target: str, inputs: Arrays) -> tuple[onnx.ModelProto, list[str], Cell]:
    """Return the model lowered for the target, the notes, and the inputs that were set on their advice."""
    sets: Cell = {}
    while True:
        shapes = {name: array.shape for name, array in inputs.items() if name not in sets}
        try:
            model, report = rnnlower.lower.with_report(path, target=target, input_shapes=shapes, sets=sets)
        except rnnlower.RnnLowerError as error:
            advised = _advised(str(error), inputs, sets)
            if not advised:
                raise
        else:
            advised = _advised("\n".join(report.notes), inputs, sets)
            if not advised:
                return model, list(report.notes), sets
        sets |= advised


def _advised(said: str, inputs: Arrays, sets: Cell) -> Cell:
    """Return the inputs that a message advises to set, with the values that are fed."""
    names = set(re.findall(r'sets=\{"(.+?)": ', said)) & set(inputs) - set(sets)
    return {name: inputs[name].tolist() for name in sorted(names)}


def attempt_case(path: pathlib.Path, case: str, target: str, form: str) -> Cell:
    """Return the verdict on a cell, and what was said."""
    inputs, expected = cases(path)[case]
    engine = find_engine(find_target(target).engine)
    cell: Cell = {"version": engine.version}
    if form == "native":
        model = onnx.load(path)
    else:
        try:
            model, notes, sets = lowered_file(path, target, inputs)
        except rnnlower.RnnLowerError as error:
            return cell | {"verdict": "not lowered", "why": str(error)}
        misfits = [note for note in notes if "does not run" in note]
        cell |= {"nodes": len(model.graph.node), "sets": sets, "misfits": misfits}
    feeds = {value.name: inputs[value.name] for value in model.graph.input if value.name in inputs}
    try:
        opened = open_on(engine, model)
        try:
            outputs = opened.run(feeds)
        finally:
            opened.close()
    except EngineError as error:
        return cell | {"verdict": error.how, "why": str(error)}
    wrong = differences(expected, outputs, "float32")
    return cell | {"verdict": "wrong" if wrong else "right", "why": "; ".join(wrong)}


def _in_a_child(key: Sequence[str], path: pathlib.Path, seconds: float) -> Cell:
    started = time.monotonic()
    command = [sys.executable, __file__, "--one", str(path), *key[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        lines = done.stdout.strip().splitlines()
        answer = json.loads(lines[-1]) if done.returncode == 0 and lines else None
        answer = answer or {"verdict": "crashes", "why": "\n".join(done.stderr.strip().splitlines()[-3:])}
    except subprocess.TimeoutExpired:
        answer = {"verdict": "hangs", "why": f"not done after {seconds:g} s"}
    seconds = round(time.monotonic() - started, 1)
    return dict(zip(_KEY, key, strict=True)) | answer | {"seconds": seconds}


def read_cells(file: pathlib.Path) -> list[Cell]:
    """Return the cells of a file, the last of each place."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    cells = [json.loads(line) for line in lines]
    return list({tuple(cell[key] for key in _KEY): cell for cell in cells}.values())


def _wanted(
    folders: Sequence[pathlib.Path], targets: Sequence[str], every: bool
) -> Iterator[tuple[tuple[str, ...], pathlib.Path]]:
    for path in sorted(path for folder in folders for path in folder.rglob("*.onnx")):
        if not rnnlower.inspect(path):
            continue
        for case in _case_names(path) if every else _case_names(path)[:1]:
            for target in targets:
                for form in FORMS:
                    yield (path.name, case, target, form), path


def markdown(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a table, a row a model and a set of inputs; then in words what is not right when lowered."""
    targets = sorted({cell["target"] for cell in cells})
    verdicts = {tuple(cell[key] for key in _KEY): cell["verdict"] for cell in cells}
    yield f"| model, inputs | {' | '.join(targets)} |"
    yield f"|---|{'---|' * len(targets)}"
    for model, case in dict.fromkeys((cell["model"], cell["case"]) for cell in cells):
        row = [
            " → ".join(verdicts.get((model, case, target, form), "") for form in FORMS) for target in targets
        ]
        stem = model.removesuffix(".onnx")
        variant = "" if case == stem else f", {case.removeprefix(f'{stem}.')}"
        yield f"| {stem}{variant} | {' | '.join(row)} |"
    yield ""
    for target in targets:
        counts = []
        for form in FORMS:
            chosen = [cell for cell in cells if (cell["target"], cell["form"]) == (target, form)]
            counter = collections.Counter(cell["verdict"] for cell in chosen)
            counts.append(f"{form} " + ", ".join(f"{n} {verdict}" for verdict, n in counter.most_common()))
        yield f"- {target}: {'; '.join(counts)}"
    yield ""
    for cell in cells:
        if cell["form"] == "lowered" and cell["verdict"] != "right":
            model = cell["model"] if cell["case"] == GENERATED else cell["case"]
            yield f"- {cell['target']}, {model}: {cell['verdict']}: {cell['why'][:_WORDS]}"
            yield from (f"    - {misfit}" for misfit in cell.get("misfits", ()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is wanted and is not in the file of cells yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    parser.add_argument("--on", nargs="+", metavar="TARGET", help="targets whose runtime is installed")
    parser.add_argument("--cells", type=pathlib.Path, default=pathlib.Path("cells.jsonl"))
    parser.add_argument("--first", action="store_true", help="only the first set of inputs of each model")
    parser.add_argument("--again", action="store_true", help="run anew what is not right when lowered")
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of a cell")
    parser.add_argument("--table", type=pathlib.Path, help="print the table of a file of cells")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        path, *rest = options.one
        print(json.dumps(attempt_case(pathlib.Path(path), *rest)))
        return 0
    if options.table:
        print("\n".join(markdown(read_cells(options.table))))
        return 0
    known = [name for name in target_names() if find_target(name).engine]
    targets = options.on or [name for name in known if find_engine(find_target(name).engine).installed]
    cells = {tuple(cell[key] for key in _KEY): cell for cell in read_cells(options.cells)}
    wanted = list(_wanted(options.folders, targets, not options.first))
    if not wanted:
        print("no model with a recurrent node", file=sys.stderr)
        return 2
    for key, path in wanted:
        if key in cells and not (options.again and key[3] == "lowered" and cells[key]["verdict"] != "right"):
            continue
        cells[key] = _in_a_child(key, path, options.seconds)
        with options.cells.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cells[key]) + "\n")
        print(*key, cells[key]["verdict"], cells[key]["why"][:_WORDS], flush=True)
    done = [cells[key] for key, _ in wanted]
    print("\n".join(markdown(done)))
    return int(any(cell["form"] == "lowered" and cell["verdict"] != "right" for cell in done))


if __name__ == "__main__":
    sys.exit(main())
