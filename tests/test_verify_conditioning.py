"""Which trials cannot tell a fault from rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rnnlower.verification.conditioning import rounding_noise


def noise_of(output: np.ndarray, moved_by: float = 0.0, opinion: float | None = None) -> np.ndarray | None:
    """What a reference is allowed that gives this, and `moved_by` times its scale beside it when moved."""
    feeds = {"x": np.ones(2, np.float32)}

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        assert not np.array_equal(inputs["x"], feeds["x"])
        wide = output.astype(np.float64)
        return {"y": (wide + moved_by * np.abs(wide).max()).astype(output.dtype)}

    second = None if opinion is None else {"y": np.full(output.shape, opinion)}
    return rounding_noise(run, feeds, {"y": output}, 0, second)["y"]


def test_noise_is_what_moves_and_what_another_precision_says() -> None:
    ones = np.ones(3, np.float32)
    still = noise_of(ones)
    assert still is not None
    assert not still.any()
    moved, other = noise_of(ones, moved_by=1e-4), noise_of(ones, opinion=1.0002)
    assert moved == pytest.approx(4e-4, rel=1e-2)
    assert other == pytest.approx(8e-4, rel=1e-2)


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"), [(np.float32, 2e-3, 3e-3), (ml_dtypes.bfloat16, 0.02, 0.04)]
)
def test_what_rounding_moves_too_far_is_not_determined(dtype: Any, within: float, beyond: float) -> None:
    ones = np.ones(3, dtype)
    assert noise_of(ones, moved_by=within) is not None
    assert noise_of(ones, moved_by=beyond) is None


def test_what_overflows_is_not_determined() -> None:
    assert noise_of(np.array([1e18, 0], np.float32)) is not None
    assert noise_of(np.array([1e20, 0], np.float32)) is None
    assert noise_of(np.array([np.nan, 0], np.float32)) is None


def test_what_overflows_inside_of_a_kernel_is_not_determined() -> None:
    """A Relu that makes 0 of NaN gives a number where the exact value is beyond the range."""
    assert noise_of(np.zeros(3, np.float32), opinion=1e39) is None
    assert noise_of(np.zeros(3, np.float32), opinion=float("nan")) is None
