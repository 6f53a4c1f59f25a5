"""The comparison of stored studies between two commits finds what moved, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import figures
from tests.studies import copy_code

STUDY = figures.REFERENCE / "quickstart"


def test_numbers_and_nulls_are_compared_and_text_is_not() -> None:
    summary = {"scenario": "s", "arms": {"a": {"mfu": None, "steps": [1, 2.5]}}, "emulated": False}
    assert dict(figures.figures(summary)) == {
        "arms.a.mfu": None,
        "arms.a.steps[0]": 1,
        "arms.a.steps[1]": 2.5,
        "emulated": False,
    }


@pytest.mark.parametrize(("base", "head", "kind", "code"), [
    ({"x": 1.5}, {"x": 1.5}, None, 0),
    ({"x": 1.5}, {"x": 1.5000000000000002}, "moved", 1),
    ({"x": 1}, {"x": 1.0}, "moved", 1),
    ({"x": None}, {"x": 2}, "moved", 1),
    ({"x": 0}, {"x": False}, "moved", 1),
    ({"x": None}, {}, "gone", 1),
    ({}, {"x": None}, "new", 0),
])  # fmt: skip
def test_a_figure_moved_is_gone_or_is_new(base: figures.Figures, head: figures.Figures, kind: str, code: int) -> None:
    differences = figures.compare({"study": base}, {"study": head})
    found = {name for name in ("moved", "gone", "new") if getattr(differences, name)}
    assert found == ({kind} if kind else set())
    assert differences.code == code


def test_each_key_that_moved_is_printed_with_both_values() -> None:
    differences = figures.compare({"study": {"a.x": 1, "b[0].y": 3}}, {"study": {"a.x": 2, "b[1].y": 3}})
    text = "\n".join(figures.lines(differences, 1, 2))
    assert "study: a.x: 1 -> 2" in text
    assert "b[].y" in text


@pytest.mark.nightly
@pytest.mark.slow
def test_a_changed_percentile_is_found_in_a_stored_study(tmp_path: Path) -> None:
    """The packages in the folder report the study, not those of this checkout."""
    code = copy_code(
        tmp_path / "code", "harness/judge/study.py", "np.percentile(steps, 95)", "np.percentile(steps, 90)"
    )
    base, head = (
        figures.measured(where, {"quickstart": Path(shutil.copytree(STUDY, tmp_path / side))})
        for side, where in (("base", figures.ROOT), ("head", code))
    )
    differences = figures.compare(base, head)
    assert {one.key.rpartition(".")[2] for one in differences.moved} == {"step_p95_ms"}
    assert not differences.gone
    assert not differences.new
