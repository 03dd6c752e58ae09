"""Models that are refused for a target, and target files that are refused."""

from __future__ import annotations

from onnx import TensorProto
from refusal_models import (
    STATIC,
    Case,
    branches,
    cell,
    cell_state,
    computed,
    declare,
    double,
    insert,
    lens,
    node,
    overridable,
    rename_input,
    set_attribute,
    some_steps,
    then,
    untyped,
    x,
)

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
LOWER = "lower model.onnx -o out.onnx --target"


def own(more: str = "", **tables: str) -> str:
    """Return a target's file in which some of the tables are others; "" leaves one out."""
    usual = {
        "opset": "range = [7, 17]",
        "control_flow": 'ops = ["If", "Loop", "Scan"]',
        "shapes": "static = false",
        "dtypes": 'allowed = ["float32"]',
        "ops": "absent = []",
    }
    rows = [f'[{name}]\n{row}\nsource = "me"\n' for name, row in (usual | tables).items() if row]
    return "".join(rows) + more


def limit(attributes: str) -> str:
    """Return a limit of Resize."""
    return f'[[limits]]\nops = ["Resize"]\nattributes = {attributes}\nsource = "me"\n'


TARGETS = [
    Case("no such target", f"{LOWER} tensorflow"),
    Case("no such target", "check model.onnx --target tensorflow"),
    Case("an opset that it does not take", f"{LOWER} onnx2torch --opset 18"),
    Case("open sizes", f"{LOWER} tinygrad"),
    Case("a length that is open", f"{LOWER} own.toml", target=own(control_flow="ops = []")),
    Case(
        "a length known at run time only",
        f"{LOWER} own.toml",
        then(STATIC, some_steps),
        target=own(control_flow="ops = []"),
    ),
    Case(
        "a batch size known at run time only",
        f"{LOWER} own.toml",
        then(STATIC, computed(0), declare("unknown_0", 2, None, 3)),
        target=own(shapes="static = true"),
    ),
    Case(
        "a type that it does not take",
        f"{LOWER} own.toml",
        double("X", "W", "R", "B", "Y", "Y_h"),
        target=own(),
    ),
    Case("an operator that it lacks", f"{LOWER} primitive", then(STATIC, lens(INT32))),
    Case(
        "an activation that it lacks",
        f"{LOWER} own.toml",
        STATIC,
        target=own(ops='absent = ["Sigmoid", "Tanh"]'),
    ),
    Case(
        "its own words contradict each other",
        f"{LOWER} own.toml",
        STATIC,
        target=own('[[limits]]\nops = ["Sigmoid"]\ndtypes = ["float64"]\nsource = "me"\n'),
    ),
    Case(
        "a branch that cannot run",
        f"{LOWER} own.toml",
        model=branches(),
        target=own(control_flow='ops = ["If"]', ops='absent = ["NonZero"]'),
    ),
    Case(
        "an output that needs a copy",
        f"{LOWER} own.toml",
        model=untyped(),
        target=own(ops="absent = []\noverwrites_outputs = true"),
    ),
    Case(
        "copies without the op that copies",
        f"{LOWER} own.toml",
        target=own(ops='allowed = ["Add"]\noverwrites_outputs = true'),
    ),
    Case(
        "the rest of the model",
        f"{LOWER} primitive --strict",
        then(STATIC, rename_input(0, "rounded"), insert(node("Round", ["X"], ["rounded"], name="rounding"))),
    ),
    Case("what becomes of native nodes", f"{LOWER} tract --native fast", STATIC),
    Case("a profile keeps nodes", f"{LOWER} sonnx --native lower", STATIC),
    Case("the profile has no such operator", f"{LOWER} sonnx", STATIC, cell("GRU")),
    Case(
        "the profile has no such activation",
        f"{LOWER} sonnx",
        then(STATIC, set_attribute("activations", ["Sigmoid", "Tanh", "Softsign"])),
    ),
    Case("the profile wants sizes", f"{LOWER} sonnx", x(FLOAT, "T", "N", 3)),
    Case("the profile wants constants", f"{LOWER} sonnx", then(STATIC, lens(INT32))),
    Case("the profile has no such output", f"{LOWER} sonnx", then(STATIC, cell_state)),
    Case("the profile wants constants that stay", f"{LOWER} sonnx", then(STATIC, overridable)),
]
TARGET_FILES = [
    Case("no TOML", f"{LOWER} own.toml", target="[opset"),
    Case("a file that is not there", f"{LOWER} nope.toml"),
    Case("a file of another kind", f"{LOWER} model.onnx"),
    Case("a new file over another", "targets --new own.toml", target=own()),
    Case("a new file of another kind", "targets --new own.json"),
    Case("a new file and the schema", "targets --new new.toml --schema"),
    Case("a table left out", f"{LOWER} own.toml", target=own(ops="")),
    Case("an unknown table", f"{LOWER} own.toml", target=own("[speed]\n")),
    Case("a name in the file", f"{LOWER} own.toml", target='name = "own"\n' + own()),
    Case("an unknown key", f"{LOWER} own.toml", target=own(shapes="statics = true")),
    Case("a key left out", f"{LOWER} own.toml", target=own('[[limits]]\nops = ["Add"]\n')),
    Case("an empty source", f"{LOWER} own.toml", target=own('[[limits]]\nops = ["Add"]\nsource = ""\n')),
    Case("a value of another type", f"{LOWER} own.toml", target=own(shapes="static = 1")),
    Case("a value that is unknown", f"{LOWER} own.toml", target=own(control_flow='ops = ["While"]')),
    Case("an operator that is unknown", f"{LOWER} own.toml", target=own(ops='allowed = ["Matmul"]')),
    Case("an attribute that is unknown", f"{LOWER} own.toml", target=own(limit('{ mod = ["linear"] }'))),
    Case("an attribute without a list", f"{LOWER} own.toml", target=own(limit('{ mode = "linear" }'))),
    Case("an attribute of another type", f"{LOWER} own.toml", target=own(limit("{ mode = [1] }"))),
    Case(
        "a number too small",
        f"{LOWER} own.toml",
        target=own('[[limits]]\nops = ["Split"]\nmax_outputs = 1\nsource = "me"\n'),
    ),
    Case("a range of one opset", f"{LOWER} own.toml", target=own(opset="range = [9]")),
    Case(
        "a price of something else",
        f"{LOWER} own.toml",
        target=own('[costs]\nmicroseconds = { node = 1 }\nsource = "me"\n'),
    ),
    Case("a range of opsets", f"{LOWER} own.toml", target=own(opset="range = [9, 7]")),
    Case(
        "float16 that nothing does better",
        f"{LOWER} own.toml",
        target=own('[arithmetic]\naccumulates = "float16"\nsource = "me"\n', ops='allowed = ["Add"]'),
    ),
    Case("what there is and what is not", f"{LOWER} own.toml", target=own(ops="domains = []")),
]
