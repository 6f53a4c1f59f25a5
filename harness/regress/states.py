"""Finds states of somebody's own repository: a folder as it is, or a revision unpacked into a temporary folder.

A revision is unpacked beside the repository's history (``git archive``): nothing is registered in it. What git does not
hold is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.machine.git import describe_checkout, git
from harness.regress.plan import BASE, HEAD
from harness.regress.text import same_code_note
from trainer.errors import InputError
from trainer.user_code import files

_BRANCHES = 5  # that a message lists
_UNPACK_S = 600
_START_S = 60  # for Python alone


@dataclass(frozen=True)
class State:
    """A state of the user's code: where it lies, and its commit (``+changes`` where files differ from that).

    ``root``: the folder around it that holds all of the repository's files; ``folder`` where there is no repository.
    ``path``: folders of this state that stand for those of the repository here that Python imports from, as from the
    ``src/`` of a project that ``pip install -e`` installed.
    """

    folder: Path
    label: str
    root: Path
    path: tuple[str, ...] = ()


def find_states(base: str, head: str, place: Path) -> tuple[State, State]:
    """Both sides of a comparison, folders or revisions, each as deep within its repository as this folder is.

    Revisions are unpacked within ``place``. InputError where a side is neither, or both are one.
    """
    imported = _import_folders()
    found = _find_state(base, place / BASE, imported), _find_state(head, place / HEAD, imported)
    if found[0].folder == found[1].folder:
        raise InputError(f"--base {base}, --head {head}: both are {found[0].folder}; give two states")
    return found


def note_same_code(states: Sequence[State]) -> None:
    """Print a note where no file that git tracks differs between ``states``."""
    labels = {state.label for state in states}
    if len(labels) == 1:
        print(f"note: {same_code_note(labels.pop())}", file=sys.stderr)


def _find_state(where: str, place: Path, imported: Sequence[Path]) -> State:
    """The folder ``where``, or the revision of that name unpacked into ``place``. ``imported``: see :func:`_path`."""
    if not where:
        raise InputError("an empty name is neither a folder nor a revision")
    here = Path.cwd()
    if Path(where).is_dir():
        folder = Path(where).resolve()
        stands_for, root = _top(here), _top(folder)
        if folder != root / here.relative_to(stands_for):  # not as deep as this folder is
            stands_for, root = here, folder
        return State(folder, describe_checkout(folder) or folder.name, root, _path(root, stands_for, imported))
    try:
        commit = git(here, "rev-parse", "--verify", "--quiet", f"{where}^{{commit}}")
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(
            f"{where}: neither a folder nor a revision of the git repository at {here}{_branches(here)}"
        ) from error
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
    return State(place / within, commit[:12], place, _path(place, top, imported))


def _branches(folder: Path) -> str:
    """List some branches of the repository around ``folder``, as the end of a message; empty where there are none."""
    try:
        refs = git(
            folder, "for-each-ref", f"--count={_BRANCHES}", "--format=%(refname:short)", "refs/heads", "refs/remotes"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"; branches: {', '.join(refs.split())}" if refs else ""


def check_functions(functions: Iterable[tuple[str, str]], states: Iterable[State]) -> list[str]:
    """Which of ``functions`` (a key, and MODULE:FUNCTION) are a library's, and so the same in all states.

    Raises InputError where a state lacks one, so that the code of another would run.
    """
    roots = {state: state.root.resolve() for state in states}
    shared = []
    for key, name in sorted(functions):
        found = {}
        for state in roots:
            try:
                places = [str(state.folder), *state.path]
                found[state] = [path.resolve() for path in files(key, name, places)]
            except InputError as error:
                raise InputError(f"{state.label}: {error}") from error
        first, *others = found.values()
        # An environment within the repository holds packages, too.
        library = first[0].is_relative_to(sys.prefix) or not any(map(first[0].is_relative_to, roots.values()))
        if library and all(other == first for other in others):
            shared.append(f"{name} ({first[0]})")
            continue
        for state, root in roots.items():
            if elsewhere := [path for path in found[state] if not path.is_relative_to(root)]:
                raise InputError(
                    f"{state.label}: {key}: {name}: no such module in {state.folder}, so {elsewhere[0]} would run; "
                    "give a state that has it, and call harness from the folder in which it lies"
                )
    return shared


def _top(folder: Path) -> Path:
    """The repository around ``folder``, or that folder where there is none."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except (OSError, subprocess.SubprocessError):
        return folder


def _import_folders() -> list[Path]:
    """The folders that are on Python's path here."""
    # Asked of a process of its own: this one's path has what its command put there (a folder of tests, for one).
    asked = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path))"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True, timeout=_START_S)
    return [Path(one).resolve() for one in json.loads(done.stdout.splitlines()[-1]) if one]


def _path(root: Path, stands_for: Path, imported: Sequence[Path]) -> tuple[str, ...]:
    """Folders in ``root`` for those of ``imported``, on Python's path, that lie in the repository here."""
    # An environment within the repository holds packages, which are none of the user's code.
    packages = [one for one in (Path(sys.prefix), Path(sys.base_prefix)) if one.is_relative_to(stands_for)]
    found = []
    for place in imported:
        if place.is_relative_to(stands_for) and not any(map(place.is_relative_to, packages)):
            there = root / place.relative_to(stands_for)
            if there != place and there.is_dir():
                found.append(str(there))
    return tuple(found)


@contextmanager
def _archive(top: Path, commit: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["git", "-C", str(top), "archive", commit], stdout=subprocess.PIPE) as archive:
        yield archive
