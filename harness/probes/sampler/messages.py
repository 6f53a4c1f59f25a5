"""Define the messages between a run and its sampling process: one JSON line each. Samples follow an answer's line."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from harness.probes.sampler.series import SeriesHeader


class StartSampling(TypedDict):
    """Run to sampling process: sample these processes from now on."""

    do: Literal["start"]
    pids: dict[int, str]  # roles by process id; JSON turns the ids into strings


class StopSampling(TypedDict):
    """Run to sampling process: take one last reading, then no more.

    ``t_ns``: end of the repetition (CLOCK_MONOTONIC).
    """

    do: Literal["stop"]
    t_ns: int


class CloseSampling(TypedDict):
    """Run to sampling process: send the last samples, and end."""

    do: Literal["close"]


SamplingOrder: TypeAlias = StartSampling | StopSampling | CloseSampling


class SamplingAnswer(TypedDict):
    """Sampling process to run: it is ready, stopped or closed. ``bytes`` bytes of samples follow the line.

    ``missed`` and ``taken``: readings that were missed and taken so far.
    """

    event: Literal["ready", "stopped", "closed"]
    problems: list[str]
    missed: dict[str, int]  # counts by source
    taken: dict[str, int]
    series: list[SeriesHeader]
    bytes: int
