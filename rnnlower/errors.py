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
    """What is to be emitted cannot be said in the operators that a target has.

    Args:
        op_type: The operator that is missing.
        target: Who lacks it.
        needs: What needs it, the outermost first.
        remedy: What to do about it.
        node: The recurrent node.
    """

    def __init__(
        self, op_type: str, target: str, needs: tuple[str, ...] = (), remedy: str = "", node: str = ""
    ) -> None:
        self._parts = (op_type, target, needs, remedy, node)
        chain = (*needs, op_type)
        what = f"{' needs '.join(chain[:2])}{''.join(f', which needs {each}' for each in chain[2:])}"
        what += f", which target {target} lacks"
        remedies = [remedy] if remedy else []
        remedies.append(f"choose a target that has {op_type}")
        super().__init__(f"{node + ': ' if node else ''}{what}; {', or '.join(remedies)}")

    def behind(self, purpose: str, remedy: str = "") -> MissingOperatorError:
        """The same, with what the operator is needed for."""
        op_type, target, needs, old_remedy, node = self._parts
        return MissingOperatorError(op_type, target, (purpose, *needs), remedy or old_remedy, node)

    def at(self, node: str) -> MissingOperatorError:
        """The same, with the recurrent node that it is about."""
        return MissingOperatorError(*self._parts[:4], node)


class OpsetError(RnnLowerError):
    """The model cannot be moved to the opset asked for."""


class VerificationError(RnnLowerError):
    """Two models that should agree do not."""


class UnverifiableError(VerificationError):
    """No engine runs one of the two models, so nothing could be compared."""
