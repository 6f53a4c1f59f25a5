"""Several starts of one scenario at once, over one empty cache and into one folder; several ``--resume`` of one study.

``python -m tests.campaigns faults.starts --count 4``: N at once. Asked: every start ends with 0 and a whole study of
its own, over the same data; of the resumes at least one completes the study, and any other is refused in one line
because the study is being run.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.campaigns.faults.common import (
    END_S,
    RUNS,
    STEPS,
    Counts,
    Ended,
    finish,
    harness_words,
    measured,
    parser,
    start,
    steps_of,
    workplace,
)


def together(words: list[list[str]]) -> list[Ended]:
    """Start all these commands of the harness at once, and wait for all."""
    processes = [start(harness_words(*one)) for one in words]
    return [finish(process, END_S * len(processes)) for process in processes]


def data_of(study: Path) -> set[str]:
    """What the runs of a study say of their data: one text where all say the same."""
    records = [json.loads(path.read_bytes()) for path in study.glob("runs/*/*/run.json")]
    keys = ("corpus", "tokenizer")
    return {json.dumps({key: record["facts"].get(key) for key in keys}, sort_keys=True) for record in records}


def check_starts(folder: Path, count: int, counts: Counts) -> list[Path]:
    """Start ``count`` studies; return their folders."""
    out = folder / "together"
    for ended in together([["run", str(folder / "faults.yaml"), "--out", str(out)]] * count):
        counts.of(ended, {0}, "one of the starts")
    studies = sorted(path.parent for path in out.glob("faults/*/study.json"))
    if len(studies) != count:
        counts.bad("studies mixed up", f"{len(studies)} folders of {count} starts")
    for study in studies:
        if len(measured(study)) != RUNS or steps_of(study) != [STEPS] * RUNS:
            counts.bad("lost", f"{study.name}: {sorted(measured(study))}, steps {steps_of(study)}")
        else:
            counts.good("whole studies")
    if len(said := set().union(*map(data_of, studies))) != 1:
        counts.bad("different data", "\n".join(sorted(said)))
    left = [path for place in (folder / "cache", out) for path in place.rglob("*") if path.name.endswith(".tmp")]
    if left:
        counts.bad("temporary files left", ", ".join(map(str, left[:5])))
    return studies


def check_resumes(study: Path, count: int, counts: Counts) -> None:
    """Take one run of the study away, and complete it by ``count`` commands at once."""
    lost = sorted(study.glob("runs/*/*"))[0]
    shutil.rmtree(lost)
    before = measured(study)
    ended = together([["run", "--resume", str(study)]] * count)
    for one in ended:
        if one.code == 2 and "another process runs this study" in one.last_line:
            counts.good("resumes refused: the study is being run")
        elif counts.of(one, {0}, "one of the resumes"):
            counts.good("resumes that ended with a whole study")
    after = measured(study)
    if all(one.code != 0 for one in ended):
        counts.bad("nobody completed it", study.name)
    elif len(after) != RUNS or any(after[name] != digest for name, digest in before.items()):
        counts.bad("a finished run changed, or is lost", f"{study.name}: {sorted(after)}")


def main() -> int:
    options = parser(__doc__, 4)
    options.add_argument("--rounds", type=int, default=3, metavar="N", help="each with an empty cache (default: 3)")
    arguments = options.parse_args()
    counts = Counts("several starts at once")
    for _ in range(arguments.rounds):
        with workplace() as folder:
            studies = check_starts(folder, arguments.count, counts)
            if studies:
                check_resumes(studies[0], arguments.count, counts)
    return counts.finish()


if __name__ == "__main__":
    sys.exit(main())
