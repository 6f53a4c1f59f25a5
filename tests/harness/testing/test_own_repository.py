"""``pytest --harness-base`` in a repository that merely uses the harness: its plug-ins and commands at a revision."""

from __future__ import annotations

import shutil
import sys

import pytest

from harness.regress.run import UntilDecided
from harness.study.store import StudyFolder
from tests.commands import ROOT
from tests.harness.testing.test_plugin import Suite, folder, suite  # noqa: F401 - fixtures
from tests.repositories import begin_repository, git

pytestmark = pytest.mark.slow
PLAIN = ROOT / "tests" / "harness" / "attach" / "programs" / "plain.py"
CODE = """
import time
import torch

class Items:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(0.0005)
        return {"input_ids": torch.full((16,), index)}

def make():
    return Items()
"""
OWN = """
name: own
question: Is it slower?
base:
  model: {layers: 1, width: 32, vocab_size: 64}
  data: {source: "own_items:make", sequence_length: 16, batch_size: 4}
  compute: {device: {emulated: gh200}, precision: bf16, sync: norm}
  steps: 4
  warmup_steps: 1
arms: {inline: {}, other: {data.source: null}}
slice_steps: 4
probes: {host: false}
"""
COMMANDS = f"""
name: commands
question: Is it slower?
command: {sys.executable} train.py --steps 100000 --compute-ms {{ms}}
arms: {{loop: {{ms: 2}}, other: {{ms: 4}}}}
steps: 10
controls: [a-a]
"""
TEST = """
def test_{place}(scenario):
    scenario("{scenario}", arm="{arm}").no_slower_than("{other}")
"""


@pytest.fixture
def theirs(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Suite:  # noqa: F811
    """A repository with code, scenarios and a test, one of whose files is not as it was committed."""
    monkeypatch.setattr(UntilDecided, "__call__", lambda *_: True)  # one block
    (suite / "own_items.py").write_text(CODE)
    shutil.copy(PLAIN, suite / "train.py")
    (suite / "own.yaml").write_text(OWN)
    (suite / "commands.yaml").write_text(COMMANDS)
    begin_repository(suite.folder)
    (suite / "own_items.py").write_text(CODE.replace("0.0005", "0.0040"))
    return suite


@pytest.mark.nightly  # tests/harness/regress has both by the command
@pytest.mark.parametrize(("scenario", "arm"), [("own", "inline"), ("commands", "loop")])
def test_baseline_is_the_users_own_code_at_that_revision(theirs: Suite, scenario: str, arm: str) -> None:
    (theirs / "test_speed.py").write_text(
        TEST.format(place="it", scenario=f"{scenario}.yaml", arm=arm, other="baseline")
    )
    done = theirs.run("-rs", "--harness-base", "HEAD")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    assert f": {arm}" in " ".join(done.stdout.split())
    (path,) = (theirs / "results" / scenario).iterdir()
    study = StudyFolder(path)
    runs = {run.record.arm: run for run in study.runs()}
    assert {run.record.status for run in runs.values()} == {"done"}
    commit = git(theirs.folder, "rev-parse", "HEAD")[:12]
    assert {arm: run.record.environment["git_commit"] for arm, run in runs.items()} == {
        f"{arm}@base": commit, f"{arm}@base+a-a": commit, f"{arm}@head": f"{commit}+changes"
    }  # fmt: skip
    assert study.read_study().command[0] == "pytest"
    sources = {run.record.facts.corpus_fingerprint for run in runs.values()}
    assert len(sources - {None}) == (2 if scenario == "own" else 0)  # no plug-in of the commands' was edited
    assert (path / "regression.md").is_file()
    assert len(git(theirs.folder, "worktree", "list").splitlines()) == 1


REFUSED: dict[str | None, list[tuple[str, str, str, str]]] = {  # by base: scenario, arm, what it is compared with
    "HEAD": [
        ("own.yaml", "other", "baseline", "not a state of this project; to compare your own code, use a"),
        ("commands.yaml", "lop", "baseline", "arms: no arm 'lop'; did you mean 'loop'? arms: loop, other"),
        ("commands.yaml", "loop+a-a", "baseline", "arms: no arm 'loop+a-a'; did you mean 'loop'? arms: loop, "),
        ("commands.yaml", "loop", "other", 'an arm that is a command is compared with "baseline"'),
    ],
    "no-such": [("own.yaml", "inline", "baseline", "no-such: neither a folder nor a revision of the git repository")],
    None: [("commands.yaml", "loop", "baseline", "pytest test_speed.py::test_0 --harness-base=main")],
}


def test_what_cannot_be_compared_fails_in_a_line(theirs: Suite) -> None:
    for base, cases in REFUSED.items():
        tests = [
            TEST.format(place=place, scenario=scenario, arm=arm, other=other)
            for place, (scenario, arm, other, _) in enumerate(cases)
        ]
        (theirs / "test_speed.py").write_text("".join(tests))
        done = theirs.run(*(() if base is None else ("--harness-base", base)))
        assert (done.returncode, f"{len(cases)} failed" in done.stdout) == (1, True)
        assert [line for *_, line in cases if line not in done.stdout] == []
        assert "Traceback" not in done.stdout
    assert not (theirs / "results").exists()
    assert len(git(theirs.folder, "worktree", "list").splitlines()) == 1
