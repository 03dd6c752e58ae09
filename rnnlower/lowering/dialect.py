"""The operators that a runtime has, as far as emitting goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["Dialect"]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """The operators that may be emitted.

    Attributes:
        name: Whose operators they are.
        ops: The operators.
        constant: By operator the inputs that must be constants.
        onnxruntime: Whether onnxruntime runs it as it is, so that the forms it runs fastest are wanted.
        apart: Whether each direction of a node of static length gets a Scan or Loop of its own.
        split_outputs: Most outputs of a Split; ``None``: any number.
    """

    name: str
    ops: frozenset[str]
    constant: Mapping[str, frozenset[int]]
    onnxruntime: bool = False
    apart: bool = False
    split_outputs: int | None = None
