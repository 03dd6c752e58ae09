"""The errors a caller can meet. Each message names the node, attribute, input or option, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

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


class Labelled(Protocol):
    """A node with an address, `str()` of it, and what messages call it."""

    @property
    def label(self) -> str: ...


class RnnLowerError(Exception):
    """Base of every error that rnnlower raises on purpose.

    Args:
        problem: What is wrong.
        node: The node that it is about.
        remedy: What to do about it.

    Attributes:
        problem: The message without the remedy.
        node: Where the node is and its name, as `inspect` has them (``If_0/then_branch/lstm``), or ``""``.
        remedy: What to do about it, or ``""`` where nothing is known beyond the message.
    """

    def __init__(self, problem: str, *, node: Labelled | None = None, remedy: str = "") -> None:
        self.problem = problem if node is None else f"{node.label}: {problem}"
        self.node = "" if node is None else str(node)
        self.remedy = remedy
        super().__init__(f"{self.problem}; {remedy}" if remedy else self.problem)

    def advise(self, remedy: str) -> None:
        """Puts a remedy in the place of the one it has: whoever catches it may know the circumstances."""
        self.remedy = remedy
        self.args = (f"{self.problem}; {remedy}",)

    @property
    def kind(self) -> str:
        """The name of the class, as JSON has it."""
        return type(self).__name__


class OptionError(RnnLowerError, ValueError):
    """An option does not fit the model or is malformed (``dims`` names a dimension the model lacks, ...)."""


class InvalidModelError(RnnLowerError):
    """The model cannot be read, or breaks the ONNX specification."""


class UnsupportedModelError(RnnLowerError):
    """The model is legal, but asks for something that is refused."""


class MissingOperatorError(UnsupportedModelError):
    """What is to be emitted cannot be expressed in the operators that a target has.

    Args:
        op_type: The operator that is missing.
        target: Who lacks it.
        needs: What needs it, the outermost first.
        advice: What to do about it, beside choosing another target.
        at: The recurrent node.
    """

    def __init__(
        self,
        op_type: str,
        target: str,
        needs: tuple[str, ...] = (),
        advice: str = "",
        at: Labelled | None = None,
    ) -> None:
        self._parts = (op_type, target, needs, advice)
        chain = (*needs, op_type)
        what = f"{' needs '.join(chain[:2])}{''.join(f', which needs {each}' for each in chain[2:])}"
        remedies = [advice] if advice else []
        remedies.append(f"choose a target that has {op_type}")
        super().__init__(f"{what}, which target {target} lacks", node=at, remedy=", or ".join(remedies))

    def behind(self, purpose: str, advice: str = "") -> MissingOperatorError:
        """The same, with what the operator is needed for."""
        op_type, target, needs, old_advice = self._parts
        if purpose == op_type and not needs:
            # What stands for an operator may want that very operator.
            return self
        return MissingOperatorError(op_type, target, (purpose, *needs), advice or old_advice)

    def at(self, node: Labelled) -> MissingOperatorError:
        """The same, with the recurrent node that it is about."""
        return MissingOperatorError(*self._parts, node)


class OpsetError(RnnLowerError):
    """The model cannot be moved to the opset asked for.

    Args:
        opset: The lowest opset that would do, where a higher one does.
        operator: The operator that needs it.
    """

    def __init__(
        self,
        problem: str,
        *,
        node: Labelled | None = None,
        remedy: str = "",
        opset: int | None = None,
        operator: str = "",
    ) -> None:
        super().__init__(problem, node=node, remedy=remedy)
        self.opset = opset
        self.operator = operator


class VerificationError(RnnLowerError):
    """Two models that should agree do not."""


class UnverifiableError(VerificationError):
    """No engine runs one of the two models, so nothing could be compared.

    Args:
        on: What is known of the runtime that was asked for, as JSON has it.
    """

    def __init__(self, problem: str, *, remedy: str = "", on: Mapping[str, object] | None = None) -> None:
        super().__init__(problem, remedy=remedy)
        self.on = on
