"""Runs training programs of this folder one after the other, each in a fork, with the agent and without."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from harness.attach.command import SHIM
from harness.attach.frames import AttachedProcess, read
from harness.attach.steps import write_tables
from harness.attach.totals import StepTotals, WorkerBatches
from tests import warm

PROGRAMS = Path(__file__).parent / "programs"
SETTINGS = {"warmup": 4, "steps": None}
# Programs whose steps end in different ways, and how many steps each has.
SHAPES = {
    "plain --steps 30": 30,
    "plain --steps 30 --accumulation 3": 30,
    "plain --steps 30 --evaluate-every 10": 30,
    **dict.fromkeys((f"shapes {name}" for name in (
        "gan", "lbfgs", "within_backward", "scaler", "two_optimizers", "teacher", "two_loaders", "no_optimizer",
        "neither_loader_nor_optimizer", "own_optimizer", "new_dataset", "new_dataset_and_teacher",
        "new_datasets_of_both", "diverges",
    )), 24),
}  # fmt: skip


def agent_module(name: str) -> Any:
    """Return a module of the agent, without the rest of it."""
    spec = spec_from_file_location(f"agent_{name}", SHIM.parent / "agent" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def constants(*names: str) -> dict[str, Any]:
    """Return the constants of these modules of the agent, which are not imported for that."""
    found: dict[str, Any] = {}
    for name in names:
        for one in ast.parse((SHIM.parent / "agent" / f"{name}.py").read_text()).body:
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Tuple):
                targets = [ast.unparse(target) for target in one.targets[0].elts]
                found |= dict(zip(targets, eval(ast.unparse(one.value)), strict=True))
            elif isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant):
                found[ast.unparse(one.targets[0])] = one.value.value
    return found


class Ran(NamedTuple):
    """What a program printed, how it ended, and its process."""

    lines: list[str]
    code: int
    pid: int


class Recorded(NamedTuple):
    """Programs that ran with the agent, and what it recorded in each process."""

    ran: dict[str, Ran]
    processes: dict[int, AttachedProcess]
    raw: Path

    def of(self, program: str) -> AttachedProcess:
        return self.processes[self.ran[program].pid]

    def tables(self, program: str, folder: Path) -> Tables:
        return tables(self.of(program), folder, {pid: one.made for pid, one in self.processes.items()})


class Tables(NamedTuple):
    """Totals of each block of a process, and the rows of its tables, block after block."""

    blocks: list[StepTotals]
    steps: list[dict[str, Any]]
    spans: list[dict[str, Any]]

    def sum(self, of: Any) -> Any:
        return sum(map(of, self.blocks))


def tables(process: AttachedProcess, folder: Path, made_by: WorkerBatches | None = None) -> Tables:
    blocks = write_tables(process, made_by or {}, lambda block: folder / str(block))
    rows = [
        [row for number in range(len(blocks)) for row in pq.read_table(folder / f"{number}/{name}.parquet").to_pylist()]
        for name in ("steps", "spans")
    ]
    return Tables(blocks, *rows)


def run_all(
    folder: Path,
    programs: Iterable[str],
    raw: Path | None,
    settings: Mapping[str, object] = SETTINGS,
    *,
    cold: bool = True,
) -> dict[str, Ran]:
    """Run the programs, with the agent where there is a folder for what it records: ``cold``, as a user lets it in."""
    folder.mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HARNESS_ATTACH")}
    if raw is not None:
        raw.mkdir()
        (raw / "settings.json").write_text(json.dumps(settings))
        environment |= {"PYTHONPATH": str(SHIM), "HARNESS_ATTACH": str(raw)}
    programs = list(programs)
    command = [sys.executable, str(PROGRAMS / "several.py"), str(folder), *programs]
    popen = subprocess.Popen if cold and raw is not None else warm.Popen
    with popen(command, env=environment) as process:
        assert process.wait(600) == 0
    found = {}
    for number, program in enumerate(programs):
        *lines, last = (folder / f"{number}.txt").read_text().splitlines()
        _, code, pid = last.split()
        found[program] = Ran(lines, int(code), int(pid))
    return found


def record_all(folder: Path, programs: Iterable[str], settings: Mapping[str, object] = SETTINGS) -> Recorded:
    """Run the programs with the agent, in forks of a process that has imported torch."""
    folder.mkdir(exist_ok=True)
    ran = run_all(folder / "out", programs, folder / "raw", settings, cold=False)
    return Recorded(ran, {one.process.pid: one for one in read(folder / "raw")}, folder / "raw")


def chosen(request: pytest.FixtureRequest, programs: Iterable[str]) -> list[str]:
    """Those of ``programs`` that are parameters of the chosen tests of this file."""
    values = {
        value
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
        for value in item.callspec.params.values()
        if isinstance(value, str)
    }
    return [one for one in programs if one in values]


def losses(lines: Iterable[str]) -> list[str]:
    """What the programs print of each step: its number, and every digit of its loss."""
    return [line for line in lines if re.fullmatch(r"\d+ [-+.\w]+", line)]


def place_of(program: str, code: str) -> str:
    """Where a program has its last line with this code, such as "slowed.py:31"."""
    lines = (PROGRAMS / f"{program}.py").read_text().splitlines()
    return f"{program}.py:{max(number for number, line in enumerate(lines, 1) if code in line)}"


def kinds() -> Iterator[str]:
    """The kinds of loaders that can be had here: some need torchdata or datasets."""
    module = ast.parse((PROGRAMS / "loaders.py").read_text())
    tables = {
        one.targets[0].id: one.value
        for one in module.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    needs = ast.literal_eval(tables["NEEDS"])
    for key in tables["KINDS"].keys:  # type: ignore[attr-defined]
        if key is not None and ((name := ast.literal_eval(key)) not in needs or find_spec(needs[name]) is not None):
            yield name
