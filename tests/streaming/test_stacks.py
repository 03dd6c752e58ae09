"""Random stacks of layers, streamed: equal to the whole model, or refused because they couple time steps."""

from __future__ import annotations

import pytest
import stream_sweep
from onnx import helper
from support.stream_layers import LAYERS
from support.stream_models import differences, random_stack

import rnnlower


@pytest.mark.parametrize("seed", range(40))
def test_a_stack_is_streamed_unless_a_layer_couples_time_steps(seed: int) -> None:
    kind, words = stream_sweep.outcome(random_stack(seed), seed, (1, 2, 5, 10)[seed % 4])
    assert kind in ("right", "refused"), words


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_what_looks_ahead_is_right_at_a_delay(chunk: int) -> None:
    kinds = [stream_sweep.outcome_at_a_delay(random_stack(seed), seed, chunk) for seed in range(100)]
    assert not [words for kind, words in kinds if kind.isupper()]
    assert "right at a delay" in {kind for kind, _ in kinds}


def test_every_layer_is_drawn() -> None:
    drawn = {name for seed in range(200) for name in random_stack(seed).layers}
    assert drawn >= set(LAYERS)


def test_a_state_that_is_not_carried_is_noticed() -> None:
    """The judge of the stacks sees what it is there for."""
    stack = next(s for s in map(random_stack, range(100)) if not s.couples and s.stride == 1)
    streamed = rnnlower.stream(stack.model)
    graph = streamed.graph
    states = {output.name for output in graph.output} - {"y"}
    for node in graph.node:
        # What is handed out is what came in.
        node.output[:] = [f"{name}_lost" if name in states else name for name in node.output]
    for name in states:
        graph.node.append(helper.make_node("Identity", [name.replace("_out", "_in")], [name]))
    assert differences(stack, streamed, 0)
