"""Every command of the tutorial and of the guide from a corpus to a model works, in its order, at smaller sizes."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.commands import harness_and_program
from tests.test_doc_commands import commands

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[1] / "docs"
START = DOCS / "start.md"
PAGE = DOCS / "guides" / "corpus-to-model.md"
FILE = re.compile(r"```(?:yaml|python)\n# (\S+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\| .* \| `(harness .*)` \|$", re.MULTILINE)
SMALLER = {
    PAGE: {"--make-labelled 2000": "--make-labelled 300", "--steps 200": "--steps 20", "  steps: 200": "  steps: 20",
     "steps: 60": "steps: 8", "trials: 5": "trials: 4", "documents: 50": "documents: 10",
     "every_steps: 50": "every_steps: 10", "every_steps: 100": "every_steps: 10", "--max-tokens 24": "--max-tokens 4"},
    START: {"--steps 100": "--steps 20", "--repeats 5 --steps 40": "--repeats 1 --steps 10"},
}  # fmt: skip


def smaller(page: Path, text: str) -> str:
    for large, small in SMALLER[page].items():
        text = text.replace(large, small)
    return text


def write_files(page: Path, folder: Path) -> None:
    for name, content in FILE.findall(page.read_text()):
        (folder / name).write_text(smaller(page, content))


def run(command: str, folder: Path) -> str:
    """Run a command of a page, and return what it printed."""
    name, *words = shlex.split(command)
    assert name == "harness"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with contextlib.chdir(folder):
        done = harness_and_program(*words, PATH=path, PYTHONPATH=str(DOCS.parent))
    assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_the_pages_have_files_and_commands_and_each_size_is_there() -> None:
    text = PAGE.read_text()
    assert [name for name, _ in FILE.findall(text)] == ["small.yaml", "rate.yaml"]
    assert len(COMMAND.findall(text)) >= 14
    assert [name for name, _ in FILE.findall(START.read_text())] == ["train.py"]
    assert [large for page, sizes in SMALLER.items() for large in sizes if large not in page.read_text()] == []


@pytest.mark.nightly
def test_a_newcomer_gets_from_parquet_to_text(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    for command in COMMAND.findall(PAGE.read_text()):
        run(smaller(PAGE, command), tmp_path)
    assert (tmp_path / "plots").is_dir()
    assert (tmp_path / "model.bin").stat().st_size > 1024


@pytest.mark.nightly
def test_a_newcomer_gets_from_a_script_to_a_verdict(tmp_path: Path) -> None:
    write_files(START, tmp_path)
    study = ""
    for command in commands(START.read_text()):
        if "doctor" in command:  # tests/harness/commands/test_doctor.py runs it
            continue
        printed = run(smaller(START, command), tmp_path)
        last = printed.splitlines()[-1]
        study = last.removeprefix("study: ") if last.startswith("study: ") else study
    assert len(list((tmp_path / "results" / "exec").iterdir())) == 2
    assert {path.name for path in (tmp_path / study / "runs").iterdir()} == {"baseline", "baseline+a-a", "script"}
