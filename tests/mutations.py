"""Plant faults into lowered models: the verification must notice them, and nothing else.

python tests/mutations.py --count 3000 --seed 1

Random models are lowered with and without a fault of `faults.py`. The oracle decides whether a fault is
visible at
all: a weight of a saturated gate may be off by 5% without any effect. Of the visible ones, the
verification must catch nearly all; pairs without a fault it must accept.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import pickle
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from support.configs import Config, random_config
from support.faults import SOURCE_FAULTS
from support.installed import newest_opset
from support.judge import STRATEGIES, differences, judge, lower, run_in, session_of
from support.lowered_faults import LOWERED_FAULTS
from support.quantized_faults import QUANTIZER_FAULTS, planted

import rnnlower
from rnnlower.errors import UnverifiableError

_DRAWS = 6
_DECIBELS = 30
# Every so many models the figures so far go to stderr.
_AT_ONCE = 20


@dataclasses.dataclass
class Figures:
    """The outcomes for the planted faults, by name, and for the pairs without any."""

    planted: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    told: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    caught: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    unverifiable: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    beyond: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    equal_pairs: int = 0
    unverifiable_pairs: int = 0
    false_alarms: list[str] = dataclasses.field(default_factory=list)
    missed: list[str] = dataclasses.field(default_factory=list)
    crashed: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Add the figures of other models to these."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def rate(self) -> float:
        """Of the faults that the oracle tells, the part that the verification catches."""
        return self.caught.total() / max(1, self.told.total())

    def table(self) -> str:
        """Return the figures as text."""
        lines = [f"{'fault':38}planted  told  caught  missed"]
        for name in [*SOURCE_FAULTS, *LOWERED_FAULTS]:
            missed = self.told[name] - self.caught[name]
            lines.append(
                f"{name:38}{self.planted[name]:7}{self.told[name]:6}{self.caught[name]:8}{missed or '':>8}"
            )
        lines.append(
            f"{'all':38}{self.planted.total():7}{self.told.total():6}{self.caught.total():8}"
            f"{self.told.total() - self.caught.total() or '':>8}   {100 * self.rate:.2f}% caught"
        )
        lines.append(f"caught though the oracle's tolerance cannot tell: {self.beyond.total()}")
        lines.append(f"faults that could not be verified (never a pass): {self.unverifiable.total()}")
        lines.append(
            f"equal pairs: {self.equal_pairs}, false alarms: {len(self.false_alarms)}, "
            f"could not be verified: {self.unverifiable_pairs}"
        )
        lines.append(f"models whose process ended early: {len(self.crashed)}")
        return "\n".join(lines)


def measure(count: int, seed: int, faults_a_model: int = 2, first: int = 0) -> Figures:
    """Return figures over the models of these numbers, and over the faults planted into them."""
    figures = Figures()
    # What is imported here, the children need not import again.
    for name in ("verify", *STRATEGIES):
        getattr(rnnlower, name)
    while first < count:
        for each in _in_a_child(seed, range(first, count), faults_a_model):
            figures.add(each)
            first += 1
    return figures


def _in_a_child(seed: int, numbers: Sequence[int], faults_a_model: int) -> Iterator[Figures]:
    """Yield the figures of each model until one takes the process down: a runtime may do that."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for number in numbers:
                pipe.write(pickle.dumps(_measure_model(seed, number, faults_a_model)))
        os._exit(0)
    os.close(writing)
    done = 0
    with os.fdopen(reading, "rb") as pipe, contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            yield pickle.load(pipe)
            done += 1
    if status := os.waitpid(child, 0)[1]:
        yield Figures(crashed=[f"{numbers[done]}: status {status}"])


def _measure_model(seed: int, number: int, faults_a_model: int) -> Figures:
    figures = Figures()
    random = np.random.default_rng([seed, number])
    config = random_config(random)
    strategy = str(random.choice(STRATEGIES))
    inputs = config.make_inputs(random)
    if judge(config, strategy, random)[0] != "right":
        return figures
    source = config.build()
    label = f"{number}: {strategy} {config}"
    _measure_equal(figures, source, lower(config, strategy, inputs), label)
    planted = 0
    for name in random.permutation([*SOURCE_FAULTS, *LOWERED_FAULTS]):
        mutant = _plant(config, strategy, str(name), inputs, random)
        if mutant is not None:
            _measure_fault(figures, config, source, mutant, str(name), inputs, random, label)
            planted += 1
        if planted == faults_a_model:
            break
    return figures


def _plant(
    config: Config, strategy: str, name: str, inputs: dict[str, np.ndarray], random: np.random.Generator
) -> onnx.ModelProto | None:
    """Return the lowered model with the fault in it; None where it does not apply."""
    if name in LOWERED_FAULTS:
        mutant = lower(config, strategy, inputs)
        return mutant if LOWERED_FAULTS[name](mutant, random) else None
    altered = config.build()
    if not SOURCE_FAULTS[name](altered, random):
        return None
    options = {"input_shapes": {"X": inputs["X"].shape}} if strategy == "unroll" else {}
    try:
        mutant = getattr(rnnlower, strategy)(altered, **options)
    except rnnlower.RnnLowerError:
        # What is left is no legal node, or misses a default.
        return None
    return mutant


def _measure_equal(figures: Figures, source: onnx.ModelProto, lowered: onnx.ModelProto, label: str) -> None:
    try:
        result = rnnlower.verify(source, lowered)
    except UnverifiableError:
        figures.unverifiable_pairs += 1
        return
    figures.equal_pairs += 1
    if not result:
        figures.false_alarms.append(f"{label}\n{result}")


def _measure_fault(
    figures: Figures,
    config: Config,
    source: onnx.ModelProto,
    mutant: onnx.ModelProto,
    name: str,
    inputs: dict[str, np.ndarray],
    random: np.random.Generator,
    label: str,
) -> None:
    figures.planted[name] += 1
    told = _is_told(config, mutant, inputs, random)
    try:
        caught = not rnnlower.verify(source, mutant)
    except UnverifiableError:
        figures.unverifiable[name] += 1
        return
    if not told:
        figures.beyond[name] += caught
        return
    figures.told[name] += 1
    figures.caught[name] += caught
    if not caught:
        figures.missed.append(f"{name}: {label}")


def _is_told(
    config: Config, mutant: onnx.ModelProto, first: dict[str, np.ndarray], random: np.random.Generator
) -> bool:
    """Return whether the mutant's outputs are not what the oracle expects, on any of some inputs.

    Where onnxruntime lacks a kernel for what the fault leaves behind, or is older than the model's opset,
    nothing is told.
    """
    if config.opset > newest_opset():
        return False
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    failures = (RuntimeError, ValueError, state.Fail, state.InvalidGraph, state.InvalidArgument)
    failures += (state.RuntimeException,)
    try:
        session = session_of(mutant)
    except state.NotImplemented:
        return False
    except failures:
        return True
    for inputs in (first, *(config.make_inputs(random) for _ in range(_DRAWS))):
        expected = config.expected(inputs)
        try:
            actual = run_in(session, inputs)
        except failures:
            return True
        if differences(expected, actual, config.dtype):
            return True
    return False


def quantizer_faults() -> Iterator[tuple[str, str, str, str, float | None]]:
    """Yield scheme, operator, role, fault, and the dB; None if `quantize` refuses a fault at the role.

    The first of each operator has no fault.
    """
    sys.path.append(str(pathlib.Path(__file__).parent.parent / "benchmarks"))
    from long_memory import LongMemory, recordings

    schemes = [("qdq", "int8"), ("qdq", "int16"), ("qdq", "uint16"), ("tflite", "int8"), ("pow2", "int8")]
    for (scheme, activations), op_type in itertools.product(schemes, ("LSTM", "GRU", "RNN")):
        if scheme == "tflite" and op_type != "LSTM":
            continue
        source, label = LongMemory(op_type, 16).build(), f"{scheme} {activations}"
        quantize = functools.partial(
            rnnlower.quantize.with_report,
            source,
            calibration={"X": recordings(4, 40)},
            scheme=scheme,
            activations=activations,
            verify=True,
        )
        report = quantize()[1]
        yield label, op_type, "", "none", report.sqnr
        roles = sorted({entry["role"] for entry in report.scales})
        for role, fault in itertools.product(roles, QUANTIZER_FAULTS):
            with planted(fault, role):
                try:
                    yield label, op_type, role, fault, quantize()[1].sqnr
                except rnnlower.VerificationError:
                    yield label, op_type, role, fault, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="models")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=2, help="faults planted into each model")
    parser.add_argument("--quantizers", action="store_true", help="faults in quantizers, at every role")
    arguments = parser.parse_args()
    if arguments.quantizers:
        outcomes = list(quantizer_faults())
        faults = [each for each in outcomes if each[3] != "none"]
        low = [each[-1] or 0 for each in outcomes if each[3] == "none"]
        missed = [each for each in faults if (each[-1] or 0) > _DECIBELS]
        print(f"without a fault: {min(low):.1f} dB or more")
        print(f"faults in quantizers: {len(faults)}, seen: {len(faults) - len(missed)}")
        print(f"highest dB of a fault: {max(each[-1] or 0 for each in faults):.1f}")
        print("\n".join(", ".join(map(str, each)) for each in missed))
        return bool(missed) or min(low) < _DECIBELS
    start = time.monotonic()
    figures = Figures()
    for number in range(arguments.first, arguments.count, _AT_ONCE):
        end = min(number + _AT_ONCE, arguments.count)
        figures.add(measure(end, arguments.seed, arguments.faults, number))
        print(f"{figures.table()}\nmodels up to {end}, {time.monotonic() - start:.0f} s", file=sys.stderr)
    for line in (*(f"missed: {each}" for each in figures.missed), *figures.false_alarms, *figures.crashed):
        print(line)
    print(figures.table())
    print(f"{arguments.count - arguments.first} models in {time.monotonic() - start:.0f} s")
    return 0 if figures.rate >= 0.99 and not figures.false_alarms and not figures.crashed else 1


if __name__ == "__main__":
    sys.exit(main())
