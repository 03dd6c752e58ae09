"""Other values for inputs that have a default value."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from rnnlower.engines.session import Array, RunError, brief
from rnnlower.verification.models import ParsedModel, RunModel, feedable_inputs, overridable_inputs
from rnnlower.verification.verdict.compare import is_inexact

# In total, since trials hold them in addition to the model.
_MAX_ELEMENTS = 2**26
_SIZE_AMONG_ZEROS = 0.5
_SAMPLE = 1000


class Overrides:
    """An alternative value for each overridable input of ``reference``, shared by all overriding trials."""

    def __init__(self, reference: ParsedModel, candidate: onnx.ModelProto, seed: int) -> None:
        self._model, self._seed = reference, seed
        self._reasons: dict[str, str] = {}
        self._ran = False
        feedable = {value.name for value in feedable_inputs(candidate)}
        inputs = {value.name for value in candidate.graph.input}
        overridable = set(overridable_inputs(reference.proto))
        tensors = [tensor for tensor in reference.proto.graph.initializer if tensor.name in overridable]
        room = _MAX_ELEMENTS
        self._left: list[onnx.TensorProto] = []
        for tensor in tensors:
            size = math.prod(tensor.dims)
            if tensor.name not in inputs:
                reason = "the candidate has no such input"
            elif tensor.name not in feedable:
                reason = f"the candidate's cannot be fed at IR version {candidate.ir_version}"
            elif not is_inexact(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)):
                reason = "only floats get other values"
            elif size > room:
                reason = "other values would be too large"
            else:
                room -= size
                self._left.append(tensor)
                continue
            self._reasons[tensor.name] = reason
        self._values: dict[str, Array] | None = None

    def run(
        self, run: RunModel, feeds: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Any]] | None:
        """Return ``feeds`` with the values added, and the outputs of ``run``; ``None`` if it refuses them.

        ``run`` accepts ``feeds`` alone. Values that are refused the first time are not tried again.
        """
        if self._values is None:
            self._values = {
                tensor.name: _draw_override(
                    self._model.array(tensor),
                    np.random.default_rng([self._seed, zlib.crc32(tensor.name.encode())]),
                )
                for tensor in self._left
            }
        if not self._values:
            return None
        changed = {**feeds, **self._values}
        try:
            outputs = run(changed)
        except RunError:
            before = len(self._values)
            if not self._ran:
                self._drop_refused(run, feeds, [*self._values])
            return self.run(run, feeds) if len(self._values) < before else None
        self._ran = True
        return changed, outputs

    def notes(self) -> list[str]:
        """Return a note for each reason why inputs kept their defaults in every trial."""
        reasons = dict(self._reasons)
        if not self._ran:
            tried = self._values is not None
            why = "the reference refuses others" if tried else "too few trials to try others"
            reasons |= {t.name: why for t in self._left if t.name not in reasons}
        grouped: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            grouped.setdefault(reason, []).append(repr(name))
        return [
            f"input{'s' * (len(names) > 1)} {', '.join(names)}: the default in every trial ({reason})"
            for reason, names in grouped.items()
        ]

    def _drop_refused(self, run: RunModel, feeds: Mapping[str, Array], names: list[str]) -> None:
        """Find by bisection the inputs whose other values ``run`` refuses, and leave them out."""
        assert self._values is not None
        try:
            run({**feeds, **{name: self._values[name] for name in names}})
        except RunError as error:
            if len(names) == 1:
                del self._values[names[0]]
                self._reasons[names[0]] = f"the reference refuses another: {brief(error)}"
                return
            for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                self._drop_refused(run, feeds, half)


def _draw_override(default: Array, rng: np.random.Generator) -> Array:
    """Return values with the default's signs and magnitudes, so that a variance or mask stays one."""
    working = np.float64 if default.dtype == np.float64 else np.float32
    values = default.astype(working)
    sizes = np.abs(values)
    largest = float(ml_dtypes.finfo(default.dtype).max) / 2  # type: ignore[no-untyped-call]
    ordinary = sizes[(sizes > 0) & (sizes <= largest)][:_SAMPLE]
    typical = working(np.median(ordinary) if ordinary.size else _SIZE_AMONG_ZEROS)
    # From 0.6 to 0.8, or twice that: none is near 1.
    factors = (working(0.6) + working(0.2) * rng.random(values.shape, dtype=working)) * rng.integers(
        1, 3, values.shape, dtype=np.int8
    )
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.where(values == 0, typical, values) * factors
    return np.asarray(np.where(sizes <= largest, moved, values)).astype(default.dtype)
