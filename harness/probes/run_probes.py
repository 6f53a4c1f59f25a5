"""Holds the probes of one run: chosen by the launcher, sent to the run as JSON, passed on to its loader workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from harness.probes.probe import ProbeSettings
from harness.probes.registry import CLOSING, PROBES, ProbeKind
from trainer.json_types import Json, JsonObject, section


@dataclass(frozen=True)
class RunProbes:
    """The probes of one run.

    The JSON form is part of the protocol between two states of the code (``harness.launch.protocol``):
    {"ledger", "windows"} and each probe's settings by its name, null for a probe that the run does not have. "closing"
    came later and is there only where it is set: an older state would leave it out.
    """

    ledger: bool = True  # phases and stages are recorded; False only in a bare run
    windows: bool = False  # probes that disturb have windows of their own after the warm-up, and no step is measured
    settings: Mapping[str, ProbeSettings] = field(default_factory=dict)  # of the probes that it has, by name
    # Of torch.profiler, for a window after the last repetition: only if events leave much of the measured steps open.
    closing: ProbeSettings | None = None

    @classmethod
    def from_json(cls, content: JsonObject) -> Self:
        settings = {
            kind.name: kind.load().settings_type.from_json(section(content, kind.name))
            for kind in PROBES
            if content.get(kind.name) is not None
        }
        closing = None
        if content.get("closing") is not None:
            closing = CLOSING.load().settings_type.from_json(section(content, "closing"))
        return cls(bool(content["ledger"]), bool(content["windows"]), settings, closing)

    def to_json(self) -> dict[str, Json]:
        settings = {kind.name: self.settings.get(kind.name) for kind in PROBES}
        return {
            "ledger": self.ledger,
            **{name: None if one is None else one.to_json() for name, one in settings.items()},
            "windows": self.windows,
            **({} if self.closing is None else {"closing": self.closing.to_json()}),
        }

    def chosen(self) -> Iterator[tuple[ProbeKind, ProbeSettings]]:
        """The probes that the run has, in the order of the list of probes."""
        for kind in PROBES:
            if (settings := self.settings.get(kind.name)) is not None:
                yield kind, settings
