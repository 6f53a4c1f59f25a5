"""Judge the facts of the machine: each is ok, warn or fail, with a fix."""

from harness.machine.checks.check import Check, judge

__all__ = ["Check", "judge"]
