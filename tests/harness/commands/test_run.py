"""How `harness run` ends, and any command that has too little memory."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Literal

import pytest

from harness import cli
from harness.commands import run
from harness.launch.study import Outcome
from harness.study.records import StudyRecord
from harness.study.store import StudyFolder
from tests.commands import harness
from trainer.errors import InputError

Status = Literal["interrupted", "failed"]


@pytest.mark.parametrize("status", ["interrupted", "done"])
def test_an_interrupted_study_without_a_table_ends_as_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    """A study whose runs are damaged has nothing to report where its `--resume` is interrupted at once."""

    def nothing_left(*_: object, **__: object) -> None:
        raise InputError("no table of its runs is left")

    monkeypatch.setattr(run, "print_first_screen", nothing_left)
    StudyFolder(tmp_path).write_study(StudyRecord("made-up", "Is anything left?", status))
    if status == "done":
        with pytest.raises(InputError):
            run._finish(Outcome(tmp_path, "done"), as_json=False)
        return
    assert run._finish(Outcome(tmp_path, "interrupted"), as_json=False) == 130
    assert capsys.readouterr().err.splitlines() == [
        "harness: no table of its runs is left",
        f"interrupted; complete it with: harness run --resume {tmp_path}",
    ]


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_the_command_that_goes_on_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: Status
) -> None:
    monkeypatch.setattr(run, "print_first_screen", lambda *_, **__: None)
    folder = tmp_path / "two words"
    StudyFolder(folder).write_study(StudyRecord("made-up", "Where does it lie?", status))
    assert run._finish(Outcome(folder, status), as_json=False) in (1, 130)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f" with: harness run --resume '{folder}'")


@pytest.mark.parametrize(("words", "variables", "launcher"), [
    (("run", "quickstart"), {"RANK": "1", "WORLD_SIZE": "2"}, "torchrun"),
    (("run", "--resume", "nothing"), {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "srun"),
    (("regress", "quickstart", "--base", "main"), {"RANK": "0", "WORLD_SIZE": "8"}, "torchrun"),
])  # fmt: skip
def test_a_study_that_was_started_once_per_rank_is_refused_with_the_right_command(
    words: tuple[str, ...], variables: dict[str, str], launcher: str
) -> None:
    done = harness(*words, **variables)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"harness: {words[0]}: {launcher} started it ")
    assert f"Start `harness {words[0]} ...` once, without {launcher}" in line
    assert "`harness exec -- torchrun ... train.py`" in line


@pytest.mark.parametrize(
    "variables", [{"WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}]
)
def test_one_process_that_knows_of_ranks_is_none_of_them(variables: dict[str, str], tmp_path: Path) -> None:
    """A batch script of Slurm, a container that was told how many others there are."""
    assert harness("run", "quickstart", "--plan", "--out", str(tmp_path), **variables).returncode == 0


UNLIMITED = resource.RLIM_INFINITY
NO_NUMPY = ImportError("numpy C-extensions failed: libscipy_openblas64.so: failed to map segment from shared object")
LIMITED = "out of memory: the address space is limited to 100 MiB; fix: ulimit -v unlimited"


@pytest.mark.parametrize(("error", "limit_bytes", "line"), [
    (MemoryError(), UNLIMITED, "out of memory"),
    (MemoryError(), 100 << 20, LIMITED),
    (NO_NUMPY, 100 << 20, LIMITED),
    (NO_NUMPY, UNLIMITED, None),
    (ModuleNotFoundError("numpy"), 100 << 20, None),
])  # fmt: skip
def test_memory_is_blamed_where_it_may_be_the_cause(
    error: Exception,
    limit_bytes: int,
    line: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> int:
        raise error

    monkeypatch.setattr(cli.Command, "function", lambda _: fails)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit_bytes, limit_bytes))
    if line is None:
        with pytest.raises(ImportError):
            cli.main(["schema"])
    else:
        assert cli.main(["schema"]) == 1
        assert capsys.readouterr().err == f"harness: {line}\n"
