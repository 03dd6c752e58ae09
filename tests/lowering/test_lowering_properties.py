"""Any legal recurrent model, by any strategy: valid, complete, the same interface and the oracle's numbers.

The budget is small; ``RNNLOWER_EXAMPLES=5000`` in the environment enlarges it.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import Config, configs
from support.judge import STRATEGIES, judge

BUDGET = settings(
    max_examples=int(os.environ.get("RNNLOWER_EXAMPLES", "40")),
    deadline=None,
    derandomize="RNNLOWER_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@BUDGET
@given(
    config=configs(),
    semantics=st.sampled_from(["ort", "spec"]),
    unroll_factor=st.sampled_from([1, 2, 3, 7]),
    seed=st.integers(0, 7),
)
def test_lowering_agrees_with_the_oracle(
    strategy: str, config: Config, semantics: str, unroll_factor: int, seed: int
) -> None:
    outcome, details = judge(config, strategy, np.random.default_rng(seed), semantics, unroll_factor)
    assert outcome == "right" or _is_legal_refusal(outcome, config, strategy, semantics), (
        f"{outcome}: {details}\n{config}"
    )


def _is_legal_refusal(outcome: str, config: Config, strategy: str, semantics: str) -> bool:
    """Return the reasons for which a legal config may be refused."""
    if "sequence length" in outcome:
        return strategy == "unroll" and config.x_dims == "unknown_rank"
    if "no default alpha and beta" in outcome:
        return semantics == "spec" and "ScaledTanh" in (config.activations or ())
    return False
