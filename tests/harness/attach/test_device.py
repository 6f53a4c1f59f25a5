"""What the agent records of a CUDA device, on a stream that is made up: its clock runs apart from the host's."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.attach.agent import events as agent_events
from harness.attach.agent.events import DEVICE_WORK
from harness.attach.frames import AttachedProcess, ProcessFacts, append
from harness.attach.steps import write_tables
from harness.probes.ledger import rows
from tests.harness.attach.running import agent_module

Recorder = tuple[ModuleType, "Stream", list[tuple[str, Any]]]  # the agent's module, its stream, its notes

MS = 1_000_000
DRIFT = 1 + 50e-6  # of the device's clock against the host's
HOST = 10**12  # when the program began


@dataclass
class Stream:
    """Host and device times in nanoseconds; an event takes the host 2 us."""

    now_ns: float = HOST
    free_ns: float = HOST
    capturing: bool = False

    def monotonic_ns(self) -> int:
        self.now_ns += 100
        return round(self.now_ns)

    def launch(self, host_ms: float, device_ms: float) -> None:
        self.free_ns = max(self.free_ns, self.now_ns) + device_ms * MS
        self.now_ns += host_ms * MS

    def synchronize(self) -> None:
        self.now_ns = max(self.now_ns, self.free_ns)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.at_ns = stream, 0.0

    def record(self, _stream: Stream) -> None:
        self.stream.now_ns += 2_000
        self.at_ns = max(self.stream.now_ns, self.stream.free_ns)

    def query(self) -> bool:
        self.stream.now_ns += 500
        return self.at_ns <= self.stream.now_ns

    def elapsed_time(self, other: Event) -> float:
        return (other.at_ns - self.at_ns) * DRIFT / MS


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    notes: list[tuple[str, Any]] = []
    record = SimpleNamespace(note=lambda what, text: notes.append((what, text)))
    agent = SimpleNamespace(record=record)
    monkeypatch.setitem(sys.modules, "_harness_agent", agent)
    monkeypatch.setitem(sys.modules, "_harness_agent.events", agent_events)
    agent.guard = agent_module("guard")
    module = agent_module("device")
    stream = Stream()
    cuda = SimpleNamespace(
        Event=lambda **_: Event(stream),
        current_stream=lambda _device: stream,
        is_current_stream_capturing=lambda: stream.capturing,
        get_device_name=lambda _device: "NVIDIA Test",
    )
    monkeypatch.setattr(module, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(module, "monotonic_ns", stream.monotonic_ns)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: stream.launch(seconds * 1e3, 0))
    return module, stream, notes


CUDA = SimpleNamespace(type="cuda")


def test_work_is_on_the_hosts_clock_and_in_the_block_of_its_launch(device: Recorder, tmp_path: Path) -> None:
    """40 steps of 12 ms: 2 ms of fetching beside a device that is 3 ms behind, so that it is never idle for data."""
    module, stream, notes = device
    module.trains_on(CUDA)
    truth: list[tuple[str, float, float]] = []
    events: list[tuple[Any, ...]] = []
    for step in range(40):
        events.append((rows.STEP, round(stream.now_ns), (), step, 0, step < 2))
        module.mark("other")
        stream.launch(2, 0)  # the host fetches
        module.mark(None)
        for name, host_ms, device_ms in (("forward", 2, 4), ("backward", 3, 6), ("optimizer", 1, 2)):
            begin = max(stream.now_ns, stream.free_ns)
            stream.launch(host_ms, device_ms)
            truth.append((name, begin, stream.free_ns))
            module.mark(name)
        if stream.free_ns - stream.now_ns > 3 * MS:
            stream.now_ns = stream.free_ns - 3 * MS  # a sync one step behind
        events += module.collect()
    events += module.last()
    events.append((rows.PAUSE, round(stream.now_ns), ()))
    found = [event for event in events if event[0] == DEVICE_WORK and event[1] != "other"]
    assert [event[1] for event in found] == [name for name, _, _ in truth]
    one = recorded(tmp_path / "1.frames", 40, 2, events, notes)
    assert len(write_tables(one, {}, lambda block: tmp_path / str(block))) == 3
    spans = []
    for block in range(3):
        table, steps = (pq.read_table(tmp_path / f"{block}/{name}.parquet").to_pylist() for name in ("spans", "steps"))
        own = [row for row in steps if not (block and row["warmup"])]  # else they are of the block before
        since, until = own[0]["start_ns"], steps[-1]["start_ns"] + steps[-1]["wall_ns"]
        if block:  # what the device is at when a block begins was launched before
            assert min(row["start_ns"] for row in table if row["role"] == "device") <= steps[0]["start_ns"]
        launches = [row for row in table if row["role"] == "launch" and row["name"] != "other"]
        works = [row for row in table if row["role"] == "device" and row["name"] != "other"]
        inside = [since <= row["start_ns"] <= until for row in launches]
        before_ns = steps[0]["start_ns"]
        assert all(within or work["end_ns"] > before_ns for within, work in zip(inside, works, strict=True))
        spans += [work for within, work in zip(inside, works, strict=True) if within]
    assert len(spans) == len(truth)
    pairs = zip(spans, truth, strict=True)
    off = [abs(row["start_ns"] - begin) + abs(row["end_ns"] - end) for row, (_, begin, end) in pairs]
    assert max(off) < 20_000  # two events, and half of the tightest look at both clocks


def recorded(path: Path, steps: int, warmup: int, events: list[Any], notes: list[Any]) -> AttachedProcess:
    """Write a frame for each step, as the agent does."""
    facts = ProcessFacts(1, 1, None, None, "3", "2", 1, 1, warmup, HOST, 0)
    append(path, "process", asdict(facts))
    portion: list[Any] = []
    for event in events:
        portion.append(event)
        if event[0] in (rows.STEP, rows.PAUSE):
            append(path, "events", portion)
            portion = []
    append(path, "events", portion)
    return AttachedProcess(path, facts, tuple(notes), {}, steps)


@pytest.mark.parametrize(("kind", "noted"), [("cpu", []), ("mps", [("device", "mps")])])
def test_another_device_is_named_and_not_recorded(device: Recorder, kind: str, noted: list[Any]) -> None:
    module, _, notes = device
    module.trains_on(SimpleNamespace(type=kind))
    module.mark("forward")
    assert (module.collect(), module.last(), notes) == ([], [], noted)


def test_no_event_enters_a_graph_that_is_being_captured(device: Recorder) -> None:
    module, stream, _ = device
    module.trains_on(CUDA)
    module.mark("fetch")
    stream.capturing = True
    module.mark("forward")
    stream.synchronize()
    assert module.collect() == module.last() == []  # nor is one asked for: that would end the capture
    stream.capturing = False
    assert [name for name, *_ in module.state.pending] == ["fetch"]
    assert [event[1] for event in module.collect()] == ["fetch"]


def test_a_program_that_first_trains_on_the_cpu_is_recorded_from_its_device_on(device: Recorder) -> None:
    module, _, notes = device
    module.trains_on(SimpleNamespace(type="cpu"))
    module.trains_on(CUDA)
    assert notes[0] == ("device", "NVIDIA Test")
    assert module.state.stream is not None


def test_what_a_process_inherits_of_its_parents_device_is_neither_used_nor_destroyed(device: Recorder) -> None:
    module, _, _ = device
    module.trains_on(CUDA)
    module.mark("forward")
    before = module.state
    module.forget()
    assert module.state.stream is None
    assert before in module._inherited


def refuse(**_: Any) -> None:
    raise RuntimeError("an illegal memory access")


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("Event", refuse, "an illegal memory access"),
        # What it does there would be missing, and missing work looks like idle time.
        ("current_stream", lambda _: Stream(now_ns=0), "the program switched to another CUDA stream"),
    ],
)
def test_a_fault_or_another_stream_ends_this_recording_alone(
    device: Recorder, name: str, change: Any, fault: str
) -> None:
    module, _, notes = device
    module.trains_on(CUDA)
    setattr(module.torch.cuda, name, change)
    module.mark("forward")
    module.mark("backward")
    assert module.collect() == module.last() == []
    assert notes[-1] == ("device_fault", f"RuntimeError: {fault}")


def test_a_device_that_never_answers_does_not_keep_the_program(
    device: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, stream, notes = device
    module.trains_on(CUDA)
    stream.launch(1, 10**9)
    module.mark("forward")
    monkeypatch.setattr(module.time, "monotonic", lambda: stream.monotonic_ns() / 1e9)
    assert module.last() == []
    assert notes[-1] == ("device_fault", "TimeoutError: the device did not finish within 5 s")


@pytest.mark.parametrize("change", ["killed", "faulty"])
def test_of_half_a_recording_nothing_counts(device: Recorder, tmp_path: Path, change: str) -> None:
    """What is missing would be taken for idle time: a killed program takes no second look at the clocks."""
    module, stream, notes = device
    module.trains_on(CUDA)
    events: list[tuple[Any, ...]] = []
    for step in range(12):
        events.append((rows.STEP, round(stream.now_ns), (), step, 0, False))
        stream.launch(2, 2)
        module.mark("forward")
        events += module.collect()
    if change == "faulty":
        events += module.last()
        notes.append(("device_fault", "made up"))
    write_tables(recorded(tmp_path / "1.frames", 12, 0, events, notes), {}, lambda block: tmp_path / str(block))
    assert not pq.read_table(tmp_path / "0/spans.parquet").num_rows
