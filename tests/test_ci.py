"""What `.ci/run` and `python -m tests` do when something fails or is interrupted; make, harness and tests are stubs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
MAKE = """#!/bin/sh
case "$*" in
  *lint) echo "lint ran"; exit "$LINT" ;;
  *test) echo "tests ran"; exit "$TESTS" ;;
esac
"""
# The guard: a study of so many blocks, or none where the commit before cannot be measured.
HARNESS = """#!/bin/sh
if [ -n "$BLOCKS" ]; then
  mkdir -p results/guard/one
  echo "{\\"blocks\\": $BLOCKS}" >results/guard/one/study.json
fi
exit "$GUARD"
"""
PART = """
import os, pathlib, time

def test_waits():
    pathlib.Path({folder!r}, str(os.getpid())).touch()
    time.sleep(900)
"""
DRIVER = """
import sys
import tests.__main__ as parts

parts.PARTS = {{name: ("-p", "no:cacheprovider", "--rootdir", {folder!r}, {file!r}) for name in parts.PARTS}}
parts.MARKED = {{}}
sys.exit(parts.main([]))
"""


@pytest.mark.parametrize(("guard", "blocks", "lint", "tests", "code", "line"), [
    (0, "4", 0, 0, 0, "guard: 4 blocks in 1m, exit code 0"),
    (0, "4", 1, 0, 1, "the linters failed: see above"),
    (0, "4", 0, 2, 2, "lint ran"),
    (3, "4", 0, 0, 3, "guard: 4 blocks in 1m, exit code 3"),
    (2, "", 0, 0, 0, "guard: NOTHING DECIDED (exit code 2)"),  # on a fresh clone there is no results/guard
])  # fmt: skip
def test_what_fails_fails_the_build_and_a_guard_that_cannot_decide_does_not(
    tmp_path: Path, guard: int, blocks: str, lint: int, tests: int, code: int, line: str
) -> None:
    for folder in (".ci", ".venv/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    for path, text in ((tmp_path / "bin" / "make", MAKE), (tmp_path / ".venv" / "bin" / "harness", HARNESS)):
        path.write_text(text)
        path.chmod(0o755)
    stubs = {"GUARD": str(guard), "BLOCKS": blocks, "LINT": str(lint), "TESTS": str(tests)}
    environment = {**os.environ, **stubs, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(tmp_path / ".ci" / "run")], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert line in done.stdout.splitlines()
    assert ("tests ran" in done.stdout) == (guard != 3)


@pytest.mark.nightly
def test_no_part_goes_on_when_the_tests_are_interrupted(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    file = tmp_path / "test_waits.py"
    file.write_text(PART.format(folder=str(begun)))
    driver = DRIVER.format(folder=str(tmp_path), file=str(file))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", driver], env=environment, cwd=tmp_path, start_new_session=True)
    try:
        until = time.monotonic() + 300
        while len(list(begun.iterdir())) < 2 and time.monotonic() < until:  # one beside the others
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) != 0
        pids = [int(path.name) for path in begun.iterdir()]
        assert len(pids) == 2
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
