"""Stream every model below a folder and verify it, or give the reason for its refusal: a table in Markdown.

    python tests/stream_table.py FOLDER [OPTION ...]

The options go to ``rnnlower stream`` as they are. Where a refusal names a chunk or ``--allow-delay`` as the
way out, the model gets another try with that.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import tempfile

from support.folders_of_models import recurrent_models
from typer.testing import CliRunner

from rnnlower.cli import app

WAY_OUT = re.compile(r"--chunk \d+|--allow-delay")


def outcome(path: pathlib.Path, options: list[str]) -> tuple[str, str]:
    """``streamed``, ``refused`` or what went wrong, and what there is to tell of it."""
    with tempfile.TemporaryDirectory() as folder:
        output = str(pathlib.Path(folder) / "streamed.onnx")
        run = CliRunner().invoke(app, ["stream", str(path), "-o", output, "--json", *options])
    if run.exit_code == 0:
        said = json.loads(run.stdout)
        worst = max(out["max_abs"] for out in said["verification"]["outputs"])
        delay = f", {said['delay']} steps late" if said["delay"] else ""
        return "streamed", f"{len(said['states'])} states, largest difference {worst:.2g}{delay}"
    words = {1: "DIFFERS", 2: "refused", 3: "refused", 4: "NOT PROVED"}.get(run.exit_code, "CRASHED")
    text = run.output.strip().splitlines()
    told = json.loads(run.stdout).get("error") if run.stdout.strip() else None
    return words, told["message"] if told else " ".join(text[-1:])


def main() -> int:
    folder, options = pathlib.Path(sys.argv[1]), sys.argv[2:]
    paths = recurrent_models(folder)
    print("| model | outcome | what |\n|---|---|---|", flush=True)
    wrong = 0
    for path in paths:
        word, text = outcome(path, options)
        advised: list[str] = []
        while word == "refused" and (advice := WAY_OUT.search(text)) and advice[0] not in advised:
            advised.append(advice[0])
            word, text = outcome(path, [*options, *" ".join(advised).split()])
        word += f" with {' '.join(advised)}" if advised else ""
        wrong += word.split()[0].isupper()
        print(f"| {path.relative_to(folder)} | {word} | {text} |", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
