"""Verification that two models compute the same; it shares no code with the lowering it checks."""

from __future__ import annotations

from rnnlower.verification.driver import verify
from rnnlower.verification.result import OutputComparison, RuntimeTrial, VerificationResult

__all__ = ["OutputComparison", "RuntimeTrial", "VerificationResult", "verify"]
