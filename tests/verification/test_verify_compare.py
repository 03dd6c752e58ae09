from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rnnlower.verification.verdict.compare import compare_values, merge, tolerance_for

F32 = np.dtype(np.float32)


def _compare(a: Any, b: Any, **options: float) -> Any:
    return compare_values("y", a, b, tolerance_for(getattr(a, "dtype", None), (), **options))


def test_position_of_the_worst_element() -> None:
    a = np.ones((2, 3), np.float32)
    b = a.copy()
    b[1, 2] = 1.5
    result = _compare(a, b)
    assert not result.equal
    assert result.worst_index == (1, 2)
    assert result.max_abs == pytest.approx(0.5)
    assert result.max_rel == pytest.approx(1 / 3)
    assert result.max_ulp == 2**22


def test_nan_equals_nan() -> None:
    a = np.array([np.nan, 1], np.float32)
    assert _compare(a, a.copy()).equal


@pytest.mark.parametrize(
    ("a", "b"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (np.inf, -np.inf), (np.inf, np.nan)]
)
def test_other_non_finite_pairs_differ(a: float, b: float) -> None:
    result = _compare(np.array([a], np.float32), np.array([b], np.float32))
    assert not result.equal
    assert result.max_abs == math.inf


def test_infinities_of_one_sign_are_equal() -> None:
    a = np.array([np.inf, -np.inf], np.float64)
    assert _compare(a, a.copy()).equal


def test_integers_are_compared_exactly() -> None:
    result = _compare(np.array([3, 4]), np.array([3, 5]))
    assert not result.equal
    assert result.worst_index == (1,)
    assert _compare(np.array([3, 4]), np.array([3, 4])).equal


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_one_unit_in_the_last_place_is_allowed_and_five_percent_is_not(dtype: Any) -> None:
    a = np.array([1.0, 0.5], dtype)
    eps = float(ml_dtypes.finfo(dtype).eps)
    assert _compare(a, np.array([1.0 + eps, 0.5], dtype)).max_ulp == 1
    assert _compare(a, np.array([1.0 + eps, 0.5], dtype)).equal
    assert not _compare(a, np.array([1.05, 0.5], dtype)).equal


def test_small_outputs_are_held_to_their_scale() -> None:
    a = np.full(4, 1e-3, np.float32)
    assert not _compare(a, a * np.float32(1.05)).equal


def test_a_recurrent_node_in_a_coarser_type_widens_the_tolerance() -> None:
    a, b = np.ones(2, np.float32), np.full(2, 1.001, np.float32)
    assert not compare_values("y", a, b, tolerance_for(F32)).equal
    assert compare_values("y", a, b, tolerance_for(F32, [np.dtype(np.float16)])).equal


def test_a_given_tolerance_is_the_last_word() -> None:
    a, b = np.full(2, 100, np.float32), np.full(2, 100.5, np.float32)
    assert _compare(a, b, atol=0.6).equal
    assert not _compare(a, b, atol=0.4).equal
    assert _compare(a, b, rtol=0.01).equal


def test_one_given_tolerance_makes_the_other_zero() -> None:
    tiny, zero = np.full(2, 1e-9, np.float32), np.zeros(2, np.float32)
    assert _compare(zero, tiny).equal
    assert not _compare(zero, tiny, rtol=0.5).equal
    large = np.full(2, 1e6, np.float32)
    assert not _compare(large, np.nextafter(large, np.float32(2e6)), atol=1e-3).equal


def test_shapes_and_dtypes_must_match() -> None:
    a = np.zeros((2, 1), np.float32)
    assert "shape" in _compare(a, a[:, 0]).note
    assert "dtype" in _compare(a, a.astype(np.float64)).note


def test_strings_are_compared_exactly() -> None:
    assert _compare(np.array(["a", "b"], object), np.array(["a", "b"], object)).equal
    assert not _compare(np.array(["a", "b"], object), np.array(["a", "c"], object)).equal


def test_sequences_are_compared_one_by_one() -> None:
    a, b = np.zeros(2, np.float32), np.ones(2, np.float32)
    assert _compare([a, b], [a, b]).equal
    assert not _compare([a, b], [a, a]).equal
    assert not _compare([a, b], [a]).equal


def test_merging_keeps_the_largest_errors_and_the_first_failure() -> None:
    good = _compare(np.ones(1, np.float32), np.ones(1, np.float32))
    bad = _compare(np.ones(1, np.float32), np.full(1, 2, np.float32))
    merged = merge(merge(merge(None, good, 0), bad, 1), good, 2)
    assert not merged.equal
    assert merged.worst_trial == 1
    assert merged.max_abs == 1.0


def test_units_in_the_last_place_across_zero() -> None:
    tiny = np.array([np.finfo(np.float64).smallest_subnormal])
    assert _compare(tiny, -tiny).max_ulp == 2


@pytest.mark.parametrize(
    ("order", "added", "told"),
    [
        ((0, 2, 1), 0.0, "shape [2, 3, 4] against [2, 4, 3]; right but for the order of its axes, [0, 2, 1]"),
        ((1, 2, 0), 0.0, "shape [2, 3, 4] against [3, 4, 2]; right but for the order of its axes, [1, 2, 0]"),
        ((0, 2, 1), 1.0, "shape [2, 3, 4] against [2, 4, 3]"),
    ],
)
def test_axes_in_another_order(order: tuple[int, ...], added: float, told: str) -> None:
    """As converters leave them that put channels last."""
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    result = _compare(a, a.transpose(order) + np.float32(added))
    assert not result.equal
    assert result.note == told + (": transpose it" if not added else "")
