"""Look at a program that ``harness exec`` records, while it runs: the study of its last minutes, apart from its record.

Reads the record only. The program and its launcher do not notice.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.attach.command import MARK
from harness.attach.study import make_study
from harness.machine.files import ROOT, read_text
from harness.study.contract import RAW
from harness.study.records import now
from harness.study.store import StudyFolder
from trainer.errors import InputError

RECENT_SEGMENTS = 3  # of each process: the open one and the two before it, which the launcher keeps whole


@dataclass(frozen=True)
class RecordedProgram:
    """A command that is recorded: the folder of its record, and its processes."""

    raw: Path
    pids: tuple[int, ...]


def recorded_programs(root: Path = ROOT) -> list[RecordedProgram]:
    """Return all programs that ``harness exec`` records on this machine now, of the processes that one may look at."""
    pids: dict[str, list[int]] = {}
    for folder in (root / "proc").iterdir():
        if folder.name.isdecimal():
            for entry in (read_text(folder / "environ") or "").split("\0"):
                name, _, value = entry.partition("=")
                if name == MARK and value:
                    pids.setdefault(value, []).append(int(folder.name))
    return [RecordedProgram(Path(raw), tuple(sorted(pids[raw]))) for raw in sorted(pids) if Path(raw).is_dir()]


def find_program(target: str | None, programs: list[RecordedProgram]) -> RecordedProgram:
    """Return the program with the process id or study folder ``target``; without, the only one. Raises InputError."""
    if target is None:
        if len(programs) == 1:
            return programs[0]
        pids = ", ".join(str(program.pids[0]) for program in programs)
        reason = f"several programs are recorded: give a PID ({pids})" if programs else "no program is recorded now"
        raise InputError(f"watch: {reason}")
    for program in programs:
        if target.isdecimal() and int(target) in program.pids:
            return program
        with suppress(OSError):
            if (Path(target) / RAW).samefile(program.raw):
                return program
    raise InputError(
        f"watch: {target}: no program that harness exec records now; allowed: the PID of one of its processes, or the "
        "folder of its study"
    )


def recent_study(program: RecordedProgram, folder: Path) -> bool:
    """Make the study of the program's last minutes in the empty ``folder``; False if no step was recorded yet."""
    result = make_study(StudyFolder(folder), program.raw, [], [], now(), recent=RECENT_SEGMENTS)
    return bool(result.trained)


def is_over(program: RecordedProgram, root: Path = ROOT) -> bool:
    """Return True if all processes of the program have ended, or its record is gone."""
    return not program.raw.is_dir() or not any((root / "proc" / str(pid)).exists() for pid in program.pids)
