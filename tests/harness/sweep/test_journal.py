"""The journal of trials: what is in it after a kill at any byte, and what is no journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from harness.sweep.begin import begin_sweep
from harness.sweep.load import load_sweep
from harness.sweep.store import FILE, TrialJournal
from harness.sweep.trials import Trial, TrialPlan
from trainer.errors import InputError

PLAN = TrialPlan(1.1e-3, 100, 3, "small", "probe", True, {"model.layers": 2})


def written(folder: Path) -> list[Trial]:
    """A journal with one trial of each outcome."""
    journal = TrialJournal(folder)
    done = journal.begin(PLAN)
    journal.milestone(done, 10, 5.5)
    journal.end(replace(done, status="done", loss=3.25, training_loss=3.5, steps=100, tokens=6400, seconds=1.5))
    behind = journal.begin(replace(PLAN, learning_rate=0.2))
    journal.end(replace(behind, status="behind", steps=30))
    journal.begin(replace(PLAN, seed=4))
    return journal.trials()


def test_a_trial_is_read_as_it_was_written(tmp_path: Path) -> None:
    trials = written(tmp_path)
    assert trials == TrialJournal(tmp_path).trials()
    assert trials[0] == Trial(0, PLAN, "done", 3.25, 3.5, 100, 6400, 1.5, None, {10: 5.5})
    assert [one.status for one in trials] == ["done", "behind", "running"]
    assert trials[1].score == float("inf")


def test_a_milestone_is_noted_once(tmp_path: Path) -> None:
    journal = TrialJournal(tmp_path)
    trial = journal.begin(PLAN)
    journal.milestone(trial, 10, 5.5)
    journal.milestone(journal.trials()[0], 10, 9.9)  # a resumed trial comes there again
    assert journal.trials()[0].milestones == {10: 5.5}


def test_a_journal_cut_at_any_byte_goes_on(tmp_path: Path) -> None:
    """What a kill leaves half written is gone, what was written before stays, and what is added is read again."""
    trials = written(tmp_path)
    content = (tmp_path / FILE).read_bytes()
    for end in [*range(0, len(content), 37), len(content) - 1]:
        (tmp_path / FILE).write_bytes(content[:end])
        journal = TrialJournal(tmp_path)
        before = journal.trials()
        assert [one.plan for one in before] == [one.plan for one in trials[: len(before)]]
        journal.begin(replace(PLAN, learning_rate=7e-4))
        again = TrialJournal(tmp_path).trials()
        assert again[:-1] == before
        assert again[-1].plan.learning_rate == 7e-4


@pytest.mark.parametrize("content", [b"hello\n", b"{}\n", b'{"op_code": 4}\n', b"[1]\n", b"\xff\xfe\n"])
def test_what_is_no_journal_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(InputError, match=r"trials.journal: not a journal of a sweep \("):
        TrialJournal(tmp_path)


def test_without_optuna_one_line_says_so_before_anything_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.sweep.store.find_spec", lambda _name: None)
    with pytest.raises(InputError, match="harness sweep needs the package optuna"):
        begin_sweep(load_sweep("tiniest"), tmp_path / "sweeps", [], "tiniest")
    assert not list(tmp_path.iterdir())
