"""Runs training programs of this folder one after the other, each in a fork, with the agent and without."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

from harness.attach.command import SHIM
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


class Ran(NamedTuple):
    """What a program printed, how it ended, and its process."""

    lines: list[str]
    code: int
    pid: int


def run_all(
    folder: Path,
    programs: list[str],
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


def losses(lines: list[str]) -> list[str]:
    """What the programs print of each step: its number, and every digit of its loss."""
    return [line for line in lines if re.fullmatch(r"\d+ [-+.\w]+", line)]


def kinds() -> list[str]:
    """The kinds of loaders that can be had here: some need torchdata or datasets."""
    module = ast.parse((PROGRAMS / "loaders.py").read_text())
    tables = {
        one.targets[0].id: one.value
        for one in module.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    needs = ast.literal_eval(tables["NEEDS"])
    names = [ast.literal_eval(key) for key in tables["KINDS"].keys if key is not None]  # type: ignore[attr-defined]
    return [name for name in names if name not in needs or find_spec(needs[name]) is not None]
