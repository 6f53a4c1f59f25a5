"""Put the profilers' records of a command into the study, as a separate run beside the profiled arm.

Its steps, all unmeasured, end or begin with the profiled window. Its files are those of a scenario's profiled run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from harness.attach.agent.events import SETTINGS_FILE
from harness.attach.frames import AttachedProcess
from harness.attach.sampling import sampled
from harness.explain.probes.samples import process_roles
from harness.probes.profilers.py_spy import SPEEDSCOPE, TRACE, speedscope
from harness.probes.profilers.torch_session import MAX_TRACE_BYTES, keep
from harness.study.contract import PROFILED, SPAN_COLUMNS, STEP_COLUMNS
from harness.study.run_data import ProbesRecord, PySpyRecord, TorchProfilerRecord
from harness.study.store import write_json
from harness.study.tables import StoredTable
from harness.study.traces.kineto import file_name
from harness.study.traces.py_spy import read_stacks
from trainer.errors import InputError
from trainer.files import write_bytes

ROOT = Path(__file__).parents[2]  # frames of the harness are named from here: a program need not import it from there


def profiled_arm(arm: str) -> str:
    """Return the name of the arm that holds the profiled window of ``arm``."""
    return f"{arm}+{PROFILED}"


def profiled_steps(one: AttachedProcess) -> int:
    """Return how many first steps precede the end of a profiling window before the measured steps; 0 without one."""
    if one.noted("closing") or one.stretches[0][0].number > 0:
        return 0
    ends = one.noted("profiled")
    if ends:
        return min(int(ends[-1]), one.steps)
    return one.steps if one.noted("torch_profiler") or one.noted("import_roots") else 0


def closing_step(one: AttachedProcess) -> int | None:
    """Return the first step of the profiling window after the measured steps; None without such a window."""
    began = one.noted("closing")
    return int(began[-1]) if began and int(began[-1]) < one.steps and one.noted("torch_profiler") else None


class ProfiledWindows:
    """Profiler records of a command in the folder ``raw``, to be put into its study."""

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        self._asked = _settings(raw)
        self._stacks = sampled(raw)  # set to None once assigned to a process
        self._was_sampled = self._stacks is not None
        self.problems: list[str] = []

    def put(self, folder: Path, one: AttachedProcess) -> None:
        """Write the profilers' records of ``one`` into its run's ``folder``; py-spy's only if ``one`` asked for it."""
        probes = ProbesRecord()
        if one.noted("import_roots"):
            probes, self._stacks = self._stacks or probes, None
        if one.noted("torch_profiler"):
            probes = _with_torch(probes, folder, one, self._raw)
        if probes.py_spy is not None:
            probes = _with_stacks(probes, probes.py_spy, folder, one, self._raw)
        write_json(folder / "probes.json", asdict(probes))
        self.problems += probes.problems

    def missing(self, one: AttachedProcess) -> list[str]:
        """Return one line, with the reason, for each profile that the settings asked for but ``one`` does not have."""
        problems = [f"not profiled by torch.profiler: {text}" for text in one.noted("not_profiled")]
        problems += [f"profiling stopped after an error: {text}" for text in one.noted("profile_fault")]
        if one.noted("profile_fault") or one.noted("fault"):
            return problems
        ended = f"the program ended after {one.steps} steps"
        if self._asked.get("profile_steps") and not problems and not one.noted("torch_profiler"):
            problems.append(f"not profiled by torch.profiler: {ended}, before its window ended")
        if self._asked.get("profile_seconds") and not self._was_sampled:
            problems.append(f"not sampled by py-spy: {ended}, before its window")
        return problems


def _settings(raw: Path) -> Mapping[str, object]:
    """Return the agent's settings from SETTINGS_FILE in ``raw``; empty if they cannot be read."""
    try:
        content = json.loads((raw / SETTINGS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _with_torch(found: ProbesRecord, folder: Path, one: AttachedProcess, raw: Path) -> ProbesRecord:
    name, window, offsets, error_ns = one.noted("torch_profiler")[-1]
    record = TorchProfilerRecord(
        windows=(tuple(window),), realtime_minus_monotonic_ns=tuple(offsets), clock_error_ns=error_ns
    )
    problem = None
    try:
        if keep(raw / Path(name).name, folder / file_name("main")):
            problem = (
                f"torch_profiler: the trace was cut at {MAX_TRACE_BYTES / 1e6:.0f} MB, so it is not in the operator "
                "table; profile fewer steps (--profile-steps)"
            )
    except OSError as error:
        problem = f"torch_profiler: the window could not be written ({error.strerror or error})"
    problems = found.problems if problem is None else (*found.problems, problem)
    return replace(found, torch_profiler=record, problems=problems)


def _with_stacks(
    found: ProbesRecord, record: PySpyRecord, folder: Path, one: AttachedProcess, raw: Path
) -> ProbesRecord:
    if not one.noted("py_spy_window"):
        line = "py-spy: no step ran while it sampled"
        return replace(found, py_spy=None, problems=(*found.problems, line), failed=("py_spy",))
    start_ns, end_ns = one.noted("py_spy_window")[-1]
    record = replace(
        record,
        pid=one.process.pid,
        marks=tuple(tuple(mark) for marks in one.noted("clock_marks") for mark in marks),
        window=(start_ns, end_ns or max(start_ns, record.window[1])),  # the window ends with the program
        roots=(str(ROOT), *one.noted("import_roots")[-1]),
    )
    record = replace(record, steps=_steps_in(folder, record))
    problem = None
    try:
        trace = (raw / TRACE).read_bytes()
        write_bytes(folder / TRACE, trace)
        spans = StoredTable(folder / "spans.parquet", SPAN_COLUMNS)
        samples = read_stacks(trace, record, process_roles(spans.batches(["pid", "role"])))
        write_bytes(folder / SPEEDSCOPE, json.dumps(speedscope(samples)).encode())
    except (OSError, InputError) as error:
        problem = f"py-spy: {error}"
    problems = found.problems if problem is None else (*found.problems, problem)
    return replace(found, py_spy=record, problems=problems)


def _steps_in(folder: Path, record: PySpyRecord) -> int:
    """Return how many steps of the run in ``folder`` began within py-spy's window."""
    starts = StoredTable(folder / "steps.parquet", STEP_COLUMNS).read()["start_ns"].to_pylist()
    return sum(record.window[0] <= start < record.window[1] for start in starts)
