"""The runtimes of the grid: the targets that have an engine, installed or not."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from rnnlower.engines.catalog import Engine, find_engine
from rnnlower.targets import find_target, target_names

# Of how many nodes of the grid one is tried, where a run takes long; a prime.
_EVERY = {
    "emx": 5,
    "iree": 11,
    "litert": 5,
    "ncnn": 5,
    "ort-qnn": 5,
    "rknn": 5,
    "tinygrad": 11,
    "tvm-relax": 5,
}


@dataclass(frozen=True)
class Runtime:
    """A target and what runs models for it.

    Attributes:
        target: What `rnnlower targets` calls it.
        every: Of how many nodes of the page one is tried.
    """

    target: str
    every: int = 1

    @functools.cached_property
    def engine(self) -> Engine:
        return find_engine(find_target(self.target).engine)


_OWN_TESTS = ("onnxruntime", "primitive")
RUNTIMES: Mapping[str, Runtime] = {
    name: Runtime(name, _EVERY.get(name, 1))
    for name in target_names()
    if find_target(name).engine and name not in _OWN_TESTS
}
