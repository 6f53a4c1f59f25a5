from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.launch.tables import spans_table, steps_table
from harness.probes.ledger.run_queue import RunQueue, most_delayed_ns
from harness.probes.ledger.steps import StepRecorder
from harness.study.store import PHASES, SPAN_COLUMNS, STAGES, STEP_COLUMNS, read_table, write_table
from trainer import telemetry
from trainer.inject import spend
from trainer.telemetry import BatchTrace, StageSpan

events = st.lists(
    st.one_of(
        st.sampled_from([*telemetry.PHASES, *telemetry.STAGES]).map(lambda name: ("span", name)),
        st.sampled_from(telemetry.PHASES).map(lambda name: ("nested", name)),
        st.just(("batch", "")),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
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
    table = steps_table(recorder)
    assert table["step"] == list(range(len(steps)))
    for row in range(len(steps)):
        phases = [table[f"{phase}_ns"][row] for phase in PHASES]
        assert sum(phases) == table["wall_ns"][row]
        assert min(phases) >= 0
        batches = sum(kind == "batch" for kind, _ in steps[row])
        assert table["tokens"][row] == 8 * batches
        exposed = sum(table[f"exposed_{stage}_ns"][row] for stage in STAGES)
        if all(kind == "batch" or name != "fetch" for kind, name in steps[row]):
            assert exposed == table["fetch_ns"][row]


def test_tables_round_trip_through_the_contract(tmp_path) -> None:
    recorder = StepRecorder()
    for step in range(3):
        recorder.step(step)
        recorder.enter("fetch")
        recorder.exit("fetch")
        start = recorder.rows().phases[-1].start_ns
        recorder.received(BatchTrace(7, 7, "loader-1", step, (StageSpan("tokenize", start - 50, start),)), 4, 3, 1)
        recorder.loss(step, 1.0 / (step + 1))
    recorder.pause()
    write_table(tmp_path / "steps.parquet", STEP_COLUMNS, steps_table(recorder))
    write_table(tmp_path / "spans.parquet", SPAN_COLUMNS, spans_table(recorder, 1, 1, 0))
    steps = read_table(tmp_path / "steps.parquet", STEP_COLUMNS)
    spans = read_table(tmp_path / "spans.parquet", SPAN_COLUMNS)
    assert steps is not None
    assert spans is not None
    assert steps.column("loss").to_pylist() == [1.0, 0.5, 1.0 / 3]
    assert steps.column("hidden_tokenize_ns").to_pylist() == [50, 50, 50]
    assert steps.column("device_busy_ns").null_count == 3  # not measured on a synchronous device: null, not zero
    assert steps.column("contended_ns").null_count == 3
    worker = [row for row in spans.to_pylist() if row["role"] == "loader-1"]
    assert [row["batch"] for row in worker] == [0, 1, 2]
    assert {row["name"] for row in spans.to_pylist() if row["role"] == "main"} == {"fetch"}


@pytest.mark.slow
def test_run_queue_delay_grows_when_more_threads_run_than_cores() -> None:
    """Twice as many spinning processes as cores: each must have waited for a core about half of the time."""
    import multiprocessing
    import os

    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_spin, args=(queue,)) for _ in range(2 * cores)]
    for worker in workers:
        worker.start()
    delays = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert all(delay is not None for delay in delays)
    assert sum(delays) > 0.2 * len(delays) * _SPIN_CPU_NS  # half of it each, in theory


_SPIN_CPU_NS = 200_000_000


def _spin(queue) -> None:
    from time import thread_time_ns

    run_queue = RunQueue(compute_threads=False)
    before = run_queue.read()
    end = thread_time_ns() + _SPIN_CPU_NS
    while thread_time_ns() < end:
        pass
    queue.put(most_delayed_ns(before, run_queue.read()))


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


def test_the_most_delayed_thread_counts_and_one_that_came_or_went_does_not() -> None:
    assert most_delayed_ns((b"1 100 1\n", b"1 50 1\n"), (b"2 130 2\n", b"2 90 2\n")) == 40
    assert most_delayed_ns((b"1 100 1\n",), (b"2 130 2\n", b"2 900 2\n")) == 30
    assert most_delayed_ns((b"1 100 1\n", b"1 50 1\n"), (b"2 130 2\n", b"")) == 30
    assert most_delayed_ns((), (b"2 130 2\n",)) is None


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
    table = spans_table(recorder, 1, 1, 0)
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
        monkeypatch.setattr("harness.probes.ledger.steps.monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr("harness.probes.ledger.steps.thread_time_ns", lambda: self.cpu_ns)

    def read(self) -> tuple[bytes, ...]:
        return (f"{self.cpu_ns} {self.delay_ns} 1\n".encode(),)

    def spend(self, wall_ns: int, cpu_ns: int, delay_ns: int = 0) -> None:
        self.now_ns += wall_ns
        self.cpu_ns += cpu_ns
        self.delay_ns += delay_ns


def test_every_figure_of_a_step_is_what_the_clocks_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    recorder = StepRecorder(clock)  # type: ignore[arg-type]  # read() is all that it asks of a run queue
    recorder.turn, recorder.warmup = 4, True
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
    table = steps_table(recorder)
    assert table["step"] == [7, 8, 9]
    assert table["turn"] == [4, 4, 4]
    assert table["warmup"] == [True, False, False]
    assert table["wall_ns"] == [420_000] * 3
    assert table["contended_ns"] == [0, 30_000, 420_000]  # never more than the step
    assert (table["fetch_ns"], table["forward_ns"]) == ([140_000] * 3, [200_000] * 3)
    assert (table["log_ns"], table["other_ns"]) == ([30_000] * 3, [50_000] * 3)
    assert table["exposed_read_ns"] == [100_000] * 3
    assert table["exposed_transfer_ns"] == [40_000] * 3
    spans = spans_table(recorder, 1, 1, 0)
    cpu: dict[str, list[tuple[int, int]]] = {name: [] for name in ("read", "fetch", "forward", "log")}
    for name, batch, value in zip(spans["name"], spans["batch"], spans["cpu_ns"], strict=True):
        cpu[name].append((batch, value))
    assert cpu["read"] == [(0, 60_007), (1, 60_008), (2, 60_009)]
    assert cpu["fetch"] == [(0, 70_007), (1, 70_008), (2, 70_009)]
    assert cpu["forward"] == [(0, 155_000), (1, 155_000), (2, 155_000)]
    assert cpu["log"] == [(0, 5_000), (1, 5_000), (2, 5_000)]
    assert [[stage.name for stage in batch.trace.stages()] for batch in recorder.rows().received] == [["read"]] * 3
