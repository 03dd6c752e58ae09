"""Write docs/targets.md: what each target can run, the sources, and whether it was tried.

python docs/targets.py          # write the page
python docs/targets.py --check  # exit code 1 if the page is not current
"""

from __future__ import annotations

import pathlib
import sys
import textwrap
from collections.abc import Mapping

import msgspec

from rnnlower.lowering.fallbacks import FALLBACKS
from rnnlower.targets import Target, find_target, target_names
from rnnlower.targets.format import Arithmetic, Claim
from rnnlower.targets.target_schema import start

PAGE = pathlib.Path(__file__).with_name("targets.md")
INTRODUCTION = """\
# Targets

<!-- Written by docs/targets.py. -->

The data on runtimes that `rnnlower check MODEL --target NAME` and `rnnlower lower MODEL -o OUT --target NAME`
use: one TOML file for each runtime in `rnnlower/targets/data/`. **Guess** marks claims without a source or a
trial.

`--target FILE.toml` takes a file of your own, in [this format](#the-format-of-a-target-file).
`rnnlower targets --new my.toml` writes a file to begin with, with a comment on every key.
`rnnlower targets --schema > target.schema.json` writes a JSON Schema of such files: with the line
`#:schema target.schema.json` at the top, editors complete and check them.

A recurrent node that the runtime computes correctly keeps its operator or is lowered, whichever is
estimated to be faster; `--native keep` always keeps it. A lowered node is unrolled if
the runtime has neither Scan nor Loop or there are few steps; otherwise it becomes a Scan, or a Loop if there
is no Scan. Only operators of the runtime are emitted, in an opset that it accepts. An operator that is
missing, or limited to another form, is expressed by others, in emitted nodes and in the rest of the model
alike. If that is impossible, a recurrent node is refused by name; another node stays and is named in a note.

- Split: Slices. Gemm: MatMul and Add, also where the runtime requires a constant matrix and the matrix is
  computed. Squeeze and Unsqueeze: Reshape.
- Where: with constant sequence_lens, Slice and Concat of the rows, which is exact; otherwise multiplication
  by 0 and 1, which is exact for finite numbers, but lets NaN or infinity past the end of a sequence into the
  results. Less: Cast, Sub and Clip.
- Products: with `--gates auto`, as many as the runtime requires (*arithmetic* below), or else as many as run
  fastest. A runtime that sums products of float16 in float16 gets recurrences in float32 between Casts, as
  with `--compute-type float32`; one that sums them in float32 gets them as they are.
- Outputs: a Cast to their own type where the runtime may compute in place on an output that other nodes read.
- ThresholdedRelu: a factor of 0 or 1.
- Other operators of the standard, where they are missing or limited, some only in part (a Pad that repeats
  elements, a Slice that goes backwards, a Gather by a matrix):
@standard@.
  All other operators that onnx defines as functions: that function.
- The operators that onnxruntime writes when it optimizes or quantizes. Where these are quantized, the
  float operator stands between DequantizeLinear and QuantizeLinear, and may differ from the integer kernel by
  one step of the quantizer:
@foreign@.
- Some forms need sizes or contents that are known: pass `--input-shape`. The table is
  `rnnlower/lowering/fallbacks/`.

The provider targets of onnxruntime (CoreML, NNAPI, QNN, WebNN, WebGPU) describe what runs on the provider;
everything else falls back to the CPU and is correct there.
"""

FORMAT = """\
## The format of a target file

This is the file that `rnnlower targets --new` writes: all keys, each with an example and its meaning; the
optional ones are comments. A file consists of claims. Each is a table with its `source`, or a guess; a
`source` at the top is that of all claims that name none. Shape inputs and constants are int64 regardless of
`dtypes`.
"""


def page() -> str:
    """Return the text of the page."""
    targets = [find_target(name) for name in target_names()]
    introduction = INTRODUCTION.replace("@standard@", _operators("")).replace(
        "@foreign@", _operators("com.microsoft.")
    )
    lines = [introduction, "| target | opset | control flow | static shapes only | keeps | tried | runtime |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for target in targets:
        native = dict.fromkeys(op_type for rule in target.recurrent for op_type in rule.ops)
        cells = [
            f"[{target.name}](#{target.name})",
            "{} to {}".format(*target.opset.range),
            " ".join(target.control_flow.ops) or "none",
            "yes" if target.shapes.static else "no",
            " ".join(native) or "none",
            "no" if target.tried is None else target.tried.version,
            target.title,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for target in targets:
        lines += ["", *_section(target)]
    lines += ["", FORMAT, "```toml", start().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _operators(domain: str) -> str:
    """Return the operators of a domain that have fallbacks, as lines of a list's entry."""
    names = [name.removeprefix(domain) for name in sorted(FALLBACKS) if name.startswith(domain)]
    text = ", ".join(name for name in names if "." not in name)
    return textwrap.fill(text, 108, initial_indent="  ", subsequent_indent="  ")


def _section(target: Target) -> list[str]:
    said_once = f" Where no source is named: {target.source}." if target.source else ""
    lines = [f"## {target.name}", "", f"{target.title}.{said_once}", ""]
    lines += ["| what | says | source |", "|---|---|---|"]
    if target.ops.allowed is not None:
        ops = f"{len(target.ops.allowed)} operators"
    else:
        ops = "all operators" + (f" but {', '.join(target.ops.absent or ())}" if target.ops.absent else "")
    ops += "; copies constants" if target.ops.copies_constants else ""
    ops += "; overwrites outputs that are read" if target.ops.overwrites_outputs else ""
    if target.ops.copied_outputs:
        ops += f"; an output of {' or '.join(target.ops.copied_outputs)} is right as a copy only"
    ops += "; loses axes of what follows from constants" if target.ops.loses_constant_axes else ""
    if target.ops.loses_nan:
        ops += f"; {', '.join(target.ops.loses_nan)} make numbers of NaN"
    if target.ops.inexact_behind_sum:
        ops += f"; {', '.join(target.ops.inexact_behind_sum)} less exact directly after a sum"
    says = {
        "opset": "{} to {}".format(*target.opset.range),
        "control_flow": ", ".join(target.control_flow.ops) or "none",
        "shapes": "static" if target.shapes.static else "static and dynamic",
        "dtypes": ", ".join(target.dtypes.allowed),
        "ops": ops,
        "arithmetic": "" if target.arithmetic is None else _arithmetic(target.arithmetic),
        "costs": "" if target.costs is None else _prices(target.costs.microseconds),
        "tried": "" if target.tried is None else target.tried.version,
    }
    rows = [(name, says.get(name), claim) for name, claim in target.claims()]
    limits = iter(
        [
            *(_limit(limit) for limit in target.limits),
            *(_rule(rule) for rule in target.recurrent),
            *(caution.text for caution in target.cautions),
        ]
    )
    for name, said, claim in rows:
        text = next(limits) if said is None else said
        source = ("" if claim.source == target.source else claim.source) + (" **Guess**" * claim.guess)
        lines.append(f"| {name.replace('_', ' ')} | {text} | {source} |")
    return lines


def _limit(limit: Claim) -> str:
    """Return the keys of a limit or rule that say something."""
    skipped = ("ops", "source", "guess", "otherwise", "wrong", "remedy")
    given = {key: value for key, value in msgspec.structs.asdict(limit).items() if key not in skipped}
    return "; ".join(
        f"{key} {_words(value)}" for key, value in given.items() if value not in (None, (), {}, False, "")
    )


def _arithmetic(arithmetic: Arithmetic) -> str:
    gates = "gates as they run fastest" if arithmetic.gates == "auto" else f"{arithmetic.gates} gates"
    summed = arithmetic.accumulates and f"; products of float16 are summed in {arithmetic.accumulates}"
    integers = "" if arithmetic.quantized is None else f"; integers: {', '.join(arithmetic.quantized)}"
    loose = arithmetic.unclipped and f"; quantizers left out: {', '.join(arithmetic.unclipped)}"
    return gates + summed + integers + (loose or "")


def _prices(costs: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {cost:g} us" for name, cost in costs.items())


def _rule(rule: Claim) -> str:
    wrong = getattr(rule, "wrong", ())
    said = _limit(rule) + (f"; silently wrong: {', '.join(wrong)}" if wrong else "")
    return said + ("; others unknown" if getattr(rule, "otherwise", "") == "unknown" else "")


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key} = {' or '.join(map(str, allowed)) if allowed else 'absent'}"
            for key, allowed in value.items()
        )
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
