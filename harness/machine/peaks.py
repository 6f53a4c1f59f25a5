"""The largest resident memory that processes ever had."""

from __future__ import annotations

from pathlib import Path


def session_peak_bytes(session: int) -> int | None:
    """Sum over the living processes of ``session`` of their peak resident memory (VmHWM); None where none tells.

    A page that several of them share counts in each: the sum bounds what they held, and grows as they do.
    """
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) != session:
                continue
            lines = (folder / "status").read_bytes().splitlines()
            found = next((line for line in lines if line.startswith(b"VmHWM")), None)
        except OSError:  # it has ended meanwhile, or is not ours to read
            continue
        if found is not None:
            total += int(found.split()[1]) * 1024
    return total or None
