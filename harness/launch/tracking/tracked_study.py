"""Send a finished study, or each part of a training, to the trackers of its scenario: its runs, then its report.

Trackers start after all measurements, so that they cannot slow a run, and share ``limits.tracking_s``.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np

from harness.launch.tracking.trackers import missing
from harness.scenario.model import LimitsConfig
from harness.scenario.overrides import flatten
from harness.study.contract import CHOICE_COLUMNS
from harness.study.records import StudyRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from trainer.errors import in_words
from trainer.json_types import Json, JsonObject, section

ROWS = 500  # steps per message
MAX_TRACKED_STEPS = 20_000  # maximum steps of a run for a tracker, evenly spread
RUNS_SHARE = 0.5  # share of the time limit for the runs; the rest is for the report, even if a tracker hangs
NOTE = "tracking: "  # prefix of the study's notes about lost records


class StudyTrackers:
    """A scenario's trackers, each in its own process. Call :meth:`send_runs`, then :meth:`end`."""

    def __init__(self, name: str, asked: Sequence[str], limit_s: float, to: Path) -> None:
        """Start the trackers ``asked``, with files in ``to``, for ``limit_s`` seconds. ``name``: the study's run."""
        self._name = name
        self._left_s = limit_s
        self._absent: list[str] = []
        self._feeds: list[TrackerFeed] = []
        for tracker in asked:
            if (reason := missing(tracker)) is not None:
                self._absent.append(f"{tracker}: {reason}")
                continue
            try:
                self._feeds.append(TrackerFeed(tracker, to / tracker.replace(":", ".")))
            except OSError as error:  # Other trackers and the study continue.
                self._absent.append(f"{tracker}: not started ({in_words(error)})")

    def send_runs(self, record: StudyRecord, runs: Sequence[RunData]) -> list[str]:
        """Send ``runs``, within the share RUNS_SHARE of the limit. Return a line for each that lost messages."""
        begun_s = monotonic()
        until_s = begun_s + RUNS_SHARE * self._left_s
        for message in study_messages(self._name, record, runs):
            for feed in self._feeds:
                feed.send(message, until_s)
        losses = [feed.lost(until_s) for feed in self._feeds]
        self._left_s -= monotonic() - begun_s
        return [*self._absent, *(line for line in losses if line is not None)]

    def end(self, status: str, files: Sequence[Path]) -> list[str]:
        """Attach ``files`` and end all trackers. Return a line for each tracker that did not start or lost messages."""
        until_s = monotonic() + self._left_s
        attached: list[Json] = [str(path) for path in files]
        for feed in self._feeds:
            feed.send({"do": "attach", "run": self._name, "files": attached}, until_s)
            feed.send({"do": "end", "run": self._name, "status": status}, until_s)
        losses = [feed.end(until_s) for feed in self._feeds]
        for feed in self._feeds:
            print(f"tracking: {feed.name}: {feed.folder}", file=sys.stderr)
        return [*self._absent, *(line for line in losses if line is not None)]


def asked_of(record: StudyRecord) -> list[str]:
    """Return the trackers named by the study's scenario; empty for studies from before this key existed."""
    asked = record.scenario_text.get("track")
    return [str(name) for name in asked] if isinstance(asked, list) else []


@contextmanager
def tracked(path: Path, rebuild: Callable[[], object]) -> Iterator[None]:
    """Send the study in ``path`` to its trackers: its runs when the context begins, its report files when it ends. Lost
    messages become a note of the study. If more are lost at the end, ``rebuild`` builds the report again.
    """
    folder = StudyFolder(path)
    record = folder.read_study()
    if not asked_of(record):
        yield
        return
    limits = LimitsConfig.model_validate(section(record.scenario_text, "limits"))
    target = folder.path.absolute().parent.parent / "tracking"
    trackers = StudyTrackers(f"{record.scenario}/{folder.path.name}", asked_of(record), limits.tracking_s, target)
    before: list[str] = []
    try:
        before = trackers.send_runs(record, list(folder.runs()))
        _note(folder, before)
        yield
    finally:
        after = trackers.end(record.status, attached_files(folder))
    for line in after:
        print(f"warning: {NOTE}{line}", file=sys.stderr)
    if after != before:
        _note(folder, after)
        rebuild()


def track_part(path: Path, part: int, asked: Sequence[str], limit_s: float, files: Sequence[Path]) -> None:
    """Send part ``part`` of the training in ``path``, and the existing ones of ``files``, to the trackers ``asked``,
    within ``limit_s`` seconds. Lost messages are printed as a warning and noted.
    """
    folder = StudyFolder(path)
    record = folder.read_study()
    study_path = path.absolute()
    trackers = StudyTrackers(f"{record.scenario}/{study_path.name}/{part}", asked, limit_s, study_path / "tracking")
    lost: list[str] = []
    try:
        trackers.send_runs(record, [run for run in folder.runs() if run.record.block == part])
    finally:
        lost = trackers.end(record.status, [file for file in files if file.is_file()])
    for line in lost:
        print(f"warning: {NOTE}{line}", file=sys.stderr)
    if lost:
        notes = [*record.notes, *(f"{NOTE}part {part}: {line}" for line in lost)]
        folder.write_study(replace(record, notes=notes))


def _note(folder: StudyFolder, lines: Sequence[str]) -> None:
    """Replace the study's notes about its trackers by ``lines``."""
    record = folder.read_study()
    notes = [note for note in record.notes if not note.startswith(NOTE)]
    folder.write_study(replace(record, notes=[*notes, *(f"{NOTE}{line}" for line in lines)]))


def attached_files(folder: StudyFolder) -> list[Path]:
    """Return the existing files of the study's report: summary pages and pictures."""
    pages = [folder.summary_md, folder.summary_html, folder.summary_json]
    return [path for path in (*pages, *sorted(folder.plots.glob("*.png"))) if path.is_file()]


def study_messages(name: str, record: StudyRecord, runs: Sequence[RunData]) -> Iterator[JsonObject]:
    """Yield messages about a study: its own run ``name``, then each run of an arm, no controls."""
    plain = [run for run in runs if run.record.control is None]
    facts: JsonObject = {"scenario": record.scenario, "question": record.question, "study": record.id}
    yield _begin(name, None, {**facts, "command": " ".join(record.command)}, _started_ms(plain))
    for run in plain:
        run_name = f"{run.record.arm}/{run.record.block}"
        parameters = {**flatten(run.record.config), "arm": run.record.arm, "block": run.record.block}
        runtime = {"device": run.record.facts.device, "torch": run.record.facts.torch}
        yield _begin(run_name, name, {**parameters, **runtime}, _started_ms([run]))
        rows = metric_rows(run)
        for start in range(0, len(rows), ROWS):
            yield {"do": "metrics", "run": run_name, "rows": rows[start : start + ROWS]}
        yield {"do": "end", "run": run_name, "status": run.record.status}


def _begin(run: str, parent: str | None, parameters: JsonObject, start_ms: int) -> JsonObject:
    return {"do": "begin", "run": run, "parent": parent, "parameters": parameters, "start_ms": start_ms}


def _started_ms(runs: Sequence[RunData]) -> int:
    """Return the UTC time (ms since 1970) of the earliest first step of ``runs``; 0 without steps."""
    times_ms = []
    for run in runs:
        table = run.step_columns(["start_ns"])
        if table is not None and len(table):
            times_ms.append((table.column("start_ns")[0].as_py() + run.record.realtime_minus_monotonic_ns) // 1_000_000)
    return min(times_ms, default=0)


def metric_rows(run: RunData) -> list[Json]:
    """Return [step, UTC in ms, {metric: value}] by time, at most about MAX_TRACKED_STEPS steps of a run."""
    offset = run.record.realtime_minus_monotonic_ns
    by_step: list[tuple[int, int, JsonObject]] = []
    table = run.step_columns(["step", "start_ns", "wall_ns", "tokens", "loss", "learning_rate"])
    if table is not None:
        kept = np.unique(np.linspace(0, len(table) - 1, min(len(table), MAX_TRACKED_STEPS)).astype(np.int64))
        for row in table.take(kept).to_pylist():
            wall_ns, tokens = row["wall_ns"], row["tokens"]
            values: dict[str, Json] = {name: row[name] for name in ("loss", "learning_rate") if row[name] is not None}
            values["step_ms"] = wall_ns / 1e6
            if tokens is not None and wall_ns:
                values["tokens_per_s"] = tokens / wall_ns * 1e9
            by_step.append((row["step"], row["start_ns"] + wall_ns + offset, values))
    for row in run.evaluations.to_pylist() if run.evaluations is not None else ():
        loss, accuracy = row["loss"], row["accuracy"]
        values = {"validation_loss": loss, "validation_accuracy": accuracy}
        if loss is not None and loss < 700:  # math.exp overflows at 709
            values["perplexity"] = math.exp(loss)
        values |= {f"multiple_choice_{name}": row[name] for name in CHOICE_COLUMNS}
        present = {name: value for name, value in values.items() if value is not None}
        by_step.append((row["step"], row["end_ns"] + offset, present))
    return [
        [step, time_ns // 1_000_000, values] for step, time_ns, values in sorted(by_step, key=lambda entry: entry[1])
    ]


MAX_WAITING_MESSAGES = 1024  # messages in the queue, each with up to 500 steps
# Variables that switch off telemetry and network requests of these libraries.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB__DISABLE_STATS": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
}


# Variables that would make Trackio and MLflow write outside their folder.
ELSEWHERE = {
    "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID",
    "TRACKIO_DATASET_ID",
}  # fmt: skip


class TrackerFeed:
    """A tracker's process and queue. :meth:`wait`, :meth:`lost`, :meth:`end` block, each with a limit."""

    def __init__(self, name: str, folder: Path) -> None:
        """Start the tracker ``name``. ``folder``: for its files and its log."""
        self.name, self.folder = name, folder
        self._messages: queue.Queue[JsonObject | None] = queue.Queue(MAX_WAITING_MESSAGES)
        self._given = 0  # number of messages to record
        self._done = self._failed = 0
        self._error: str | None = None  # first error
        self._changed = threading.Condition()
        self._over = False  # True once the process has closed its output
        folder.mkdir(parents=True, exist_ok=True)
        own = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
        with (folder / "tracker.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.launch.tracking.worker", name, str(folder), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**own, **QUIET, "WANDB_DIR": str(folder), "TRACKIO_DIR": str(folder)},
                start_new_session=True,  # so that its child processes end with it
            )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def send(self, message: JsonObject, until_s: float | None = None) -> None:
        """Queue a message. It is lost if the queue has no room until ``until_s`` (monotonic seconds; None: now)."""
        number = self._given
        self._given += 1
        with suppress(queue.Full):
            wait_s = 0.0 if until_s is None else max(0.0, until_s - monotonic())
            self._messages.put({**message, "number": number}, wait_s > 0, wait_s or None)

    def wait(self, until_s: float) -> None:
        """Wait for answers to all messages or the process's end, until ``until_s`` (monotonic seconds)."""
        with self._changed:
            while not self._over and self._answered < self._given and (remaining_s := until_s - monotonic()) > 0:
                self._changed.wait(remaining_s)

    def lost(self, until_s: float) -> str | None:
        """Wait for answers until ``until_s`` (monotonic). Return a line on messages that were not recorded, or None."""
        self.wait(until_s)
        with self._changed:
            if self._done == self._given:
                return None
            reason = self._error or ("its process ended" if self._over else "no answer in time")
            return f"{self.name}: {self._done} of {self._given} messages recorded: {reason}"

    def end(self, until_s: float) -> str | None:
        """Close the tracker, by force at ``until_s`` (monotonic). Return a line on lost messages, or None."""
        self.send({"do": "close"}, until_s)
        with suppress(queue.Full):
            self._messages.put_nowait(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until_s - monotonic()))
        lost = self.lost(until_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # includes its child processes
        self._process.wait()
        for thread in self._threads:
            thread.join(5)
        return lost

    @property
    def _answered(self) -> int:
        return self._done + self._failed

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as stream:  # The process has ended or was killed.
            while (message := self._messages.get()) is not None:
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                answer = json.loads(line)
                with self._changed:
                    if "failed" in answer:
                        self._failed += answer["failed"] >= 0
                        self._error = self._error or answer["error"]
                    else:
                        self._done += answer["done"] >= 0
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()
