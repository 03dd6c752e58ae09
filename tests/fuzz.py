"""Run broken model files through the command line: each must end soon, in a documented exit code.

python tests/fuzz.py --count 10000 --seed 1           # the counts by exit code
python tests/fuzz.py --seed 1 --only 4711 --keep DIR  # one case again, its files kept

The cases run in a child process, so that crashes and hangs are found and named.
A case is bad if it ends in an exit code other than 0 to 4, in a traceback, in a crash or not at all, or if it
leaves files behind that it should not.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

import numpy as np
import onnx
from support.broken_files import break_file
from support.cli_helpers import Run

from rnnlower.targets import target_names

MODELS = pathlib.Path(__file__).parent.parent / "models"
COMMANDS = ("inspect", "check", "unroll", "scan", "loop", "lower", "convert", "verify")
SECONDS = 60
_MAX_WAITED = 15 * SECONDS
_MEMORY = 10 * 2**30


def make_case(seed: int, number: int, folder: pathlib.Path) -> list[str]:
    """Write the case's files into the folder and gives its command line."""
    random = np.random.default_rng([seed, number])
    sources = sorted(MODELS.glob("*.onnx"))
    source = sources[int(random.integers(len(sources)))]
    data = source.read_bytes()
    broken = folder / "model.onnx"
    broken.write_bytes(break_file(data, random))
    output = folder / "out" / "result.onnx"
    output.parent.mkdir()
    command = str(random.choice(COMMANDS))
    if command == "inspect":
        return ["inspect", str(broken), *(["--json"] if random.random() < 0.5 else [])]
    if command == "check":
        return ["check", str(broken), "--target", str(random.choice(target_names()))]
    if command == "verify":
        pair = [str(source), str(broken)]
        random.shuffle(pair)
        return ["verify", *(pair if random.random() < 0.7 else [str(broken)] * 2), "--trials", "2"]
    line = [command, str(broken), "-o", str(output)]
    if command == "convert" or random.random() < 0.3:
        line += ["--opset", str(random.integers(7, 27))]
    line += ["--no-verify"] if random.random() < 0.4 else ["--trials", "1"]
    if random.random() < 0.2:
        line += ["--external-data", str(random.choice(["always", "never"]))]
    if command == "convert":
        return line
    if random.random() < 0.2:
        line += ["--semantics", "spec"]
    if command in ("scan", "loop") and random.random() < 0.3:
        line += ["--unroll-factor", "3"]
    if command == "lower":
        line += ["--target", str(random.choice(target_names()))]
    if command in ("unroll", "lower"):
        line += _sizes(data)
    return line


def _sizes(data: bytes) -> list[str]:
    """Return sizes for the dimensions that the unbroken model leaves open."""
    graph = onnx.ModelProto.FromString(data).graph
    dims = [dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim]
    return [part for name in dict.fromkeys(dims) if name.strip("?") for part in ("--dim", f"{name}=3")]


def run_case(line: list[str], folder: pathlib.Path) -> tuple[str, str]:
    """Return the case's outcome and a description; an outcome that is not a number is a failure."""
    from rnnlower.engines.reference import evaluator
    from rnnlower.verification.inputs import trials

    os.environ["RNNLOWER_ENGINE_SECONDS"] = str(SECONDS / 6)
    trials.MAX_SEARCH_SECONDS = evaluator.MAX_LOOP_SECONDS = SECONDS / 6
    before = {path.name for path in folder.iterdir()}
    try:
        with warnings.catch_warnings(record=True):
            result = Run(*line)
    except Exception:
        return "traceback", traceback.format_exc()
    output = result.stdout + result.stderr
    if result.code not in range(5) or "Traceback" in output:
        return "undocumented", f"exit code {result.code}\n{output}"
    left = {path.name for path in folder.iterdir()} - before
    results = {path.name for path in (folder / "out").iterdir()}
    allowed = {"result.onnx", "result.onnx.data"} if result.code == 0 else set()
    if left or not results <= allowed:
        return "files left", f"exit code {result.code}: {sorted(left | results)}"
    if result.code and not output.strip():
        return "silent", f"exit code {result.code} without a word"
    return str(result.code), output


def _work(seed: int, numbers: range, keep: pathlib.Path | None) -> None:
    """Run the child's side: the cases, with a line of JSON before and after each."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What onnxruntime prints itself must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for number in numbers:
        with contextlib.ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory())
            line = make_case(seed, number, pathlib.Path(name))
            if keep:
                shutil.copytree(name, keep / str(number))
            print(json.dumps([number, "started", " ".join(line)]), file=answers)
            outcome, details = run_case(line, pathlib.Path(name))
            print(json.dumps([number, outcome, details]), file=answers)


class _Child:
    """A process that works through the cases, and the last line that it sent."""

    def __init__(self, arguments: argparse.Namespace, first: int) -> None:
        command = [sys.executable, __file__, "--work", str(first), "--seed", str(arguments.seed)]
        command += ["--count", str(arguments.count)]
        command += ["--keep", str(arguments.keep)] if arguments.keep else []
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.errors, env=environment, text=True
        )
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, selectors.EVENT_READ)

    def line(self) -> list[str] | None:
        """Return the next line, or None when there will be none: the process ended, or hangs."""
        assert self.process.stdout is not None
        start, used = time.monotonic(), self._seconds_used()
        while not self._selector.select(SECONDS):
            # On a busy machine a process that gets no turn is not one that hangs.
            waited, worked = time.monotonic() - start, self._seconds_used() - used
            if worked >= SECONDS or waited >= _MAX_WAITED:
                return None
        text = self.process.stdout.readline()
        return json.loads(text) if text else None

    def _seconds_used(self) -> float:
        """Return the processor time of the child so far."""
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def end(self) -> str:
        """Return the outcome of the process, which is ended if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(1)
            self.errors.seek(0)
            return f"crash (status {code}): {self.errors.read()[-600:].decode(errors='replace')}"
        self.process.kill()
        self.process.wait()
        return "hang"


def fuzz(arguments: argparse.Namespace) -> collections.Counter[str]:
    """Run all cases; the number of cases by outcome."""
    outcomes: collections.Counter[str] = collections.Counter()
    number, last = arguments.first, arguments.count
    while number < last:
        child = _Child(arguments, number)
        command = "starting"
        while number < last and (answer := child.line()) is not None:
            if answer[1] == "started":
                command = answer[2]
                continue
            outcomes[answer[1]] += 1
            if not answer[1].isdecimal():
                print(f"case {number}: {answer[1]}: {command}\n{answer[2]}", flush=True)
            number += 1
        what = child.end()
        if number < last:
            outcomes[what.split(" ")[0]] += 1
            print(f"case {number}: {what}: {command}", flush=True)
            number += 1
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this case alone, with what it says")
    parser.add_argument("--keep", type=pathlib.Path, help="copy the files of every case to this folder")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        _work(arguments.seed, range(arguments.work, arguments.count), arguments.keep)
        return 0
    if arguments.only is not None:
        with tempfile.TemporaryDirectory() as name:
            line = make_case(arguments.seed, arguments.only, pathlib.Path(name))
            if arguments.keep:
                shutil.copytree(name, arguments.keep, dirs_exist_ok=True)
            print(" ".join(line), flush=True)
            print(*run_case(line, pathlib.Path(name)), sep="\n")
        return 0
    start = time.monotonic()
    outcomes = fuzz(arguments)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:7d}  {outcome if not outcome.isdecimal() else f'exit code {outcome}'}")
    print(f"{sum(outcomes.values()):7d}  cases in {time.monotonic() - start:.0f} s")
    return 0 if all(outcome.isdecimal() for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
