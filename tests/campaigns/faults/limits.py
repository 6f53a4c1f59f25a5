"""A small study under limits: few open files and processes, small files, little address space, no place to write.

``python -m tests.campaigns faults.limits``. Asked: it ends within its time with 0 (it got by), 1 (a run failed) or 2
(refused in one line), never with a traceback on the terminal. A run that failed must say so in its run.json. What this
machine cannot try (a mount without rights, a limit that root ignores) is listed, and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.faults.common import Counts, finished_study, harness_words, run, workplace

# The harness's own limits in this study. By default they are 15 and 10 minutes, which a slow disk survives.
SILENCE = "limits: {start_s: 60, silence_s: 60}\n"
LIMIT_S = 240.0  # longer than those of both runs of a block together
NOBODY = 65534


@dataclass(frozen=True)
class Case:
    """What the shell does before the study starts. ``{out}`` is the folder for studies, ``{fault}`` a spare one."""

    name: str
    before: str
    out: str = "{out}"
    unshared: bool = False
    """In a mount namespace of its own."""
    user: int | None = None


TMPFS = "mount -t tmpfs -o size={size} tmpfs {{fault}}"
CASES = (
    *(Case(f"open files {count}", f"ulimit -n {count}") for count in (6, 10, 16, 32, 64, 128)),
    *(Case(f"processes {count}", f"ulimit -u {count}", user=NOBODY) for count in (1, 4, 16)),
    *(Case(f"file size {blocks} KiB", f"ulimit -f {blocks}") for blocks in (0, 1, 8, 64)),
    *(Case(f"address space {mib} MiB", f"ulimit -v {mib * 1024}") for mib in (100, 400, 1000, 3000)),
    Case("read-only folder", "chmod 555 {fault}", out="{fault}", user=NOBODY),
    Case(
        "read-only file system", TMPFS.format(size="1m") + " && mount -o remount,ro {fault}", "{fault}", unshared=True
    ),
    *(Case(f"disk of {size}", TMPFS.format(size=size), "{fault}", unshared=True) for size in ("4k", "64k", "300k")),
    Case("cache on a disk of 64k", TMPFS.format(size="64k") + " && export HARNESS_CACHE={fault}/cache", unshared=True),
    Case("shared memory of 128 KiB", "mount -t tmpfs -o size=128k tmpfs /dev/shm", unshared=True),
    Case("no /proc", "mount -t tmpfs tmpfs /proc", unshared=True),
    Case("no place for temporary files", "export TMPDIR=/nowhere"),
    Case("output is full", "exec >/dev/full"),
    Case("output and errors closed", "exec >&- 2>&-"),
)


def command_of(case: Case, folder: Path) -> list[str]:
    places = {"out": shlex.quote(str(folder / "out")), "fault": shlex.quote(str(folder / "fault"))}
    study = shlex.join(harness_words("run", str(folder / "faults.yaml"), "--out"))
    script = f"{case.before.format(**places)} || exit 77; exec {study} {case.out.format(**places)}"
    words = ["bash", "-c", script]
    return ["unshare", "--mount", "--propagation", "private", *words] if case.unshared else words


def possible(case: Case) -> bool:
    if case.user is not None:  # who may not start this Python cannot try it; whoever is no root cannot become another
        settings = {"user": case.user, "group": case.user}
        try:
            return (
                subprocess.run([sys.executable, "-c", ""], capture_output=True, check=False, **settings).returncode == 0
            )
        except OSError:
            return False
    if not case.unshared:
        return True
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return (
        shutil.which(words[0]) is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


def one_case(case: Case, folder: Path, counts: Counts) -> None:
    for name in ("out", "fault"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
        if case.user is not None:
            os.chown(folder / name, case.user, case.user)
    settings = {} if case.user is None else {"user": case.user, "group": case.user}
    ended = run(command_of(case, folder), LIMIT_S, cwd=folder, **settings)
    if ended.problem is not None:
        counts.bad(ended.problem, f"{case.name}\n{ended.err[-2500:]}")
    elif ended.code == 77:
        counts.good("not possible here")
    elif ended.code not in (0, 1, 2):
        counts.bad(f"exit code {ended.code}", f"{case.name}: {ended.err[-600:]}")
    elif ended.code == 1 and "failed" not in ended.err + ended.out and (silent := _silent(folder / "out")):
        counts.bad("failed without a word", f"{case.name}: {silent}")
    else:
        counts.good(f"exit code {ended.code}")
        print(f"{case.name}: {ended.code}: {ended.last_line[:160]}", flush=True)


def _silent(out: Path) -> list[str]:
    """Runs that failed and do not say why."""
    records = [json.loads(path.read_bytes()) for path in out.glob("faults/*/runs/*/*/run.json")]
    return [one["arm"] for one in records if one["status"] == "failed" and not one["error"]]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--only", action="append", metavar="TEXT", help="only cases whose name contains this; may be repeated"
    )
    arguments = options.parse_args()
    counts = Counts("limits")
    with workplace() as folder:
        finished_study(folder)  # the data is prepared: each case begins with the study itself
        scenario = folder / "faults.yaml"
        scenario.write_text(scenario.read_text() + SILENCE)
        for path in (folder, *folder.rglob("*")):  # for cases that run as another user
            path.chmod(0o777 if path.is_dir() else 0o666)
        for case in CASES:
            if not any(text in case.name for text in arguments.only or [""]):
                continue
            if possible(case):
                one_case(case, folder, counts)
            else:
                counts.good("not possible here")
                print(f"{case.name}: not possible here")
    return counts.finish()


if __name__ == "__main__":
    sys.exit(main())
