"""Copies a folder (a training, a sweep, a corpus) behind a URL (s3://, gs://, what fsspec knows).

It does so in a thread that no step waits for.

Nothing is moved: the local files stay as they are. A copy that fails is tried again, a few times with growing pauses,
then with the next checkpoint, and once more at the end. Before anything is trained a small file is written there and
removed: a place that takes nothing is better known then. What was copied is kept in ``uploads.json``, so that whoever
goes on, ``harness train --resume`` or ``harness upload``, copies only what is new. A checkpoint that was removed here,
as newer ones are kept, is removed there once these are whole.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness.launch.training_files import CHECKPOINTS
from harness.probes.nvml.worker import Worker
from harness.study.store import write_json
from trainer.data.corpus.places import filesystem_of
from trainer.errors import InputError, one_line
from trainer.files import read_json

KEPT = "uploads.json"
KEY = "upload"
ATTEMPTS = 5  # of each file, in one pass over the folder
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # before the second attempt, doubled before each further one
END_S = 600.0  # for what is left when the training has ended
CHECK_S = 60  # for a place to take a small file before anything is trained
NICE = 10  # of the thread: where a core is short, steps get it
WITHOUT = "or go on without --upload and call harness upload later"
STUDY, SWEEP = "study.json", "sweep.json"
IDENTITIES = {STUDY: "id", SWEEP: "created_utc"}  # what tells two folders apart, by file
# Said to be there last: they say that the files around them are whole.
LAST = ("checkpoint.json", "run.json", STUDY, SWEEP)
_OBJECTS = ("s3", "gs", "gcs", "abfs", "abfss")  # where a file is there as a whole or not at all, and folders are names
_State = tuple[int, int]  # size and time of change


@dataclass(frozen=True)
class Uploaded:
    """How copying ended: files that are there, and those that are not, with the reason of the last attempt."""

    url: str
    files: int
    missing: tuple[str, ...] = ()
    reason: str = ""


class Destination:
    """A folder behind a URL, and what of a local folder is there."""

    def __init__(self, folder: Path, url: str, *, fresh: bool = False) -> None:
        """``fresh``: nothing else may lie there, as ``folder`` has no name of its own to know it by.

        Raises InputError for a URL that nothing here can open, or one within ``folder``.
        """
        self.folder, self.url = folder, url.rstrip("/")
        self._filesystem, self._root = filesystem_of(self.url, KEY)
        self._scheme = self.url.partition("://")[0].lower()
        if self._scheme == "file" and Path(self._root).absolute().is_relative_to(folder.absolute()):
            raise InputError(f"{KEY}: {url} lies within {folder}, which would be copied into itself")
        self._there = self._read_kept()
        self._fresh = fresh
        self.reason = ""

    def missing(self) -> list[str]:
        """The files that are new or have changed since they were copied, those of :data:`LAST` last."""
        return [name for name, state in self._local() if self._there.get(name) != state]

    @property
    def files(self) -> int:
        """How many have been copied."""
        return len(self._there)

    def copy_all(self, pause: Callable[[float], bool]) -> bool:
        """Copy what is missing; False where a file could not be copied, which ends it. ``pause`` waits so many seconds
        before another attempt, and says whether there is to be one."""
        for name in self.missing():
            if not self._copied(name, pause):
                self._keep()
                return False
        self._remove_gone()
        self._keep()
        self.reason = ""
        return True

    def check(self) -> None:
        """Write a small file there and remove it. Raises InputError where that cannot be, tried a few times, or where
        another training or study lies there."""
        if not self._there:
            try:
                self._refuse_another()
            except InputError as error:
                raise InputError(f"{KEY}: {self.url}: {error}") from error
        wait_s = PAUSE_S
        for left in reversed(range(ATTEMPTS)):
            try:
                self._write_marker()
                break
            except Exception as error:  # each filesystem has errors of its own
                if not left:
                    raise InputError(
                        f"{KEY}: {self.url}: cannot be written ({one_line(error)}); give a URL that can, {WITHOUT}"
                    ) from error
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_PAUSE_S)

    def _write_marker(self) -> None:
        marker = f"{self._root}/.upload-check-{uuid4().hex}"
        made = [] if self._scheme in _OBJECTS else self._make_folders()
        try:
            with self._filesystem.open_output_stream(marker) as file:
                file.write(b"written and removed by harness --upload\n")
        finally:
            with suppress(Exception):  # who may not remove there can copy there all the same
                self._filesystem.delete_file(marker)
            for folder in made:
                with suppress(Exception):  # one that somebody else uses by now stays
                    self._remove_empty(folder)

    def _make_folders(self) -> list[str]:
        """Make the folder of the copy; those that were not there, the deepest first."""
        import pyarrow.fs as fs

        made: list[str] = []
        folder = self._root
        while folder.strip("/") and self._filesystem.get_file_info(folder).type == fs.FileType.NotFound:
            made.append(folder)
            folder = folder.rpartition("/")[0]
        self._filesystem.create_dir(self._root, recursive=True)
        return made

    def _remove_empty(self, folder: str) -> None:
        import pyarrow.fs as fs

        if not self._filesystem.get_file_info(fs.FileSelector(folder)):
            self._filesystem.delete_dir(folder)

    def _copied(self, name: str, pause: Callable[[float], bool]) -> bool:
        wait_s = PAUSE_S
        for attempt in range(ATTEMPTS):
            try:
                self._copy(name)
                return True
            except InputError as error:
                self.reason = str(error)
                return False
            except FileNotFoundError as error:
                if not (self.folder / name).exists():  # a checkpoint that has been removed meanwhile
                    return True
                self.reason = one_line(error)
            except Exception as error:  # each filesystem has errors of its own
                self.reason = one_line(error)
            if attempt + 1 == ATTEMPTS or not pause(wait_s):
                return False
            wait_s = min(2 * wait_s, LONGEST_PAUSE_S)
        return False

    def _copy(self, name: str) -> None:
        import pyarrow.fs as fs

        if not self._there:
            self._refuse_another()
        path = self.folder / name
        state = _state(path)
        target = f"{self._root}/{name}"
        if self._scheme in _OBJECTS:
            fs.copy_files(str(path), target, fs.LocalFileSystem(), self._filesystem, use_threads=False)
        else:
            parent, _, last = target.rpartition("/")
            temporary = f"{parent}/.{last}.uploading"
            self._filesystem.create_dir(parent, recursive=True)
            fs.copy_files(str(path), temporary, fs.LocalFileSystem(), self._filesystem, use_threads=False)
            self._filesystem.move(temporary, target)
        self._there[name] = state  # as it was before: a log that grew meanwhile is copied again

    def _refuse_another(self) -> None:
        """InputError where another training, study or sweep lies there: of two, mixed, the newest file is of either."""
        if self._fresh:
            self._refuse_any()
        for name, key in IDENTITIES.items():
            try:
                with self._filesystem.open_input_stream(f"{self._root}/{name}") as file:
                    theirs = json.loads(file.read()).get(key, "")
            except Exception:  # nothing, or nothing that may be read: each filesystem has errors of its own
                continue
            try:
                ours = read_json(self.folder / name).get(key, "")
            except (OSError, ValueError, AttributeError):
                ours = None  # one that has just begun
            if theirs != ours:
                what = "sweep" if name == SWEEP else "training or study"
                raise InputError(f"another {what} lies there ({name}); give another URL, or remove that one")

    def _refuse_any(self) -> None:
        import pyarrow.fs as fs

        try:
            found = self._filesystem.get_file_info(fs.FileSelector(self._root, recursive=True, allow_not_found=True))
        except Exception:  # nothing that may be listed
            return
        if files := [one.path for one in found if one.type == fs.FileType.File]:
            raise InputError(f"{len(files):,} files lie there already; give another URL, or remove them")

    def _remove_gone(self) -> None:
        here = {name for name, _ in self._local()}
        gone = [one for one in self._there if one not in here and _may_go(one, here)]
        for name in gone:
            with suppress(Exception):  # what stays there too long does no harm
                self._filesystem.delete_file(f"{self._root}/{name}")
            del self._there[name]
        if self._scheme not in _OBJECTS:  # elsewhere the folders of removed checkpoints would stay, empty
            for parent in {one.rpartition("/")[0] for one in gone}:
                if parent and not (self.folder / parent).exists():
                    with suppress(Exception):
                        self._filesystem.delete_dir(f"{self._root}/{parent}")

    def _local(self) -> Iterator[tuple[str, _State]]:
        found = []
        for folder, folders, names in os.walk(self.folder):
            folders[:] = [one for one in folders if not one.startswith(".")]
            for name in names:
                path = Path(folder) / name
                if not name.startswith(".") and name != KEPT and not path.is_symlink():
                    found.append(path.relative_to(self.folder).as_posix())
        for name in sorted(found, key=lambda one: (one.rpartition("/")[2] in LAST, one)):
            with suppress(FileNotFoundError):
                yield name, _state(self.folder / name)

    def _read_kept(self) -> dict[str, _State]:
        try:
            kept = read_json(self.folder / KEPT)
            if kept["url"] != self.url:
                return {}
            return {str(name): (int(size), int(changed)) for name, (size, changed) in kept["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # everything is copied again

    def _keep(self) -> None:
        content: Any = {"url": self.url, "files": {name: list(state) for name, state in sorted(self._there.items())}}
        with suppress(OSError):
            write_json(self.folder / KEPT, content)


def checked_destination(folder: Path, url: str, limit_s: int = CHECK_S, *, fresh: bool = False) -> Destination:
    """Where ``folder`` is to be copied, once that has taken a small file. InputError where it takes none in time."""

    def reached() -> Destination:
        found = Destination(folder, url, fresh=fresh)
        found.check()
        return found

    try:
        return Worker("upload-check").call(reached, limit_s)
    except TimeoutError as error:
        raise InputError(f"{KEY}: {url}: no answer within {limit_s} s; give a URL that answers, {WITHOUT}") from error


def _may_go(name: str, here: Collection[str]) -> bool:
    """Whether a file that was removed here goes there too: a checkpoint once a newer one is here, no whole table.

    Whoever makes room on this disk does not mean the copy.
    """
    folder, _, rest = name.partition("/")
    if folder != CHECKPOINTS:
        return bool(rest)
    step = rest.partition("/")[0]
    newer = (one.split("/") for one in here if one.startswith(f"{CHECKPOINTS}/"))
    return any(parts[1] > step and parts[-1] == LAST[0] for parts in newer)


def _state(path: Path) -> _State:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


class Uploader:
    """The thread. ``ask`` whenever there is something new; ``end`` when there will be nothing more."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._asked, self._ending = threading.Event(), threading.Event()
        self._end_s: float | None = None
        self._warned = ""
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)

    def begin(self) -> None:
        """Start it, after the processes that are forked."""
        if not self._thread.is_alive():
            self._thread.start()
        self.ask()

    def ask(self) -> None:
        """Copy what is new, soon. Returns at once."""
        self._asked.set()

    def end(self, limit_s: float = END_S) -> Uploaded:
        """Copy what is left, and say what could not be. Waits ``limit_s`` at most."""
        self._end_s = time.monotonic() + limit_s
        self._ending.set()
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)
        elif self._thread.ident is None:  # training ended before there was anything to copy
            self._pass()
        destination = self._destination
        missing = tuple(destination.missing())
        reason = destination.reason or (f"it took longer than {limit_s:g} s" if missing else "")
        return Uploaded(destination.url, destination.files, missing, reason)

    def _run(self) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            self._asked.wait()
            self._asked.clear()  # before it is looked whether this is the last pass: end() sets the two the other way
            ending = self._ending.is_set()
            self._pass()
            if ending:
                return

    def _pass(self) -> None:
        try:
            whole = self._destination.copy_all(self._pause)
        except Exception as error:  # the training goes on whatever happens here
            whole, self._destination.reason = False, one_line(error)
        reason = "" if whole else self._destination.reason
        if reason and reason != self._warned and not self._ending.is_set():
            print(f"warning: upload to {self._destination.url}: {reason}; tried again later", file=sys.stderr)
        self._warned = reason

    def _pause(self, seconds: float) -> bool:
        if self._end_s is None:
            self._ending.wait(seconds)
            return True
        left_s = self._end_s - time.monotonic()
        time.sleep(max(0.0, min(seconds, left_s)))
        return left_s > seconds
