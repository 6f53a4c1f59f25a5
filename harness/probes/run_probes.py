"""Hold the probes of one run: chosen by the launcher, sent to the run as JSON, and passed on to its loader workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from harness.probes.probe import ProbeSettings
from harness.probes.registry import CLOSING, PROBES, ProbeKind
from trainer.json_types import Json, JsonObject, section


@dataclass(frozen=True)
class RunProbes:
    """Probes of one run, with their settings. The launcher chooses them and sends them to the run.

    The JSON form is part of the protocol between two states of the code (``harness.launch.protocol``).
    It is {"ledger", "windows"} and each probe's settings by name (null: the run does not have the probe).
    "closing" was added later and is present only if set, because an older state would ignore it.
    """

    ledger: bool = True  # False only in a bare run, which records no phases or stages
    windows: bool = False  # True: disturbing probes get their own windows after the warm-up, and no step is measured
    settings: Mapping[str, ProbeSettings] = field(default_factory=dict)  # settings of the run's probes, by name
    # Settings of torch.profiler for a window after the last repetition, used only if much time is unexplained
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
            **{name: None if chosen is None else chosen.to_json() for name, chosen in settings.items()},
            "windows": self.windows,
            **({} if self.closing is None else {"closing": self.closing.to_json()}),
        }

    def chosen(self) -> Iterator[tuple[ProbeKind, ProbeSettings]]:
        """Yield (kind, settings) of each probe that the run has, in registry order."""
        for kind in PROBES:
            if (settings := self.settings.get(kind.name)) is not None:
                yield kind, settings
