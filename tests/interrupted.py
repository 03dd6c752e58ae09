"""Interrupt, kill and starve runs of the command line: a result is written whole or not at all.

python tests/interrupted.py --runs 1000 --seed 1

Each run is a process of its own that gets a signal after a random time, too little memory, a limit to
the size of files, a path that is in no folder, or another run on the same output. At its end the output
is what it was, or the whole result; no process is left, and no file. What a killed run leaves next to the
output, the next one removes.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import onnx
from support.small_models import recurrent_model

RUN = (sys.executable, "-m", "rnnlower")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
KINDS = (*(each.name for each in SIGNALS), "memory", "file size", "no folder", "two at once")
MIB = 2**20
# Ends by a signal, and 128 plus its number for a process that ended itself in an orderly way.
SIGNALED = {code for each in SIGNALS for code in (-each, 128 + each)}


class Bench:
    """A folder with a model, the result that every run should give, and the time that one takes."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.model, self.temporary = folder / "model.onnx", folder / "temporary"
        self.temporary.mkdir()
        onnx.save(recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, [40, 2, 3])}), self.model)
        begun = time.monotonic()
        self.output = folder / "results" / "out.onnx"
        self.output.parent.mkdir()
        code = self.start().wait()
        assert code == 0, code
        self.seconds = time.monotonic() - begun
        self.result = self.output.read_bytes()

    def start(
        self, limit: Callable[[], None] | None = None, output: pathlib.Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a run in a session of its own, whose temporary folders are this one's."""
        command = [*RUN, "unroll", str(self.model), "-o", str(output or self.output), "-q"]
        return subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            start_new_session=True,
            preexec_fn=limit,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def run(self, kind: str, rng: random.Random) -> list[str]:
        """Make one run of the kind, and return what is wrong at its end."""
        old = b"what was there before" if rng.random() < 0.5 else None
        shutil.rmtree(self.output.parent)
        self.output.parent.mkdir()
        if old is not None:
            self.output.write_bytes(old)
        processes = self._processes(kind, rng)
        errors = [each.communicate()[1].decode() for each in processes]
        codes = [each.returncode for each in processes]
        found = [f"process left: {each}" for process in processes for each in _left(process.pid)]
        allowed = {*range(5)} | (SIGNALED if kind in signal.Signals.__members__ else set())
        # Without memory, the C library may end a process before Python runs.
        allowed |= {127} if kind == "memory" else set()
        found += [
            f"exit code {code}: {text[-600:]}"
            for code, text in zip(codes, errors, strict=True)
            if code not in allowed
        ]
        killed = {-signal.SIGKILL} & {*codes}
        if not killed:
            found += [f"traceback: {text[-600:]}" for text in errors if "Traceback" in text]
        written = self.output.read_bytes() if self.output.exists() else None
        if written not in (old, self.result):
            found.append(f"half written: {len(written or b'')} bytes")
        if 0 in codes and kind != "no folder" and written != self.result:
            found.append("exit code 0 without the result")
        if killed:
            assert self.start().wait() == 0
        found += [f"left: {each.name}" for each in self._files()]
        for each in self.temporary.iterdir():
            # onnxruntime writes .ses when it is imported.
            if not killed and each.name != ".ses":
                found.append(f"temporary: {each.name}")
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        return found

    def _files(self) -> list[pathlib.Path]:
        return [each for each in self.output.parent.iterdir() if each != self.output]

    def _processes(self, kind: str, rng: random.Random) -> list[subprocess.Popen[bytes]]:
        if kind == "two at once":
            return [self.start(), self.start()]
        if kind == "no folder":
            return [self.start(output=self.model / "out.onnx")]
        if kind == "memory":
            size = rng.randrange(200, 2500) * MIB
            return [self.start(lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)))]
        if kind == "file size":
            size = rng.randrange(0, len(self.result) + 2000)
            return [self.start(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))]
        process = self.start()
        time.sleep(rng.uniform(0, 1.1 * self.seconds))
        process.send_signal(signal.Signals[kind])
        return [process]


def _left(session: int) -> list[str]:
    """Return the commands of processes of a session that are alive; a child may take a moment to end."""
    for _ in range(50):
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError):
                continue
        if not found:
            return []
        time.sleep(0.1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("kinds", nargs="*", help=f"which of {', '.join(KINDS)}; all if left out")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    counts: collections.Counter[str] = collections.Counter()
    wrong: collections.Counter[str] = collections.Counter()
    kinds = arguments.kinds or KINDS
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(pathlib.Path(name))
        for number in range(arguments.runs):
            kind = kinds[number % len(kinds)]
            found = bench.run(kind, rng)
            counts[kind] += 1
            wrong[kind] += bool(found)
            for each in found:
                print(f"run {number}, {kind}: {each}", flush=True)
            if number % 50 == 49:
                print(f"{number + 1} runs, {wrong.total()} wrong", file=sys.stderr, flush=True)
    for kind in kinds:
        print(f"{counts[kind]:5} runs, {wrong[kind]} wrong: {kind}")
    return 1 if wrong.total() else 0


if __name__ == "__main__":
    sys.exit(main())
