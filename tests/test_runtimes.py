"""Lowered nodes on the real runtimes that are installed (`pip install -e ".[test,runtimes]"`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from configs import Config
from runtime_grid import attempt
from runtimes import RUNTIMES, Attempts

NODES = {
    "LSTM": Config(direction="forward", Y_h="graph", Y_c="graph"),
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
    "LSTM, input_forget": Config(direction="reverse", input_forget=1, Y_c="graph"),
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
}


@pytest.fixture(scope="module", params=RUNTIMES)
def attempts(request: pytest.FixtureRequest) -> Iterator[Attempts]:
    runtime = RUNTIMES[request.param]
    if not runtime.installed:
        pytest.skip(f"{runtime.distribution} is not installed")
    with Attempts(runtime) as process:
        yield process


@pytest.mark.parametrize("config", NODES.values(), ids=NODES)
def test_lowered_nodes_are_right(attempts: Attempts, config: Config) -> None:
    _, lowered = attempt(attempts, attempts.runtime, config)
    assert (lowered.verdict, lowered.why) == ("right", "")
