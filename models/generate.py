"""Write every model of this folder: ``python models/generate.py [FOLDER]``.

The small ones come from ``model_table.TABLE``, those that look like real networks from ``networks.NETWORKS``.
The same table gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import sys
import zlib
from pathlib import Path

import onnx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from model_table import TABLE  # noqa: E402
from networks import NETWORKS  # noqa: E402
from support.configs import Config  # noqa: E402


def small_config(name: str) -> Config:
    """Return the ``Config`` of a row of ``TABLE``, with weights of its own."""
    return dataclasses.replace(TABLE[name][1], seed=zlib.crc32(name.encode()))


def generate(name: str) -> onnx.ModelProto:
    """Return the model called ``name``."""
    if name in NETWORKS:
        reason, make = NETWORKS[name]
        model = make()
    else:
        reason = TABLE[name][0]
        model = small_config(name).build()
    model.graph.name = name
    model.doc_string = reason
    model.producer_name = "rnnlower models"
    onnx.checker.check_model(model, full_check=True)
    return model


def write_all(folder: Path) -> list[Path]:
    """Write all models to ``folder``; return their paths."""
    paths = []
    for name in [*TABLE, *NETWORKS]:
        path = folder / f"{name}.onnx"
        path.write_bytes(generate(name).SerializeToString(deterministic=True))
        paths.append(path)
    return paths


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    print(f"{len(write_all(target))} models in {target}")
