"""``python -m tests [PART ...] [-- ARGUMENT ...]`` runs the tests, with as many at a time as its part allows.

Without a part, all but ``nightly`` run, which has slow and rare paths. Property tests try a fifth of their examples, a
tenth in ``quick`` alone, and all beside ``nightly``. The last lines are the slowest tests of all parts, the CPU time of
each part, and pytest's outcomes by part. A part that fails does not keep the next from running.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

from tests.examples import EVERY, QUICK

# `--dist loadfile` keeps a file's tests together, with the fixtures that they share; in their own order, or the files
# with few and long tests would come last, one after the other on one core. Three at a time: on two cores they wait for
# other processes a quarter of their time. A worker that died (a test hung) is not replaced: pytest-xdist 3.8 would then
# never end.
NIGHTLY = "nightly"
PARTS = {
    "quick": ("-m", "not slow and not alone and not gpu", "-n", "2", "--max-worker-restart=0", "--dist", "worksteal"),
    "processes": (
        *("-m", "slow and not alone and not gpu and not nightly", "-n", "3", "--max-worker-restart=0"),
        *("--dist", "loadfile", "--no-loadscope-reorder"),
    ),
    "alone": ("-m", "(alone or gpu) and not nightly"),
    NIGHTLY: ("-m", "nightly"),
}
USUAL = [part for part in PARTS if part != NIGHTLY]
# Other files need not be imported: 7 s of CPU for all of them, in each process. tests/conftest.py fails where a file
# marks its tests in another way.
MARKED = {
    "processes": re.compile(r"pytest\.mark\.slow\b"),
    "alone": re.compile(r"pytest\.mark\.(alone|gpu)\b"),
    NIGHTLY: re.compile(r"pytest\.mark\.nightly\b"),
}
# What judges times mostly sleeps. It runs beside the other parts, which give way to it: at this niceness they get a
# core only where it wants none.
NICE = 19
SHOWN = 20  # of the slowest tests
ENDING_S = 20  # that an interrupted part may take: its fixtures end the processes that they started


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen, more = list(dict.fromkeys(arguments[:split])) or USUAL, arguments[split + 1 :]
    if unknown := set(chosen) - set(PARTS):
        print(f"python -m tests: unknown part {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
        return 2
    if chosen == ["quick"]:
        os.environ[QUICK] = "1"
    if NIGHTLY in chosen:
        os.environ[EVERY] = "1"
    begun_s = time.monotonic()
    counts: Counter[str] = Counter()
    parts = []
    used: list[str] = []
    code = 0
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="harness-tests-") as name, ExitStack() as running:
        folder = Path(name)

        def start(part: str, niceness: int = 0, log: Path | None = None) -> subprocess.Popen[bytes]:
            process = _start(part, more, folder, niceness=niceness, log=log)
            running.callback(_end, process)
            return process

        first = start("alone", log=folder / "alone.txt") if "alone" in chosen and chosen[1:] else None
        for part in sorted(chosen, key=list(PARTS).index):
            if part == "alone" and first is not None:
                ended, used_s = _wait(first)
                print((folder / "alone.txt").read_text(errors="replace"), flush=True)
            else:
                ended, used_s = _wait(start(part, NICE if first else 0))
            used.append(f"{part} {used_s:.0f}s")
            report = folder / f"{part}.xml"
            code = code or ended
            seconds |= _seconds(report)
            found = _counts(report)
            counts.update(found)
            parts.append(f"{part} {found['passed']}" + (f" (exit code {ended})" if ended else ""))
    print(f"== slowest {SHOWN}, seconds with set-up")
    for test in sorted(seconds, key=seconds.__getitem__, reverse=True)[:SHOWN]:
        print(f"{seconds[test]:6.1f} {test}")
    print(f"CPU: {', '.join(used)}, of {os.cpu_count()} cores for {time.monotonic() - begun_s:.0f}s")
    outcomes = [f"{number} {outcome}" for outcome, number in counts.items() if number]
    print(f"{', '.join(outcomes)} in {time.monotonic() - begun_s:.0f}s: {', '.join(parts)}")
    return code


def _start(
    part: str, more: list[str], folder: Path, *, niceness: int = 0, log: Path | None = None
) -> subprocess.Popen[bytes]:
    """pytest on one part; its output goes into ``log``, where there is one, to be shown when it is its turn."""
    files = _files(part) if not any(Path(one.partition("::")[0]).exists() for one in more) else []
    command = [sys.executable, "-m", "pytest", *PARTS[part], f"--junit-xml={folder / part}.xml", *more, *files]
    environment = os.environ | {"HARNESS_TEST_CACHE": str(folder / "cache")}
    # Where a machine forbids it, each of some hundred processes would compile this project anew, for 2 s of CPU.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if part != "alone":
        # Several processes on two cores: threads of one only wait for the other's, and burn a core while they do. The
        # tiny models of real studies take twice the CPU with two of them.
        environment["OMP_NUM_THREADS"] = "1"
    command = ["nice", "-n", str(niceness), *command] if niceness else command
    if log is None:
        print(f"== {part}: pytest {' '.join(PARTS[part])}", flush=True)
        return subprocess.Popen(command, env=environment)
    print(f"== {part}: pytest {' '.join(PARTS[part])}: beside the other parts, shown after them", flush=True)
    with log.open("wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _files(part: str) -> list[str]:
    """Those whose tests the part may have; none where that is not known: then pytest looks through all."""
    if part not in MARKED:
        return []
    return sorted(str(path) for path in Path("tests").rglob("test_*.py") if MARKED[part].search(path.read_text()))


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Its exit code, and the CPU seconds of it and of what it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return code, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part that is still running: whoever interrupts the tests wants none of them to go on."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _seconds(report: Path) -> dict[str, float]:
    """How long each test of a report took, by its name."""
    tests = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
    return {f"{test.get('classname')}::{test.get('name')}": float(test.get("time", 0)) for test in tests}


def _counts(report: Path) -> dict[str, int]:
    """Outcomes in the order of pytest's own last line."""
    if not report.exists():
        return {"failed": 0, "passed": 0, "skipped": 0, "errors": 1}
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    sums: Counter[str] = Counter()
    for suite in suites:
        for name in ("tests", "failures", "errors", "skipped"):
            sums[name] += int(suite.get(name, 0))
    passed = sums["tests"] - sums["failures"] - sums["errors"] - sums["skipped"]
    return {"failed": sums["failures"], "passed": passed, "skipped": sums["skipped"], "errors": sums["errors"]}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
