"""``harness regress`` of a repository that merely uses the harness: code that a scenario names, at two revisions."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from harness.regress.run import BASE, HEAD, ComparisonPlan, UntilDecided, between_states, code_fingerprints
from harness.regress.states import find_states, is_of_user_code, with_states
from harness.scenario.load import load_scenario
from harness.study.records import ArmRecord
from harness.study.store import StudyFolder
from tests.commands import ROOT, harness
from tests.repositories import begin_repository, git
from trainer.errors import InputError
from trainer.user_code import CODE_PATH, files

pytestmark = pytest.mark.slow  # each asks git

CODE = """
import time
import torch
from torch.utils.data import DataLoader
class Items:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.full((16,), index)
def together(items):
    time.sleep(0.001)
    return {"input_ids": torch.stack(items)}
def make():
    return DataLoader(Items(), batch_size=4, shuffle=True, collate_fn=together)
class Model(torch.nn.Module):
    def __init__(self, ids):
        super().__init__()
        self.table = torch.nn.Embedding(ids, ids)
    def forward(self, input_ids, labels):
        found = self.table(input_ids)[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(found, labels[:, 1:].flatten())
def model(vocab_size):
    return Model(vocab_size)
"""
SCENARIO = """
name: own
question: Is it slower?
base:
  model: {layers: 1, width: 32, heads: 2, kv_heads: 2, ffn_width: 32}
  data: {sequence_length: 16, batch_size: 4}
  data.corpus: {parquet: "texts/*.parquet"}
  data.tokenizer.train: {vocab_size: 300}
  compute: {device: cpu, threads: 1}
  steps: 4
  warmup_steps: 1
arms:
  data: {data.source: "own_items:make", model.vocab_size: 64}
  model: {model.factory: "own_items:model"}
  plain: {}
slice_steps: 4
probes: {host: false}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody's repository: code and a scenario in a folder of their own; its texts are not in git."""
    folder = tmp_path / "theirs"
    (folder / "code" / "texts").mkdir(parents=True)
    (folder / "code" / "own_items.py").write_text(CODE)
    (folder / "code" / "own.yaml").write_text(SCENARIO)
    (folder / ".gitignore").write_text("texts/\n")
    begin_repository(folder)
    texts = [f"text {number} of somebody's own words, again and again" for number in range(80)]
    pq.write_table(pa.table({"text": texts}), folder / "code" / "texts" / "one.parquet")
    return folder


def slower(repository: Path) -> None:
    """Collating takes 15 ms more in the working copy."""
    code = repository / "code" / "own_items.py"
    code.write_text(code.read_text().replace("time.sleep(0.001)", "time.sleep(0.016)"))


def asked(folder: Path, *arms: str) -> ComparisonPlan:
    return between_states(load_scenario(folder / "own.yaml"), "own.yaml", arms, None)


def at_states(folder: Path, base: str, place: Path) -> tuple[ComparisonPlan, dict[str, ArmRecord]]:
    """The arm ``data`` at ``base`` and as it is."""
    with tempfile.TemporaryDirectory(dir=place) as inner:
        states = find_states(base, ".", Path(inner))
        return with_states(asked(folder, "data"), dict(zip((BASE, HEAD), states, strict=True)))


def pack_ms(study: StudyFolder, arm: str) -> list[float]:
    spans = pq.read_table(study.path / "runs" / arm / "0" / "spans.parquet")
    return [
        (row["end_ns"] - row["start_ns"]) / 1e6 for row in spans.filter(pc.equal(spans["name"], "pack")).to_pylist()
    ]


def test_code_at_a_revision_runs_beside_the_working_copy(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UntilDecided, "__call__", lambda *_: True)  # one block
    slower(repository)
    done = harness("regress", "own.yaml", "--base", "HEAD", cwd=repository / "code")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "skipped, because none of your code runs in them: plain" in done.stderr
    (path,) = (repository / "code" / "results" / "own").iterdir()
    study = StudyFolder(path)
    record, runs = study.read_study(), {run.record.arm: run for run in study.runs()}
    assert {run.record.status for run in runs.values()} == {"done"}  # base read the texts, which lie here only
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert {arm: run.record.environment["git_commit"] for arm, run in runs.items()} == {
        f"{arm}@{side}": commit + ("+changes" if side == "head" else "")
        for arm in ("data", "model")
        for side in ("base", "base+a-a", "head")
    }
    # A sleep is never shorter than asked.
    assert min(pack_ms(study, "data@head")) >= 16 > min(pack_ms(study, "data@base"))
    assert min(pack_ms(study, "model@head")) < 16
    sources = {arm: run.record.facts.corpus_fingerprint for arm, run in runs.items()}
    models = {arm: run.record.facts.model_fingerprint for arm, run in runs.items()}
    assert sources["data@base"] == sources["data@base+a-a"] == models["model@base"] != sources["data@head"]
    assert (models["model@head"], sources["model@base"]) == (sources["data@head"], sources["model@head"])
    assert f"code of data.source own_items:make at {commit}" in record.fingerprints
    page = (path / "regression.md").read_text()
    assert ("fingerprint" in page, "texts" in page) == (False, False)  # what is compared is no confound
    # Nothing is left: neither in git nor of what was unpacked.
    assert git(repository, "status", "--porcelain", "--untracked-files=no") == " M code/own_items.py\n"
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    directory = Path(next(arm.code for arm in record.arms if arm.name == "data@base").directory)
    assert (directory.exists(), directory.name) == (False, "code")  # it was as deep within as this folder is

    again = harness("run", "--resume", str(path))
    assert again.returncode == 2
    assert "a study of two states of the code is not resumed; run harness regress again" in again.stderr


def test_whose_code_is_compared(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository / "code")
    own = asked(repository / "code")
    assert is_of_user_code(own, "HEAD", ".")
    assert is_of_user_code(own, "HEAD", "no-such")  # what that is, is said later
    assert not is_of_user_code(asked(repository / "code", "plain"), "HEAD", ".")
    assert not is_of_user_code(own, str(ROOT), ".")
    done = harness("regress", "own.yaml", "--base", "HEAD", "--arm", "plain", cwd=repository / "code")
    assert done.returncode == 2
    assert "has no harness/launch/ or no trainer/: not a state of this project; to compare your own code" in done.stderr
    assert len(git(repository, "worktree", "list").splitlines()) == 1  # it was registered there, and stayed


def test_code_that_fails_at_its_revision_is_named_with_it(repository: Path) -> None:
    code = repository / "code" / "own_items.py"
    code.write_text(CODE.replace("time.sleep(0.001)", "raise RuntimeError('broken')"))
    git(repository, "commit", "-qam", "broken")
    code.write_text(CODE)
    done = harness("regress", "own.yaml", "--base", "HEAD", "--arm", "data", cwd=repository / "code")
    assert done.returncode == 2
    commit = git(repository, "rev-parse", "HEAD")[:12]
    last = done.stderr.splitlines()[-1]
    assert last == f"harness: {commit}: data.source: own_items:make failed: RuntimeError: broken"
    assert not (repository / "code" / "results").exists()


@pytest.mark.nightly
def test_every_study_of_the_users_own_code_says_its_commit(repository: Path) -> None:
    """It said the harness's own, or none where that is installed."""
    scenario = repository / "code" / "own.yaml"
    scenario.write_text(SCENARIO.replace("  plain: {}\n", "").replace("  model: {model.factory", "  # {model.factory"))
    git(repository, "commit", "-qam", "one arm")
    done = harness("run", "own.yaml", "--repeats", "1", cwd=repository / "code")
    assert done.returncode == 0, done.stderr
    (path,) = (repository / "code" / "results" / "own").iterdir()
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert StudyFolder(path).read_study().environment["git_commit"] == commit
    assert {run.record.environment["git_commit"] for run in StudyFolder(path).runs()} == {commit}


def test_a_base_that_cannot_be_one(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(repository, "rm", "-q", "--cached", "code/own_items.py")
    git(repository, "commit", "-qm", "without")
    git(repository, "add", "code/own_items.py")
    git(repository, "commit", "-qm", "with")
    monkeypatch.chdir(repository / "code")
    for base, problem in (
        ("no-such", "no-such: neither a folder nor a revision of the git repository at "),
        (".", "--base ., --head .: both are "),
        ("", "an empty name is neither a folder nor a revision"),
        ("HEAD~1", "data.source: own_items:make: no module own_items in "),
    ):
        with pytest.raises(InputError, match=re.escape(problem)):
            at_states(repository / "code", base, tmp_path)
    # A library's code is no state of the repository.
    scenario = repository / "code" / "own.yaml"
    scenario.write_text(SCENARIO.replace("own_items:make", "numpy:array"))
    with pytest.raises(
        InputError, match=r"^numpy:array \(.*/numpy/\S+: both sides would import the installed package; install it"
    ):
        at_states(repository / "code", "HEAD", tmp_path)


def test_a_package_that_pip_installed_from_the_repository_is_taken_from_each_state(repository, tmp_path, monkeypatch):
    """``pip install -e`` names the present src/ by its path: base ran the head's code."""
    package = repository / "src" / "theirs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "items.py").write_text(CODE)
    git(repository, "add", "src")
    git(repository, "commit", "-qm", "a package")
    (package / "items.py").write_text(f"{CODE}more = 1\n")
    scenario = repository / "code" / "own.yaml"
    scenario.write_text(SCENARIO.replace("own_items:make", "theirs.items:make"))
    monkeypatch.chdir(repository / "code")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{repository / 'src'}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(repository / "src")])
    states = dict(zip((BASE, HEAD), find_states("HEAD", ".", tmp_path), strict=True))
    plan, records = with_states(asked(repository / "code", "data"), states)
    assert [arm.name for arm in plan.plan.arms] == ["data@base", "data@base+a-a", "data@head"]
    base, head = (records[f"data@{side}"].code for side in (BASE, HEAD))
    assert (base.path, head.path) == ((str(tmp_path / "base" / "src"),), ())
    assert base.environment()[CODE_PATH] == base.path[0]
    found = [files("data.source", "theirs.items:make", code.places)[0].parent for code in (base, head)]
    assert found == [tmp_path / "base" / "src" / "theirs", package]

    (tmp_path / "two").mkdir()
    older, newer = find_states("HEAD~1", "HEAD", tmp_path / "two")
    assert (older.path, newer.path) == ((), (str(tmp_path / "two" / "head" / "src"),))

    before = code_fingerprints(records)
    assert code_fingerprints(records) == before
    (package / "untracked.py").write_text("")
    after = code_fingerprints(records)
    assert [where for where in before if after[where] != before[where]] == [str(repository / "code")]

    with pytest.raises(InputError, match=rf"theirs.items:make: no such module in .*, so {package}/\S+ would run; give"):
        at_states(repository / "code", "HEAD~1", tmp_path)
