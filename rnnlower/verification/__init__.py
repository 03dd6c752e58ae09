"""Verification: do two models compute the same? Shares no code with the lowering it checks."""

from __future__ import annotations

from rnnlower.verification.driver import verify
from rnnlower.verification.result import OutputComparison, RuntimeTrial, VerificationResult

__all__ = ["OutputComparison", "RuntimeTrial", "VerificationResult", "verify"]
