"""stacks.speedscope.json against speedscope's own format (src/lib/file-format-spec.ts), as strict models."""

from __future__ import annotations

import json
from typing import Literal

from hypothesis import given, settings
from pydantic import BaseModel, ConfigDict, Field

from harness.probes.profilers.py_spy import speedscope
from harness.study.traces.py_spy import read_stacks
from tests.harness.study.traces.spy_writer import Frame
from tests.harness.study.traces.test_spy_trace import MAIN, OTHER, ROLES, WORKER, facts, samples, write


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SpecFrame(Strict):
    name: str
    file: str | None = None
    line: int | None = None
    col: int | None = None


class Shared(Strict):
    frames: list[SpecFrame]


class SampledProfile(Strict):
    type: Literal["sampled"]
    name: str
    unit: Literal["none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"]
    startValue: int  # noqa: N815 - the format's own names
    endValue: int  # noqa: N815
    samples: list[list[int]]
    weights: list[int]


class File(Strict):
    schema_: Literal["https://www.speedscope.app/file-format-schema.json"] = Field(alias="$schema")
    shared: Shared
    profiles: list[SampledProfile]
    name: str | None = None
    activeProfileIndex: int | None = None  # noqa: N815
    exporter: str | None = None


@settings(deadline=None)
@given(samples)
def test_it_is_a_speedscope_file(taken):
    table = read_stacks(write(taken), facts(10**6), ROLES)
    file = File.model_validate_json(json.dumps(speedscope(table)))
    assert len(file.profiles) == 3
    for profile in file.profiles:
        assert len(profile.samples) == len(profile.weights) == len(taken)
        assert all(0 <= frame < len(file.shared.frames) for stack in profile.samples for frame in stack)
        assert all(weight >= 0 for weight in profile.weights)
        assert profile.endValue - profile.startValue == sum(profile.weights)
        assert profile.startValue >= 0


def test_the_main_thread_is_shown_first_and_frames_have_their_places():
    taken = [{OTHER: [Frame("feed")], WORKER: [Frame("encode", "/src/a.py", 7)], MAIN: [Frame("step")]}]
    file = speedscope(read_stacks(write(taken), facts(10**6), ROLES))
    assert [profile["name"] for profile in file["profiles"]] == ["main 10", "loader-0 11", "process 10, thread 14"]
    assert {"name": "encode", "file": "a.py", "line": 7} in file["shared"]["frames"]


def test_nothing_sampled_is_an_empty_file():
    table = read_stacks(write([{MAIN: []}]), facts(10**6), ROLES).slice(0, 0)
    assert File.model_validate(speedscope(table)).profiles == []
