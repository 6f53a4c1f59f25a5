"""Define ``Check``, one line of ``harness doctor``, and turn a check that raises into such a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from trainer.errors import in_words, one_line

CheckStatus = Literal["ok", "warn", "fail"]
REPORT_IT = "unknown; please report this, with the output of harness doctor --json"
REINSTALL = "python -m pip install --force-reinstall"
IMPORT_FIRST = "first fix what the lines python, packages and torch report"


@dataclass(frozen=True)
class Check:
    """One line of ``harness doctor``: a finding and its fix. The fix is empty if and only if the status is ok."""

    status: CheckStatus
    """fail: ``harness run`` cannot work. warn: it works, but less well or without one of its probes."""
    name: str
    finding: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert (self.status == "ok") == (not self.fix), self
        assert self.finding, self


def ok(name: str, finding: str) -> Check:
    return Check("ok", name, finding)


def warn(name: str, finding: str, fix: str) -> Check:
    return Check("warn", name, finding, fix)


def fail(name: str, finding: str, fix: str) -> Check:
    return Check("fail", name, finding, fix)


def judge(name: str, check: Callable[[], Check | Iterable[Check]]) -> list[Check]:
    """Run ``check`` and return its lines. If it raises, return one ``warn`` line named ``name`` with the error."""
    try:
        result = check()
        return [result] if isinstance(result, Check) else list(result)
    except Exception as error:
        if isinstance(error, ImportError):
            return [warn(name, f"could not be checked, because an import fails: {one_line(error)}", IMPORT_FIRST)]
        return [warn(name, f"could not be checked: {in_words(error)}", REPORT_IT)]


def size(number: int) -> str:
    """Format a number of bytes in binary units: 64 MiB, 23.5 GiB."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if number >= 2**power:
            return f"{number / 2**power:.3g} {unit}"
    return f"{number / 2**10:.3g} KiB"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def span(numbers: Iterable[int]) -> str:
    """Format numbers as the kernel lists CPUs: (0, 1, 2, 8) is 0-2,8."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
