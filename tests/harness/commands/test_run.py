"""How `harness run` ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.commands import run
from harness.launch.study import Outcome
from trainer.errors import InputError


@pytest.mark.parametrize("status", ["interrupted", "done"])
def test_an_interrupted_study_without_a_table_ends_as_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    """A study whose runs are damaged has nothing to report where its `--resume` is interrupted at once."""

    def nothing_left(*_: object, **__: object) -> None:
        raise InputError("no table of its runs is left")

    monkeypatch.setattr(run, "print_first_screen", nothing_left)
    if status == "done":
        with pytest.raises(InputError):
            run._finish(Outcome(tmp_path, "done"), as_json=False)
        return
    assert run._finish(Outcome(tmp_path, "interrupted"), as_json=False) == 130
    assert capsys.readouterr().err.splitlines() == [
        "harness: no table of its runs is left",
        f"interrupted; complete it with: harness run --resume {tmp_path}",
    ]
