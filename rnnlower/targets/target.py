"""Targets: the abilities of runtimes."""

from __future__ import annotations

import functools

from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.targets.format import Claim, TargetFile, standard_operators


class Target(TargetFile, frozen=True, kw_only=True):
    """A runtime, described by a file.

    Attributes:
        name: The name of the target: that of its file.
        path: The path of its file if it is not built in.
    """

    name: str
    path: str = ""

    @property
    def address(self) -> str:
        """The name under which a command finds it: that of a file is its path."""
        return self.path or self.name

    @property
    def profile(self) -> str:
        """The profile that kept recurrent nodes must conform to; ``""`` if there is none."""
        return next((rule.profile for rule in self.recurrent if rule.profile), "")

    @functools.cached_property
    def op_types(self) -> frozenset[str]:
        """The operators of the default domain that it runs, except the recurrent ones."""
        if self.ops.allowed is not None:
            ops = frozenset(op_type for op_type in self.ops.allowed if "." not in op_type)
        else:
            ops = standard_operators() - {*(self.ops.absent or ())}
        return (ops - {*RECURRENT_OPS}) | {*self.control_flow.ops}

    @functools.cached_property
    def domains(self) -> frozenset[str]:
        """The domains in addition to the default one of which it runs operators."""
        single = {op_type.rpartition(".")[0] for op_type in self.ops.allowed or () if "." in op_type}
        return frozenset({*self.ops.domains} | single)

    def has_foreign(self, domain: str, op_type: str) -> bool:
        """Return whether it runs an operator of a domain other than the default one."""
        name = f"{domain}.{op_type}"
        if domain in self.ops.domains:
            return name not in (self.ops.absent or ())
        return name in (self.ops.allowed or ())

    def claims(self) -> list[tuple[str, Claim]]:
        """Return all claims, with the names of their tables."""
        tables = ("opset", "control_flow", "shapes", "dtypes", "ops")
        claims: list[tuple[str, Claim]] = [(name, getattr(self, name)) for name in tables]
        claims += [(f"limits of {', '.join(limit.ops)}", limit) for limit in self.limits]
        claims += [(f"native {', '.join(rule.ops)}", rule) for rule in self.recurrent]
        claims += [(f"lowered {', '.join(caution.ops)}", caution) for caution in self.cautions]
        more = [(name, getattr(self, name)) for name in ("arithmetic", "costs", "tried")]
        return claims + [(name, claim) for name, claim in more if claim is not None]
