"""Define the settings of the sampling process: sources and rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.probes.probe import ProbeSettings
from trainer.json_types import Json


@dataclass(frozen=True)
class SamplerSettings(ProbeSettings):
    """Settings of the sampling process: its sources and its rate.

    ``timeout_s``: time limit for NVML in seconds, less than ``sampler.ANSWER_S``; None: the default.
    """

    host: bool = True
    nvml: bool | Literal["auto"] = "auto"  # "auto": True if there is a driver
    rate_hz: float = 10
    timeout_s: int | None = None

    def to_json(self) -> dict[str, Json]:
        """Return the settings as JSON.

        A ``timeout_s`` of None is omitted, because another state of the code may not know it.
        """
        content = super().to_json()
        if self.timeout_s is None:
            del content["timeout_s"]
        return content
