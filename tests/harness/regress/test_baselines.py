"""Baselines in files: found again in their own environment, and in no other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.regress import baselines
from harness.regress.across import compare_series
from harness.regress.decision import Limits
from tests.harness.regress.test_across import series
from trainer.errors import InputError


def test_a_baseline_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = baselines.save(tmp_path, series())
    assert path.name == "tiny--x.json"
    assert baselines.read(path).series == series()
    assert baselines.find(tmp_path, series(1.5)).series == series()
    assert [one.path for one in baselines.every(tmp_path)] == [path]
    assert path.stat().st_size < 4000
    assert baselines.save(tmp_path, series()) == path
    assert path.read_text().count("\n") < 32  # a list to a line: a change of one figure is a change of one line


def test_sessions_of_other_days_are_kept_beside_the_newest(tmp_path: Path) -> None:
    def save(factor: float, day: int, hour: int = 0, *, anew: bool = False) -> baselines.Baseline:
        one = series(factor, created_utc=f"2026-01-{day:02}T{hour:02}:00:00Z")
        return baselines.read(baselines.save(tmp_path, one, anew=anew))

    assert save(1.0, 1).earlier == ()
    assert len(save(1.01, 2).sessions) == 2
    again = save(1.02, 2, hour=3)  # of the same afternoon: the newer one counts
    assert [round(one.ms["step"] / 10, 2) for one in again.sessions] == [1.0, 1.02]
    assert again.series.created_utc == "2026-01-02T03:00:00Z"
    new = save(2.0, 3, anew=True)
    assert [one.level for one in new.sessions] == [0, 0, 1]
    assert [one.ms["step"] for one in new.days.level] == [pytest.approx(20, rel=0.01)]
    assert [one.level for one in save(2.01, 4).sessions] == [0, 0, 1, 1]
    for day in range(5, 32):
        kept = save(2.0, day)
    assert len(kept.sessions) == 30  # the oldest has made room
    assert kept.sessions[0].created_utc.startswith("2026-01-02")


def test_a_baseline_of_before_sessions_is_one_session(tmp_path: Path) -> None:
    path = baselines.save(tmp_path, series())
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in content.items() if key not in ("earlier", "level")}))
    found = baselines.read(path)
    assert (found.series, len(found.sessions), found.level) == (series(), 1, 0)


def test_a_baseline_of_another_environment_is_never_found(tmp_path: Path) -> None:
    baselines.save(tmp_path, series())
    here = dict(series().environment)
    baselines.check_kept(tmp_path, "tiny", "x", here)
    for changed, arm, line in (
        ({"cpu": "Y"}, "x", r"another environment \(cpu 'X', here 'Y'\)"),
        ({}, "y", "no baseline of tiny, y; keep one: COMMAND"),
    ):
        other = replace(series(), environment=here | changed, arm=arm)
        with pytest.raises(baselines.NoBaselineError, match=line):
            baselines.find(tmp_path, other, "COMMAND")
        with pytest.raises(baselines.NoBaselineError, match=line):  # before anything runs
            baselines.check_kept(tmp_path, "tiny", arm, here | changed, "COMMAND")


def test_what_a_baseline_is_kept_to_judge_is_no_part_of_its_environment(tmp_path: Path) -> None:
    baselines.save(tmp_path, series())
    changed = {"git_commit": "b", "os": "Linux 7", "llm-training-harness": "9"}
    assert baselines.find(tmp_path, replace(series(), environment={**series().environment, **changed}))


@pytest.mark.parametrize(("key", "value", "line"), [
    ("part_ms", {"step": [10.0], "fetch": []}, r"part_ms\.fetch: no times"),
    ("part_ms", {"step": ["x"]}, r"part_ms\.step\.0: "),
    ("part_ms", {"fetch": [1.0]}, r"part_ms\.step: no times"),
    ("blocks", None, "blocks: "),
    ("useful_fraction", "x", "useful_fraction: "),
    ("earlier", [{"created_utc": 1}], r"earlier\.0\."),
    ("level", "x", "level: "),
    ("part_ms", {"step": [10.0], "transfer": [5e-324] * 7}, r"part_ms\.transfer: 5e-324 ms is outside of"),
    ("startup_ms", [-1.0], r"startup_ms: -1\.0 ms is outside of"),
    ("earlier", [{"created_utc": "", "level": 0, "ms": {"step": 1e300}}], r"ms: 1e\+300 ms is outside"),
])  # fmt: skip
def test_a_damaged_baseline_is_refused_in_a_line(tmp_path: Path, key: str, value: object, line: str) -> None:
    path = baselines.save(tmp_path, series())
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    mend = "; restore it from version control, or delete it to start a new baseline"
    with pytest.raises(InputError, match=rf"^{re.escape(str(path))}: [^\n]*{line}[^\n]*{mend}$"):
        baselines.read(path)


def test_a_damaged_baseline_keeps_its_sessions(tmp_path: Path) -> None:
    """A conflict of two branches in the file: what was kept on five days was thrown away without a word."""
    for day in range(1, 6):
        path = baselines.save(tmp_path, series(created_utc=f"2026-01-{day:02}T00:00:00Z"))
    damaged = path.read_text().replace("{", "<<<<<<< HEAD\n{", 1)
    path.write_text(damaged)
    with pytest.raises(InputError, match=r"not a baseline \(.*\); restore it from version control, or delete it"):
        baselines.save(tmp_path, series(created_utc="2026-01-06T00:00:00Z"))
    assert path.read_text() == damaged
    for text in ("", "{}", "[1]", '{"schema": 9, "scenario": "a"}'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"^\S+\.json: (not a baseline|schema 9)[^\n]*$"):
            baselines.read(path)
    path.unlink()
    assert baselines.read(baselines.save(tmp_path, series())).earlier == ()


def test_what_a_check_can_decide_is_known_when_a_session_is_saved(tmp_path: Path) -> None:
    """The smallest slowdown that is reported is the one that a check then finds."""
    for day, more in ((1, 2), (2, 1), (3, 0), (4, 0)):
        one = series(1 + 0.002 * (day % 2), spread=1e-6, created_utc=f"2026-01-{day:02}T00:00:00Z")
        kept = baselines.read(baselines.save(tmp_path, one))
        found = kept.limits_of_detection(0.05)
        assert (found.more_sessions, found.known, found.same) == (more, day >= 3, day >= 3)
        for factor, slower in ((0.99, False), (1.01, True)):
            candidate = series((1 + found.slowdown) * factor, spread=1e-6, seed=1)
            comparison = compare_series(kept.series, candidate, Limits(0.05, None, None), days=kept.days).comparison
            assert (comparison.step.outcome == "slower") == slower
    assert found.slowdown < 0.07
