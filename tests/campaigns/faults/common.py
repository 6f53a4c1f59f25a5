"""What the campaigns share: a small study, commands with a time limit, process trees, and the table of counts."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[3]
HUNG = "hung"
SCENARIO = """\
name: faults
question: Does it hold?
base:
  model: {layers: 1, width: 32}
  data:
    corpus: {builtin: python-docs, documents: 60}
    tokenizer: {train: {vocab_size: 512}}
    sequence_length: 16
    batch_size: 2
    inject: {tokenize_ms: 20, how: sleep}
  compute: {device: cpu, threads: 1}
  steps: 12
  warmup_steps: 1
arms:
  text: {data.path: text-padded}
  tokens: {data.path: tokens-padded, data.workers: 1, compute.work: none}
repeats: 2
interleave: slices
slice_steps: 6
"""
END_S = 120.0  # a study that was hit, or a resumed one, takes seconds; on a busy machine a minute
LEFT_S = 20.0  # what a killed launcher leaves must notice
RUNS, STEPS = 4, 12  # of that study: all its runs, and measured steps of each


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``code`` is None where it did not within its time."""

    code: int | None
    out: str
    err: str

    @property
    def problem(self) -> str | None:
        """What no command may do, whatever it was given."""
        if self.code is None:
            return HUNG
        if "Traceback (most recent call last)" in self.out + self.err:
            return "traceback"
        return None

    @property
    def last_line(self) -> str:
        return (self.err.strip().splitlines() or [""])[-1][:300]


def harness_words(*words: str) -> list[str]:
    return [sys.executable, "-m", "harness", *words]


def run(command: list[str], limit_s: float, **settings: object) -> Ended:
    """Run a command in a session of its own, without a terminal; end whatever is left of its tree."""
    process = start(command, **settings)
    return finish(process, limit_s)


imported: list[Path] = []  # folders of a sitecustomize.py that every process started here imports


def start(command: list[str], **settings: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, *imported]))}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        errors="replace", start_new_session=True, **settings,  # type: ignore[call-overload, no-any-return]
    )  # fmt: skip


def finish(process: subprocess.Popen[str], limit_s: float) -> Ended:
    try:
        out, err = process.communicate(timeout=limit_s)
        return Ended(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        kill_all(tree(process.pid))
        out, err = process.communicate()
        return Ended(None, out, err)


def forked(words: list[str], limit_s: float, before: Callable[[], object] | None = None) -> Ended:
    """Run one command of the command line in a fork of this process: milliseconds where a new one takes seconds."""
    with TemporaryDirectory(prefix="faults-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _in_fork(words, out, err, before)
        code = _wait(pid, limit_s)
        return Ended(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def _in_fork(words: list[str], out: Path, err: Path, before: Callable[[], object] | None) -> None:
    code = 70
    try:
        os.setsid()
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        from harness.cli import main

        if before is not None:
            before()
        code = main(words)
    except SystemExit as ended:  # argparse's --help and --version
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, limit_s: float) -> int | None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    kill_all(tree(pid))
    os.waitpid(pid, 0)
    return None


def tree(root: int) -> list[int]:
    """That process and all below it; processes that others have adopted meanwhile are not found."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def kill_all(pids: list[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def still_there(pids: list[int], limit_s: float) -> list[int]:
    """Those that have not ended within the limit; a zombie has."""
    until = time.monotonic() + limit_s
    while alive := [pid for pid in pids if _alive(pid)]:
        if time.monotonic() > until:
            return alive
        time.sleep(0.05)
    return []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def only_study(out: Path) -> Path | None:
    """The folder of the one study below ``out``; None where it did not come so far."""
    found = list(out.glob("faults/*/study.json"))
    return found[0].parent if found else None


def measured(study: Path) -> dict[str, str]:
    """A digest of what each finished run measured, by "arm/block"; reports only add derived columns."""
    found = {}
    for path in study.glob("runs/*/*/run.json"):
        record = json.loads(path.read_bytes())
        if record["status"] == "done":
            columns = ["step", "warmup", "start_ns", "wall_ns", "fetch_ns", "tokens", "loss"]
            rows = pq.read_table(path.with_name("steps.parquet"), columns=columns).to_pylist()
            text = json.dumps([record["pid"], record["started_utc"], rows], sort_keys=True)
            found["/".join(path.parts[-3:-1])] = hashlib.sha256(text.encode()).hexdigest()
    return found


def steps_of(study: Path) -> list[int]:
    """Measured steps of every run that is there."""
    paths = study.glob("runs/*/*/steps.parquet")
    return [pq.read_table(path, columns=["warmup"])["warmup"].to_pylist().count(False) for path in paths]


@dataclass
class Counts:
    """Counts outcomes; those called ``bad`` fail the campaign."""

    title: str

    def __post_init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._bad: Counter[str] = Counter()

    def good(self, what: str) -> None:
        self._counts[what] += 1

    def bad(self, what: str, detail: str) -> None:
        self._bad[what] += 1
        print(f"{self.title}: {what}: {detail}", flush=True)

    def of(self, ended: Ended, allowed: set[int], what: str) -> bool:
        """Count how a command ended: bad where it hung, gave a traceback or another code, or an error of many lines."""
        if ended.problem is not None:
            self.bad(ended.problem, f"{what}\n{ended.err[-2000:]}")
        elif ended.code not in allowed:
            self.bad(f"exit code {ended.code}", f"{what}: {ended.last_line}")
        elif ended.code == 2 and len(ended.err.strip().splitlines()) > 6:  # data may be prepared before, a line each
            self.bad("many lines", f"{what}\n{ended.err[-600:]}")
        else:
            self.good(f"exit code {ended.code}")
            return True
        return False

    def finish(self) -> int:
        """Print the table; the exit code of the campaign."""
        print(f"\n{self.title}")
        for counter, mark in ((self._counts, ""), (self._bad, "  <- wrong")):
            for what, count in sorted(counter.items()):
                print(f"{count:7,}  {what}{mark}")
        print(f"{self._bad.total():7,}  wrong in all", flush=True)
        return 1 if self._bad else 0


def parser(document: str | None, count: int) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--count", type=int, default=count, metavar="N", help="faults (default: %(default)s)")
    found.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other faults (default: 0)")
    return found


@contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder with a scenario file, and a cache that no other process uses."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has some of them ignored,
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which what is started here would inherit
    with TemporaryDirectory(prefix="faults-") as folder:
        os.environ["HARNESS_CACHE"] = str(Path(folder, "cache"))
        Path(folder, "faults.yaml").write_text(SCENARIO)
        yield Path(folder)


def finished_study(folder: Path) -> tuple[Path, float]:
    """Run the study once: its folder, and the seconds that it took (with its data prepared, if it was before)."""
    begun = time.monotonic()
    ended = run(harness_words("run", str(folder / "faults.yaml"), "--out", str(folder / "first")), 600)
    study = only_study(folder / "first")
    if ended.code != 0 or study is None:
        sys.exit(f"the study does not even work undisturbed: {ended.err[-3000:]}")
    return study, time.monotonic() - begun


def check_resumed(out: Path, what: str, counts: Counts) -> None:
    """Resume the study below ``out``: finished runs must be as they were, and every run there with all its steps."""
    study = only_study(out)
    if study is None:
        counts.good("ended before there was a study")
        return
    before = measured(study)
    if not counts.of(run(harness_words("run", "--resume", str(study)), END_S), {0}, f"resumed, {what}"):
        return
    after = measured(study)
    if any(after.get(name) != digest for name, digest in before.items()):
        counts.bad("a finished run changed", what)
    elif len(after) != RUNS or steps_of(study) != [STEPS] * RUNS:
        counts.bad("lost", f"{what}: {sorted(after)}, steps {steps_of(study)}")
    else:
        counts.good(f"nothing lost, {len(before)} runs kept")


def strike(
    title: str, document: str | None, count: int, one: Callable[[Path, int, random.Random, float, Counts], None]
) -> int:
    """Call ``one(folder, number, chance, after_s, counts)`` for each fault, at moments all over a study's time."""
    options = parser(document, count)
    options.add_argument("--slow-renames", action="store_true", help="every rename takes a quarter of a second")
    arguments = options.parse_args()
    if arguments.slow_renames:
        imported.append(Path(__file__).parent / "slow_renames")
    counts, chance = Counts(title), random.Random(arguments.seed)
    with workplace() as folder:
        finished_study(folder)  # prepares the data, too
        shutil.rmtree(folder / "first")
        seconds = finished_study(folder)[1]
        for number in range(arguments.count):
            one(folder, number, chance, chance.uniform(0.2, seconds), counts)
    return counts.finish()
