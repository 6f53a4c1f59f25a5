"""Look at a program that ``harness exec`` records, while it runs: the study of its last minutes, apart from its record.

It reads the record only.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.attach.command import MARK
from harness.attach.study import make_study
from harness.machine.files import ROOT, read_text
from harness.machine.processes import by_variable
from harness.study.contract import RAW
from harness.study.records import now
from harness.study.store import StudyFolder
from trainer.errors import InputError

# The open segment of each process and the one before it. If a further one begins during a look, the launcher still
# keeps both whole (retention.LAST).
RECENT_SEGMENTS = 2


@dataclass(frozen=True)
class RecordedProgram:
    """A command that is recorded: the folder of its record, and its processes."""

    raw: Path
    pids: tuple[int, ...]

    @cached_property
    def command(self) -> list[str]:
        """Words of the first process's command line, as first read; empty if it had ended by then."""
        return (read_text(ROOT / "proc" / str(self.pids[0]) / "cmdline") or "").split("\0")[:-1]


def recorded_programs(root: Path = ROOT) -> list[RecordedProgram]:
    """Return the programs that ``harness exec`` records on this machine now, if this user may read their processes."""
    programs = by_variable(MARK, root).items()
    return [RecordedProgram(Path(raw), tuple(pids)) for raw, pids in programs if raw and Path(raw).is_dir()]


def find_program(target: str | None, programs: list[RecordedProgram]) -> RecordedProgram:
    """Return the program with the process id or study folder ``target``; without, the only one. Raises InputError."""
    if target is None:
        if len(programs) == 1:
            return programs[0]
        pids = ", ".join(str(program.pids[0]) for program in programs)
        reason = f"several programs are recorded: give a PID ({pids})" if programs else "no program is recorded now"
        raise InputError(reason)
    for program in programs:
        if target.isdecimal() and int(target) in program.pids:
            return program
        with suppress(OSError):
            if (Path(target) / RAW).samefile(program.raw):
                return program
    raise InputError(
        f"{target}: no program that harness exec records now; allowed: the PID of one of its processes, or the "
        "folder of its study"
    )


def recent_study(program: RecordedProgram, folder: Path) -> bool:
    """Make a study of each process's last RECENT_SEGMENTS files in the empty ``folder``; False if they have no step."""
    result = make_study(StudyFolder(folder), program.raw, program.command, [], now(), recent=RECENT_SEGMENTS)
    return bool(result.trained)


def is_over(program: RecordedProgram, root: Path = ROOT) -> bool:
    """Return True if all processes of the program have ended, or its record is gone."""
    return not program.raw.is_dir() or not any((root / "proc" / str(pid)).exists() for pid in program.pids)
