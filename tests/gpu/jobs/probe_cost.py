"""Measures what each probe costs on a card and how fast its counters can be read; draws a timeline of its kernels.

One process alternates steps with and without each probe, there and back again, so that its luck is in neither side. The
step is bound by launches: what a probe takes of the host's time shows in full.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from typing import Any

import yaml

from harness.explain.statistics import from_blocks
from harness.probes.ledger.recorders import StepRecorder
from harness.probes.ledger.threads import RunQueue
from harness.probes.nvml.metrics import Reader
from harness.probes.probe import Probe
from harness.probes.profilers.py_spy import PySpy, PySpySettings
from harness.probes.profilers.torch_profiler import TorchProfiler
from harness.probes.profilers.torch_session import TorchProfilerSettings
from harness.probes.sampler.messages import SamplerSettings
from harness.probes.sampler.sampler import Sampler
from harness.study.store import StudyFolder
from tests.gpu.jobs.commands import MESSAGE, failing_alone, harness
from tests.gpu.lease.place import Place
from tests.gpu.pipelines import CUDA, DATA, EMULATED
from tests.timeline_check.check import check
from trainer import telemetry
from trainer.compute.base import Compute
from trainer.compute.build import build_compute
from trainer.compute.cuda_timeline import CudaTimeline
from trainer.config import TrainerConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.loop import train

ALWAYS_ON = 1.0  # percent of the step, for each probe that is always on
WARM_STEPS = 3  # steps of each side before its timed ones
MOST_PAIRS, LEAST_PAIRS = 40, 3  # an interval needs three
STUDY_S = 40.0  # seconds of the job for the study of the timeline
MOST_BYTES = 2_000_000  # bytes of a timeline that is kept
GPM_MS = 110.0  # between two readings of counters that the card refreshes every 100 ms
NAME = "probe-cost-device"


@dataclass(frozen=True)
class Case:
    """Steps with a probe against steps without it. ``seconds`` are of a job of 120 s."""

    name: str
    seconds: float
    steps: int
    probe: Callable[[Path], Probe | None] = lambda _: None
    without: str = "probe"
    """What the other side lacks: the probe, the ledger's ``recorder``, or with it the device's ``events``."""
    always_on: bool = False


def _sampler(_: Path, **settings: Any) -> Sampler:
    return Sampler(SamplerSettings(**settings), lambda: {os.getpid(): "main"})


# torch_profiler comes last, as steps after it may stay slower.
CASES = (
    Case("ledger", 12, 20, without="events", always_on=True),
    Case("ledger's recorder", 10, 20, without="recorder", always_on=True),
    Case("sampler at 10 Hz", 12, 40, _sampler, always_on=True),
    Case("sampler of the host at 10 Hz", 8, 40, partial(_sampler, nvml=False)),
    Case("sampler of NVML and GPM at 100 Hz", 8, 40, partial(_sampler, host=False, rate_hz=100)),
    Case("py-spy at 100 Hz", 12, 40, partial(PySpy, PySpySettings())),
    Case("torch_profiler", 8, 8, partial(TorchProfiler, TorchProfilerSettings())),
)
FEW = CASES[:3]


def run(place: Place) -> None:
    """Alternate, read the counters, draw the timeline: each part may fail alone."""
    for part in (_costs, _counters, _timeline):
        with failing_alone(place, part.__name__.strip("_")):
            part(place)


@dataclass
class Loops:
    """Two loops over one model: with the device's events, which the ledger takes, and without."""

    compute: Compute
    inner: Compute
    """The same model without events; of an emulated device, which keeps its own times, the same."""
    with_events: Iterator[int]
    without_events: Iterator[int]
    recorder: StepRecorder

    def step_ms(self, case: Case, probe: Probe | None, *, on: bool) -> float:
        """Milliseconds of a step of one side, from an idle device until it is idle again."""
        steps = self.without_events if case.without == "events" and not on else self.with_events
        telemetry.attach(self.recorder if on or case.without == "probe" else None)
        used = probe if on else None
        if used is not None:
            used.begin_repetition()
        for _ in range(WARM_STEPS):
            next(steps)
        self.inner.synchronize()
        if used is not None:
            used.begin_steps()
        start = perf_counter_ns()
        for _ in range(case.steps):
            next(steps)
        self.inner.synchronize()
        taken_ns = perf_counter_ns() - start
        self.recorder.pause()
        if used is not None:
            used.end_repetition()
            used.wait()
        self.compute.synchronize()  # The events become times here, as between the turns of a study.
        telemetry.attach(None)
        self.recorder.take_rows()
        self.recorder.take_device()
        return taken_ns / case.steps / 1e6


@contextmanager
def _loops(model: dict[str, Any]) -> Iterator[Loops]:
    nested: dict[str, Any] = {"data": dict(DATA), "optimizer": {"learning_rate": 1e-5}, "log_every": 100_000}
    for key, value in model.items():
        section, name = key.split(".")
        nested.setdefault(section, {})[name] = value
    config = TrainerConfig.model_validate(nested)
    prepared = prepare(config.data)
    with open_batches(config.data, prepared, seed=0) as batches:
        compute = build_compute(config, prepared.vocab_size)
        inner = compute._inner if isinstance(compute, CudaTimeline) else compute
        run_queue = RunQueue(compute_threads=False)
        run_queue.find_threads()
        recorder = StepRecorder(run_queue if run_queue.available else None)
        both = train(config, compute, batches), train(config, inner, batches)
        try:
            yield Loops(compute, inner, *both, recorder)
        finally:
            telemetry.attach(None)
            for steps in both:
                steps.close()  # type: ignore[attr-defined]  # a generator: closing it reads the last losses


def _costs(place: Place) -> None:
    cases = FEW if place.emulated else CASES
    most = 0.1 if place.emulated else 1.0
    with _loops((EMULATED if place.emulated else CUDA)["launch"]) as loops:
        for _ in range(3 if place.emulated else 20):
            next(loops.with_events)
            next(loops.without_events)
        loops.compute.synchronize()
        scale = min(most, 0.8 * (place.left_s - STUDY_S) / sum(case.seconds for case in cases))
        for case in cases:
            with failing_alone(place, case.name):
                _cost(place, loops, case, scale * case.seconds)


def _cost(place: Place, loops: Loops, case: Case, seconds: float) -> None:
    """Add what one probe costs a step: the median ratio of pairs, with its interval."""
    folder = place.work / "probes"
    folder.mkdir(parents=True, exist_ok=True)
    before_ms = [loops.step_ms(case, None, on=False) for _ in range(LEAST_PAIRS)]  # These also warm up the loop.
    ratios: list[float] = []
    without_ms: list[float] = []
    end, probe = monotonic() + seconds, case.probe(folder)
    try:
        while len(ratios) < LEAST_PAIRS or (monotonic() < end and len(ratios) < MOST_PAIRS):
            first = len(ratios) % 2 == 0
            pair = {on: loops.step_ms(case, probe, on=on) for on in (first, not first)}
            ratios.append(pair[True] / pair[False])
            without_ms.append(pair[False])
    finally:
        if probe is not None:
            probe.close()
    problems = [] if probe is None else probe.report().problems
    for problem in problems:
        place.add(f"{case.name}: problem", problem[:MESSAGE])
    if probe is not None and probe.report().failed:
        return
    ratio = from_blocks([math.log(one) for one in ratios])
    low, high = (None if end is None else _percent(end) for end in (ratio.ci_low, ratio.ci_high))
    asked = f"at most {ALWAYS_ON:g} %" if case.always_on else ""
    holds = _at_most(ALWAYS_ON, low, high) if asked else None
    place.add(case.name, _percent(ratio.median), "% of the step", low=low, high=high, asked=asked, holds=holds)
    step_ms = statistics.median(without_ms)
    place.add(f"{case.name}: step without it", round(step_ms, 3), f"ms, {len(ratios)} pairs")
    if isinstance(probe, TorchProfiler):
        place.add(f"{case.name}: left behind", _percent(step_ms / statistics.median(before_ms)), "% of the step")
    if isinstance(probe, Sampler):
        _record_readings(place, case, probe)


def _at_most(most: float, low: float | None, high: float | None) -> bool | None:
    """True if the whole interval is at most ``most``, False if none of it is; None where it is undecided."""
    if low is None or high is None or low <= most < high:
        return None
    return high <= most


def _percent(ratio: float) -> float:
    return round(100 * (ratio - 1), 2)


def _record_readings(place: Place, case: Case, sampler: Sampler) -> None:
    """Add how many of the readings due were taken, and how far apart those of GPM were."""
    for source, taken in sorted(sampler.taken.items()):
        due = taken + sampler.missed.get(source, 0)
        place.add(f"{case.name}: {source} readings taken", round(100 * taken / max(1, due), 1), f"% of {due}")
    rows = zip(sampler.samples["t_ns"], sampler.samples["metric"], strict=True)
    times = [t_ns for t_ns, metric in rows if metric == "sm_active_percent"]
    apart_ms = [(after - before) / 1e6 for before, after in pairwise(times)]
    if within := [one for one in apart_ms if one < 1000]:  # others lie between two turns
        place.add(f"{case.name}: from one GPM reading to the next", round(statistics.median(within), 1), "ms")


def _counters(place: Place) -> None:
    """Add how long reading each of the card's counters takes."""
    import pynvml

    from harness.probes.nvml.collector import find_cards
    from harness.probes.nvml.metrics import make_readers

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        place.add("NVML: missing", str(error))
        return
    cards, problems = find_cards(pynvml)
    for problem in problems:
        place.add("NVML: problem", problem[:MESSAGE])
    readers, lacking = make_readers(pynvml, cards[0])
    for reader in readers:
        with failing_alone(place, f"NVML, {reader.text}"):
            count, apart_ms = (10, GPM_MS) if "GPM" in reader.text else (50, 0.0)
            taken_us = statistics.median(reading_times_us(reader, count, apart_ms))
            place.add(f"NVML, {reader.text}: a reading", round(taken_us, 1), f"us, of {count}")
        lacking += reader.take_lacking()
    for text, reason in lacking:
        place.add(f"NVML, {text}: missing", reason[:MESSAGE])


def reading_times_us(reader: Reader, count: int, apart_ms: float) -> Iterator[float]:
    """Yield the time of each of ``count`` readings, with a pause of ``apart_ms`` before each."""
    reader.begin({os.getpid()})
    for _ in range(count):
        sleep(apart_ms / 1e3)
        start = perf_counter_ns()
        list(reader.read())
        yield (perf_counter_ns() - start) / 1e3


def _timeline(place: Place) -> None:
    """Keep a timeline of a few steps with their kernels, and check it as tests/timeline_check does."""
    folder = place.work / "timeline"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scenario.yaml"
    model = (EMULATED if place.emulated else CUDA)["launch"]
    file.write_text(yaml.safe_dump(scenario(model, py_spy=not place.emulated), sort_keys=False))
    harness("run", str(file), "--out", str(folder), "--force", log=folder / "log.txt", seconds=place.left_s - 2)
    study = StudyFolder(max((folder / NAME).glob("*")))
    content = study.timeline.read_bytes()
    place.add("timeline: size", len(content), "bytes", asked=f"at most {MOST_BYTES}", holds=len(content) <= MOST_BYTES)
    if len(content) <= MOST_BYTES:
        (place.out / study.timeline.name).write_bytes(content)
    events = json.loads(gzip.decompress(content))["traceEvents"]
    kernels = sum(event.get("cat") == "kernel" for event in events)
    place.add("timeline: kernels", kernels, f"of {len(events)} events", asked="some", holds=kernels > 0)
    problems = check(content).problems
    place.add("timeline: problems", len(problems), problems[0][:200] if problems else "", asked="0", holds=not problems)


def scenario(model: dict[str, Any], *, py_spy: bool) -> dict[str, Any]:
    """One arm, profiled after a few measured steps."""
    spied = {"py_spy": {"seconds": 1}} if py_spy else {}
    return {
        "name": NAME,
        "question": "What does a timeline show of this device's kernels?",
        "base": {"data": DATA, "optimizer": {"learning_rate": 1e-5}, "steps": 4, "warmup_steps": 3},
        "arms": {"launch": {**model, "data.workers": 1}},
        "repeats": 1,
        "probes": {"torch_profiler": {"active": 2}, "timeline_steps": 2, **spied},
    }
