"""Run recurrent nodes and their lowered forms on real runtimes, judged by the oracle.

python tests/runtime_grid.py                     # what is installed, one feature at a time
python tests/runtime_grid.py --product opencv    # all combinations of features
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from support.configs import Config
from support.judge import differences
from support.runtimes import RUNTIMES, Runtime

import rnnlower
from rnnlower.engines.opened_models import Attempts, EngineError
from rnnlower.probing.nodes import SIZES

DIRECTIONS = ("forward", "reverse", "bidirectional")
COLUMNS = tuple(itertools.product(("LSTM", "GRU", "RNN"), DIRECTIONS))
_FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
_STATES = {"LSTM": ("initial_h", "initial_c"), "GRU": ("initial_h",), "RNN": ("initial_h",)}
_ACTIVATIONS = (
    *("Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus"),
    *("Softsign", "Tanh", "ThresholdedRelu"),
)
# As gates, these make a state explode or stay at zero over many steps.
_NOT_FOR_GATES = ("Softplus", "ThresholdedRelu")
_BESIDE_SIGMOID = {"LSTM": ["Sigmoid", "", "Tanh"], "GRU": ["Sigmoid", ""]}


def _states(op_type: str) -> dict[str, Any]:
    return dict.fromkeys(_STATES[op_type], "input")


def _functions(op_type: str, direction: str, names: Sequence[str], **parameters: float) -> dict[str, Any]:
    """Return as many activations as the node wants, in turn."""
    count = _FUNCTIONS[op_type] * (2 if direction == "bidirectional" else 1)
    given = {name: (value,) * count for name, value in parameters.items()}
    return {"activations": tuple(itertools.islice(itertools.cycle(names), count)), **given}


def _one_feature(op_type: str, direction: str) -> dict[str, dict[str, Any]]:
    """Return the features that a node may have beyond the defaults."""
    features: dict[str, dict[str, Any]] = {
        "defaults": {},
        "no B": {"B": "omitted"},
        "sequence_lens": {"sequence_lens": "input"},
        "sequence_lens, constant": {"sequence_lens": "initializer"},
        "initial states": _states(op_type),
        "clip": {"clip": 0.3},
        "layout = 1": {"layout": 1},
    }
    if op_type == "LSTM":
        features["P"] = {"P": "initializer"}
        features["input_forget"] = {"input_forget": 1}
    if op_type == "GRU":
        features["linear_before_reset"] = {"linear_before_reset": 1}
    for name in _ACTIVATIONS:
        # Small numbers: a state that only unbounded functions touch grows without end.
        small = {"x_scale": 0.5, "weight_scale": 0.125}
        parameters = {"activation_alpha": 0.4, "activation_beta": 0.3}
        names = _BESIDE_SIGMOID.get(op_type, [""]) if name in _NOT_FOR_GATES else [""]
        names = [each or name for each in names]
        features[name] = _functions(op_type, direction, names, **parameters) | small
    return features


FEATURES = tuple(
    dict.fromkeys(name for op_type in ("LSTM", "GRU", "RNN") for name in _one_feature(op_type, "forward"))
)


def _config(op_type: str, direction: str, **fields: Any) -> Config:
    outputs = {"Y_c": "graph"} if op_type == "LSTM" else {}
    return Config(op_type=op_type, direction=direction, Y_h="graph", **outputs, **fields)


def rows(steps: int = 3, batch: int = 2) -> Iterator[tuple[str, tuple[str, str], Config]]:
    """Yield one feature at a time: its name, the column, the node."""
    size = _size(steps, batch, 8, 16)
    for feature in FEATURES:
        for op_type, direction in COLUMNS:
            features = _one_feature(op_type, direction)
            if feature in features:
                yield feature, (op_type, direction), _config(op_type, direction, **size | features[feature])


def _size(steps: int, batch: int, features: int, units: int) -> dict[str, Any]:
    """Return the sizes, and weights so small that rounding errors do not grow from step to step."""
    return {
        "seq_length": steps,
        "batch_size": batch,
        "input_size": features,
        "hidden_size": units,
        "weight_scale": 0.5 / units**0.5,
    }


def sized(steps: int) -> Iterator[Config]:
    """Yield plain nodes of up to so many steps at real sizes, every other one with initial states."""
    # The last one is for converters that guess.
    sizes = [_size(*size) for size in SIZES[1:-1] if size[0] <= steps]
    forms = [*COLUMNS, *(("GRU, linear_before_reset", direction) for direction in DIRECTIONS)]
    for index, (size, (form, direction)) in enumerate(itertools.product(sizes, forms)):
        op_type, _, more = form.partition(", ")
        fields = size | ({more: 1} if more else {})
        fields |= _states(op_type) if (index + index // len(forms)) % 2 else {}
        yield _config(op_type, direction, **fields)


def product(every: int = 1) -> Iterator[Config]:
    """Yield all combinations of features, or one of every so many."""
    return itertools.islice(_product(), 0, None, every)


def _product() -> Iterator[Config]:
    for op_type, direction in COLUMNS:
        choices = [
            ({}, {"sequence_lens": "input"}),
            ({}, {"clip": 0.3}),
            ({}, _functions(op_type, direction, ("HardSigmoid", "Softsign", "Relu"))),
            ({}, {"layout": 1}),
            ({}, _states(op_type)),
        ]
        if op_type == "LSTM":
            choices.append(({}, {"P": "initializer"}))
        for chosen in itertools.product(*choices):
            yield _config(
                op_type, direction, **dict(itertools.chain.from_iterable(c.items() for c in chosen))
            )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """``right``, ``wrong``, ``refuses``, ``crashes`` or ``hangs``, and what is to be said about it."""

    verdict: str
    why: str = ""


def attempt(attempts: Attempts, runtime: Runtime, config: Config) -> tuple[Outcome, Outcome]:
    """Return the node as it is, and lowered for the runtime."""
    inputs, expected = _case(config)
    native = _judged(attempts, runtime, config.build(), inputs, expected)
    return native, attempt_lowered(attempts, runtime, config)


def attempt_lowered(attempts: Attempts, runtime: Runtime, config: Config) -> Outcome:
    """Return the node lowered for the runtime; a target may lack an operator that it needs."""
    try:
        lowered = lowered_for_runtime(config.build(), runtime)
    except rnnlower.UnsupportedModelError as error:
        return Outcome("refuses", str(error))
    return _judged(attempts, runtime, lowered, *_case(config))


def _case(config: Config) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return inputs, and the outputs that the oracle expects of them."""
    inputs = config.make_inputs(np.random.default_rng(config.seed))
    if "sequence_lens" in inputs:
        lengths = np.linspace(config.seq_length // 2 + 1, config.seq_length, config.batch_size)
        inputs["sequence_lens"] = lengths.astype(np.int32)
    return inputs, config.expected(inputs)


def lowered_for_runtime(model: onnx.ModelProto, runtime: Runtime) -> onnx.ModelProto:
    """Return the model for the runtime."""
    result = rnnlower.lower(model, target=runtime.target)
    assert isinstance(result, onnx.ModelProto)
    return result


def _judged(
    attempts: Attempts,
    runtime: Runtime,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> Outcome:
    try:
        (outputs,) = attempts.run(model, inputs)
    except EngineError as error:
        return Outcome(error.how, str(error))
    wrong = differences(expected, outputs, runtime.engine.precision)
    return Outcome("wrong", "; ".join(wrong)) if wrong else Outcome("right")


def _cases(runtime: Runtime, combinations: bool) -> Iterable[tuple[str, Config]]:
    if combinations:
        return ((str(config), config) for config in product(runtime.every))
    return ((f"{feature}, {' '.join(column)}", config) for feature, column, config in rows())


def main() -> int:
    """Print what is not right when lowered, and a line a runtime."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "targets", nargs="*", default=[name for name in RUNTIMES if RUNTIMES[name].engine.installed]
    )
    parser.add_argument("--product", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="print what is not right natively, too")
    options = parser.parse_args()
    failures = 0
    for target in options.targets:
        counts: tuple[collections.Counter[str], ...] = (collections.Counter(), collections.Counter())
        with Attempts(RUNTIMES[target].engine) as attempts:
            for label, config in _cases(RUNTIMES[target], options.product):
                outcomes = attempt(attempts, RUNTIMES[target], config)
                for how, outcome, counter in zip(("native", "lowered"), outcomes, counts, strict=True):
                    counter[outcome.verdict] += 1
                    if outcome.verdict != "right" and (how == "lowered" or options.verbose):
                        print(
                            f"{target}, {how}: {label}: {outcome.verdict} {outcome.why[:300]!r}", flush=True
                        )
        failures += counts[1].total() - counts[1]["right"]
        print(
            f"{RUNTIMES[target].engine.label}: native {dict(counts[0])}, lowered {dict(counts[1])}",
            flush=True,
        )
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
