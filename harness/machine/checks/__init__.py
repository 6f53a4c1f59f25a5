"""Facts of the machine judged: each ok, warn or fail, with the fix."""

from harness.machine.checks.check import Check, judge

__all__ = ["Check", "judge"]
