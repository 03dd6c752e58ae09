"""Target files written by a user."""

from __future__ import annotations

from pathlib import Path

MINIMAL = {
    "opset": "range = [7, 17]",
    "control_flow": "ops = []",
    "shapes": "static = true",
    "dtypes": 'allowed = ["float32"]',
    "ops": 'allowed = ["Add", "MatMul"]',
}


def write(folder: Path, tables: dict[str, str], more: str = "") -> Path:
    path = folder / "own.toml"
    text = "".join(f'[{name}]\n{content}\nsource = "me"\n' for name, content in tables.items())
    path.write_text(text + more)
    return path
