"""Runs a scenario within what is left of a job's time, and reads figures from the study that it leaves.

The study is written into the job's result folder, so a kill leaves the finished runs there. A study that does not end
in time is interrupted: ``harness run`` then reports its finished blocks.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harness.study.store import StudyFolder
from tests.gpu.lease.place import Place
from tests.gpu.lease.processes import ROOT, environment
from trainer.config import recorded_config
from trainer.data.python_docs import collect, stdlib
from trainer.errors import InputError

REPORT_S = 25.0  # for the report of an interrupted study
LAST_S = 5.0  # for a job to read its figures
MOST_EXTRA = 10  # warm-up steps
POLL_S = 0.2
LOG = "log.txt"  # of the commands, beside the result
LEAST_S = 5.0  # a report is not begun with less
# A card on paper, as fast as 20 of them: the same code in a few seconds.
ON_PAPER: Mapping[str, Any] = {
    "base": {"compute.device": {"emulated": "h200", "speed": 20}, "steps": 2, "warmup_steps": 1},
    "slice_steps": 2,
    "repeats": 1,
}
CORPUS = "build/lease/even.jsonl"  # relative, so that no result names a folder of the machine
CHARACTERS = 7000  # of a document: 1,700 tokens on average, 88 % of the documents below 2,048
ARCHIVE = "study.tar.xz"
_MADE_AGAIN = ("timeline.json.gz", "summary.html")  # by harness report


@dataclass(frozen=True)
class Study:
    """A study that has ended, whole or not."""

    folder: StudyFolder
    summary: Mapping[str, Any]
    """summary.json; empty where nothing was reported."""

    @property
    def arms(self) -> dict[str, Mapping[str, Any]]:
        """Summaries of the arms by name, without their controls."""
        return {name: one for name, one in self.summary.get("arms", {}).items() if one["control"] is None}

    @property
    def comparisons(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.summary.get("comparisons", [])
        return found


@dataclass(frozen=True)
class Goal:
    """What is asked of an arm's speed."""

    tokens_per_s: float
    mfu: float
    """In percent."""
    asked: str
    """The goal of tokens/s in words."""


def run_scenario(place: Place, name: str, *words: str, reserve_s: float = 0.0) -> Study | None:
    """Run scenarios/``name``.yaml with more ``words`` for ``harness run``; None where it left no study.

    ``reserve_s``: time that the job needs after the study.
    """
    scenario = ROOT / "scenarios" / f"{name}.yaml"
    if place.emulated:
        scenario = _on_paper(place, scenario, name)
    until = place.until - reserve_s - LAST_S
    stop_at = until - REPORT_S
    place.out.mkdir(parents=True, exist_ok=True)
    arguments = ["run", str(scenario), "--out", str(place.out), "--force", *words]
    run_harness(place, arguments, stop=lambda: time.monotonic() >= stop_at, until=until)
    study = read_study(place, name, until)
    if study is None:
        place.leave_out()
        place.add("study", None, asked="figures")
        return None
    return _keep(place, study)


@contextmanager
def attempt(place: Place, what: str) -> Iterator[None]:
    """Record an error in the block as a figure that is missing, so that the job goes on to its next figures."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        place.add(what, None, asked=f"failed: {type(error).__name__}: {error}")


def with_even_documents() -> tuple[str, ...]:
    """Write a corpus of documents of one length; returns the words that let ``harness run`` use it.

    Documents of the builtin corpus differ by a factor of 1,000. Few steps meet few of them, so what tokenizing costs in
    one block says little of the next.
    """
    path = ROOT / CORPUS
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        starts = ((text, at) for text in collect(stdlib()) for at in range(0, len(text) - CHARACTERS + 1, CHARACTERS))
        lines = [json.dumps({"text": text[at : at + CHARACTERS]}) + "\n" for text, at in starts]
        new = path.with_suffix(".new")
        new.write_text("".join(lines))
        new.replace(path)
    return ("--set", f"data.corpus.path={CORPUS}")


def add_figures(place: Place, study: Study, planned_blocks: int, goals: Mapping[str, Goal] | None = None) -> None:
    """Record what every study has: blocks, extra warm-up steps, and each arm's speed beside its goal."""
    record = study.folder.read_study()
    done = sum(all(study.folder.is_done(name, block) for name in names) for block, names in enumerate(record.order))
    place.add("blocks done", done, asked=str(planned_blocks), holds=done >= planned_blocks)
    if done < planned_blocks and not place.emulated:  # the emulated form measures one
        place.leave_out()
    extra = list(extra_warmup_steps(study.folder))
    if extra:
        few, middle = sum(one <= MOST_EXTRA for one in extra), statistics.median(extra)
        asked, holds = f"at most {MOST_EXTRA} in 95 % of turns", few >= 0.95 * len(extra)
        place.add("extra warm-up steps of a turn", middle, low=min(extra), high=max(extra), asked=asked, holds=holds)
    for name, arm in study.arms.items():
        add_speed(place, name, arm, (goals or {}).get(name))


def add_speed(place: Place, name: str, arm: Mapping[str, Any], goal: Goal | None) -> None:
    speed, share = arm["tokens_per_s"], arm["mfu"]
    if speed is None:
        place.add(f"{name}: tokens/s", None)
        return
    median, low, high = (speed[key] for key in ("median", "ci_low", "ci_high"))
    asked, holds = ("", None) if goal is None else (goal.asked, median >= goal.tokens_per_s)
    place.add(f"{name}: tokens/s", median, low=low, high=high, asked=asked, holds=holds)
    if share is None:
        return
    ends = [None if end is None else 100 * share * end / median for end in (low, high)]
    asked, holds = ("", None) if goal is None else (f"{goal.mfu:g} %", 100 * share >= goal.mfu)
    place.add(f"{name}: MFU", 100 * share, "%", low=ends[0], high=ends[1], asked=asked, holds=holds)


def add_comparisons(place: Place, study: Study, most_half_width: float | None = None) -> None:
    """Record each comparison's ratio and verdict. ``most_half_width``: the interval that is asked for, in percent."""
    for one in study.comparisons:
        pair = f"{one['candidate']} / {one['baseline']}"
        ratio = one["measured_ratio"]
        if ratio is not None:
            place.add(f"{pair}: {one['measured_in']}", ratio["median"], "x", low=ratio["ci_low"], high=ratio["ci_high"])
            width = half_width(ratio)
            asked = "" if most_half_width is None else f"under {most_half_width:g} %"
            holds = None if most_half_width is None else width is not None and width < most_half_width
            place.add(f"{pair}: half the interval", width, "%", asked=asked, holds=holds)
        isolated = one["isolated_ratio"]
        if isolated is not None:
            low, high = isolated["ci_low"], isolated["ci_high"]
            place.add(f"{pair}: in isolation", isolated["median"], "x", low=low, high=high)
        verdict = one["verdict"] if one["decided"] else f"undecided: {one['undecided_because']}"
        place.add(f"{pair}: verdict", verdict, asked="decided", holds=one["decided"])


def half_width(ratio: Mapping[str, float | None]) -> float | None:
    """Half of the interval's width in percent of the median; None without an interval."""
    low, high, median = ratio["ci_low"], ratio["ci_high"], ratio["median"]
    return None if low is None or high is None or not median else 50 * (high - low) / median


def extra_warmup_steps(folder: StudyFolder) -> Iterator[int]:
    """Yield, for each turn of each arm that trains, the warm-up steps beyond the planned ones."""
    for run in folder.runs():
        config = recorded_config(run.record.config)
        if config.compute.work == "none" or run.steps is None:
            continue
        settle = config.data.workers * config.data.prefetch + 1
        taken: Counter[int] = Counter()
        turns, warmup = (run.steps.column(name).to_pylist() for name in ("turn", "warmup"))
        for turn, is_warmup in zip(turns, warmup, strict=True):
            taken[turn] += is_warmup
        for turn, count in taken.items():
            yield count - settle - (config.warmup_steps if turn == 0 else 0)


def _on_paper(place: Place, scenario: Path, name: str) -> Path:
    """Write the scenario as it runs on a card on paper; returns its file."""
    place.work.mkdir(parents=True, exist_ok=True)
    path = place.work / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"extends": str(scenario), "name": name, "question": "?", **ON_PAPER}))
    return path


def run_harness(place: Place, arguments: Sequence[str], stop: Callable[[], bool], until: float) -> None:
    """Run a command of the harness; interrupt it once ``stop()`` is true, kill it at ``until`` (time.monotonic())."""
    with (place.out / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments],
            cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            # A shell starts what runs behind it deaf to this signal, and every process below inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
    stopped = False
    try:
        while process.poll() is None and time.monotonic() < until:
            if not stopped and stop():
                stopped = True
                process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    finally:
        process.kill()  # its runs end with it
        process.wait()


def read_study(place: Place, name: str, until: float) -> Study | None:
    """The study that the command left, reported now if it could not do so itself."""
    folders = sorted((place.out / name).glob("*/study.json"))
    if not folders:
        return None
    folder = StudyFolder(folders[-1].parent)
    if not folder.summary_json.exists() and until - time.monotonic() > LEAST_S:
        run_harness(place, ["report", str(folder.path)], stop=lambda: False, until=until)
    found = json.loads(folder.summary_json.read_text()) if folder.summary_json.exists() else {}
    return Study(folder, found)


def _without_folders(place: Place, text: str) -> str:
    """Return ``text`` with OUT, SCRATCH and paths within the repository for the folders of this machine."""
    for folder, name in ((f"{place.out}", "OUT"), (f"{place.work}", "SCRATCH"), (f"{ROOT}/", "")):
        text = text.replace(folder, name)
    return text


def _keep(place: Place, study: Study) -> Study:
    """Keep the report and an archive of the tables with the result; the study itself moves to the scratch folder."""
    folder = study.folder.path
    for name in _MADE_AGAIN:
        (folder / name).unlink(missing_ok=True)
    with suppress(InputError):  # a damaged study.json stays as it is
        record = study.folder.read_study()
        command = [_without_folders(place, word) for word in record.command]
        source = _without_folders(place, record.scenario_file)
        study.folder.write_study(replace(record, command=command, scenario_file=source))
    for path in (study.folder.summary_md, study.folder.summary_json, place.out / LOG):
        if path.exists():
            path.write_text(_without_folders(place, path.read_text()))
    with tarfile.open(place.out / ARCHIVE, "w:xz") as tar:
        tar.add(folder, arcname=f"{folder.parent.name}/{folder.name}")
    for path in (study.folder.summary_md, study.folder.summary_json, study.folder.study_json):
        if path.exists():
            shutil.copy(path, place.out)
    if study.folder.plots.exists():
        shutil.copytree(study.folder.plots, place.out / study.folder.plots.name, dirs_exist_ok=True)
    place.work.mkdir(parents=True, exist_ok=True)
    moved = Path(shutil.move(folder, place.work / f"{folder.parent.name}-{folder.name}"))
    shutil.rmtree(folder.parent)
    return replace(study, folder=StudyFolder(moved))
