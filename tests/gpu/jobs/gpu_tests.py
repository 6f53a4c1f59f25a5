"""Runs the tests under tests/gpu: how many pass on this card, and which do not?

Left out are the tests of the lease runner and of its jobs, which need no card.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tests.gpu.lease.outcomes import FAILED, PASSED, SKIPPED
from tests.gpu.lease.place import Place

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "gpu"
LEFT_OUT = ("test_*_job.py", "test_study_jobs.py", "test_lease.py")
TRIED = "test_kernel_times.py"  # on an emulated device: it needs no card
ENDING_S = 5.0  # for what follows the tests
SLOWEST = 5  # tests whose time is recorded, with their set-up
MOST_CHARACTERS = 100_000  # of the output that is kept where a test fails


def run(place: Place) -> bool:
    """Return False if the time limit left tests out."""
    place.work.mkdir(parents=True, exist_ok=True)
    outcomes, log = place.work / "outcomes.jsonl", place.work / "pytest.txt"
    run_pytest(files(place), outcomes, log, place.left_s - ENDING_S)
    whole = record(place, read(outcomes))
    if any(figure.holds is False for figure in place.sheet.result.figures):
        text = log.read_text(errors="replace")[-MOST_CHARACTERS:].replace(str(ROOT), ".")
        (place.out / log.name).write_text(text)
    return whole


def files(place: Place) -> list[Path]:
    """Return the test files to run."""
    left_out = {path for pattern in LEFT_OUT for path in FOLDER.glob(pattern)}
    found = sorted(FOLDER.glob(TRIED if place.emulated else "test_*.py"))
    return [path for path in found if path not in left_out]


def run_pytest(paths: Sequence[Path], outcomes: Path, log: Path, seconds: float) -> None:
    """Run the tests in one process, which is killed after ``seconds`` with all that it started."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    plugins = ["no:cacheprovider", "tests.gpu.lease.outcomes"]
    if not entry_points(group="pytest11", name="harness"):  # not installed: carried as a folder
        plugins.append("harness.testing.plugin")
    words = [
        sys.executable, "-m", "pytest", *map(str, paths), *(word for name in plugins for word in ("-p", name)),
        "-rA", "--outcomes", str(outcomes),
    ]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(seconds, 0.1))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read(outcomes: Path) -> list[dict[str, Any]]:
    """Return what the plugin wrote; a kill may leave half a line at the end."""
    lines = outcomes.read_text().splitlines(keepends=True) if outcomes.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def record(place: Place, rows: Sequence[dict[str, Any]]) -> bool:
    """Record how many tests passed, and each that did not. Return True if all ended."""
    total = sum(row.get("tests", 0) for row in rows)
    ended = {row["test"]: row for row in rows if "test" in row and row["outcome"] != FAILED}
    ended |= {row["test"]: row for row in rows if row.get("outcome") == FAILED}  # A tear-down may fail after the call.
    counts = Counter(row["outcome"] for row in ended.values())
    skipped = counts[SKIPPED]
    place.add("passed", counts[PASSED], "tests", asked=f"all {total - skipped} that can run", holds=_all(counts, total))
    place.add("failed", counts[FAILED], "tests", asked="0", holds=counts[FAILED] == 0)
    place.add("skipped", skipped, "tests")
    left = total - len(ended)
    if left or not total:  # A time limit, or a test that ended the process.
        place.add("not run", left if total else None, "tests", asked="0", holds=False)
    for name, row in ended.items():
        if row["outcome"] == FAILED:
            place.add(f"failed: {name.rpartition('/')[2]}", row["problem"], holds=False)
    for name, row in sorted(ended.items(), key=lambda item: -float(item[1]["seconds"]))[:SLOWEST]:
        place.add(f"slow: {name.rpartition('/')[2]}", round(row["seconds"], 1), "s")
    return bool(total) and not left


def _all(counts: Counter[str], total: int) -> bool:
    return total > 0 and counts[PASSED] + counts[SKIPPED] == total
