"""The errors a caller can meet. Each message names the node, attribute, input or option, and what to do."""

from __future__ import annotations

__all__ = [
    "InvalidModelError",
    "MissingOperatorError",
    "OpsetError",
    "OptionError",
    "RnnLowerError",
    "UnsupportedModelError",
    "UnverifiableError",
    "VerificationError",
]


class RnnLowerError(Exception):
    """Base of every error that rnnlower raises on purpose."""


class OptionError(RnnLowerError, ValueError):
    """An option does not fit the model or is malformed (``dims`` names a dimension the model lacks, ...)."""


class InvalidModelError(RnnLowerError):
    """The model cannot be read, or breaks the ONNX specification."""


class UnsupportedModelError(RnnLowerError):
    """The model is legal, but asks for something that is refused."""


class MissingOperatorError(UnsupportedModelError):
    """What is to be emitted cannot be said in the operators that the target has.

    Attributes:
        needs: What is needed for what: the last is the operator that is missing.
        target: Who lacks it.
    """

    def __init__(self, op_type: str, target: str, needs: tuple[str, ...] = ()) -> None:
        self.needs = (*needs, op_type)
        self.target = target
        super().__init__(f"{' needs '.join(self.needs)}, which target {target} lacks")

    def behind(self, purpose: str) -> MissingOperatorError:
        """The same, with what the operator is needed for."""
        return MissingOperatorError(self.needs[-1], self.target, (purpose, *self.needs[:-1]))


class OpsetError(RnnLowerError):
    """The model cannot be moved to the opset asked for."""


class VerificationError(RnnLowerError):
    """Two models that should agree do not."""


class UnverifiableError(VerificationError):
    """No engine runs one of the two models, so nothing could be compared."""
