"""``python -m tests.gpu.lease --minutes N``: run the most valuable jobs that have no result for this card yet.

Each job runs in a process of its own with a time limit, and its result is kept as soon as it ends.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import shutil
import signal
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from harness.machine.environment import describe_checkout
from tests.gpu.lease import page
from tests.gpu.lease.place import CUDA, EMULATED
from tests.gpu.lease.plan import Card, Choice, plan, refusal
from tests.gpu.lease.processes import ROOT, run_limited
from tests.gpu.lease.sheet import CUT, DONE, FAILED, Result
from tests.gpu.lease.table import JOBS, Job

RESULTS = ROOT / "results" / "reference" / "gpu"
_LAST_LINES = 12  # of a failed job's output
_LEAST_S = 20.0  # a job is not started with less


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    if arguments.page:
        page.update(arguments.results / "README.md", JOBS, arguments.results)
        return 0
    card = Card("emulated", float("inf")) if arguments.device == EMULATED else _card()
    seconds = 60 * arguments.minutes
    if arguments.plan:
        print(f"Card: {card.name if card else 'none'}. Results: {_short(arguments.results)}. {seconds:.0f} s.\n")
        print(plan_table(plan(JOBS, arguments.results, card, seconds, only=arguments.only)))
        return 0
    if card is None:
        print("error: torch finds no CUDA device here; --plan shows the jobs, --device emulated tries the runner")
        return 2
    with _alone(arguments.results / card.folder) as alone, _ends_jobs():
        if not alone:
            print(f"error: another runner writes {_short(arguments.results / card.folder)}; wait until it has ended")
            return 2
        results = run(card, seconds, arguments)
    print(result_table(results))
    return 0 if all(result.status == DONE for result in results) else 1


def run(card: Card, seconds: float, arguments: argparse.Namespace) -> list[Result]:
    """Run the jobs that fit, one after the other, and return what they left."""
    begun = time.monotonic()
    results = []
    commit = arguments.commit or describe_checkout(ROOT) or "unknown"
    with tempfile.TemporaryDirectory(prefix="lease-") as scratch:
        for choice in plan(JOBS, arguments.results, card, float("inf"), only=arguments.only):
            left_s = begun + seconds - time.monotonic()
            if choice.start_s is None or refusal(choice.job, choice.before, card, left_s, arguments.only):
                continue
            print(f"{choice.job.name}: {choice.job.seconds} s expected, {left_s:.0f} left", flush=True)
            work = Path(arguments.work or scratch) / choice.job.name
            # What is computed on paper holds no card, so a busy machine may take longer.
            limit_s = max(_LEAST_S, left_s if arguments.device == EMULATED else min(choice.job.limit_s, left_s))
            result = _run_job(choice.job, card, work, limit_s, commit, arguments.device)
            print(f"  {result.status} after {result.seconds:.0f} s, {len(result.figures)} figures", flush=True)
            results.append(_keep(result, work / "out", arguments.results / card.folder / choice.job.name))
            if arguments.archive:
                _archive(arguments.results / card.folder, arguments.archive)
    return results


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Lock ``folder`` against a second runner, which would disturb the jobs and replace results; False if locked."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


@contextmanager
def _ends_jobs() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the runner as an exception does, so that the running job ends with it."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = [(one, signal.signal(one, end)) for one in (signal.SIGTERM, signal.SIGHUP)]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)


def _run_job(job: Job, card: Card, work: Path, limit_s: float, commit: str, device: str) -> Result:
    """Run one job; its result is in ``work``/out, also if it was killed before it began."""
    out = work / "out"
    shutil.rmtree(work, ignore_errors=True)
    (work / "scratch").mkdir(parents=True)
    begun = time.monotonic()
    words = ["-m", "tests.gpu.lease.job", job.name, "--out", str(out), "--work", str(work / "scratch")]
    words += ["--seconds", f"{limit_s:.0f}", "--device", device, "--commit", commit]
    code = run_limited(words, work / "log.txt", limit_s)
    result = Result.read(out) or Result(job.name, card.name, device == EMULATED, _today(), commit)
    result.seconds = round(time.monotonic() - begun, 1)
    if code != 0:
        result.status = CUT if code is None else FAILED
        result.problem = "\n".join((work / "log.txt").read_text(errors="replace").splitlines()[-_LAST_LINES:])
        print(result.problem, flush=True)
    result.write(out)
    return result


def _keep(result: Result, out: Path, folder: Path) -> Result:
    """Move ``out`` to where results are, unless it says less than what is there."""
    before = Result.read(folder)
    if before is not None and result.status != DONE and _completeness(result) < _completeness(before):
        print(f"  kept the result of {before.date}, which is more complete", flush=True)
        return result
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(out, folder)
    return result


def _completeness(result: Result) -> tuple[int, bool]:
    return len(result.figures), result.status == DONE


def _archive(results: Path, archive: Path) -> None:
    """Write all results of this card as one file: what a lent machine gives back."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_name(f".{archive.name}")
    with tarfile.open(new, "w:gz") as tar:
        tar.add(results, arcname=results.name)
    new.replace(archive)


def plan_table(choices: Sequence[Choice]) -> str:
    """Return one line for each job: when it would start, how long it takes, and why."""
    lines = [f"{'job':<14} {'start':>7} {'seconds':>8}  {'state':<34} question"]
    for choice in choices:
        start = "–" if choice.start_s is None else f"{choice.start_s} s"
        lines.append(
            f"{choice.job.name:<14} {start:>7} {choice.job.seconds:>8}  {choice.reason:<34} {choice.job.question}"
        )
    total_s = sum(choice.job.seconds for choice in choices if choice.start_s is not None)
    return "\n".join([*lines, f"{total_s} s expected in all."])


def result_table(results: Sequence[Result]) -> str:
    """Return one line for each figure that was measured."""
    lines = [f"{'job':<14} {'figure':<60} {'asked':<24} {'seen':<32} met"]
    for result in results:
        lines.append(f"{result.job:<14} {result.status} in {result.seconds:.0f} s")
        for one in result.figures:
            met = {True: "yes", False: "NO", None: ""}[one.holds]
            lines.append(f"{'':<14} {one.name:<60} {one.asked:<24} {page.seen(one):<32} {met}")
    return "\n".join(lines)


def _card() -> Card | None:
    import torch

    if not torch.cuda.is_available():
        return None
    return Card(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory / 2**30)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not math.isfinite(minutes) or minutes <= 0:
        raise argparse.ArgumentTypeError(f"{text} is no time: give minutes above 0")
    return minutes


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.lease", description=__doc__)
    parser.add_argument("--minutes", type=_minutes, default=13, help="time of the lease that is left (default: 13)")
    parser.add_argument("--plan", action="store_true", help="print the jobs and run nothing")
    parser.add_argument("--page", action="store_true", help="write the table of results into README.md, run nothing")
    parser.add_argument("--only", nargs="+", default=[], choices=[job.name for job in JOBS], metavar="JOB")
    parser.add_argument("--device", choices=(CUDA, EMULATED), default=CUDA)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results (default: the reference's)")
    parser.add_argument("--work", type=Path, help="scratch folder, kept (default: a temporary one)")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="after each job, write all results as one .tar.gz")
    parser.add_argument("--commit", help="of the code, where the tree is carried without git")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
