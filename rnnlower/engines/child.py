"""The child process in which a runtime runs a model: a script for the interpreter that has the runtime.

Its arguments are the runtime's name, the file of its adapter and a memory limit. It imports nothing but NumPy
and what the adapter needs, so that any Python from 3.10 on can run it. Requests are lines of JSON on stdin,
answers are lines of JSON on the original stdout; arrays pass through .npz files. Output of the runtime goes
to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, Any]
Run = Callable[[Arrays], Arrays]


class Model(SimpleNamespace):
    """The argument of an adapter.

    Attributes:
        path: A copy of the model, which may be changed.
        inputs: The graph inputs that are fed, in order, with their sizes: a number, or ``None`` if dynamic.
        outputs: The graph outputs in order, in the same form.
        dtypes: NumPy names of the types of the outputs.
        threads: Number of threads; 0 leaves it to the runtime.
    """

    path: str
    folder: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    dtypes: dict[str, str]
    threads: int

    def in_order(self, function: Callable[[list[Any]], Sequence[Any]]) -> Run:
        """Return the run of a function that takes and returns arrays in the order of the graph."""

        def run(feeds: Arrays) -> Arrays:
            results = function([np.asarray(feeds[name], order="C") for name in self.inputs])
            return dict(zip(self.outputs, results, strict=True))

        return run

    def run_program(self, *words: str) -> str:
        """Run a program in the folder and return its output; it is first looked up next to Python.

        Raises:
            RuntimeError: It fails; the message contains its error lines, or its last lines.
        """
        neighbor = os.path.join(os.path.dirname(sys.executable), words[0])
        program = neighbor if os.path.exists(neighbor) else words[0]
        done = subprocess.run(
            [program, *words[1:]],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        printed = done.stdout.decode(errors="replace")
        if done.returncode:
            lines = [line.strip() for line in printed.splitlines() if line.strip()]
            telling = [line for line in lines if "rror" in line or "not supp" in line] or lines[-2:]
            name = os.path.basename(words[0])
            raise RuntimeError(f"{name} ended with status {done.returncode}: {' | '.join(telling[:3])}")
        return printed


class Adapter(NamedTuple):
    """A function that opens a model on a runtime, with what `Engine` says of the runtime.

    ``version`` returns the version of a runtime that no Python package provides.
    """

    load: Callable[[Model], Run]
    about: dict[str, Any]
    version: Callable[[], str | None] | None


ADAPTERS: dict[str, Adapter] = {}
"""The adapters of the files that were loaded, by the names of their runtimes."""


def adapter(
    title: str, *, version: Callable[[], str | None] | None = None, **about: Any
) -> Callable[[Callable[[Model], Run]], Callable[[Model], Run]]:
    """Make a function the adapter of the runtime that has its name."""

    def decorate(load: Callable[[Model], Run]) -> Callable[[Model], Run]:
        ADAPTERS[load.__name__.replace("_", "-")] = Adapter(load, {"title": title, **about}, version)
        return load

    return decorate


def write_arrays(path: str, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file; ``np.savez`` cannot write an array with the name ``file``."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: str) -> Arrays:
    """Return the arrays of an .npz file by name.

    Raises:
        ValueError: It is not an .npz file.
    """
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is not an .npz archive; write one with np.savez")
            with zipfile.ZipFile(file) as archive:
                return {name.removesuffix(".npy"): _read_array(archive, name) for name in archive.namelist()}
    except Exception as error:
        # NumPy, zipfile and zlib each have their own errors for the ways in which an archive can be damaged.
        raise ValueError(str(error) or type(error).__name__) from error


def _read_array(archive: zipfile.ZipFile, name: str) -> Any:
    with archive.open(name) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the packages that this interpreter has."""
    from importlib import metadata

    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _serve(name: str, file: str, gigabytes: float) -> None:
    """Answer requests until there are no more: to load a model, or to run the model loaded last."""
    incoming = os.fdopen(os.dup(0), "r", encoding="utf-8")
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    _limit_memory(gigabytes)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    _load_file(file)
    load = ADAPTERS[name].load
    run: Any = None
    for line in incoming:
        request = json.loads(line)
        try:
            start = time.perf_counter()
            if "path" in request:
                run = load(Model(**request))
                answer: dict[str, Any] = {"seconds": time.perf_counter() - start}
            else:
                answer = {"latencies": _run(run, **request)}
        except BaseException as error:
            # Runtimes have errors of their own, and a panic in Rust derives from BaseException.
            answer = {"error": f"{type(error).__name__}: {error}"}
        outgoing.write(json.dumps(answer) + "\n")
        outgoing.flush()


def _run(run: Run, inputs: str, outputs: str, warmup: int, runs: int) -> Sequence[float]:
    """Run on the arrays of a file, write the outputs of the last run, and return the time of each run."""
    feeds = read_arrays(inputs)
    latencies, results = time_runs(lambda: run(feeds), warmup, runs)
    write_arrays(outputs, results)
    return latencies


def time_runs(run: Callable[[], Any], warmup: int, runs: int) -> tuple[list[float], Any]:
    """Return the seconds of each run after some others, and the result of the last."""
    latencies, result = [], None
    for number in range(warmup + runs):
        start = time.perf_counter()
        result = run()
        if number >= warmup:
            latencies.append(time.perf_counter() - start)
    return latencies, result


def _limit_memory(gigabytes: float) -> None:
    """Limit the process's data memory, but not its address space: some runtimes reserve far more."""
    try:
        import resource
    except ImportError:
        return  # Windows has no such limit.
    limit = int(gigabytes * 2**30)
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent(parent: int) -> None:
    """End soon after the parent ends, whatever this process is doing: a killed parent cannot do it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _load_file(path: str) -> None:
    # Python looks first in the folder of the script: openvino.py must not hide the package openvino.
    sys.path.pop(0)
    spec = importlib.util.spec_from_file_location("adapters", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    if sys.argv[1] == "--versions":
        print(json.dumps(versions(sys.argv[2:])))
    else:
        # Adapters import this module by a name that the interpreter may not know.
        sys.modules["rnnlower.engines.child"] = sys.modules["__main__"]
        _serve(sys.argv[1], sys.argv[2], float(sys.argv[3]))
