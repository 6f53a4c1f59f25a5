"""Own code of a program and its garbage collections, found by sampling: the place, and what it takes of a step."""

from __future__ import annotations

import _thread
import gc
import math
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import process
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from harness.attach import hooks
from harness.attach.run_record import RunOrigin, record_of
from harness.explain import causes as explain_causes
from harness.explain.causes import LOCK, SlowCause, slow_causes
from tests.harness.attach.running import PROGRAMS, Ran, Recorded, chosen, losses, record_all, run_all
from tests.harness.attach.test_exec import alone, attached, program, recorded, study_in

hooks._agent()
from _harness_agent import memory, own_time, phases, record, run_queue  # noqa: E402

pytestmark = pytest.mark.slow
nightly = pytest.mark.nightly
STEPS, WARMUP = 60, 20
# Programs with their slow line, and the kind of its cause.
SLOW = {
    f"own_time log {STEPS}": ("code", "time.sleep(0.02)"),
    f"own_time gc {STEPS}": ("gc", "gc.collect()"),
    f"own_time busy {STEPS}": ("code", "sum(i * i for i in range(200_000))"),
    "own_time save 200": ("code", "time.sleep(0.2)"),
}
NONE, THREAD, BRIEF = f"own_time none {STEPS}", "own_time thread 400", "own_time brief 800"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_all(tmp_path_factory.mktemp("alone") / "out", [NONE], None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recorded:
    programs = [NONE, *chosen(request, [*SLOW, BRIEF, THREAD])]
    return record_all(tmp_path_factory.mktemp("seen"), programs, {"warmup": WARMUP})


def found_in(seen: Recorded, program: str, folder: Path, share: float = 0.05) -> tuple[list[SlowCause], float]:
    """Causes of the program with at least that share, and the milliseconds that it measured itself."""
    ran, one = seen.ran[program], seen.of(program)
    assert ran.code == 0, ran.lines
    assert not any("Traceback" in line for line in ran.lines)
    (truth,) = [float(line.split()[1]) for line in ran.lines if line.startswith("SPENT")]
    blocks = seen.tables(program, folder).blocks
    facts = [record_of("script", number, one, block, RunOrigin({}, 0, "")).facts for number, block in enumerate(blocks)]
    causes = [one for one in slow_causes(facts) if one.least_share >= share and not one.phase and one.of]
    return causes, truth


@pytest.mark.parametrize("program", [*[*SLOW][:3], pytest.param([*SLOW][3], marks=nightly)])
def test_the_slow_place_is_named_with_what_it_takes_of_a_step(program: str, seen: Recorded, tmp_path: Path) -> None:
    cause, line = SLOW[program]
    found, truth_ms = found_in(seen, program, tmp_path)
    first = max(found, key=lambda one: one.spent_ms)
    assert (first.kind, first.code, first.place.partition(":")[0]) == (cause, line, "own_time.py")
    share = min(first.spent_share, 1.0)
    error_ms = 3 * first.wall_ms / first.of * math.sqrt(share * (1 - share) / first.looks) if first.looks else 0.0
    # Where cores are short, looks at Python code come late and find the line after it.
    total_ms = sum(one.step_ms for one in found)
    assert total_ms == pytest.approx(truth_ms, abs=max(0.2 * truth_ms, 1, error_ms))
    assert len([one for one in found if one.place == first.place]) == 1  # a collection is not own code once more


@nightly
@pytest.mark.parametrize("program", [THREAD])
def test_a_thread_that_runs_python_is_found_where_it_runs(program: str, seen: Recorded, tmp_path: Path) -> None:
    found, _truth_ms = found_in(seen, program, tmp_path, 0.0)  # A busy machine leaves the thread less of a core.
    most = max((one for one in found if one.kind == LOCK), key=lambda one: one.spent_ms)
    assert (most.code, most.function) == ("sum(range(1000))", "run_python")


def test_a_program_without_slow_code_has_no_such_place(
    seen: Recorded, undisturbed: dict[str, Ran], tmp_path: Path
) -> None:
    found, _truth_ms = found_in(seen, NONE, tmp_path)
    assert [one for one in found if (one.code and "slow" in one.code) or one.kind == LOCK] == []
    for ran in seen.ran.values():  # the same losses, whatever a program does besides
        assert losses(ran.lines)[:STEPS] == losses(undisturbed[NONE].lines)


@nightly
def test_a_fork_finds_no_thread_of_the_agent(tmp_path: Path) -> None:
    """Python 3.12 warns of a fork with threads, and a child inherits locks that these hold."""
    command = program("own_time", "fork", 60)
    # Cold: in a process that has torch already, the program's hook would come before that of the agent.
    done = attached(tmp_path, command, "--warmup", "20", cold=True)
    assert done.returncode == 0, done.stderr
    (with_agent,) = re.findall(r"THREADS (\d+)", done.stdout)
    (without,) = re.findall(r"THREADS (\d+)", alone(command, cold=True).stdout)
    assert with_agent == without
    causes = slow_causes([run.record.facts for run in study_in(tmp_path).runs()])
    assert any(one.code.startswith("time.sleep(0.02)") for one in causes)  # it goes on after a fork


def test_a_second_thread_that_is_recorded_has_its_places_noted_anew(tmp_path: Path) -> None:
    """Its record is another file, in which no place is noted yet."""
    study, _ = recorded(tmp_path, "own_time again 50")
    for arm in ("script", "script-2"):
        facts = [run.record.facts for run in study.runs() if run.record.arm == arm]
        assert any(one.code == "time.sleep(0.02)" for one in slow_causes(facts)), arm


@nightly
def test_no_garbage_collection_begins_within_a_look() -> None:
    """Before Python 3.12 it would block the program: a look holds the lock of the list of all threads."""
    command = [sys.executable, str(PROGRAMS / "collected_looks.py")]
    done = alone(command, cold=True, env=os.environ | {"PYTHONPATH": str(Path.cwd())})
    assert int(done.stdout) > 0, done.stderr


@nightly
@pytest.mark.parametrize("program", [BRIEF])
def test_a_short_piece_of_python_is_found_though_a_call_after_it_lets_go_of_the_lock(
    program: str, seen: Recorded, tmp_path: Path
) -> None:
    """2 ms of Python in each step, which the forward pass follows: a look came in that pass."""
    found, truth_ms = found_in(seen, program, tmp_path)  # about a second
    most = max((one for one in found if one.kind == "code"), key=lambda one: one.spent_ms)
    assert (most.code, most.late) == ("sum(i * i for i in range(30_000))", False)
    assert most.step_ms > truth_ms / 2


class Thread(threading.Thread):
    """Runs ``begin``, and ends where ``leave`` is set; ``ran`` is set in between."""

    def __init__(self, begin: Callable[[], object]) -> None:
        super().__init__()
        self.begin, self.ran, self.leave = begin, threading.Event(), threading.Event()

    def run(self) -> None:
        self.begin()
        self.ran.set()
        self.leave.wait()

    def end(self) -> None:
        self.leave.set()
        self.join()


def test_a_thread_that_has_ended_is_left_out_of_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    alive, ended = Thread(lambda: (go.wait(), sum(range(10**6)))), threading.Thread(target=int)
    alive.start()
    ended.start()
    frame, identifiers = sys._getframe(), (ended.ident, alive.ident)
    ended.join()
    monkeypatch.setitem(threading._active, ended.ident, ended)  # type: ignore[attr-defined]
    sampler = own_time._Sampler()
    for _ in range(2):
        sampler._look_at_others(dict.fromkeys(identifiers, frame), 1)
        go.set()
        alive.ran.wait()
    alive.end()
    assert [ns for _, ns, _ in sampler.others] == [1]


@pytest.mark.parametrize("known", [True, False])
def test_a_thread_that_began_since_the_last_look_has_run_since_then(known: bool) -> None:
    thread, sampler = Thread(lambda: sum(range(10**6))), own_time._Sampler()
    if known:
        sampler._look_at_others({}, 1)
    thread.start()
    thread.ran.wait()
    sampler._look_at_others({thread.ident: sys._getframe()}, 10**7)
    thread.end()
    assert [ns > 10**6 for _, ns, _ in sampler.others] == [True] * known


def in_a_hook(kind: str) -> list[object]:
    """Return what the sampler takes for a hook's frame in a backward pass of this ``kind``: its function, or None."""
    found: list[object] = []

    def look(*given: torch.Tensor) -> torch.Tensor:
        frame = own_time._hook(sys._getframe(), sys._current_frames())
        found.append(frame and frame.f_code.co_name)
        return given[-1] * given[-1]  # keeps what a checkpoint computes again

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(_context: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
            return look(gradient)

    x = torch.ones(2, requires_grad=True)
    if kind == "hook":
        x.register_hook(look)
        x.sum().backward()
    elif kind == "function":
        Doubled.apply(x).sum().backward()
    elif kind == "checkpoint":
        loss = checkpoint(look, x, use_reentrant=False).sum()
        found.clear()  # what the forward pass called
        loss.backward()
    else:
        look(x)
    return found


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("hook", "look"), ("function", None), ("no pass", None), pytest.param("checkpoint", None, marks=nightly)],
)
def test_a_hook_of_a_backward_pass_is_told_from_the_model_within_it(kind: str, expected: str | None) -> None:
    assert in_a_hook(kind) == [expected]


def test_a_hook_is_found_in_the_thread_that_autograd_has_for_a_device() -> None:
    looked, leave = threading.Event(), threading.Event()

    def hook() -> None:
        looked.set()
        leave.wait()

    def _engine_run_backward() -> FrameType | None:
        """Wait as the recorded thread does while the device's thread runs."""
        return own_time._hook(sys._getframe(), sys._current_frames())

    thread = _thread.start_new_thread(hook, ())  # as little known to Python as autograd's
    assert looked.wait(10)
    assert thread not in threading._active  # type: ignore[attr-defined]
    frame = _engine_run_backward()
    leave.set()
    assert frame is not None
    while frame.f_code.co_name != "hook":
        frame = frame.f_back
        assert frame is not None


def test_a_look_keeps_nothing_that_the_program_lets_go() -> None:
    """Frames that stayed until a garbage collection kept tensors, and loader workers that then forked with others."""
    kept: list[weakref.ref[threading.Event]] = []
    looked_at, leave = threading.Event(), threading.Event()

    def holds() -> None:
        event = threading.Event()
        kept.append(weakref.ref(event))
        looked_at.set()
        leave.wait()

    thread = threading.Thread(target=holds)
    gc.disable()
    try:
        thread.start()
        assert looked_at.wait(60)
        own_time._Sampler()._look(0, 0)
        leave.set()
        thread.join()
        assert kept[0]() is None
    finally:
        gc.enable()


def test_the_switch_interval_is_short_only_where_no_other_thread_runs() -> None:
    usual_s = sys.getswitchinterval()
    sampler = own_time._Sampler()
    try:
        for alone, expected in ((True, own_time.INTERVAL_S), (True, own_time.INTERVAL_S), (False, usual_s)):
            sampler._wait_shortly(alone)
            assert sys.getswitchinterval() == pytest.approx(expected)
        sampler._wait_shortly(True)
        sys.setswitchinterval(0.002)  # by the program
        sampler._wait_shortly(False)
        assert sys.getswitchinterval() == pytest.approx(0.002)
        sampler._wait_shortly(True)
        sys.setswitchinterval(sys.getswitchinterval())  # saved and restored by the program, with an error of rounding
        sampler._wait_shortly(False)
        assert sys.getswitchinterval() == pytest.approx(0.002)
    finally:
        sys.setswitchinterval(usual_s)


def test_a_program_whose_threads_compete_for_the_lock_keeps_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a short one the training thread waited for a third as long: what slows the program was hidden."""
    shortened: list[bool] = []
    sampler = own_time._Sampler()
    monkeypatch.setattr(sampler, "_wait_shortly", shortened.append)
    monkeypatch.setattr(own_time, "_collection_is_near", lambda: False)  # no look comes then
    runs = iter([False] * (own_time.ALONE_LOOKS + 1) + [True, False, False])
    monkeypatch.setattr(sampler, "_look_at_others", lambda *_: sampler.others.extend([(None, 1, 0)] * next(runs)))
    for sampler.counted in range(1, own_time.ALONE_LOOKS + 5):
        sampler._look(0, 0)
    assert shortened == [False] * own_time.ALONE_LOOKS + [True] + [False] * 3


def test_a_reading_of_memory_that_waits_for_a_core_delays_the_next_one_by_what_it_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "read", lambda: (time.sleep(0.1), (1, 2, 3))[1])
    sampler = own_time._Sampler()
    sampler.begun_ns = begun_ns = time.monotonic_ns()
    sampler._read_memory()
    assert sampler.memory == [(1, 2, 3)]
    assert sampler.memory_due_ns - begun_ns < 5e9  # 0.1 s at 1 % of the time are 10 s


def test_a_worker_that_the_program_has_closed_counts_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = ForkProcess(target=int)
    closed.start()
    closed.join()
    closed.close()
    monkeypatch.setattr(process, "_children", {closed})
    own, workers, free = memory.read()
    assert min(own, free) > 0
    assert workers == 0


def test_a_child_process_and_another_thread_ask_for_cores() -> None:
    """Each burns until it has had a while on a core, which a busy machine only delays."""
    script = "import time\nwhile time.process_time() < 0.1: pass\nprint(flush=True)\ninput()"
    sampler = own_time._Sampler()
    go, ran, leave = threading.Event(), threading.Event(), threading.Event()
    numbers = []

    def burn() -> None:
        numbers.append(threading.get_native_id())
        go.wait()
        while time.thread_time() < 0.1:
            pass
        ran.set()
        leave.wait()

    thread = threading.Thread(target=burn)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        thread.start()
        assert run_queue.children_asked_ns().keys() >= {child.pid}
        while not numbers:
            time.sleep(0.001)
        sampler.ran_ns = {numbers[0]: 0}
        sampler._read_demand()
        go.set()
        assert child.stdout is not None
        child.stdout.readline()
        ran.wait()
        sampler._read_demand()
        leave.set()
        thread.join()
        child.communicate(b"\n")
    ((asked_ns, passed_ns),) = sampler.demand
    assert asked_ns > 0.1e9
    assert passed_ns > 0


def test_agent_and_analysis_use_the_same_words() -> None:
    """The agent cannot import the analysis."""
    for name in ("THREAD_LOCK", "WAITING_MODULES"):
        assert getattr(own_time, name) == getattr(explain_causes, name)


def test_a_child_with_a_lower_process_id_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process ids wrap around: a child then has a lower id than its parent."""
    parents = {7: os.getpid(), 9: 7, 11: 1, os.getpid(): 1}
    monkeypatch.setattr(run_queue, "_parents", {})
    monkeypatch.setattr(run_queue.os, "listdir", lambda _: [str(pid) for pid in parents])
    monkeypatch.setattr(run_queue, "_parent_of", parents.__getitem__)
    monkeypatch.setattr(run_queue, "_process_asked_ns", lambda pid: pid)
    assert run_queue.children_asked_ns() == {7: 7, 9: 9}


def test_the_place_of_the_thread_that_holds_the_lock_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded thread waits for a lock that a sleeping thread holds. Others sleep, or wait for it as well."""
    lock, leave = threading.Lock(), threading.Event()
    begun = [threading.Event() for _ in range(3)]

    def hold() -> None:
        with lock:
            begun[0].set()
            while not leave.is_set():
                time.sleep(0.01)

    def wait(number: int) -> None:
        begun[number].set()
        with lock:
            pass

    def sleep() -> None:
        while not leave.is_set():
            time.sleep(0.01)

    threads = [threading.Thread(target=hold), threading.Thread(target=sleep)]
    threads += [threading.Thread(target=wait, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for event in begun:
        event.wait()
    monkeypatch.setattr(phases, "recorded_thread", threads[2].ident)
    sampler = own_time._Sampler()
    until = time.monotonic() + 10
    while not sampler.holders and time.monotonic() < until:  # The waiting thread has not come to its line yet.
        sampler._look(time.monotonic_ns(), time.monotonic_ns())
        time.sleep(0.01)
    leave.set()
    for thread in threads:
        thread.join()
    assert {where[0] for where, _ in sampler.holders} == {hold.__code__}


@pytest.mark.parametrize("kind", ["with", "acquire", "sleep", "Python"])
def test_a_line_that_waits_for_a_lock_of_the_program_is_told_from_others(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, condition, ready = threading.Lock(), threading.Condition(), threading.Event()
    noted: list[tuple[object, ...]] = []
    monkeypatch.setattr(record, "note", lambda _kind, content: noted.append(content))

    def wait() -> None:
        ready.set()
        if kind == "with":
            with lock:
                pass
        elif kind == "acquire":
            lock.acquire()
            lock.release()
        elif kind == "sleep":
            time.sleep(0.2)
        else:
            with condition:
                pass

    thread = threading.Thread(target=wait)
    with lock, condition:
        thread.start()
        ready.wait()
        assert thread.ident is not None
        lines = {"with": 3, "acquire": 6, "sleep": 9, "Python": 11}
        while True:  # It has not come to its line yet.
            where = own_time._Sampler._where(sys._current_frames()[thread.ident])
            assert where is not None
            if where[1] - wait.__code__.co_firstlineno == lines[kind]:
                break
            time.sleep(0.01)
        time.sleep(0.05)  # from the line's begin to its call
        own_time._Sampler().number(own_time._Sampler._where(sys._current_frames()[thread.ident]))
    thread.join()
    ((*_, called),) = noted
    assert called == {"with": own_time.THREAD_LOCK, "acquire": own_time.THREAD_LOCK, "sleep": "",
                      "Python": "threading.Condition.__enter__"}[kind]  # fmt: skip
