"""Defines the settings of the sampling process: what it reads, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.probes.probe import ProbeSettings
from trainer.json_types import Json


@dataclass(frozen=True)
class SamplerSettings(ProbeSettings):
    """``timeout_s``: seconds that NVML may take to answer, less than ``sampler.ANSWER_S``; None: its default."""

    host: bool = True
    nvml: bool | Literal["auto"] = "auto"  # auto: where there is a driver
    rate_hz: float = 10
    timeout_s: int | None = None

    def to_json(self) -> dict[str, Json]:
        """Without ``timeout_s`` where it is the default: a state of the code may not know it."""
        content = super().to_json()
        if self.timeout_s is None:
            del content["timeout_s"]
        return content
