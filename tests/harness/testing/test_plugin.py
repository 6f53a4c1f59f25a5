"""The pytest plugin as a user's own test suite meets it, in a pytest within this one."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from _pytest.pytester import SysModulesSnapshot

from tests.commands import Done, fork_servers
from tests.studies import copy_code

# pytest-benchmark asks git. The slow arm takes 15 ms a step, the plain one 5: where a neighbour makes steps scatter, a
# check goes on to its next look, up to its budget.
pytestmark = pytest.mark.slow
SCENARIO = """
name: tiny
question: Is it slower?
base:
  data: {replay: true, sequence_length: 32, batch_size: 2}
  data.corpus: {builtin: python-docs, documents: 60}
  data.tokenizer.train: {vocab_size: 512}
  compute.device.emulated: gh200
  compute.sync: norm
  compute.device.kernels: {forward_ms: 2, backward_ms: 2, norm_ms: 0, optimizer_ms: 1, h2d_ms: 0}
  steps: 24
  warmup_steps: 2
arms:
  plain: {}
  slow: {compute.device.kernels.backward_ms: 12}
repeats: 4
slice_steps: 4
probes: {host: false}
"""
TEST = """
def test_plain(scenario):
    found = scenario("tiny.yaml", arm="plain").no_slower_than(
        "slow", within="10%", startup_within="off", memory_within="off"
    )
    assert found.verdict == "faster"
"""
KEPT = """
def test_kept(scenario):
    scenario("tiny.yaml", arm="{arm}").no_slower_than("baseline", within="{within}", startup_within="off")
"""


def only_users_files(**_: object) -> SysModulesSnapshot:
    """At its end an inner pytest forgets the modules of the user alone: torch would not survive it."""
    return SysModulesSnapshot(preserve=lambda name: not name.startswith(("test_", "own_")))


class Suite:
    """A user's folder with a scenario and a test of it."""

    def __init__(self, folder: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pytester = pytester
        # The inner pytest is no worker of xdist, whatever runs this one: in a worker pytest-benchmark disables itself.
        for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
            monkeypatch.delenv(name)
        monkeypatch.setattr("_pytest.pytester.SysModulesSnapshot", only_users_files)
        monkeypatch.chdir(folder)
        self.folder = folder

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def run(self, *words: str) -> Done:
        # A fork server has the working directory of the test that it was started by.
        words = ("--harness-out", str(self / "results"), *words)
        with fork_servers.shared():
            done = self._pytester.runpytest_inprocess("-p", "no:cacheprovider", *words)
        return Done(int(done.ret), done.stdout.str(), done.stderr.str())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, whose studies then share a fork server."""
    return tmp_path_factory.mktemp("suite")


@pytest.fixture
def suite(folder: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    suite = Suite(folder, pytester, monkeypatch)
    (suite / "tiny.yaml").write_text(SCENARIO)
    (suite / "test_speed.py").write_text(TEST)
    (suite / "pytest.ini").write_text("[pytest]\n")
    return suite


def test_an_arm_against_another_and_what_pytest_benchmark_is_told(suite: Suite) -> None:
    done = suite.run("--benchmark-json", "found.json", "--harness-budget", "5m")
    assert done.returncode == 0, done.stdout + done.stderr
    benchmarks = json.loads((suite / "found.json").read_text())["benchmarks"]
    (found,) = (one for one in benchmarks if one["name"] == "test_plain")
    assert found["stats"]["mean"] > 0.0049  # 5 ms are declared; a neighbour only adds to them
    assert found["stats"]["rounds"] >= 4 * 6  # blocks and repetitions
    info = found["extra_info"]
    assert info["verdict"] == "faster"
    assert info["emulated"]
    assert info["ledger_ms"]["sync"] > 0
    assert found["stats"]["mean"] == pytest.approx(sum(info["ledger_ms"].values()) / 1e3, rel=0.01)
    assert info["environment"]["cpu"]
    assert (suite / info["study"] / "regression.md").is_file()
    # Its table holds the candidate and what that is compared with.
    medians = {one["extra_info"]["arm"]: one["stats"]["median"] for one in benchmarks}
    assert {one["group"] for one in benchmarks} == {"test_speed.py::test_plain"}
    assert medians["slow"] > medians["plain"]
    assert " runs | " in done.stderr  # progress, though pytest captures
    compared = suite.run("--benchmark-only", "--collect-only", "-q")
    assert "test_plain" in compared.stdout  # --benchmark-only knows the fixture


def test_nothing_is_measured_where_benchmarks_are_disabled(suite: Suite) -> None:
    done = suite.run("--benchmark-disable", "-rs")
    assert "1 skipped" in done.stdout
    assert "benchmarks are disabled" in done.stdout
    assert "was not used at all" not in done.stdout
    assert not (suite / "results").exists()


def test_a_baseline_is_kept_and_checked_and_its_absence_is_never_silent(suite: Suite) -> None:
    (suite / "tiny.yaml").write_text(SCENARIO.replace("repeats: 4", "repeats: 3"))
    test = suite / "test_speed.py"
    test.write_text(KEPT.format(arm="slow", within="100%"))  # this machine may be busier the next time
    missing = suite.run()
    assert missing.returncode == 1
    assert "no baseline of tiny, slow" in missing.stdout
    (command,) = set(re.findall("pytest test_speed.py::test_kept --harness-save-baselines", missing.stdout))
    assert not (suite / "results").exists()  # nothing was measured
    saved = suite.run(*command.split()[1:])
    assert (saved.returncode, "1 skipped" in saved.stdout) == (0, True)
    assert "kept as results/baselines/" in saved.stdout
    (path,) = (suite / "results" / "baselines").glob("*/*.json")
    faster = json.loads(path.read_text())
    path.write_text(json.dumps({**faster, "environment": {**faster["environment"], "cpu": "another"}}))
    elsewhere = suite.run()
    assert elsewhere.returncode == 1
    assert "cpu 'another', here" in elsewhere.stdout
    assert len([*(suite / "results" / "tiny").iterdir()]) == 1  # of the saved; nothing was measured since
    faster["part_ms"]["step"] = [value / 20 for value in faster["part_ms"]["step"]]
    path.write_text(json.dumps(faster))
    slower = suite.run("-p", "no:benchmark")  # without pytest-benchmark
    assert slower.returncode == 1
    assert "slow (emulated device): slower" in slower.stdout
    (result,) = (suite / "results" / "tiny").glob("*/regression.json")
    (comparison,) = json.loads(result.read_text())["contests"]
    assert comparison["missing"] is None
    assert "Traceback" not in slower.stdout


@pytest.mark.nightly
def test_baseline_is_another_state_of_the_code_where_one_is_named(suite, tmp_path_factory):
    """Before a state in which every declared cost of the device took twice as long: this one is faster."""
    before = copy_code(
        tmp_path_factory.mktemp("before"), "trainer/inject.py", "round(milliseconds * 1e6)", "round(milliseconds * 2e6)"
    )
    (suite / "tiny.yaml").write_text(SCENARIO.replace("batch_size: 2}", "batch_size: 2, inject: {tokenize_ms: 4}}"))
    (suite / "test_speed.py").write_text(KEPT.format(arm="plain", within="10%"))
    done = suite.run(
        "-rs", "--harness-base", str(before), "--harness-budget", "5m", "--harness-out", str(suite / "out")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    (found,) = (suite / "out" / "tiny").iterdir()
    assert json.loads((found / "regression.json").read_text())["verdict"] == "faster"


@pytest.mark.nightly
def test_a_state_that_fails_fails_the_test(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> None:
    cost = "nanoseconds = round(milliseconds * 1e6)"
    broken = copy_code(tmp_path_factory.mktemp("broken"), "trainer/inject.py", cost, "raise RuntimeError('broken')")
    (suite / "tiny.yaml").write_text(SCENARIO.replace("batch_size: 2}", "batch_size: 2, inject: {tokenize_ms: 4}}"))
    (suite / "test_speed.py").write_text(KEPT.format(arm="plain", within="100%"))
    done = suite.run("--harness-base", str(broken))
    assert done.returncode == 1
    assert "Some runs failed" in done.stdout


def test_a_baseline_of_too_few_blocks_is_not_kept(suite: Suite) -> None:
    (suite / "test_speed.py").write_text(KEPT.format(arm="plain", within="100%"))
    done = suite.run("--harness-save-baselines", "--harness-budget", "1s")
    assert done.returncode == 1
    assert "1 finished blocks; a baseline needs 3" in done.stdout
    assert not (suite / "results" / "baselines").exists()


def test_wrong_words_fail_in_a_line(suite: Suite) -> None:
    calls = {
        'scenario("none.yaml", arm="plain").no_slower_than("slow")': "none.yaml: no such file",
        'scenario("tiny.yaml", arm="pain").no_slower_than("slow")': "no arm 'pain'; did you mean 'plain'?",
        'scenario("quickstart", arm="text-pad").no_slower_than("tokens-padded")': "did you mean 'text-padded'?",
        'scenario("tiny.yaml", arm="plain").no_slower_than("slw")': "unknown arm 'slw'",
        'scenario("tiny.yaml", arm="plain").no_slower_than("slow", within="3")': "within '3': allowed",
    }
    tests = (f"def test_{place}(scenario):\n    {call}\n" for place, call in enumerate(calls))
    (suite / "test_speed.py").write_text("".join(tests))
    done = suite.run()
    assert (done.returncode, "5 failed" in done.stdout, "Traceback" in done.stdout) == (1, True, False)
    assert [line for line in calls.values() if line not in done.stdout] == []


def test_a_wrong_setting_is_a_usage_error(suite: Suite) -> None:
    (suite / "pytest.ini").write_text("[pytest]\nharness_undecided = maybe\n")
    done = suite.run()
    assert done.returncode == 4
    assert "harness_undecided: 'maybe'; allowed: skip, fail, pass" in done.stderr
