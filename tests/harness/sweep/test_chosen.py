"""harness train --rate-of: the one full run at the rate that a sweep chose."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.sweep.store import chosen_rate
from tests.commands import harness
from tests.harness.commands.test_train import SCENARIO
from tests.trainer.data.conftest import make_texts, write_parquet
from trainer.errors import InputError

STRATEGIES = Path(__file__).parents[3] / "results" / "reference" / "sweep-strategies"
GRID = STRATEGIES / "grid"


def rate_of(folder: Path) -> float:
    found: float = json.loads((folder / "summary.json").read_text())["chosen"]["learning_rate"]
    return found


def test_it_is_the_newest_sweep_of_a_folder_or_the_one_that_is_named(tmp_path: Path) -> None:
    for name, source in (("20260101T000000Z-a", "mup"), ("20260102T000000Z-b", "grid")):
        (tmp_path / name).mkdir()
        shutil.copy(STRATEGIES / source / "summary.json", tmp_path / name)
    newest = tmp_path / "20260102T000000Z-b"
    assert chosen_rate(str(tmp_path), "--rate-of") == chosen_rate(str(newest), "--rate-of") == (rate_of(GRID), newest)
    older = tmp_path / "20260101T000000Z-a"
    assert chosen_rate(str(older), "--rate-of") == (rate_of(STRATEGIES / "mup"), older)


@pytest.mark.parametrize(("change", "why"), [
    ({"chosen": None}, "the sweep chose no learning rate; its summary.md says why"),
    ({"status": "interrupted"}, "the sweep is not done (interrupted); complete it: harness sweep --resume"),
    ({"chosen": {"learning_rate": "high"}}, "summary.json: chosen.learning_rate: "),
])  # fmt: skip
def test_what_chose_no_rate_is_one_line(tmp_path: Path, change: dict[str, object], why: str) -> None:
    summary = json.loads((GRID / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps(summary | change))
    with pytest.raises(InputError, match=re.escape(why)):
        chosen_rate(str(tmp_path), "--rate-of")


@pytest.mark.slow
def test_a_training_has_the_rate_of_a_sweep(tmp_path: Path) -> None:
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    text = SCENARIO.format(corpus=corpus).replace("arms: {", "arms: {own: {optimizer.learning_rate: 0.5}, ")
    (tmp_path / "small.yaml").write_text(text)
    words = (
        "train",
        str(tmp_path / "small.yaml"),
        "--steps",
        "3",
        "--rate-of",
        str(GRID),
        "--out",
        str(tmp_path / "out"),
    )
    done = harness(*words, "--arm", "plain")
    assert done.returncode == 0, done.stderr
    assert f"learning rate {rate_of(GRID):.4g}, chosen by {GRID}" in done.stderr
    (record,) = (tmp_path / "out/runs/plain").rglob("run.json")
    assert json.loads(record.read_text())["config"]["optimizer"]["learning_rate"] == rate_of(GRID)
    for arm, line in (
        ("own", "--rate-of: arm own sets its own optimizer.learning_rate; remove one of them"),
        ("plain", f"--rate-of {tmp_path}: no sweep with a report there; give the folder that harness sweep prints"),
    ):
        place = ("--rate-of", str(tmp_path)) if arm == "plain" else ()
        refused = harness(*words, "--arm", arm, *place)
        assert (refused.returncode, refused.stderr.splitlines()[-1]) == (2, f"harness: {line}")
