"""Run a block, or all of a study, in a job of Slurm (see batch.py), which records its own begin and end."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from harness.launch.study import run_part
from harness.study.records import now
from harness.study.store import write_json
from trainer.errors import InputError, in_words
from trainer.files import read_json

EXITS = {"done": 0, "failed": 1, "refused": 2, "interrupted": 130}


@dataclass(frozen=True)
class JobEnding:
    """Record of a job, "running" until it writes its end; "refused": the study cannot run there."""

    job: str
    node: str
    status: Literal["running", "done", "failed", "refused", "interrupted"] = "running"
    error: str | None = None
    begun_utc: str = ""
    ended_utc: str = ""


def read_ending(path: Path) -> JobEnding | None:
    """Return the record that a job has written to ``path``; None if the file is missing or damaged."""
    try:
        content = read_json(path)
        return JobEnding(**{field.name: content[field.name] for field in fields(JobEnding) if field.name in content})
    except (OSError, ValueError, TypeError):
        return None


def own_job(environ: dict[str, str]) -> str:
    """Return the id of this job as squeue shows it: 12, or 12_3 in an array."""
    array, element = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{element}" if array and element else environ.get("SLURM_JOB_ID", "none")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.launch.slurm.job", description=__doc__)
    parser.add_argument("study", type=Path, metavar="STUDY")
    parser.add_argument("--block", type=int, metavar="B", help="this block alone")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="record of the job")
    parser.add_argument("--force", action="store_true", help="even if it cannot fit into memory")
    options = parser.parse_args(arguments)
    begun = JobEnding(own_job(dict(os.environ)), socket.gethostname(), begun_utc=now())
    write_json(options.record, asdict(begun))
    ending = replace(begun, status="failed")
    try:
        is_done = run_part(options.study, options.block, options.force)
        ending = replace(begun, status="done" if is_done else "failed")
    except KeyboardInterrupt:
        ending = replace(begun, status="interrupted", error="a signal ended it (time limit, scancel or preemption)")
    except InputError as error:
        ending = replace(begun, status="refused", error=str(error))
    except Exception as error:
        traceback.print_exc()
        ending = replace(begun, error=in_words(error))
    finally:
        write_json(options.record, asdict(replace(ending, ended_utc=now())))
    if ending.error is not None:
        print(f"harness: job {ending.job}: {ending.error}", file=sys.stderr)
    return EXITS[ending.status]


if __name__ == "__main__":
    sys.exit(main())
