"""Defines the base class of a card's readers: how often it reads, and how it reports metrics that the card lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

Sample = tuple[str, float, str]  # metric, value, unit
NO_FUNCTION = "this driver is older than the metric"

# NVML_ERROR_ names. The card has gone, and with it every metric:
LOST = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
# This will not change while a run lasts:
FINAL = (
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "FUNCTION_NOT_FOUND",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
)


def is_one_of(nvml: Any, error: Any, names: tuple[str, ...]) -> bool:
    """Whether an NVMLError is one of NVML_ERROR_``names``."""
    return error.value in {getattr(nvml, f"NVML_ERROR_{name}", None) for name in names}


def reason_of(nvml: Any, error: Any) -> str:
    """Why there is no such metric, as text."""
    return NO_FUNCTION if is_one_of(nvml, error, ("FUNCTION_NOT_FOUND",)) else str(error)


class Reader:
    """Reads metrics that belong together. ``text`` names them in messages.

    ``rate``: "fast" at every deadline, "slow" about once a second, "slow, inside" likewise, but never
    after a repetition.
    """

    rate: Literal["fast", "slow", "slow, inside"] = "fast"

    def __init__(self, text: str) -> None:
        self.text = text
        self.failures = 0  # in a row
        self._lacking: list[tuple[str, str]] = []

    def begin(self, pids: set[int]) -> None:
        """A repetition begins; ``pids``: the run's own processes. May raise NVMLError."""

    def read(self) -> Iterable[Sample]:
        """Samples as they stand, or since the last reading. May raise NVMLError."""
        raise NotImplementedError

    def silent(self) -> str:
        """Why it never got a sample although no call failed; "" where it got one."""
        return ""

    def take_lacking(self) -> list[tuple[str, str]]:
        """Metrics of it that the card turned out to lack: (text, reason), each once."""
        lacking, self._lacking = self._lacking, []
        return lacking
