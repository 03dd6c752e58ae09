"""Lower models for the runtimes that are installed, and print what each says of the result there.

python tests/tried_there.py FOLDER               # FOLDER has dtln_model1.onnx and silero_vad_v6.onnx
python tests/tried_there.py FOLDER opencv tract  # on these

Exit code 1 if a lowered model differs there, or a planted fault does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from support.configs import Config
from support.faults import SOURCE_FAULTS

from rnnlower.engines.catalog import engines
from rnnlower.targets import find_target, target_names

_LSTM = Config(seq_length=20, batch_size=2, input_size=16, hidden_size=32, Y_h="graph", Y_c="graph")
_GRU = dataclasses.replace(_LSTM, op_type="GRU", Y_c="omitted")
NODES = {
    "LSTM": _LSTM,
    "bidirectional LSTM": dataclasses.replace(_LSTM, direction="bidirectional"),
    "GRU": _GRU,
    "GRU, linear_before_reset": dataclasses.replace(_GRU, linear_before_reset=1),
}
REAL: dict[str, tuple[str, ...]] = {
    "dtln_model1": (),
    "silero_vad_v6": ("--set", "sr=16000", "--input-shape", "input:1,576", "--input-shape", "state:2,1,128"),
}
FAULTS = ("a weight of R off by 5%", "direction flipped")
_OWN_TESTS = ("onnxruntime", "rnnlower-reference")


def run(*arguments: object) -> tuple[int, str]:
    """Return the exit code of a command, and its line about the runtime, or else the last one."""
    words = [sys.executable, "-m", "rnnlower", *map(str, arguments)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = (ended.stdout + ended.stderr).strip().splitlines()
    said = [line for line in lines if "tried on" in line or "error:" in line]
    return ended.returncode, " ".join((said or lines)[-1].split())


def lowered(engine: str, folder: Path, models: Path) -> int:
    """Lower every model for an engine's target, or for none with primitive ops; return how many differ."""
    how = [*_command(engine), *(() if "--target" in _command(engine) else ("--on", engine))]
    differing = 0
    for name, config in NODES.items():
        path = folder / f"{name}.onnx"
        onnx.save(config.build(), path)
        differing += _tell(engine, name, *run(*how[:1], path, *how[1:], "-o", folder / "out.onnx"))
    for name, options in REAL.items():
        path = models / f"{name}.onnx"
        differing += _tell(engine, name, *run(*how[:1], path, *how[1:], *options, "-o", folder / "out.onnx"))
    return differing


def _command(engine: str) -> list[str]:
    """Return the words that lower a model for an engine."""
    targets = [name for name in target_names() if find_target(name).engine == engine]
    return ["lower", "--target", targets[0]] if targets else ["unroll"]


def _tell(engine: str, name: str, code: int, line: str) -> bool:
    print(f"{engine}: {name}: exit {code}: {line}", flush=True)
    return code == 1


def faulty(engine: str, folder: Path) -> int:
    """Run lowered models with planted faults there; return how many do not differ."""
    source, (command, *how) = NODES["LSTM"].build(), _command(engine)
    onnx.save(source, folder / "source.onnx")
    hidden = 0
    for fault in FAULTS:
        wrong = onnx.ModelProto.FromString(source.SerializeToString())
        assert SOURCE_FAULTS[fault](wrong, np.random.default_rng(0))
        onnx.save(wrong, folder / "wrong.onnx")
        run(command, folder / "wrong.onnx", *how, "--on", "none", "-o", folder / "faulty.onnx")
        code, line = run("verify", folder / "source.onnx", folder / "faulty.onnx", "--on", engine)
        print(f"{engine}: {fault}: exit {code}: {line}", flush=True)
        hidden += code == 0
    return hidden


def main() -> int:
    """Print a line for each model and each fault on each engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    installed = [each.name for each in engines() if each.installed and each.name not in _OWN_TESTS]
    parser.add_argument("engines", nargs="*", default=installed)
    options = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        for engine in options.engines:
            failures += lowered(engine, Path(name), options.folder) + faulty(engine, Path(name))
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
