"""harness doctor through its real entry point, and how its lines are laid out."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.commands.doctor import COLUMNS, INDENT, conclusion, doctor, lines_of, worst
from harness.machine.check import IMPORT_FIRST, Check, judge
from harness.machine.examine import Examination
from harness.machine.gpu import check_cpu_profile, check_cuda_profiles, figures
from tests.commands import harness as command
from tests.examples import examples
from trainer.devices.calibrate import Effort, calibrate, cpu_identity, cpu_profile, not_calibrated
from trainer.devices.profiles import load_profile, profile_names

ROOT = Path(__file__).parents[3]
TINY = Effort(sizes=(16, 32), copy_bytes=2**16, rounds=3, timeout_s=0)
NAMES = [
    "python", "packages", "torch", "driver", "nvml", "cuda", "compile", "ptrace", "cores", "numa", "quota",
    "threads", "tokenizers", "clock", "frequency", "memory", "swap", "/dev/shm", "open files", "results", "cache",
    "load", "profile", "profiles",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))


# Importing the real ones, each in a process of its own, takes 4 s of CPU. One test examines those.
LIGHT = {
    "torch": """
import os
__version__ = "2.11.0"
class version: cuda = None
class cuda: device_count, is_available = staticmethod(lambda: 0), staticmethod(lambda: False)
class backends:
    class cpu: get_cpu_capability = staticmethod(lambda: "AVX2")
get_num_threads = lambda: int(os.environ.get("OMP_NUM_THREADS", "7"))
""",
    "pyarrow/parquet": "",
    **dict.fromkeys(("transformers", "matplotlib", "tokenizers", "sentencepiece"), ""),
}


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine whose heavy packages are stand-ins, and whose compiler accepts everything."""
    folder = tmp_path_factory.mktemp("light")
    for name, text in LIGHT.items():
        path = (folder / name).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return {"PYTHONPATH": before(folder, os.environ.get("PYTHONPATH")), "CXX": "true"}


def before(folder: Path, path: str | None) -> str:
    return os.pathsep.join(filter(None, (str(folder), path)))


def harness(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as a user does."""
    started = [sys.executable, "-m", "harness", "doctor", *words]
    return subprocess.run(started, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment)


def named(content: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {line["name"]: line for line in content["checks"]}


@pytest.mark.slow
def test_one_screen(tmp_path: Path) -> None:
    done = harness("--out", str(tmp_path / "studies"))
    assert done.stderr == ""
    assert done.returncode == 0
    *lines, last = done.stdout.splitlines()
    assert len(lines) < 45
    heads = [re.fullmatch(r"(ok  |warn|fail)  (\S[\S ]{9}\S?) +(\S.*)", line) for line in lines]
    for line, head in zip(lines, heads, strict=True):
        assert len(line) <= COLUMNS, line
        assert head is not None or re.match(rf"{INDENT}\S", line), line
    found = [head for head in heads if head is not None]
    names = [head[2].strip() for head in found]
    assert [name for name in names if not name.startswith(("gpu ", "slurm"))] == [
        name for name in NAMES if name in names
    ]
    assert {*names} >= {*NAMES} - {"nvml"}
    fixes = [line for line in lines if line.startswith(f"{INDENT}fix: ")]
    assert len(fixes) == sum(head[1].strip() != "ok" for head in found)
    oks, warns = (sum(head[1].strip() == status for head in found) for status in ("ok", "warn"))
    assert last == f"harness run works here: {oks} ok, {warns} warn, 0 fail"
    assert not (tmp_path / "studies").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_json_and_what_makes_a_run_impossible(tmp_path: Path, light: dict[str, str]) -> None:
    """A cache that cannot be made; besides, what the environment alone sets wrong."""
    (tmp_path / "file").write_text("")
    wrong = {
        "HARNESS_CACHE": str(tmp_path / "file" / "cache"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "CXX": str(tmp_path / "no-compiler"),
    }
    done = harness("--json", "--threads", "3", **light | wrong)
    assert done.stderr == ""
    assert done.returncode == 1
    content = json.loads(done.stdout)
    lines = named(content)
    assert (content["schema"], content["status"]) == (1, "fail")
    assert set(lines["cache"]) == {"status", "name", "finding", "fix"}
    failing = [line["name"] for line in content["checks"] if line["status"] == "fail"]
    assert failing == ["cache"]
    for name in ("tokenizers", "compile"):
        assert lines[name]["status"] == "warn"
        assert lines[name]["fix"]
    assert "not calibrated" in lines["profile"]["finding"]
    assert "3 threads" in lines["profile"]["finding"]
    assert "OMP_NUM_THREADS=1" in lines["threads"]["finding"]
    facts = content["facts"]
    assert facts["torch"]["version"] in lines["torch"]["finding"]
    assert facts["torch"]["threads"] == 1
    assert facts["processor"]["allowed"] == sorted(os.sched_getaffinity(0))
    assert facts["load"]["elapsed_s"] >= 0.5
    assert facts["toolchain"]["cxx_version"] is None


@pytest.mark.slow
def test_packages_that_are_broken_are_lines_and_not_tracebacks(tmp_path: Path, light: dict[str, str]) -> None:
    """torch, and what our own files need: what needs them says so, and every other line is there."""
    reasons = {"torch": "libcudart.so.12: cannot open shared object file", "pydantic": "no core", "yaml": "no parser"}
    for module, reason in reasons.items():
        (tmp_path / f"{module}.py").write_text(f"raise ImportError({reason!r})")
    done = harness("--json", **light | {"PYTHONPATH": before(tmp_path, light["PYTHONPATH"])})
    assert (done.stderr, done.returncode) == ("", 1)
    content = json.loads(done.stdout)
    lines = named(content)
    assert lines["torch"]["status"] == "fail"
    assert lines["torch"]["finding"] == f"cannot be imported: ImportError: {reasons['torch']}"
    assert reasons["torch"] in lines["threads"]["finding"]
    packages = {line["finding"].split()[0]: line for line in content["checks"] if line["name"] == "packages"}
    for package, module in (("pydantic", "pydantic"), ("PyYAML", "yaml")):
        line, finding = packages[package], rf"{package} [\d.]+ cannot be imported: ImportError: {reasons[module]}"
        assert re.fullmatch(finding, line["finding"])
        assert (line["status"], line["fix"]) == ("fail", f"python -m pip install --force-reinstall {package}")
    for name in ("profile", "profiles", "threads"):
        assert (lines[name]["status"], lines[name]["fix"]) == ("warn", IMPORT_FIRST)
    assert {*lines} >= {*NAMES} - {"nvml"}
    assert lines["cores"]["status"] in ("ok", "warn")


@pytest.mark.slow
@pytest.mark.nightly
def test_no_calibration_without_torch_but_the_examination(tmp_path: Path, light: dict[str, str]) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open')")
    done = harness("--calibrate", **light | {"PYTHONPATH": before(tmp_path, light["PYTHONPATH"])})
    assert done.stderr == "harness: cannot calibrate: OSError: libcudart.so.12: cannot open\n"
    assert done.returncode == 1
    assert "harness run cannot work here" in done.stdout


@pytest.mark.slow
def test_a_terminal_without_colours_where_rich_is_broken(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('no core')")
    code = "from harness.commands.doctor import _print; from harness.machine.check import ok; "
    code += "_print([ok('clock', 'tsc')])"
    terminal, its_end = pty.openpty()
    path = before(tmp_path, os.environ.get("PYTHONPATH"))
    try:
        shown = [sys.executable, "-c", code]
        subprocess.run(shown, cwd=ROOT, stdout=its_end, check=True, env=os.environ | {"PYTHONPATH": path})
        assert os.read(terminal, 1000).split(b"\r\n")[0] == b"ok    clock      tsc"
    finally:
        os.close(terminal)
        os.close(its_end)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_closed_output_leaves_the_exit_code(tmp_path: Path, light: dict[str, str]) -> None:
    (tmp_path / "file").write_text("")
    closed = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "harness", "doctor", "--json"]
    environ = os.environ | light | {"HARNESS_CACHE": str(tmp_path / "file" / "cache")}
    done = subprocess.run(closed, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environ)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
def test_a_container_that_shows_nothing_of_its_machine(
    tmp_path: Path, light: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither /proc nor /sys: every line is still one that says something."""
    monkeypatch.setenv("PYTHONPATH", light["PYTHONPATH"])
    checks = Examination(tmp_path / "results", tmp_path / "cache", {}, tmp_path).checks(None)
    assert {check.name for check in checks} >= {*NAMES} - {"nvml"}
    assert not [check for check in checks if "could not be checked" in check.finding]
    assert worst(checks) == "warn"  # /dev/shm, for one


@pytest.mark.slow
def test_a_scenario_is_held_against_the_limits(tmp_path: Path, light: dict[str, str]) -> None:
    """Open files are the limit that a test can set for itself. What `harness run` refuses fails."""
    scenario = tmp_path / "s.yaml"
    corpus = "{builtin: python-docs, documents: 6}"
    base = f"{{model: {{preset: llama-8b, layers: 9999}}, data: {{workers: 8, corpus: {corpus}}}}}"
    scenario.write_text(f"name: s\nquestion: Fit?\nbase: {base}\narms: {{one: null, other: {{data.workers: 0}}}}\n")
    limited = ["sh", "-c", 'ulimit -n 64; "$@"', "sh"]
    limited += [sys.executable, "-m", "harness", "doctor", "--json", str(scenario)]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, env=os.environ | light)
    assert (done.returncode, done.stderr) == (1, "")
    checks = json.loads(done.stdout)["checks"]
    lines = {line["name"]: line for line in reversed(checks)}
    shm, files, tasks = (lines[f"{name} need"] for name in ("shm", "file", "task"))
    assert shm["finding"].startswith("8 loader workers of 2 arms at a time need about 864 KiB in /dev/shm, ")
    assert (files["status"], files["fix"][:14]) == ("warn", "ulimit -n 4096")
    assert files["finding"] == "a process of it opens about 84 files, at most 64 allowed: batches will be lost"
    assert tasks["finding"].startswith("2 arms at a time have about ")
    memory, documents = (line for line in checks if line["status"] == "fail")
    assert (memory["name"], documents["name"]) == ("memory need", "documents")
    assert memory["finding"].startswith("arm one: needs at least ")
    assert documents["finding"].startswith("arm one: 8 loader workers for at most 6 documents: ")
    order = [line["name"] for line in checks]
    assert order.index("task need") < order.index("memory need") < order.index("results")
    assert not (tmp_path / "cache").exists()  # no data were prepared


def test_a_scenario_that_is_wrong_is_refused(tmp_path: Path) -> None:
    done = command("doctor", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "none.yaml: no such file" in done.stderr


@pytest.mark.slow
def test_calibrate_measures_and_remembers(
    capsys: pytest.CaptureFixture[str], light: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in light.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("trainer.devices.calibrate.EFFORT", TINY)
    arguments = argparse.Namespace(scenario=None, calibrate=True, threads=1, json=True, out=str(tmp_path))
    assert doctor(arguments, []) == 0
    output = capsys.readouterr()
    assert output.err == "measuring this CPU with 1 thread: 5 to 20 seconds\n"
    finding = named(json.loads(output.out))["profile"]["finding"]
    rate = r"[\d.e+]+ [GT]FLOP/s"
    assert re.search(rf"1 thread: measured fp32 {rate}, bf16 {rate}, copy [\d.e+-]+ GB/s", finding)
    assert cpu_profile(1) is not None


def test_no_threads_are_refused() -> None:
    done = command("doctor", "--threads", "0")
    assert (done.returncode, done.stderr) == (2, "harness: doctor: --threads 0: at least 1\n")


def test_a_cpu_that_is_not_calibrated() -> None:
    needed, spare = check_cpu_profile(2, needed=True), check_cpu_profile(2, needed=False)
    assert (needed.status, needed.fix) == ("warn", "harness doctor --calibrate --threads 2")
    assert needed.finding.startswith(f"cpu: {cpu_identity()}, ")
    assert needed.finding.endswith("2 threads: not calibrated, so MFU stays null")
    assert (spare.status, spare.finding.endswith(not_calibrated(2))) == ("ok", True)


def test_a_calibrated_cpu() -> None:
    calibrate(1, TINY)
    line = check_cpu_profile(1, needed=True)
    profile = cpu_profile(1)
    assert figures(profile) in line.finding
    assert (line.status == "warn") == bool(profile.notes)  # measured under load, say


def test_cuda_devices_and_their_profiles() -> None:
    h100, unknown = check_cuda_profiles(["NVIDIA H100 80GB HBM3", "A Card", "NVIDIA H100 80GB HBM3"])
    assert h100.finding.startswith("NVIDIA H100 80GB HBM3: h100-sxm (")
    assert (unknown.status, unknown.finding) == ("warn", "A Card: no profile names it, so MFU stays null")


def test_figures_of_a_device() -> None:
    assert figures(load_profile("h100-sxm")) == (
        "dense peak bf16 989.4 TFLOP/s, fp16 989.4 TFLOP/s, tf32 494.7 TFLOP/s, fp32 66.9 TFLOP/s, fp8 1979 TFLOP/s; "
        "achievable bf16 794.5 TFLOP/s, fp8 1403 TFLOP/s; memory 80 GB at 3350 GB/s; PCIe Gen5 x16 64 GB/s; "
        "4.29 USD per hour on 2026-09-19"
    )
    assert "gh200" in " ".join(profile_names())


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z", "M"]), min_size=1, max_size=150)
phrases = st.lists(words, min_size=1, max_size=30).map(" ".join)
lines = st.one_of(
    st.builds(Check, st.just("ok"), words.map(lambda word: word[:11]), phrases),
    st.builds(Check, st.sampled_from(["warn", "fail"]), words.map(lambda word: word[:11]), phrases, phrases),
)


@examples(25)
@given(lines)
def test_no_line_is_too_long_and_nothing_is_lost(check: Check) -> None:
    shown = list(lines_of(check))
    assert all(len(line) <= COLUMNS for line in shown)
    assert shown[0].startswith(f"{check.status:<6}{check.name}")
    assert all(line.startswith(INDENT) for line in shown[1:])
    fix = f"fix: {check.fix}" if check.fix else ""
    text = "".join(shown).removeprefix(f"{check.status:<6}{check.name}")
    assert "".join(text.split()) == "".join(f"{check.finding}{fix}".split())


@given(st.lists(lines, min_size=1))
def test_the_worst_decides(checks: list[Check]) -> None:
    order = ["ok", "warn", "fail"]
    assert order.index(worst(checks)) == max(order.index(check.status) for check in checks)
    assert conclusion(checks).startswith("harness run cannot" if worst(checks) == "fail" else "harness run works")


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("a\nb"), "ValueError: a b"), (TimeoutError("no answer within 5 s"), ": no answer within 5 s")],
)
def test_a_check_that_raises_is_a_warning_with_its_reason(error: Exception, words: str) -> None:
    def broken() -> Check:
        raise error

    (line,) = judge("clock", broken)
    assert (line.status, line.name) == ("warn", "clock")
    assert line.finding.endswith(words)
    assert line.fix
