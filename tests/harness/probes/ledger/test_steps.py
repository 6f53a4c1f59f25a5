from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic_ns, thread_time_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.derived import with_derived
from harness.explain.spans import COLUMNS, read_spans
from harness.launch.tables import RunTables
from harness.probes.ledger.recorders import BareRecorder, StageRecorder, StepRecorder
from harness.probes.ledger.threads import RunQueue, most_delayed_ns
from harness.study.contract import PHASES, SPAN_COLUMNS, STAGES, STEP_COLUMNS
from harness.study.tables import read_table
from tests.examples import examples
from trainer import telemetry
from trainer.inject import spend
from trainer.telemetry import BatchTrace, Blocked, Kernel, StageSpan


def written(recorder: StepRecorder | BareRecorder) -> tuple[dict[str, list], dict[str, list]]:
    """What a run writes of ``recorder``, its derived columns worked out: (steps, spans)."""
    with TemporaryDirectory() as folder:
        tables = RunTables(recorder, Path(folder), 1, 1, 0)
        tables.write()
        return read_back(Path(folder))


def read_back(folder: Path) -> tuple[dict[str, list], dict[str, list]]:
    steps = read_table(folder / "steps.parquet", STEP_COLUMNS)
    spans = read_table(folder / "spans.parquet", SPAN_COLUMNS)
    assert steps is not None
    assert spans is not None
    assert not list(folder.glob(".*")), "no temporary file stays"
    derived = with_derived(steps, read_spans(spans.select(COLUMNS).to_batches()), None).table
    return derived.to_pydict(), spans.to_pydict()


events = st.lists(
    st.one_of(
        st.sampled_from([*telemetry.PHASES, *telemetry.STAGES]).map(lambda name: ("span", name)),
        st.sampled_from(telemetry.PHASES).map(lambda name: ("nested", name)),
        st.just(("batch", "")),
    ),
    max_size=12,
)


@examples(100)
@given(st.lists(events, min_size=1, max_size=6), st.booleans())
def test_phases_sum_to_the_wall_time_exactly_whatever_a_trainer_does(steps, paused) -> None:
    recorder = StepRecorder(RunQueue(compute_threads=True))
    for index, step in enumerate(steps):
        recorder.step(index)
        for kind, name in step:
            if kind == "batch":
                recorder.enter("fetch")
                recorder.enter("read")
                recorder.exit("read")
                trace = recorder.take()
                recorder.exit("fetch")
                recorder.received(trace, 8, 7, 1)
            else:
                recorder.enter(name)
                if kind == "nested":
                    recorder.enter("log")
                    recorder.exit("log")
                recorder.exit(name)
        if paused:
            recorder.pause()
    recorder.pause()
    table, _ = written(recorder)
    assert table["step"] == list(range(len(steps)))
    for row in range(len(steps)):
        phases = [table[f"{phase}_ns"][row] for phase in PHASES]
        assert sum(phases) == table["wall_ns"][row]
        assert min(phases) >= 0
        batches = sum(kind == "batch" for kind, _ in steps[row])
        assert table["tokens"][row] == 8 * batches
        if all(kind == "batch" or name != "fetch" for step in steps for kind, name in step):
            assert sum(table[f"during_wait_{stage}_ns"][row] for stage in STAGES) == table["fetch_ns"][row]


def test_tables_round_trip_through_the_contract() -> None:
    recorder = StepRecorder()
    for step in range(3):
        recorder.step(step)
        recorder.enter("fetch")
        recorder.exit("fetch")
        start = recorder.rows().phases[-1].start_ns
        recorder.received(BatchTrace(7, 7, "loader-1", step, (StageSpan("tokenize", start - 50, start),)), 4, 3, 1)
        recorder.loss(step, 1.0 / (step + 1))
    recorder.pause()
    steps, spans = written(recorder)
    assert steps["loss"] == [1.0, 0.5, 1.0 / 3]
    assert steps["work_tokenize_ns"] == [50, 50, 50]
    assert steps["during_wait_tokenize_ns"] == [0, 0, 0]
    assert steps["device_busy_ns"] == [None] * 3  # not measured on a synchronous device: null, not zero
    assert steps["contended_ns"] == [None] * 3
    loaders = [place for place, role in enumerate(spans["role"]) if role == "loader-1"]
    assert [spans["batch"][place] for place in loaders] == [0, 1, 2]
    assert {name for name, role in zip(spans["name"], spans["role"], strict=True) if role == "main"} == {"fetch"}


def one_repetition(recorder: StepRecorder, first: int) -> None:
    """Three steps: an inline batch, one of a worker, one of which nobody reports; a kernel and a blocking call each."""
    for step in range(first, first + 3):
        recorder.step(step)
        recorder.enter("fetch")
        if step == first:
            recorder.enter("read")
            recorder.exit("read")
            trace = recorder.take()
        else:
            trace = BatchTrace(7, 7, "loader-1", step, (("tokenize", 5, 9, 4),)) if step == first + 1 else None
        recorder.exit("fetch")
        recorder.received(trace, 4, 3, 1)
        now = monotonic_ns()
        recorder.device(Kernel("forward", now, now + 1, now + 2, now + 3))
        recorder.blocked(Blocked("loop.py:1: item", now, now + 3))
    recorder.pause()
    recorder.loss(first + 1, 0.5)  # read late, as trainers do


def test_portions_make_the_same_tables_as_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run writes its spans between repetitions, so that memory does not grow with its length."""
    clock = iter(range(1_000, 10**9, 1_000))
    times = [next(clock) for _ in range(200)]
    found = []
    for least_events in (10**9, 0):
        ticks = iter(times)
        monkeypatch.setattr("harness.probes.ledger.recorders.monotonic_ns", lambda ticks=ticks: next(ticks))
        monkeypatch.setattr(f"{__name__}.monotonic_ns", lambda ticks=ticks: next(ticks))
        monkeypatch.setattr("harness.probes.ledger.recorders.thread_time_ns", lambda: 0)
        recorder = StepRecorder()
        folder = tmp_path / str(least_events)
        tables = RunTables(recorder, folder, 1, 1, 0)
        for first in (0, 3, 6):
            one_repetition(recorder, first)
            tables.collect(least_events)
            assert least_events or (recorder.pending_events, recorder.losses) == (0, {})
        recorder.loss(8, 0.25)
        tables.write()
        steps, spans = read_back(folder)
        rows = sorted(zip(*(spans[name] for name in spans), strict=True), key=str)
        found.append((steps, rows))
    assert found[0] == found[1]
    steps, _ = found[0]
    assert steps["loss"] == [None, 0.5, None, None, 0.5, None, None, 0.5, 0.25]
    assert steps["tokens"] == [4] * 9
    assert [value is None for value in steps["during_wait_read_ns"]] == [False, False, True] * 3


def test_spans_that_cannot_be_written_cost_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = StepRecorder()
    tables = RunTables(recorder, tmp_path, 1, 1, 0)
    one_repetition(recorder, 0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tables._spans, "append", full)
    with pytest.raises(OSError, match="No space left"):
        tables.write()
    steps = read_table(tmp_path / "steps.parquet", STEP_COLUMNS)
    assert steps is not None
    assert steps["step"].to_pylist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["steps.parquet"]


@pytest.mark.parametrize(("ranks", "name"), [(1, "{}.parquet"), (2, "{}.rank-1.parquet")])
def test_a_rank_that_is_a_run_by_itself_writes_the_files_of_a_run(tmp_path: Path, ranks: int, name: str) -> None:
    """Each rank of an attached program is an arm: as rank 1 of its folder, nobody would find its tables."""
    recorder = StepRecorder()
    one_repetition(recorder, 0)
    RunTables(recorder, tmp_path, 1, 1, 1, ranks).write()
    assert {path.name for path in tmp_path.iterdir()} == {name.format("steps"), name.format("spans")}


def test_a_batch_without_work_is_all_transfer_and_not_unknown() -> None:
    recorder = StepRecorder()
    recorder.step(0)
    recorder.enter("fetch")
    trace = recorder.take()
    recorder.exit("fetch")
    recorder.received(trace, 1, 1, 1)
    recorder.pause()
    steps, _ = written(recorder)
    assert steps["exposed_transfer_ns"] == steps["fetch_ns"]
    assert steps["exposed_tokenize_ns"] == [0]


@pytest.mark.slow
def test_run_queue_delay_grows_when_more_threads_run_than_cores() -> None:
    """Twice as many spinning processes as cores: each must have waited for a core about half of the time."""
    count = 2 * len(os.sched_getaffinity(0))
    with multiprocessing.get_context("fork").Pool(count) as pool:
        delays = pool.map(_spin, [SPIN_CPU_NS] * count, chunksize=1)
    assert all(delay is not None for delay in delays)
    assert sum(delays) > 0.2 * count * SPIN_CPU_NS  # half of it each, in theory


SPIN_CPU_NS = 120_000_000


def _spin(cpu_ns: int) -> int | None:
    run_queue = RunQueue(compute_threads=False)
    before = run_queue.read()
    end = thread_time_ns() + cpu_ns
    while thread_time_ns() < end:
        pass
    return most_delayed_ns(before, run_queue.read())


def test_telemetry_is_a_no_op_until_a_recorder_is_attached() -> None:
    with telemetry.span("fetch"):
        telemetry.step(0)
        telemetry.received(None, 1, 1, 1)
    assert telemetry.take() is None
    recorder = StepRecorder()
    telemetry.attach(recorder)
    try:
        telemetry.step(0)
        with telemetry.span("forward"):
            pass
        recorder.pause()
    finally:
        telemetry.attach(None)
    with telemetry.span("forward"):
        pass
    assert len(recorder.rows().phases) == 1


def test_run_queue_watches_native_threads_only() -> None:
    run_queue = RunQueue(compute_threads=True)
    stop = threading.Event()
    python_thread = threading.Thread(target=stop.wait)
    python_thread.start()
    try:
        run_queue.find_threads()
        assert python_thread.native_id not in run_queue._known
        assert most_delayed_ns(run_queue.read(), run_queue.read()) is not None
    finally:
        stop.set()
        python_thread.join()


def test_the_most_delayed_thread_counts_unless_it_came_or_went_or_only_wakes_up_now_and_then() -> None:
    assert most_delayed_ns((b"1 100 1\n", b"1 50 1\n"), (b"2 130 2\n", b"9 90 2\n")) == 40
    assert most_delayed_ns((b"1 100 1\n",), (b"2 130 2\n", b"2 900 2\n")) == 30
    assert most_delayed_ns((b"1 100 1\n", b"1 50 1\n"), (b"2 130 2\n", b"")) == 30
    assert most_delayed_ns((), (b"2 130 2\n",)) is None
    idle = (b"%d 1000 1\n", b"%d 80000 9\n")
    assert most_delayed_ns((b"9 100 1\n", idle[0] % 30), (b"99 130 2\n", idle[1] % 3_999)) == 30
    assert most_delayed_ns((b"9 100 1\n", idle[0] % 30), (b"99 130 2\n", idle[1] % 4_000)) == 79_000
    assert most_delayed_ns((b"1 100 1\n",), (b"2 9000 2\n",)) == 8_900  # the main thread's own always counts


def test_what_happens_while_the_loop_stands_still_is_in_no_step() -> None:
    recorder = StepRecorder()
    for index in range(2):
        recorder.step(index)
        recorder.enter("forward")
        recorder.exit("forward")
        recorder.received(None, 1, 1, 1)
        recorder.pause()
        recorder.enter("log")
        recorder.exit("log")
    recorder.step(2)
    recorder.received(None, 1, 1, 1)
    assert [row.step for row in recorder.rows().steps] == [0, 1]
    for row in recorder.rows().steps:
        spent = dict(zip(PHASES, row.phases_ns, strict=True))
        assert spent["forward"] > 0
        assert spent["log"] == 0
        assert spent["other"] >= 0
    assert [batch.step_row for batch in recorder.rows().received] == [0, 1, 2]
    assert [phase.batch for phase in recorder.rows().phases if phase.name == "forward"] == [-1, 0]


def test_the_cpu_time_of_a_span_is_within_it() -> None:
    """Also where it was read for the span before: see NEAR_NS."""
    recorder = StepRecorder()
    recorder.step(0)
    for name in ("forward", "backward", "optimizer") * 20:
        recorder.enter(name)
        recorder.exit(name)
    recorder.pause()
    _, table = written(recorder)
    walls = [end - start for start, end in zip(table["start_ns"], table["end_ns"], strict=True)]
    assert all(0 <= cpu <= wall for cpu, wall in zip(table["cpu_ns"], walls, strict=True))
    busy = StepRecorder()
    busy.step(0)
    busy.enter("forward")
    spend(5, "busy")
    busy.exit("forward")
    assert busy.rows().phases[0].cpu_ns > 4_000_000


class Clock:
    """Times that the test says: of the clock, of the thread's CPU, and of the run queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns, self.cpu_ns, self.delay_ns = 1_000_000, 0, 0
        monkeypatch.setattr("harness.probes.ledger.recorders.monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr("harness.probes.ledger.recorders.thread_time_ns", lambda: self.cpu_ns)

    def read(self) -> tuple[bytes, ...]:
        return (f"{self.cpu_ns} {self.delay_ns} 1\n".encode(),)

    def spend(self, wall_ns: int, cpu_ns: int, delay_ns: int = 0) -> None:
        self.now_ns += wall_ns
        self.cpu_ns += cpu_ns
        self.delay_ns += delay_ns


def test_every_figure_of_a_step_is_what_the_clocks_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    recorder = StepRecorder(clock)  # type: ignore[arg-type]  # read() is all that it asks of a run queue
    recorder.repetition, recorder.warmup = 4, True
    for number, delay_ns in ((7, 0), (8, 30_000), (9, 10_000_000)):
        recorder.step(number)
        recorder.enter("fetch")
        clock.spend(40_000, 10_000)
        recorder.enter("read")
        clock.spend(100_000, 60_000 + number)
        recorder.exit("read")
        trace = recorder.take()
        recorder.exit("fetch")
        recorder.received(trace, 8, 7, 1)
        clock.spend(50_000, 50_000)  # between phases, longer than a reading of the CPU time holds
        recorder.enter("forward")
        clock.spend(200_000, 150_000, delay_ns)
        recorder.enter("log")
        clock.spend(30_000, 5_000)
        recorder.exit("log")
        recorder.exit("forward")
        recorder.warmup = False
    recorder.pause()
    received = recorder.rows().received
    table, spans = written(recorder)
    assert table["step"] == [7, 8, 9]
    assert table["turn"] == [4, 4, 4]
    assert table["warmup"] == [True, False, False]
    assert table["wall_ns"] == [420_000] * 3
    assert table["contended_ns"] == [0, 30_000, 420_000]  # never more than the step
    assert (table["fetch_ns"], table["forward_ns"]) == ([140_000] * 3, [200_000] * 3)
    assert (table["log_ns"], table["other_ns"]) == ([30_000] * 3, [50_000] * 3)
    assert table["exposed_read_ns"] == [100_000] * 3
    assert table["exposed_transfer_ns"] == [40_000] * 3
    cpu: dict[str, list[tuple[int, int]]] = {name: [] for name in ("read", "fetch", "forward", "log")}
    for name, batch, value in zip(spans["name"], spans["batch"], spans["cpu_ns"], strict=True):
        cpu[name].append((batch, value))
    assert cpu["read"] == [(0, 60_007), (1, 60_008), (2, 60_009)]
    assert cpu["fetch"] == [(0, 70_007), (1, 70_008), (2, 70_009)]
    assert cpu["forward"] == [(0, 155_000), (1, 155_000), (2, 155_000)]
    assert cpu["log"] == [(0, 5_000), (1, 5_000), (2, 5_000)]
    assert [[stage.name for stage in batch.trace.stages()] for batch in received] == [["read"]] * 3


def hashed_in_a_thread() -> int:
    """Hash in another thread, which lets go of Python's lock; its CPU time, for which this thread waits."""
    took_ns: list[int] = []

    def work() -> None:
        begun_ns = thread_time_ns()
        hashlib.sha256(bytes(20_000_000)).digest()
        took_ns.append(thread_time_ns() - begun_ns)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return took_ns[0]


def test_tokenizing_counts_the_cpu_time_of_the_threads_that_it_waits_for() -> None:
    inline, worker = StepRecorder(), StageRecorder("worker-0")
    inline.step(0)
    inline.enter("fetch")
    inline.enter("tokenize")
    of_inline = hashed_in_a_thread()
    inline.exit("tokenize")
    inline.enter("read")
    hashed_in_a_thread()  # nobody hands reading over: whatever runs beside it is not its own
    inline.exit("read")
    inline.received(inline.take(), 1, 1, 1)
    inline.exit("fetch")
    inline.pause()
    worker.enter("tokenize")
    of_worker = hashed_in_a_thread()
    worker.exit("tokenize")
    ((name, start, end, cpu_ns),) = worker.take().spans
    assert name == "tokenize"
    assert of_worker <= cpu_ns <= 2 * (end - start)
    (received,) = inline.rows().received
    assert received.trace is not None
    stages = {span[0]: span for span in received.trace.spans}
    assert stages["tokenize"][3] >= of_inline
    assert stages["read"][3] < of_inline
