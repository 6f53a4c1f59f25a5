"""Runs CUDA programs with one real fault each under ``harness exec``: does its page name the fault, and its saving?

The truth is what the slow and the fixed version of a program (tests/gpu/programs) take by turns, in one process for all
programs. Then each slow version runs once under ``harness exec``. What that prints is kept in NAME.txt, its page in
NAME.md, and what summary.json holds of the command in NAME.json. At the end, the hooks are switched off and on by turns
in one process: what do they add to a step?
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Timer
from typing import Any

from harness.study.contract import STAGES
from tests.benchmarks.attach_overhead import interval
from tests.gpu.lease.place import Place

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests" / "gpu" / "programs"
STEPS, WARMUP = 40, 8  # of a program under exec
LEAST_ROUNDS = 6  # of fewer, order statistics give no interval of 95 %
TRUTH_SHARE = 0.4  # of the time that is left, at most
PAGE_S, ENDING_S = 60.0, 5.0  # limits of one page, and of what follows the last
WITHIN, WITHIN_MS = 0.15, 1.0  # of the truth: a saving that is right, the larger of both
COUNTS = ("allocator_retries", "compilations")  # keys of a turn
AT_END = re.compile(r"^trained \d+ steps$", re.MULTILINE)  # The program has left the device to others.


@dataclass(frozen=True)
class Fault:
    """A program, and what its page should say. The cause counts as named if one of these is there."""

    program: str
    code: tuple[str, ...]
    """What the lines of the fault contain: the page names one of them as ``program.py:LINE``. Empty: no line is it."""
    words: str
    """Pattern of what the page calls such a cause."""
    bound: str | None = None
    """What summary.json says the steps are bound by."""
    idle_for: tuple[str, ...] = ()
    """Causes whose idle time of the device (of a CPU: exposed time) is the page's saving; none: it states no saving."""

    def lines(self) -> list[int]:
        text = (PROGRAMS / f"{self.program}.py").read_text().splitlines()
        return [number for number, line in enumerate(text, 1) if any(part in line for part in self.code)]

    def named_by(self, page: str, arm: dict[str, Any]) -> str | None:
        """Return what names the cause."""
        text = " ".join(page.split())
        places = [rf"{self.program}\.py:{line}\b" for line in self.lines()]
        match = re.search("|".join(places), text) if places else None
        # The program's own name says nothing.
        if (match := match or re.search(self.words, text.replace(self.program, ""))) is not None:
            return match[0]
        return f"bound: {self.bound}" if self.bound and arm.get("bound") == self.bound else None

    def saving_ms(self, arm: dict[str, Any]) -> float | None:
        idle = arm.get("starved_ms") or arm.get("exposed_ms") or {}
        return sum(idle[cause] for cause in self.idle_for) if self.idle_for and idle else None


FAULTS = (
    Fault("item_each_step", ("loss.item()",), r"\.item\b|_local_scalar_dense|StreamSynchronize"),
    Fault("synchronizing_logger", ("cuda.synchronize()", "times.log()"), r"cuda\.synchronize|DeviceSynchronize"),
    Fault("blocking_copies", ("teacher.to(", "ids.to("), r"unpinned|pageable|pin_memory|non_blocking|cudaMemcpy"),
    Fault("tokenizing_collate", ("tokenizer.encode(", "encode(tokenizer"),
     r"tokenize [\d.]+|data: tokenize|INPUT-BOUND \(tokenize\)", idle_for=STAGES),
    Fault("micro_batches", (), r"[Ll]aunch-bound", bound="launch"),
    Fault("hand_written_attention", ("scores",), r"[Aa]ttention|sdpa|softmax"),
    Fault("allocator_retries", (), r"alloc\w+ retr|cudaMalloc|cached blocks|fragment"),
    Fault("recompiling_lengths", ("compiled(ids)", "torch.compile("), r"graphs? compiled in|RECOMPILING"),
)  # fmt: skip
TRIED = ("item_each_step", "tokenizing_collate")  # on an emulated device


def run(place: Place) -> None:
    faults = [one for one in FAULTS if not place.emulated or one.program in TRIED]
    place.work.mkdir(parents=True, exist_ok=True)
    saved: dict[str, float] = {}
    parts: dict[str, Callable[[], None]] = {
        "by turns": lambda: saved.update(_truth(place, [one.program for one in faults])),
        "pages": lambda: _pages(place, faults, saved),
        "hooks of exec": lambda: _overhead(place),
    }
    for name, part in parts.items():
        try:
            part()
        except Exception as error:  # The other parts still run.
            traceback.print_exc()
            place.add(name, f"{type(error).__name__}: {error}"[:300], holds=False)


# ---- what the fix saves


def _truth(place: Place, programs: Sequence[str]) -> dict[str, float]:
    """Record what each fix saves; the savings in milliseconds a step, of the programs that ran."""
    words = [*programs, *_options(place, "--turn", 3, "--rounds", 2)]
    saved: dict[str, float] = {}
    with _lines(place, "turns.py", words, TRUTH_SHARE * place.left_s) as rows:
        for program, turns in groupby(rows, key=lambda row: str(row["script"])):
            saved |= _saving(place, program, list(turns))
    return saved


def _saving(place: Place, program: str, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Record the figures of one program from its turns."""
    for row in rows:
        if "problem" in row:
            place.add(f"{program}: by turns", row["problem"], holds=False)
    turns = {version: [row for row in rows if row.get("version") == version] for version in ("slow", "fixed")}
    pairs = list(zip(turns["slow"], turns["fixed"], strict=False))  # A kill may come between two of a round.
    if not pairs:
        return {}
    for version, found in turns.items():
        place.add(f"{program}: {version}", statistics.median(row["ms"] for row in found), "ms a step")
    for count in COUNTS:
        if (of_slow := statistics.mean(row[count] for row in turns["slow"])) > 0:
            place.add(f"{program}: slow, {count.replace('_', ' ')}", of_slow, "a step")
    differences = [slow["ms"] - fixed["ms"] for slow, fixed in pairs]
    saved = statistics.median(differences)
    low, high = interval(differences) if len(differences) >= LEAST_ROUNDS else (None, None)
    above = min(differences) if low is None else low
    place.add(f"{program}: saved by the fix", saved, "ms a step", low=low, high=high, asked="above 0", holds=above > 0)
    return {program: saved}


# ---- what the page says


@dataclass
class _Page:
    """``harness exec`` on the slow version of a program."""

    fault: Fault
    process: Popen[bytes]
    folder: Path
    until: float
    over: bool = False

    @property
    def printed(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def trains(self) -> bool:
        """True until the program has left the device, after which only the page is made."""
        return self.process.poll() is None and time.monotonic() < self.until and AT_END.search(self.printed) is None

    def ended(self) -> bool:
        """End the process at its time limit; True if it has ended."""
        if self.process.poll() is None and time.monotonic() > self.until:
            _kill(self.process)
            self.process.wait()
        return self.process.poll() is not None


def _pages(place: Place, faults: Sequence[Fault], saved: dict[str, float]) -> None:
    """Run one program after the other; while one trains, the page of the one before is made."""
    pages: list[_Page] = []
    try:
        for fault in faults:
            if place.left_s < 2 * ENDING_S:
                place.add(f"{fault.program}: cause named", None, asked="yes")
                continue
            pages.append(_start(place, fault))
            while pages[-1].trains:
                _record_ended(place, pages, saved)
                time.sleep(0.05)
        while any(not page.over for page in pages):
            _record_ended(place, pages, saved)
            time.sleep(0.05)
    finally:
        for page in pages:
            if page.process.poll() is None:
                _kill(page.process)


def _start(place: Place, fault: Fault) -> _Page:
    folder = place.work / fault.program
    folder.mkdir(parents=True)
    steps, warmup = (10, 4) if place.emulated else (STEPS, WARMUP)
    words = [
        sys.executable, "-m", "harness", "exec", "--steps", str(steps), "--warmup", str(warmup), "--out", str(folder),
        "--", sys.executable, str(PROGRAMS / f"{fault.program}.py"), "slow", "--device", _device(place),
    ]  # fmt: skip
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as errors:
        process = Popen(words, cwd=ROOT, env=_environment(), stdout=out, stderr=errors, start_new_session=True)
    until = min(time.monotonic() + PAGE_S, place.until - ENDING_S)
    return _Page(fault, process, folder, until)


def _record_ended(place: Place, pages: Sequence[_Page], saved: dict[str, float]) -> None:
    for page in pages:
        if not page.over and page.ended():
            page.over = True
            _record(place, page, saved.get(page.fault.program))


def _record(place: Place, page: _Page, saved_ms: float | None) -> None:
    """Keep the page, and say whether it names the cause and its saving."""
    program, printed = page.fault.program, page.printed
    errors = (page.folder / "stderr").read_text(errors="replace")[-3000:]
    _keep(page, f"{printed}\n{errors}", place.out / f"{program}.txt")
    summary = next(page.folder.glob("exec/*/summary.json"), None)
    if summary is None:
        problem = f"no study, exit code {page.process.returncode}: {(errors.strip().splitlines() or [''])[-1]}"
        place.add(f"{program}: cause named", problem, asked="yes", holds=False)
        return
    arm = next(iter(json.loads(summary.read_text())["arms"].values()))
    (place.out / f"{program}.json").write_text(json.dumps(arm, indent=1) + "\n")
    _keep(page, summary.with_suffix(".md").read_text(), place.out / f"{program}.md")
    phases = arm.get("phase_ms") or {}
    place.add(f"{program}: slow under exec", sum(phases.values()) or None, "ms a step")
    named = page.fault.named_by(printed, arm)
    place.add(f"{program}: cause named", named or "no", asked="yes", holds=named is not None)
    ms = page.fault.saving_ms(arm)
    within = None if saved_ms is None else max(WITHIN * saved_ms, WITHIN_MS)
    asked = "" if saved_ms is None else f"{saved_ms:.2f} ms, as the fix saves, within {within:.2f} ms"
    right = None if saved_ms is None or within is None else ms is not None and abs(ms - saved_ms) <= within
    place.add(f"{program}: saving on the page", ms, "ms a step", asked=asked, holds=right)


def _keep(page: _Page, text: str, path: Path) -> None:
    """Write a text without the names of this machine's folders."""
    for name, short in ((str(page.folder), "OUT"), (str(ROOT), "."), (sys.executable, "python")):
        text = text.replace(name, short)
    path.write_text(text.strip() + "\n")


# ---- what watching costs


def _overhead(place: Place) -> None:
    """Record what the hooks of exec add to a step of a program that never waits for its device."""
    options = _options(place, "--turn", 3, "--rounds", 2)
    out = str(place.work / "watched")
    words = ["-m", "harness", "exec", "--out", out, "--", sys.executable, str(PROGRAMS / "watched_steps.py"), *options]
    turns: dict[bool, list[float]] = {False: [], True: []}
    with _lines(place, "", words, min(PAGE_S, place.left_s - ENDING_S)) as rows:
        for row in rows:
            turns[row["watched"]].append(row["ms"])
    added = [on - off for on, off in zip(turns[True], turns[False], strict=False)]
    if not added:
        place.add("hooks of exec: added", None, "ms a step")
        return
    low, high = interval(added) if len(added) >= LEAST_ROUNDS else (None, None)
    place.add("hooks of exec: step without them", statistics.median(turns[False]), "ms a step")
    place.add("hooks of exec: added", statistics.median(added), "ms a step", low=low, high=high)


# ---- processes


@contextmanager
def _lines(place: Place, script: str, words: Sequence[str], seconds: float) -> Iterator[Iterator[dict[str, Any]]]:
    """Start Python with a script of the programs' folder; yield its lines of JSON as they come, until a time limit."""
    command = [sys.executable, *([str(PROGRAMS / script)] if script else []), *words]
    name = Path(script or "watched").stem
    with (place.work / f"{name}.stderr").open("wb") as errors:
        process = Popen(command, cwd=ROOT, env=_environment(), stdout=PIPE, stderr=errors, start_new_session=True)
    limit = Timer(max(seconds, 1.0), _kill, [process])
    limit.start()
    try:
        assert process.stdout is not None
        yield (json.loads(line) for line in process.stdout if line[:1] == b"{" and line[-2:] == b"}\n")
        with suppress(TimeoutExpired):
            process.wait(ENDING_S)
    finally:
        limit.cancel()
        _kill(process)
        process.wait()
    if process.returncode:
        place.add(f"{name}: ended early", f"exit code {process.returncode}", holds=False)
        tail = (place.work / f"{name}.stderr").read_text(errors="replace").strip().splitlines()[-8:]
        print(f"{name}: exit code {process.returncode}", *tail, sep="\n", flush=True)


def _kill(process: Popen[bytes]) -> None:
    """End the process with all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _options(place: Place, *small: object) -> list[str]:
    """The device, and on an emulated one the options of a short run."""
    return ["--device", _device(place), *(map(str, small) if place.emulated else ())]


def _device(place: Place) -> str:
    return "cpu" if place.emulated else "cuda"


def _environment() -> dict[str, str]:
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
