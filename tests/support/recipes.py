"""The recipes of a page of documentation, as scripts for bash.

    python tests/support/recipes.py README.md docs/recipes.md

runs all recipes of these pages, each in a folder that has the repository's ``models/``. There,
``rnnlower``, ``python`` and ``pip`` are those of the environment that runs this.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
_HEADING = re.compile(r"^(?:## (.+)|\*\*([^*]+)\.\*\* .*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def recipes(page: str) -> dict[str, str]:
    """Return the scripts by heading: of ``## Recipes`` if a page has that section, else of the whole page."""
    _, _, section = page.partition("## Recipes\n")
    text = section.partition("\n## ")[0] if section else page
    places = [*_HEADING.finditer(text)]
    ends = [*(place.start() for place in places[1:]), len(text)]
    found = {
        place.group(1) or place.group(2): _script(text[place.end() : end])
        for place, end in zip(places, ends, strict=True)
    }
    return {title: script for title, script in found.items() if script}


def _script(text: str) -> str:
    blocks = _BLOCK.findall(text)
    return "".join(code if kind == "sh" else f"python - <<'PYTHON'\n{code}PYTHON\n" for kind, code in blocks)


def run(script: str, folder: pathlib.Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a recipe in a folder; it ends with the first command that fails."""
    (folder / "models").symlink_to(ROOT / "models")
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def main() -> None:
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    for page in sys.argv[1:]:
        for title, script in recipes((ROOT / page).read_text(encoding="utf-8")).items():
            print(f"+ {page}: {title}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                result = run(script, pathlib.Path(folder), os.environ | {"PATH": path})
            if result.returncode:
                sys.exit(f"{script}\n{result.stdout}\nexit code {result.returncode}")


if __name__ == "__main__":
    main()
