"""Define the base class of a card's readers: its rate, and how it reports metrics that the card lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

Sample = tuple[str, float, str]  # metric, value, unit
NO_FUNCTION = "this driver is older than the metric"

# NVML_ERROR_ names for a lost card, which ends every metric
LOST = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
# NVML_ERROR_ names for a metric that stays unavailable for the whole run
FINAL = (
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "FUNCTION_NOT_FOUND",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
)


def is_one_of(nvml: Any, error: Any, names: tuple[str, ...]) -> bool:
    """Return True if ``error`` (NVMLError) is one of the error codes ``names``, given without "NVML_ERROR_"."""
    return error.value in {getattr(nvml, f"NVML_ERROR_{name}", None) for name in names}


def reason_of(nvml: Any, error: Any) -> str:
    """Return the text that explains a missing metric, from the NVMLError that its call raised."""
    return NO_FUNCTION if is_one_of(nvml, error, ("FUNCTION_NOT_FOUND",)) else str(error)


class Reader:
    """Base class for a reader of one card's related metrics. ``text`` names them in messages.

    ``rate``: "fast" reads at every deadline, "slow" about once a second.
    "slow, inside" is like "slow", but never reads after a repetition.
    """

    rate: Literal["fast", "slow", "slow, inside"] = "fast"

    def __init__(self, text: str) -> None:
        self.text = text
        self.failures = 0  # consecutive failures
        self._lacking: list[tuple[str, str]] = []

    def begin(self, pids: set[int]) -> None:
        """Start a repetition: counters read their first value. ``pids``: the run's own processes.

        May raise NVMLError.
        """

    def read(self) -> Iterable[Sample]:
        """Return samples (metric, value, unit): current values, or growth since the last reading.

        May raise NVMLError.
        """
        raise NotImplementedError

    def silent(self) -> str:
        """Return why there was never a sample although no call failed; "" if there was one or no reason is known."""
        return ""

    def take_lacking(self) -> list[tuple[str, str]]:
        """Return (name, reason) of each metric that the card was found to lack since the last call."""
        lacking, self._lacking = self._lacking, []
        return lacking
