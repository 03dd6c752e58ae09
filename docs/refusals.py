"""Write docs/refusals.md: the message of every refusal, by running into it.

python docs/refusals.py          # write the page
python docs/refusals.py --check  # exit code 1 if the page is not current
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
from refusal_cases import CALLS, CASES
from refusal_models import Case
from typer.testing import CliRunner

import rnnlower
from rnnlower.cli.app import app
from rnnlower.graph import inference
from rnnlower.passes import InlineFunctionsPass, LowerRecurrentPass, SetInputsPass

PAGE = pathlib.Path(__file__).with_name("refusals.md")
INTRODUCTION = """\
# Refusals

<!-- Written by docs/refusals.py with {versions}. -->

Anything that is not supported is refused before a file is written, with one message on stderr and an exit
code. Each message below comes from running the command on a model made for it. For the operators and version
steps of `convert`, see [opsets.md](opsets.md).

| exit code | meaning |
|---|---|
| 1 | the two models differ; nothing was written |
| 2 | wrong usage |
| 3 | the model cannot be read, is invalid, or uses something that is not supported |
| 4 | could not be verified; nothing was written |
"""
FROM_PYTHON = """\
## From Python

The functions raise what the commands print, with Python's arguments in the place of options: an error's
`node` says where it is, and its `remedy` what to do. Some refusals only they can meet, for the command line
has met another one before. Here `model` is an `onnx.ModelProto`, `ir` is `onnx_ir`, and the passes are those
of `rnnlower.passes`.
"""
NOT_RUN_INTO = """\
## Not run into

What leads to these messages cannot be arranged here, or is not known to exist. What the command line says of
a missing or malformed option is not listed.

| message | exit code | when |
|---|---|---|
| not enough memory for this model | 3 | an allocation fails |
| nested too deeply for this model | 3 | bodies within bodies, deeper than Python goes |
| cannot read or write: REASON | 2 | stdout is closed, or its disk full |
| -o - writes the result to standard output: redirect it to a file or a command | 2 | it is a terminal |
| no model comes from standard input: give a path, or a command that writes one | 2 | it is a terminal |
| the result has more than 2 GB of its own next to the data that it shares; REMEDY | 2 | large tensors |
| cannot read or write FILE: REASON | 2 | a chart of `bench` cannot be drawn there |
| FORMS: not what the model computes | 1 | `bench` made a form that is wrong |
| with scales too small to round, NAME differs by D: a quantizer is misplaced | 1 | `quantize` made a fault |
| the float model is unstable: if its inputs move by a millionth, NAME moves by D | 3 | its rounding grows |
| ROLE of node NODE has no quantizers | 1 | `quantize` made a fault |
| onnxruntime's quantizer fails on the rest of the model: REASON; REMEDY | 3 | it does, in its own words |
| the step model does not run on the numbers of the test in C: REASON | 4 | `stream --emit c` |
| RUNTIME does not run the result: REASON | 4 | a runtime of `quantize --on` refuses it, in its own words |
| RUNTIME runs the model correctly in none of these forms | 4 | `bench` finds nothing to time |
| RUNTIME was still loading after N s; RNNLOWER_ENGINE_SECONDS allows more | 4 | a runtime of `--on` hangs |
| RUNTIME ended its process while loading the model, by SIGNAL: LAST WORDS | 4 | a runtime of `--on` crashes |
| RUNTIME failed loading the model: REASON | 4 | a runtime of `--on` refuses it, in its own words |
| RNNLOWER_ENGINE_SECONDS is TEXT; it must be a number of seconds above 0 | 2 | the limit of time is none |
| RNNLOWER_ENGINE_GIGABYTES is TEXT; it must be a number above 0 | 2 | the limit of memory is none |
| PROGRAM cannot list its packages: REASON | 2 | RNNLOWER_PYTHON_NAME is no Python |
| the model cannot be written: REASON | 3 | what is wrong with it was not seen when it was read |
| NODE: STEP: this step is newer than the table of steps; REMEDY | 3 | onnx is newer than this version |
| NODE: STEP: onnx has no definition of it in older operators; REMEDY | 3 | another onnx has one |
| NODE: STEP: opset N cannot express it: REASON; REMEDY | 3 | onnx infers no type for what replaces the node |
"""


def versions() -> str:
    """Return the libraries whose words some of the messages hold."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("onnx", "onnxruntime", "protobuf"))


def page() -> str:
    """Return the text of the page."""
    lines = [INTRODUCTION.format(versions=versions())]
    for section, cases in CASES.items():
        lines += [f"## {section}", ""]
        for case in cases:
            code, message = run(case)
            lines += _entry(f"**{case.title}** (exit code {code}, `rnnlower {case.command}`)", message)
            if case.target:
                lines[-1:] = ["with this `own.toml`:", "", "```toml", case.target.rstrip(), "```", ""]
    lines.append(FROM_PYTHON)
    for case in CALLS:
        lines += _entry(f"**{case.title}** (`{case.command}`)", call(case))
    lines.append(NOT_RUN_INTO)
    return "\n".join(lines)


def _entry(title: str, message: str) -> list[str]:
    return [title, "", "```", message, "```", ""]


def run(case: Case) -> tuple[int, str]:
    """Return the exit code and the message of a command."""
    with _folder(case) as folder:
        before = sorted(folder.iterdir())
        absent = mock.patch.dict(sys.modules, {case.without: None})
        if case.environment:
            # A process that runs already may answer before the shortest limit ends it.
            inference._CHILD.close()
        with absent if case.without else contextlib.nullcontext():
            result = CliRunner().invoke(app, shlex.split(case.command), env=dict(case.environment))
        if result.exit_code == 0 or sorted(folder.iterdir()) != before:
            raise RuntimeError(f"{case.command} was not refused: {result.output}")
        if not isinstance(result.exception, SystemExit):
            raise RuntimeError(f"{case.command} ended in an error of its own") from result.exception
        # The tables on stdout hold figures of this machine where there is an error on stderr, too.
        said = [line.rstrip() for line in (result.stderr or result.stdout).strip().splitlines()]
        return result.exit_code, "\n".join(said).replace(str(folder), "FOLDER")


def call(case: Case) -> str:
    """Return the error that an expression raises."""
    names = {"rnnlower": rnnlower, "ir": ir, "np": np, "model": _changed(case)}
    passes = {each.__name__: each for each in (InlineFunctionsPass, LowerRecurrentPass, SetInputsPass)}
    with _folder(case):
        try:
            eval(case.command, names | passes)
        except rnnlower.RnnLowerError as error:
            return f"{type(error).__name__}: {error}"
    raise RuntimeError(f"{case.command} was not refused")


def _changed(case: Case) -> onnx.ModelProto:
    assert isinstance(case.model, onnx.ModelProto)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    if case.change is not None:
        case.change(model)
    return model


@contextlib.contextmanager
def _folder(case: Case) -> Iterator[pathlib.Path]:
    """Change into a folder with the case's files."""
    here = pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        _write_models(folder, case)
        _write_data(folder)
        _write_inputs(folder, case.command)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(here)


def _write_models(folder: pathlib.Path, case: Case) -> None:
    if isinstance(case.model, onnx.ModelProto):
        (folder / "other.onnx").write_bytes(case.model.SerializeToString())
        (folder / "model.onnx").write_bytes(_changed(case).SerializeToString())
    elif case.model is not None:
        (folder / "model.onnx").write_bytes(case.model)
    if case.target:
        (folder / "own.toml").write_text(case.target)


def _write_data(folder: pathlib.Path) -> None:
    for name, size in (("short.bin", 40), ("weights.data", 96), ("one.bin", 96), ("large.bin", 2**31)):
        with (folder / name).open("wb") as file:
            file.truncate(size)
    (folder / "link.bin").symlink_to("short.bin")
    (folder / "other.bin").hardlink_to(folder / "one.bin")


def _write_inputs(folder: pathlib.Path, command: str) -> None:
    """Write what the command names."""
    X = np.ones((2, 1, 3), np.float32)
    sets = {"good": {"X": X}, "rank": {"X": X[0]}, "dtype": {"X": X.astype(np.float64)}}
    sets |= {"name": {"X": X, "Z": X}, "none": {}, "shape": {"X": np.ones((2, 1, 4), np.float32)}}
    sets |= {"integers": {"X": X.astype(np.int64)}, "empty": {"X": np.ones((0, 2, 1, 3), np.float32)}}
    sets["stacks"] = {"X": np.stack([X, X]), "lens": np.full((3, 1), 2, np.int32)}
    sets["beyond"] = {"X": X, "lens": np.array([2**40])}
    sets |= {"longer": {"X": np.ones((3, 1, 3), np.float32)}, "many_recordings": {"X": np.stack([X] * 4)}}
    sets["with_states"] = {"X": np.stack([X] * 4)} | {
        f"cell_{letter}_in": np.zeros((4, 1, 1, 2), np.float32) for letter in "hc"
    }
    sets["some_states"] = {"X": X, "cell_h_in": np.zeros((1, 1, 2), np.float32)}
    sets["spaced"] = {"X 1": X}
    sets["nan"] = {"X": np.full((2, 1, 3), np.nan, np.float32)}
    for name, arrays in sets.items():
        if f"{name}.npz" in command:
            np.savez(folder / f"{name}.npz", **arrays)
    with (folder / "plain.npz").open("wb") as file:
        np.save(file, X)
    for name, file_name, data in (("many", "input_9.pb", b""), ("broken", "input_0.pb", b"no tensor")):
        if name in command:
            (folder / name).mkdir()
            (folder / name / file_name).write_bytes(data)
    if "nothing" in command:
        (folder / "nothing").mkdir()
    (folder / "ranges.json").write_text('{"ranges": []}')
    (folder / "no_ranges.json").write_text("[]")


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
