"""The metadata entry that describes a model that is padded to a maximum."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, MutableMapping
from typing import Any

PAD_KEY = "rnnlower.pad"


@dataclasses.dataclass(frozen=True)
class PadMetadata:
    """The calling convention of a padded model.

    Attributes:
        max: The maximum of each length.
        least: The least of each length: a shorter sequence fills no window of some operator.
        inputs: The axis of time of each input that has one.
        outputs: For each output over time its axis, and its valid size as an expression in the lengths.
        lengths: For each length, the input of the model that holds it.
        symbols: For each input over time, its length.
        form: What these inputs hold: ``length``, or ``mask``.
        rows: The axis of rows of inputs and outputs, if each row has a length of its own.
    """

    max: Mapping[str, int]
    least: Mapping[str, int]
    inputs: Mapping[str, int]
    outputs: Mapping[str, Mapping[str, Any]]
    lengths: Mapping[str, str]
    symbols: Mapping[str, str]
    form: str
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def write(self, properties: MutableMapping[str, str]) -> None:
        """Write the entry into the metadata of a model."""
        properties[PAD_KEY] = json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> PadMetadata | None:
        """Read the entry from the metadata of a model; ``None`` if it is not a padded model."""
        if PAD_KEY not in properties:
            return None
        return cls(**json.loads(properties[PAD_KEY]))
