"""``python -m tests.campaigns attached_truth.survival --out FOLDER``.

Commands that die, alone and under ``harness exec``. Each launcher starts a program that ends in one of several ways
after its 20th step (programs/dies.py). Exit codes are compared as a shell has them (128 + the signal's number), and the
steps that the study has are counted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from tests.campaigns.attached_truth.common import HERE, ROOT
from tests.campaigns.attached_truth.programs.dies import AFTER, STEPS, WAYS

PROGRAM = HERE / "programs" / "dies.py"
LOST = 1  # steps at most


def launchers(folder: Path, way: str) -> dict[str, list[str]]:
    """The same program in each way that people start it."""
    script = folder / "train.sh"
    script.write_text(f"#!/bin/sh\necho starting\n'{sys.executable}' '{PROGRAM}' '{way}'\n")
    beside = Path(sys.executable).parent
    torchrun = [str(beside / "torchrun"), "--standalone", "--local-addr", "127.0.0.1"]
    found = {
        "python": [sys.executable, str(PROGRAM), way],
        "python -m": [sys.executable, "-m", "tests.campaigns.attached_truth.programs.dies", way],
        "a shell script": ["sh", str(script)],
        "torchrun, 1 rank": [*torchrun, "--nproc-per-node", "1", str(PROGRAM), way],
        "torchrun, 2 ranks": [*torchrun, "--nproc-per-node", "2", str(PROGRAM), way],
    }
    if (beside / "accelerate").exists():
        found["accelerate launch"] = [
            str(beside / "accelerate"), "launch", "--cpu", "--num_processes", "1", str(PROGRAM), way
        ]  # fmt: skip
    return found


def code_of(command: Sequence[str]) -> int:
    """The exit code that a shell would have of it."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, timeout=300, check=False).returncode
    return code if code >= 0 else 128 - code


def kept_steps(out: Path) -> list[int]:
    """Of each process that took any, how many steps the study has."""
    steps: dict[str, set[int]] = {}
    for table in out.rglob("steps.parquet"):
        found = pq.read_table(table, columns=["step"])["step"].to_pylist()
        steps.setdefault(table.parents[1].name, set()).update(found)
    return sorted(map(len, steps.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for survival.md")
    arguments = parser.parse_args()
    rows, wrong = [], 0
    with TemporaryDirectory(prefix="harness-survival-") as name:
        for way in WAYS:
            for number, (launcher, command) in enumerate(launchers(Path(name), way).items()):
                out = Path(name) / f"{way}-{number}"
                alone = code_of(command)
                attached = code_of([sys.executable, "-m", "harness", "exec", "--out", str(out), "--", *command])
                kept, due = kept_steps(out), STEPS if way == "ends" else AFTER
                ranks = 2 if "2 ranks" in launcher else 1
                # The launcher ends the other rank when the first one has died: how far that came is chance.
                good = alone == attached and len(kept) == ranks and max(kept, default=0) >= due - LOST
                wrong += not good
                counts = ", ".join(map(str, kept)) or "none"
                rows.append(f"| {launcher} | {way} | {alone} | {attached} | {counts} | {'yes' if good else '**no**'} |")
                print(rows[-1], flush=True)
    page = [
        "# Commands that die, alone and under `harness exec`",
        "",
        "`python -m tests.campaigns attached_truth.survival --out results/reference/attached-truth`: each program "
        f"comes to its end after {AFTER} of {STEPS} steps (*ends*: after all of them), in each rank. Exit codes as a "
        f"shell has them. Asked: the same code, and no more than {LOST} step's record lost. "
        f"{len(rows) - wrong} of {len(rows)} hold.",
        "",
        "| launcher | way | exit code alone | under harness exec | steps in the study, by process | holds |",
        "| --- | --- | ---: | ---: | --- | --- |",
        *rows,
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "survival.md").write_text("\n".join(page) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
