"""Finds states of somebody's own repository: a folder as it is, or a revision unpacked into a temporary folder.

A revision is unpacked beside the repository's history (``git archive``): nothing is registered in it. What git does not
hold is not there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.machine.git import describe_checkout, git
from harness.regression.plan import BASE, HEAD
from trainer.errors import InputError

_UNPACK_S = 600


@dataclass(frozen=True)
class State:
    """A state of the user's code: where it lies, and its commit (``+changes`` where files differ from that).

    ``root``: the folder around it that holds all of the repository's files; ``folder`` where there is no repository.
    """

    folder: Path
    label: str
    root: Path

    def path(self) -> list[str]:
        """Folders of this state that stand for those of the repository here that this process imports from.

        Code of the user's own may lie in them, as in the ``src/`` of a project that ``pip install -e`` installed.
        """
        here, top = Path.cwd(), _top(Path.cwd())
        # An environment within the repository holds packages, which are none of the user's code.
        packages = [one for one in (Path(sys.prefix), Path(sys.base_prefix)) if one.is_relative_to(top)]
        found = []
        for place in (Path(one).resolve() for one in sys.path if one):
            if place != here and place.is_relative_to(top) and not any(map(place.is_relative_to, packages)):
                there = self.root / place.relative_to(top)
                if there != place and there.is_dir():
                    found.append(str(there))
        return found


def find_states(base: str, head: str, place: Path) -> tuple[State, State]:
    """Both sides of a comparison; revisions are unpacked within ``place``. InputError where they are one."""
    found = find_state(base, place / BASE), find_state(head, place / HEAD)
    if found[0].folder == found[1].folder:
        raise InputError(f"--base {base}, --head {head}: both are {found[0].folder}; give two states")
    return found


def find_state(where: str, place: Path) -> State:
    """The folder ``where``, or the revision of that name unpacked into ``place``; as deep within as this folder is."""
    if not where:
        raise InputError("an empty name is neither a folder nor a revision")
    here = Path.cwd()
    if Path(where).is_dir():
        folder = Path(where).resolve()
        within = here.relative_to(_top(here))
        root = _top(folder)
        if folder != root / within:  # not as deep as this folder is
            root = folder
        return State(folder, describe_checkout(folder) or folder.name, root)
    try:
        commit = git(here, "rev-parse", "--verify", "--quiet", f"{where}^{{commit}}")
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"{where}: neither a folder nor a revision of the git repository at {here}") from error
    top = _top(here)
    within = here.relative_to(top)
    place.mkdir()
    with _archive(top, commit) as archive:
        done = subprocess.run(
            ["tar", "-x", "-C", str(place)], stdin=archive.stdout, capture_output=True, text=True, timeout=_UNPACK_S
        )
    if done.returncode or archive.returncode:
        raise InputError(f"{where}: cannot be unpacked ({done.stderr.strip() or 'git archive failed'})")
    if not (place / within).is_dir():
        raise InputError(f"{where}: has no folder {within}")
    return State(place / within, commit[:12], place)


def _top(folder: Path) -> Path:
    """The repository around ``folder``, or that folder where there is none."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except (OSError, subprocess.SubprocessError):
        return folder


@contextmanager
def _archive(top: Path, commit: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["git", "-C", str(top), "archive", commit], stdout=subprocess.PIPE) as archive:
        yield archive
