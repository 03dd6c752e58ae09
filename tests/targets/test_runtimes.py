"""Lowered nodes on the real runtimes that are installed, here or where RNNLOWER_PYTHON_NAME says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from runtime_grid import attempt_lowered
from support.configs import Config
from support.runtimes import RUNTIMES, Runtime

import rnnlower
from rnnlower.engines.opened_models import Attempts
from rnnlower.targets import find_target

NODES = {
    "LSTM": Config(direction="forward", Y_h="graph", Y_c="graph"),
    "bidirectional LSTM": Config(direction="bidirectional", Y_h="graph", Y_c="graph"),
    "LSTM with everything": Config(
        direction="bidirectional",
        sequence_lens="input",
        initial_h="input",
        initial_c="input",
        P="initializer",
        clip=0.5,
        layout=1,
        activations=("HardSigmoid", "Softsign", "Relu") * 2,
        Y_h="graph",
        Y_c="graph",
        weight_scale=0.3,
    ),
    "LSTM, one step with lengths": Config(
        seq_length=1, batch_size=3, sequence_lens="input", Y_h="graph", Y_c="graph"
    ),
    "LSTM, input_forget": Config(direction="reverse", input_forget=1, Y_c="graph"),
    "GRU": Config(op_type="GRU", Y_h="graph"),
    "GRU, linear_before_reset": Config(op_type="GRU", linear_before_reset=1, Y_h="graph"),
    "GRU, clip, 16 rows": Config(op_type="GRU", batch_size=16, clip=0.3, Y_h="graph"),
    "GRU, activations": Config(
        op_type="GRU", direction="bidirectional", activations=("HardSigmoid", "Softsign") * 2
    ),
    "GRU with everything": Config(
        op_type="GRU",
        direction="bidirectional",
        linear_before_reset=1,
        sequence_lens="input",
        initial_h="input",
        clip=0.5,
        layout=1,
        activations=("Sigmoid", "Elu") * 2,
        Y_h="graph",
    ),
    "RNN": Config(op_type="RNN", direction="reverse", activations=("LeakyRelu",), Y_h="graph"),
    "one of everything": Config(op_type="RNN", seq_length=1, batch_size=1, input_size=1, direction="reverse"),
}

BEYOND_STATIC = {
    "300 steps": Config(op_type="GRU", direction="bidirectional", seq_length=300, clip=0.3, Y_h="graph"),
    "dynamic batch": Config(direction="bidirectional", x_dims="batch", Y_h="graph", Y_c="graph"),
    "dynamic batch, clip": Config(op_type="GRU", x_dims="batch", clip=0.3, Y_h="graph"),
    "dynamic length": Config(op_type="RNN", direction="bidirectional", x_dims="time", clip=0.3, Y_h="graph"),
    "dynamic, sequence_lens": Config(op_type="GRU", x_dims="symbolic", sequence_lens="input", Y_h="graph"),
    "dynamic, everything": Config(
        direction="bidirectional",
        x_dims="symbolic",
        sequence_lens="input",
        initial_h="input",
        initial_c="input",
        clip=0.5,
        layout=1,
        Y_h="graph",
        Y_c="graph",
    ),
}
"""Nodes whose sizes are dynamic, or whose steps are many, for runtimes that take such."""

LACKS = {("ncnn", "LSTM with everything"): "needs Cast", ("ncnn", "GRU with everything"): "needs Cast"}
"""What a target lacks for a node."""


@pytest.fixture(scope="module", params=RUNTIMES)
def there(request: pytest.FixtureRequest) -> Iterator[tuple[Attempts, Runtime]]:
    runtime = RUNTIMES[request.param]
    if runtime.engine.missing:
        pytest.skip(runtime.engine.missing)
    with Attempts(runtime.engine) as attempts:
        yield attempts, runtime


@pytest.mark.parametrize("node", NODES)
def test_lowered_nodes_are_right(there: tuple[Attempts, Runtime], node: str) -> None:
    config = NODES[node]
    if there[1].every > 1:
        config = dataclasses.replace(config, seq_length=min(config.seq_length, 2))
    lowered = attempt_lowered(*there, config)
    if missing := LACKS.get((there[1].target, node)):
        assert lowered.verdict == "refuses"
        assert missing in lowered.why
    else:
        assert (lowered.verdict, lowered.why) == ("right", "")


@pytest.mark.parametrize("config", BEYOND_STATIC.values(), ids=BEYOND_STATIC)
def test_dynamic_and_long_nodes_are_right(there: tuple[Attempts, Runtime], config: Config) -> None:
    target = there[1].target
    if find_target(target).shapes.static:
        with pytest.raises(rnnlower.UnsupportedModelError, match="static shapes only"):
            rnnlower.lower(Config(x_dims="symbolic").build(), target=target)
        return
    lowered = attempt_lowered(*there, config)
    assert (lowered.verdict, lowered.why) == ("right", "")
