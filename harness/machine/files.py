"""Read files of /proc and /sys. A missing, forbidden or malformed file gives None or an empty value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
MOST_NUMBERS = 2**16  # maximum length of a range; no machine has more CPUs


def read_text(path: Path) -> str | None:
    """Return the stripped content; None if the file is missing or unreadable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Return the integer in a file; None for other content such as "max", or if the file is unreadable."""
    return to_int(read_text(path))


def to_int(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def read_fields(path: Path, separator: str | None = None) -> dict[str, str]:
    """Parse lines of name, ``separator`` (None: white space), value. A name's first line counts. {} if unreadable."""
    fields: dict[str, str] = {}
    for line in (read_text(path) or "").splitlines():
        name, *value = line.split(separator, 1)
        if value:
            fields.setdefault(name.strip(), value[0].strip())
    return fields


def parse_list(text: str | None) -> tuple[int, ...]:
    """Parse the kernel's list format: "0-3,8" is (0, 1, 2, 3, 8); anything else is ()."""
    numbers: list[int] = []
    for part in filter(None, (piece.strip() for piece in (text or "").split(","))):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= MOST_NUMBERS:
            return ()
        numbers += range(first, last + 1)
    return tuple(numbers)


@dataclass(frozen=True)
class Mount:
    """One mounted file system: a line of mountinfo (proc_pid_mountinfo(5))."""

    point: str
    root: str  # Path inside the file system that is mounted there
    kind: str
    options: tuple[str, ...]  # Options of the mount and of the file system

    def option(self, name: str) -> str | None:
        """Return the value of the option ``name=value``; "" for a bare ``name``; None if it is not set."""
        for option in self.options:
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None


def read_mounts(root: Path = ROOT) -> list[Mount]:
    """Return the mounts of this process in order. A later mount on the same point hides an earlier one."""
    mounts = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        head, _, tail = line.partition(" - ")
        fields, filesystem = head.split(), tail.split()
        if len(fields) < 6 or len(filesystem) < 3:
            continue
        options = (*fields[5].split(","), *filesystem[2].split(","))
        mounts.append(Mount(_unescape(fields[4]), _unescape(fields[3]), filesystem[0], options))
    return mounts


def mount_of(path: Path, mounts: list[Mount]) -> Mount | None:
    """Return the deepest mount that contains an absolute path, the last of equally deep ones; None without one."""
    candidates = [mount for mount in reversed(mounts) if path.is_relative_to(mount.point)]
    return max(candidates, key=lambda mount: len(Path(mount.point).parts), default=None)  # the first of equal ones


def below(root: Path, path: str) -> Path:
    """Return the path at which the absolute ``path`` of the examined system lies, if its files are below ``root``."""
    return root / path.lstrip("/")


def _unescape(text: str) -> str:
    """Decode characters such as blanks, which mountinfo writes as a backslash and three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
