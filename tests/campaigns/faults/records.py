"""Makes every value of a small study wrong, one at a time, and counts the commands that end in a traceback.

    python -m tests.campaigns faults.records [--cases N] [--seed N] [records] [tables]

A place is a nested value of study.json, run.json, probes.json or a baseline, or a column of a table. One wrong value
after the other stands there; then every command that reads studies is called in this process. It must end with one of
its exit codes, and with one printable line where that is 2. All cases take hours; ``--cases`` draws some of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from harness.cli import main as command_line
from harness.launch.preparation import StudyData
from harness.show.drawing import Picture
from harness.study.store import StudyFolder
from tests.campaigns.faults.table_damage import TABLES, damages
from tests.commands import ROOT

QUICKSTART = ROOT / "results" / "reference" / "quickstart"
ARMS, BLOCKS, DAMAGED_RUN = ("text-padded", "tokens-padded", "text-padded+a-a"), 3, ("text-padded", 0)
HANG_S = 120
EXIT_CODES = (0, 1, 2, 3, 4)
DEEP = "[" * 500 + "]" * 500
# As they stand in the file: some of them Python's json does not write.
WRONG = (
    "null", "true", "-1", "0", "1.5", "1e400", "-1e400", "NaN", "1e-400", "9" * 30, "9" * 5000, "9223372036854775808",
    '""', '"wrong"', '"\\u0000"', '"\\ud800"', '"a\\nb"', '"../../x"', '"' + "x" * 5000 + '"', "[]", "{}", '["wrong"]',
    '{"wrong": 1}', '{"": null}', "[[[[]]]]", '{"a": {"b": {"c": []}}}', DEEP,
)  # fmt: skip
PROBES = {
    "problems": ["x"],
    "missed_samples": {"host": 1},
    "taken_samples": {"host": 9},
    "torch_profiler": {
        "windows": [[10, 20, 0, 1]], "realtime_minus_monotonic_ns": [5, 6], "clock_error_ns": 1,
        "workers": ["loader-0"], "flops": {"aten::mm": 1.0},
    },
    "py_spy": {"rate_hz": 100, "seconds": 1, "pid": 7, "marks": [[1, 2]], "window": [1, 2], "roots": ["/x"]},
    "failed": ["torch_profiler"],
}  # fmt: skip


class Case(NamedTuple):
    """One damage: ``place`` names it, ``apply`` does it to a copy of the study."""

    place: str
    apply: Callable[[Path], None]


@dataclass(frozen=True)
class Failure:
    """A command that did not end as it should."""

    case: str
    command: str
    what: str
    where: str


def small_study(folder: Path) -> Path:
    """A copy of the quickstart with few runs, one of them missing, its report and a baseline beside it."""
    study = folder / "study"
    content = json.loads((QUICKSTART / "study.json").read_text())
    content["arms"] = [arm for arm in content["arms"] if arm["name"] in ARMS]
    content["order"] = [[name for name in order if name in ARMS] for order in content["order"][:BLOCKS]]
    content |= {"blocks": BLOCKS, "fingerprints": {}}
    for arm in ARMS:
        for block in range(BLOCKS):
            shutil.copytree(QUICKSTART / "runs" / arm / str(block), study / "runs" / arm / str(block))
    (study / "study.json").write_text(json.dumps(content))
    for path in study.rglob("run.json"):  # else a changed table counts as damaged, and no type of it is looked at
        path.write_text(json.dumps({**json.loads(path.read_text()), "digests": {}}))
    (StudyFolder(study).run(*DAMAGED_RUN) / "probes.json").write_text(json.dumps(PROBES))
    with nothing_runs(), contextlib.redirect_stdout(io.StringIO()):
        assert command_line(["report", str(study)]) == 0
        assert command_line(["baseline", "save", str(study), "--baselines", str(folder / "kept")]) == 0
    shutil.rmtree(study / "runs" / ARMS[1] / str(BLOCKS - 1))
    return folder


def record_cases(folder: Path) -> Iterator[Case]:
    """Every nested value of every record, with every wrong value."""
    run = StudyFolder(folder / "study").run(*DAMAGED_RUN)
    kept = sorted((folder / "kept").rglob("*.json"))[0]
    for path in (folder / "study" / "study.json", run / "run.json", run / "probes.json", kept):
        name, content = path.relative_to(folder), json.loads(path.read_text())
        for where in places(content):
            for wrong in WRONG:
                text = replaced(content, where, wrong)
                shown = f"{name}: {'.'.join(map(str, where))} = {wrong[:30]}"
                yield Case(shown, lambda copy, name=name, text=text: (copy / name).write_text(text) and None)


def places(content: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value, the whole among them."""
    yield where
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield from places(value, (*where, key))


def replaced(content: Any, where: tuple[str | int, ...], wrong: str) -> str:
    """The JSON text of ``content`` with that text for the value at ``where``."""
    mark = "@wrong value@"
    copy = json.loads(json.dumps({"": content}))
    parent: Any = copy
    *above, last = ("", *where)
    for key in above:
        parent = parent[key]
    parent[last] = mark
    return json.dumps(copy[""]).replace(f'"{mark}"', wrong)


def table_cases(folder: Path) -> Iterator[Case]:
    """Every column of every table with every damage."""
    run = StudyFolder(folder / "study").run(*DAMAGED_RUN).relative_to(folder)
    for name in TABLES:
        path = run / f"{name}.parquet"
        for column, what, change in damages(folder / path):
            yield Case(f"{path}: {column} {what}", lambda copy, path=path, change=change: change(copy / path))


def commands(folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """Every command that reads a study, but for the server of ``trace`` and the runs of ``run --resume``."""
    study, kept = str(folder / "study"), str(folder / "kept")
    for words in (
        ["report", study],
        ["compare", study, study, "--baselines", kept],
        ["whatif", study, "--arm", ARMS[0], "--set", "workers=1", "--sweep", "batch_size=1,2", "--out", study],
        ["baseline", "check", study, "--baselines", kept],
        ["baseline", "list", "--baselines", kept],
        ["baseline", "save", study, "--baselines", kept],
        ["trace", study, "--run", "/".join(map(str, DAMAGED_RUN)), "--no-browser"],
        ["run", "--resume", study],
    ):
        yield " ".join(words[:2] if words[0] == "baseline" else words[:1]), lambda words=words: command_line(words)


@contextlib.contextmanager
def nothing_runs() -> Iterator[None]:
    """No picture is drawn, no run is started, no browser is waited for; everything else is as it is."""
    picture = Picture(b"\x89PNG\r\n\x1a\n", '<svg viewBox="0 0 1 1"></svg>')
    with (
        mock.patch("harness.show.plots.drawn", return_value=picture),
        mock.patch("harness.show.sweeps.drawn", return_value=picture),
        mock.patch("harness.launch.study.prepare_data", return_value=StudyData([], {}, defaultdict(dict))),
        mock.patch("harness.launch.study.run_block", return_value=None),
        mock.patch("harness.commands.trace._serve", return_value=None),
        mock.patch("harness.commands.run.print_first_screen", return_value=None),  # `report` has built it already
    ):
        yield


def tried(case: Case, folder: Path, without: Sequence[str] = ()) -> list[Failure]:
    """What goes wrong with a copy of the study in ``folder`` that is so damaged; ``without``: commands left out."""
    failures = []
    with tempfile.TemporaryDirectory() as scratch, nothing_runs():
        copy = Path(scratch) / "s"
        shutil.copytree(folder, copy)
        case.apply(copy)
        for name, call in commands(copy):
            problem = None if name in without else ending(call)
            if problem is not None:
                failures.append(Failure(case.place, name, *problem))
    return failures


def ending(call: Callable[[], int]) -> tuple[str, str] | None:
    """What is wrong with how a command ended, and where; None where nothing is."""

    def hung(*_: object) -> None:
        raise TimeoutError(f"not ended in {HANG_S} s")

    out, errors = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HANG_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = call()
    except Exception as error:  # whatever a user would see as a traceback
        frames = [one for one in traceback.extract_tb(error.__traceback__) if "/harness/" in one.filename]
        last = frames[-1] if frames else None
        where = "" if last is None else f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno}"
        return f"{type(error).__name__}: {str(error)[:100]}", where
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    line = errors.getvalue().rstrip("\n").rpartition("\n")[2]
    if code not in EXIT_CODES:
        return f"exit code {code}", ""
    return (f"not one printable line: {line!r:.100}", "") if code == 2 and not line.isprintable() else None


def campaign(folder: Path, cases: Sequence[Case]) -> list[Failure]:
    """All of them, with a line about each failure as it is met and one every so often."""
    failures: list[Failure] = []
    for number, case in enumerate(cases, 1):
        for one in tried(case, folder):
            failures.append(one)
            print(f"{one.command}: {one.case}: {one.what} ({one.where})", flush=True)
        if number % 200 == 0:
            print(f"... {number} of {len(cases)}", flush=True)
    return failures


WHAT = ("records", "tables")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="records|tables", help="default: both")
    parser.add_argument("--cases", type=int, metavar="N", help="so many cases, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    chosen.what = chosen.what or list(WHAT)  # argparse of Python 3.11 holds a default list against the choices
    if set(chosen.what) - set(WHAT):
        parser.error(f"allowed: {', '.join(WHAT)}")
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = small_study(Path(scratch))
        for what, make in (("records", record_cases), ("tables", table_cases)):
            if what not in chosen.what:
                continue
            cases = list(make(folder))
            if chosen.cases is not None:
                cases = random.Random(chosen.seed).sample(cases, min(chosen.cases, len(cases)))
            found = campaign(folder, cases)
            failed |= bool(found)
            print(f"{what}: {len({one.case for one in found})} of {len(cases)} damages end a command in a traceback")
            for (where, kind), times in Counter((one.where, one.what.partition(":")[0]) for one in found).most_common():
                print(f"  {times} x {kind} in {where}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
