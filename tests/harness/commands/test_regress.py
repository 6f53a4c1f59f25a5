"""harness regress: two states of the real code, one of them slowed down."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from harness.regress.decision import is_look
from harness.study.store import StudyFolder
from tests.commands import ROOT, harness
from tests.studies import copy_code

pytestmark = pytest.mark.slow  # git, and the states of the code answer for themselves
COST = "nanoseconds = round(milliseconds * 1e6)"
DECLARED_MS = 2
SCENARIO = f"""
name: tiny
question: Is it slower?
base:
  data:
    corpus: {{builtin: python-docs, documents: 60}}
    tokenizer: {{train: {{vocab_size: 512}}}}
    sequence_length: 32
    batch_size: 2
    inject: {{tokenize_ms: {DECLARED_MS}, how: busy}}
  compute.work: none
  steps: 24
  warmup_steps: 2
  log_every: 1000
arms: {{text: {{data.path: text-padded}}}}
slice_steps: 4
probes.host: false
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO.replace("probes.host: false", "probes: {host: false}"))
    return str(path)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This code, in which every declared cost takes twice as long."""
    changed = COST.replace("1e6", "2e6")
    return copy_code(tmp_path_factory.mktemp("slower"), "trainer/inject.py", COST, changed)


def test_a_slowdown_is_found_and_everything_is_written_before_the_exit(
    tmp_path: Path, scenario: str, slower: Path
) -> None:
    step_summary, junit, comment = (tmp_path / name for name in ("step.md", "junit.xml", "comment.md"))
    done = harness(
        "regress", scenario, "--base", str(ROOT), "--head", str(slower), "--within", "5%", "--budget", "5m",
        "--startup-within", "off", "--memory-within", "off",
        "--out", str(tmp_path / "out"), "--junit", str(junit), "--markdown", str(comment),
        GITHUB_STEP_SUMMARY=str(step_summary),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "text: slower by more than the 5.0 % allowed" in done.stdout
    assert comment.read_text() == step_summary.read_text()
    assert "### Regression check: slower" in comment.read_text()
    assert ElementTree.parse(junit).getroot().find("testsuite").get("failures") == "1"  # type: ignore[union-attr]
    (path,) = (tmp_path / "out" / "tiny").iterdir()
    study = StudyFolder(path)
    record = study.read_study()
    assert (record.status, record.blocks) == ("done", len(record.order))
    assert is_look(record.blocks)  # it stopped when it was decided
    content = json.loads((path / "regression.json").read_text())
    (comparison,) = content["contests"]
    # The declared cost takes twice as long and so adds itself, and more where its core is shared. What share of a step
    # that is depends on how fast the host does the rest; it is not all of it.
    (tokenize,) = (part for part in comparison["parts"] if part["name"] == "tokenize")
    for decision, baseline_ms in (
        (comparison["step"], comparison["baseline_ms"]),
        (tokenize["decision"], tokenize["baseline_ms"]),
    ):
        change = decision["change"]["median"]
        assert 0.5 * DECLARED_MS / baseline_ms < change < 1
    for run in study.runs():
        assert run.record.startup_ns
        assert (run.record.peak_memory_bytes or 0) > 50 * 2**20
    assert harness("report", str(path)).returncode == 0  # it is a study like any other


@pytest.mark.nightly
def test_a_budget_too_short_decides_nothing_and_says_what_it_would_take(
    tmp_path: Path, scenario: str, slower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block ends in time, and one more is known not to."""
    clock = SimpleNamespace(monotonic=iter([0.0, 600.0]).__next__, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr("harness.regress.run.time", clock)
    done = harness(
        "regress", scenario, "--base", str(ROOT), "--head", str(slower), "--budget", "599s",
        "--out", str(tmp_path / "out"), "--undecided-exit", "0",
        GITHUB_STEP_SUMMARY=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "text: undecided" in done.stdout
    assert "was spent after 1 of the 4 blocks" in done.stdout
    assert "harness: GITHUB_STEP_SUMMARY: Is a directory" in done.stderr


@pytest.mark.alone  # it waits for its budget rather than computes
def test_a_head_that_hangs_ends_with_the_budget(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, scenario: str
) -> None:
    hanging = "import time; time.sleep(1000); nanoseconds = 0"
    head = copy_code(tmp_path_factory.mktemp("hanging"), "trainer/inject.py", COST, hanging)
    junit = tmp_path / "junit.xml"
    for budget_s in (30, 300):  # a slow machine may spend the first on starting both sides: nothing hangs then
        out = tmp_path / f"out-{budget_s}"
        done = harness(
            "regress", scenario, "--base", str(ROOT), "--head", str(head), "--out", str(out),
            "--budget", f"{budget_s}s", "--junit", str(junit),
        )  # fmt: skip
        if "clock_nanosleep" in done.stdout:
            break
    assert done.returncode == 4, done.stderr
    assert "text: undecided, no block in which both sides finished" in done.stdout
    (note,) = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert note.startswith(
        f"note: the budget of {budget_s} s was spent before the first block ended, in the middle of the next: run "
    )
    assert "clock_nanosleep" in note
    assert "--budget" in note
    assert "Traceback" not in done.stderr
    (path,) = (out / "tiny").iterdir()
    assert (StudyFolder(path).read_study().status, StudyFolder(path).read_study().blocks) == ("done", 0)
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")  # nothing could be compared
    report = harness("report", str(path))  # nothing to report, in a line
    assert report.returncode in (0, 2)
    assert "Traceback" not in report.stderr


def test_a_head_that_cannot_even_be_imported_in_time_is_a_line(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, scenario: str
) -> None:
    text = "class Config(BaseModel):"
    head = copy_code(
        tmp_path_factory.mktemp("silent"), "trainer/config_base.py", text, f"import time; time.sleep(1000)\n{text}"
    )
    out = tmp_path / "out"
    done = harness("regress", scenario, "--base", str(head), "--out", str(out), "--budget", "1s")
    assert done.returncode == 2
    assert "cannot be imported by" in done.stderr
    assert done.stderr.endswith("within 1 s\n")
    assert not out.exists()


def test_a_side_that_fails_ends_the_check_and_is_an_error(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, scenario: str
) -> None:
    broken = copy_code(
        tmp_path_factory.mktemp("broken"), "trainer/inject.py", COST, "raise RuntimeError('a broken state')"
    )
    out, junit = tmp_path / "out", tmp_path / "junit.xml"
    done = harness(
        "regress", scenario, "--base", str(ROOT), "--head", str(broken), "--out", str(out), "--junit", str(junit)
    )
    assert done.returncode == 1
    assert "text: undecided, RuntimeError: a broken state" in done.stdout
    assert "Traceback" not in done.stderr
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    (path,) = (out / "tiny").iterdir()
    assert StudyFolder(path).read_study().blocks == 2  # no budget helps a side that fails each time
    again = harness("run", "--resume", str(path))
    assert again.returncode == 2
    assert "Traceback" not in again.stderr


@pytest.mark.nightly
def test_code_that_changes_while_it_is_measured_decides_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, scenario: str
) -> None:
    moving = copy_code(tmp_path_factory.mktemp("moving"), "trainer/inject.py", COST, COST.replace("1e6", "2e6"))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tests.commands", "regress", scenario, "--base", str(ROOT), "--head", str(moving)]
    command += ["--out", str(out), "--budget", "10s"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("study ") for line in process.stderr)  # it has begun
        (moving / "trainer" / "added.py").touch()
        said, _ = process.communicate()
    assert process.returncode == 4
    assert "changed during the measurement" in said
    (path,) = (out / "tiny").iterdir()
    assert json.loads((path / "regression.json").read_text())["verdict"] == "undecided"
    assert "changed during the measurement" in (path / "regression.md").read_text()


@pytest.mark.parametrize(("words", "line"), [
    (["--base", "no-such"], "no-such: neither a folder nor a revision"),
    (["--base", "{root}", "--head", "{root}"], "both are"),
    (["--base", "{root}", "--within", "3"], "--within '3': allowed: a share such as 3%"),
    (["--base", "{root}", "--budget", "soon"], "--budget 'soon': allowed: a time"),
    (["--base", "{root}", "--arm", "txt"], "--arm txt: no arm matches"),
    (["--base", "{root}", "--control", "dose"], "control 'dose': allowed: data-only, ideal-data"),
    (["--base", "HEAD", "--junit", "{root}"], "a folder; give a file"),
    (["--base", "{root}", "--undecided-exit", "x"], "--undecided-exit 'x': allowed: 0 to 125"),
    ([], "the following arguments are required: --base"),
])  # fmt: skip
def test_wrong_input_is_a_line(tmp_path: Path, scenario: str, words: list[str], line: str) -> None:
    given = [word.format(root=ROOT) for word in words]
    done = harness("regress", scenario, *given, "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
