"""The pytest plugin as a user's own test suite meets it: a pytest of its own, with and without pytest-benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.studies import copy_code

pytestmark = pytest.mark.slow
SCENARIO = """
name: tiny
question: Is it slower?
base:
  data: {replay: true, sequence_length: 32, batch_size: 2}
  data.corpus: {builtin: python-docs, documents: 60}
  data.tokenizer.train: {vocab_size: 512}
  compute.device.emulated: gh200
  compute.device.kernels: {forward_ms: 1, backward_ms: 1, norm_ms: 0, optimizer_ms: 0.5, h2d_ms: 0}
  steps: 24
  warmup_steps: 2
arms:
  plain: {}
  slow: {compute.device.kernels.backward_ms: 2}
repeats: 4
slice_steps: 4
probes: {host: false}
"""
TEST = """
def test_slow(scenario):
    scenario("tiny.yaml", arm="slow").no_slower_than("plain", within="10%", startup_within="off", memory_within="off")

def test_plain(scenario):
    found = scenario("tiny.yaml", arm="plain").no_slower_than(
        "slow", within="10%", startup_within="off", memory_within="off"
    )
    assert found.verdict == "faster"
"""
KEPT = """
def test_kept(scenario):
    scenario("tiny.yaml", arm="{arm}").no_slower_than("baseline", within="10%", startup_within="off")
"""


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    (tmp_path / "test_speed.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_an_arm_against_another_and_what_pytest_benchmark_is_told(suite: Path) -> None:
    done = run_pytest(suite, "--benchmark-json", "found.json", "--harness-budget", "5m")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "slow against plain (emulated device): slower by more than the 10 % allowed" in done.stdout
    assert "Traceback" not in done.stdout
    benchmarks = {one["name"]: one for one in json.loads((suite / "found.json").read_text())["benchmarks"]}
    found = benchmarks["test_plain"]
    assert found["stats"]["mean"] == pytest.approx(0.0025, abs=0.001)
    assert found["stats"]["rounds"] >= 4 * 6  # blocks and turns
    info = found["extra_info"]
    assert info["verdict"] == "faster"
    assert info["emulated"]
    assert info["ledger_ms"]["sync"] > 0
    assert info["environment"]["cpu"]
    assert (suite / info["study"] / "regression.md").is_file()
    its_own = [sys.executable, "-m", "pytest_benchmark", "compare", "found.json"]
    assert "test_plain" in subprocess.run(its_own, cwd=suite, capture_output=True, text=True, check=True).stdout
    compared = run_pytest(suite, "--benchmark-only", "--collect-only", "-q")
    assert "test_plain" in compared.stdout  # --benchmark-only knows the fixture


def test_nothing_is_measured_where_benchmarks_are_disabled(suite: Path) -> None:
    done = run_pytest(suite, "--benchmark-disable", "-rs")
    assert "2 skipped" in done.stdout
    assert "benchmarks are disabled" in done.stdout
    assert "was not used at all" not in done.stdout
    assert not (suite / "results").exists()


def test_without_pytest_benchmark(suite: Path) -> None:
    done = run_pytest(suite, "-p", "no:benchmark", "-k", "test_plain", "--harness-budget", "5m")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_baseline_is_kept_and_checked_and_its_absence_is_never_silent(suite: Path) -> None:
    (suite / "tiny.yaml").write_text(SCENARIO.replace("repeats: 4", "repeats: 3"))
    test = suite / "test_speed.py"
    test.write_text(KEPT.format(arm="plain"))
    missing = run_pytest(suite, "-rs")
    assert "1 skipped" in missing.stdout
    assert "no baseline of tiny, plain" in missing.stdout
    saved = run_pytest(suite, "-rs", "--harness-save-baselines")
    assert "kept as results/baselines/" in saved.stdout
    assert run_pytest(suite).returncode == 0
    comparisons = [
        json.loads(path.read_text())["contests"] for path in (suite / "results" / "tiny").glob("*/regression.json")
    ]
    assert sorted(comparison["missing"] is None for (comparison,) in comparisons) == [
        False,
        True,
    ]  # without it, and with it
    (path,) = (suite / "results" / "baselines").glob("*/*.json")
    faster = json.loads(path.read_text())
    faster["part_ms"]["step"] = [value / 1.5 for value in faster["part_ms"]["step"]]
    path.write_text(json.dumps(faster))
    slower = run_pytest(suite)
    assert slower.returncode == 1
    assert "plain (emulated device): slower" in slower.stdout


def test_baseline_is_another_state_of_the_code_where_one_is_named(
    suite: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Before a state in which every declared cost of the device took twice as long: this one is faster."""
    before = copy_code(
        tmp_path_factory.mktemp("before"), "trainer/inject.py", "round(milliseconds * 1e6)", "round(milliseconds * 2e6)"
    )
    (suite / "tiny.yaml").write_text(SCENARIO.replace("batch_size: 2}", "batch_size: 2, inject: {tokenize_ms: 4}}"))
    (suite / "test_speed.py").write_text(KEPT.format(arm="plain"))
    done = run_pytest(suite, "-rs", "--harness-base", str(before), "--harness-budget", "5m", "--harness-out", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    (found,) = (suite / "out" / "tiny").iterdir()
    assert json.loads((found / "regression.json").read_text())["verdict"] == "faster"


def test_a_state_that_fails_fails_the_test(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cost = "nanoseconds = round(milliseconds * 1e6)"
    broken = copy_code(tmp_path_factory.mktemp("broken"), "trainer/inject.py", cost, "raise RuntimeError('broken')")
    (suite / "tiny.yaml").write_text(SCENARIO.replace("batch_size: 2}", "batch_size: 2, inject: {tokenize_ms: 4}}"))
    (suite / "test_speed.py").write_text(KEPT.format(arm="plain"))
    done = run_pytest(suite, "--harness-base", str(broken))
    assert done.returncode == 1
    assert "some runs failed" in done.stdout


@pytest.mark.parametrize(("repeats", "words", "blocks"), [(2, [], 2), (4, ["--harness-budget", "1s"], 1)])
def test_a_baseline_of_too_few_blocks_is_not_kept(suite: Path, repeats: int, words: list[str], blocks: int) -> None:
    (suite / "tiny.yaml").write_text(SCENARIO.replace("repeats: 4", f"repeats: {repeats}"))
    (suite / "test_speed.py").write_text(KEPT.format(arm="plain"))
    done = run_pytest(suite, "--harness-save-baselines", *words)
    assert done.returncode == 1
    assert f"{blocks} finished blocks; a baseline takes 3" in done.stdout
    assert not (suite / "results" / "baselines").exists()


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ('scenario("none.yaml", arm="plain").no_slower_than("slow")', "none.yaml: no such file"),
        ('scenario("tiny.yaml", arm="pain").no_slower_than("slow")', "no arm 'pain'; did you mean 'plain'?"),
        ('scenario("tiny.yaml", arm="plain").no_slower_than("slw")', "no arm 'slw' to be no slower than"),
        ('scenario("tiny.yaml", arm="plain").no_slower_than("slow", within="3")', "within '3': allowed"),
    ],
)
def test_wrong_words_fail_in_a_line(suite: Path, call: str, line: str) -> None:
    (suite / "test_speed.py").write_text(f"def test_it(scenario):\n    {call}\n")
    done = run_pytest(suite)
    assert done.returncode == 1
    assert line in done.stdout
    assert "Traceback" not in done.stdout


def test_a_wrong_setting_is_a_usage_error(suite: Path) -> None:
    (suite / "pytest.ini").write_text("[pytest]\nharness_undecided = maybe\n")
    done = run_pytest(suite)
    assert done.returncode == 4
    assert "harness_undecided: 'maybe'; allowed: skip, fail, pass" in done.stderr
