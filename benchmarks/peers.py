"""What other tools make of LSTM, GRU and RNN nodes: writes docs/peers.md.

    python -m venv peers && peers/bin/pip install . onnxslim onnxsim onnxoptimizer polygraphy
    peers/bin/python benchmarks/peers.py

Each tool gets each model of models/, in a process that may crash or hang. Counted are results without
recurrent nodes, and results that compute the same. A tool that is not installed is left out.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import multiprocessing
import pathlib
import tempfile
from collections.abc import Callable, Iterable

import onnx

import rnnlower

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "peers.md"
RECURRENT = {"LSTM", "GRU", "RNN"}
OPSET = 21
SECONDS = 60
TRIALS = 4

Tool = Callable[[pathlib.Path, pathlib.Path], None]

INTRODUCTION = """\
# Other tools

<!-- Written by benchmarks/peers.py. -->

None of the other tools below replaces LSTM, GRU or RNN nodes by primitive operators. They simplify graphs,
fold constants or convert opsets, and go well with rnnlower: run them before or after.

Each tool ran, without options, on the {count} models of `models/`: small ones of every version, attribute
and place of a recurrent node, from opset 1 on, many of them unusual on purpose.

- *without recurrent nodes*: how many results have none left; those that are *different*, too, have lost them.
- *equal*: the result computes the same as the source, by `rnnlower verify`.
- *different*: it computes something else, or no engine runs it.
- *fails*: the tool ends with an error, crashes, or takes over {seconds} seconds. `rnnlower unroll` refuses
  models without a static length.
- *not compared*: no engine runs the source.

"""


def _version_converter(source: pathlib.Path, output: pathlib.Path) -> None:
    from onnx import version_converter

    onnx.save(version_converter.convert_version(onnx.load(source), OPSET), output)


def _onnxscript_converter(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnx_ir as ir
    from onnxscript import version_converter

    model = ir.load(source)
    version_converter.convert_version(model, target_version=OPSET)
    ir.save(model, output)


def _onnxscript_optimizer(source: pathlib.Path, output: pathlib.Path) -> None:
    from onnxscript import optimizer

    onnx.save(optimizer.optimize(onnx.load(source)), output)


def _onnxslim(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), output)


def _onnxsim(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnxsim

    simplified, _ = onnxsim.simplify(onnx.load(source))
    onnx.save(simplified, output)


def _onnxoptimizer(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnxoptimizer

    onnx.save(onnxoptimizer.optimize(onnx.load(source)), output)


def _polygraphy(source: pathlib.Path, output: pathlib.Path) -> None:
    from polygraphy.backend.onnx import fold_constants

    onnx.save(fold_constants(onnx.load(source)), output)


def _onnxruntime(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(output)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _rnnlower_scan(source: pathlib.Path, output: pathlib.Path) -> None:
    onnx.save(rnnlower.scan(source), output)


def _rnnlower_unroll(source: pathlib.Path, output: pathlib.Path) -> None:
    onnx.save(rnnlower.unroll(source), output)


TOOLS: list[tuple[str, str, str, Tool]] = [
    ("rnnlower scan", "rnnlower", "recurrent nodes become primitives in a Scan", _rnnlower_scan),
    (
        "rnnlower unroll",
        "rnnlower",
        "recurrent nodes of a static length become straight lines",
        _rnnlower_unroll,
    ),
    ("onnx.version_converter", "onnx", f"converts the opset, here to {OPSET}", _version_converter),
    (
        "onnxscript.version_converter",
        "onnxscript",
        f"converts the opset, here to {OPSET}",
        _onnxscript_converter,
    ),
    ("onnxscript.optimizer", "onnxscript", "folds constants, rewrites patterns", _onnxscript_optimizer),
    ("onnxslim", "onnxslim", "simplifies graphs", _onnxslim),
    ("onnxsim", "onnxsim", "simplifies graphs", _onnxsim),
    ("onnxoptimizer", "onnxoptimizer", "fuses and eliminates nodes", _onnxoptimizer),
    ("polygraphy fold_constants", "polygraphy", "folds constants", _polygraphy),
    ("onnxruntime, saved graph", "onnxruntime", "writes the graph that it optimized", _onnxruntime),
]


def _recurrent(graph: onnx.GraphProto | onnx.FunctionProto) -> int:
    """The recurrent nodes of a graph and its subgraphs."""
    found = 0
    for node in graph.node:
        found += node.op_type in RECURRENT and node.domain in ("", "ai.onnx")
        for attribute in node.attribute:
            found += sum(map(_recurrent, [attribute.g, *attribute.graphs]))
    return found


def _left(path: pathlib.Path) -> int:
    model = onnx.load(path)
    return sum(map(_recurrent, [model.graph, *model.functions]))


def _in_child(work: Callable[[], str]) -> str:
    """What the work says; nothing where it raises, crashes or hangs."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        sender.send(work())

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        answer = receiver.recv() if receiver.poll(SECONDS) else ""
    except EOFError:
        answer = ""
    process.kill()
    process.join()
    return str(answer)


def _compared(source: pathlib.Path, output: pathlib.Path) -> str:
    try:
        return "equal" if rnnlower.verify(source, output, trials=TRIALS) else "different"
    except rnnlower.UnverifiableError as error:
        return "different" if "candidate" in str(error) else "not compared"
    except rnnlower.RnnLowerError:
        return "different"


def measure(tool: Tool, models: Iterable[pathlib.Path]) -> collections.Counter[str]:
    """What the tool made of the models."""
    counts: collections.Counter[str] = collections.Counter()
    for source in models:
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "out.onnx"

            def convert(source: pathlib.Path = source, output: pathlib.Path = output) -> str:
                tool(source, output)
                return f"{_left(output)}"

            left = _in_child(convert)
            if not left:
                counts["fails"] += 1
                continue
            verdict = _compared(source, output)
            counts[verdict] += 1
            counts["without recurrent nodes"] += left == "0"
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=str(ROOT / "models"), help="the folder of models")
    arguments = parser.parse_args()
    models = sorted(path for path in pathlib.Path(arguments.models).glob("*.onnx") if _left(path))
    columns = ("without recurrent nodes", "equal", "different", "fails", "not compared")
    lines = [
        f"| tool | version | what it does | {' | '.join(columns)} |",
        f"|---|---|---|{'---|' * len(columns)}",
    ]
    for name, package, what, tool in TOOLS:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{package} is not installed")
            continue
        counts = measure(tool, models)
        cells = " | ".join(str(counts[column]) for column in columns)
        lines.append(f"| {name} | {version} | {what} | {cells} |")
        print(lines[-1], flush=True)
    text = INTRODUCTION.format(count=len(models), seconds=SECONDS) + "\n".join(lines) + "\n"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
