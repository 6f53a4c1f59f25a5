"""Every example runs as it is, and ends with a study."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.study.store import StudyFolder
from tests import warm
from tests.commands import ROOT, harness, harness_and_program

EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def python(folder: Path, *words: str) -> str:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm.Popen([sys.executable, *words], cwd=folder, env=ENVIRONMENT, text=True, **streams) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out


def steps_in(out: Path) -> int:
    """All of them, also those that are not measured; a block's tables begin with the last ones of the block before."""
    (path,) = (out / "exec").iterdir()
    tables = [run.steps for run in StudyFolder(path).runs() if run.steps is not None]
    return len({step for table in tables for step in table.column("step").to_pylist()})


def details(folder: Path) -> str:
    """What the report says of a program in sentences, below its card."""
    (summary,) = folder.rglob("summary.json")
    return " ".join(json.loads(summary.read_text())["lone_arms"])


def test_each_example_is_in_the_list_and_here() -> None:
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    runs_them = Path(__file__).read_text() + Path(__file__).with_name("test_action.py").read_text()
    assert all(name in runs_them for name in listed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain.py", "nanogpt_style.py"])
def test_a_loop_under_exec(tmp_path: Path, name: str) -> None:
    words = ("exec", "--out", str(tmp_path), "--steps", "30", "--", sys.executable, str(EXAMPLES / name))
    done = harness_and_program(*words, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert steps_in(tmp_path) == 35
    assert "Timed: fetch: " in details(tmp_path)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_dataset_of_ones_own_in_a_scenario(tmp_path: Path) -> None:
    for name in ("own_source.py", "own_source.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    done = harness("run", "own_source.yaml", "--repeats", "1", "--set", "steps=4", "--set", "controls=[]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results" / "own-source").iterdir()
    runs = {run.record.arm: run for run in StudyFolder(path).runs()}
    stages = {arm: set(run.spans["name"].to_pylist()) & {"read", "tokenize", "pack"} for arm, run in runs.items()}
    assert stages["inline"] == stages["one-worker"] == {"read", "tokenize", "pack"}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "needs"), [("hf_trainer.py", "accelerate"), ("lightning_module.py", "lightning")])
def test_a_framework_with_its_callback(tmp_path: Path, name: str, needs: str) -> None:
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    done = python(tmp_path, str(EXAMPLES / name), "--steps", "40")
    assert steps_in(tmp_path / "results") == 40
    assert "Timed: fetch: DataLoader without workers; forward: " in details(tmp_path)
    assert re.search(r"study: results/exec/\S+\n$", done)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_tracker_of_accelerate_records_the_main_process_of_several(tmp_path: Path) -> None:
    if find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    launch = "--cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"
    words = ["-m", "accelerate.commands.launch", *launch.split()]
    done = python(tmp_path, *words, str(EXAMPLES / "accelerate_loop.py"), "--steps", "24")
    assert steps_in(tmp_path / "results") == 24
    assert "Timed: fetch: DataLoader without workers; forward: " in details(tmp_path)
    assert len(re.findall("study: results/exec/", done)) == 2  # the first screen's, and the script's own


@pytest.mark.slow
@pytest.mark.nightly
def test_the_notebook(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n\n".join(code))
    done = python(tmp_path, "cells.py")
    assert steps_in(tmp_path / "results") == 4096 // 32
    assert "# exec" in done or "exec" in done.splitlines()[-1]
