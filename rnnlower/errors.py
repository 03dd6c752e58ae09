"""The errors that callers can catch. Messages name the node, attribute, input or option, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Labeled(Protocol):
    """A node with an address: `str()` of it is what messages call it."""

    @property
    def label(self) -> str: ...


class RnnLowerError(Exception):
    """Base of every error that rnnlower raises on purpose.

    Args:
        problem: The fault.
        node: The node at fault.
        remedy: What the user can do about it.

    Attributes:
        problem: The message without the remedy.
        node: Path and name of the node as `inspect` lists them (``If_0/then_branch/lstm``), or ``""``.
        remedy: What the user can do about it, or ``""`` if nothing is known.
    """

    def __init__(self, problem: str, *, node: Labeled | None = None, remedy: str = "") -> None:
        self.problem = problem if node is None else f"{node.label}: {problem}"
        self.node = "" if node is None else str(node)
        self.remedy = remedy
        super().__init__(f"{self.problem}; {remedy}" if remedy else self.problem)

    def advise(self, remedy: str) -> None:
        """Replace the remedy: the caller that catches the error may know a better one."""
        self.remedy = remedy
        self.args = (f"{self.problem}; {remedy}",)

    @property
    def kind(self) -> str:
        """The name of the class, as it appears in JSON."""
        return type(self).__name__


class OptionError(RnnLowerError, ValueError):
    """An option is malformed or does not fit the model (``dims`` names an unknown dimension, ...)."""


class InvalidModelError(RnnLowerError):
    """The model cannot be read, or breaks the ONNX specification."""


class UnsupportedModelError(RnnLowerError):
    """The model is legal, but uses a feature that is not supported."""


class MissingOperatorError(UnsupportedModelError):
    """An operation cannot be expressed in the operators that a target has.

    Args:
        op_type: The operator that is missing.
        target: The target that lacks it.
        needs: The operations that need it, outermost first.
        advice: What the user can do other than choosing another target.
        at: The recurrent node.

    Attributes:
        op_type: The operator that is missing.
    """

    def __init__(
        self,
        op_type: str,
        target: str,
        needs: tuple[str, ...] = (),
        advice: str = "",
        at: Labeled | None = None,
    ) -> None:
        self.op_type = op_type
        self._parts = (op_type, target, needs, advice)
        chain = (*needs, op_type)
        what = f"{' needs '.join(chain[:2])}{''.join(f', which needs {each}' for each in chain[2:])}"
        remedies = [advice] if advice else []
        remedies.append(f"choose a target that has {op_type}")
        super().__init__(f"{what}, which target {target} lacks", node=at, remedy=", or ".join(remedies))

    def needed_by(self, purpose: str, advice: str = "") -> MissingOperatorError:
        """Return the same error with the purpose that the operator is needed for."""
        op_type, target, needs, old_advice = self._parts
        if purpose == op_type and not needs:
            # The replacement of an operator may itself need that operator.
            return self
        return MissingOperatorError(op_type, target, (purpose, *needs), advice or old_advice)

    def at(self, node: Labeled) -> MissingOperatorError:
        """Return the same error with the recurrent node that it concerns."""
        return MissingOperatorError(*self._parts, node)


class OpsetError(RnnLowerError):
    """The model cannot be moved to the opset asked for.

    Args:
        opset: The lowest opset that would work, if a higher one would.
        operator: The operator that needs it.
    """

    def __init__(
        self,
        problem: str,
        *,
        node: Labeled | None = None,
        remedy: str = "",
        opset: int | None = None,
        operator: str = "",
    ) -> None:
        super().__init__(problem, node=node, remedy=remedy)
        self.opset = opset
        self.operator = operator


class VerificationError(RnnLowerError):
    """Two models that should agree give different results."""


class UnverifiableError(VerificationError):
    """One of the two models runs on no engine, so nothing could be compared.

    Args:
        on: The result on the runtime that was asked for, in the form of the JSON output.
    """

    def __init__(self, problem: str, *, remedy: str = "", on: Mapping[str, object] | None = None) -> None:
        super().__init__(problem, remedy=remedy)
        self.on = on
