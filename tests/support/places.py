"""The folders of this repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
