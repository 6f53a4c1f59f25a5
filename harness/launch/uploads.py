"""Copy a folder (a training, a sweep, a corpus) to a URL (s3://, gs://, or any filesystem of fsspec) in a thread.

A small file tests the URL first. A failed copy is tried again with growing pauses, with the next checkpoint, and at the
end. ``uploads.json`` lists the copied files, so that ``--resume`` and ``harness upload`` copy only new ones; the first
and last pass compare it with the URL. A checkpoint removed locally is removed there once newer ones are complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from harness.launch.training_files import CHECKPOINTS
from harness.machine.limits import Worker
from harness.study.store import write_json
from trainer.data.corpus.places import filesystem_of
from trainer.errors import InputError, plain_reason, visible
from trainer.files import read_json

KEPT = "uploads.json"
KEY = "upload"
MARKER, UNFINISHED = ".upload-check-", ".uploading"  # names of an upload's own temporary files
ATTEMPTS = 5  # attempts for each file, in one pass over the folder
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # pause before the second attempt, then doubled
UPLOAD_END_S = 600.0  # limit for the remaining files after the training
CHECK_S = 60  # limit for the check with a small file before the training
NICE = 10  # niceness of the thread, so that steps have priority
WITHOUT = "or continue without --upload and call harness upload later"
STUDY, SWEEP = "study.json", "sweep.json"
IDENTITIES = {STUDY: "id", SWEEP: "created_utc"}  # identity of a folder, by file
# Files that are copied last: their presence means that the files around them are complete.
LAST = ("checkpoint.json", "run.json", STUDY, SWEEP)
_OBJECTS = ("s3", "gs", "gcs", "abfs", "abfss")  # object stores: no incomplete files, no real folders
_State = tuple[int, int]  # size in bytes and time of change in ns


class _CopiedFile(NamedTuple):
    """Copied file. ``state``: size and change time when copied. ``there_ns``: change time at the URL, or None."""

    state: _State
    there_ns: int | None


@dataclass(frozen=True)
class Uploaded:
    """Result of an upload. ``missing`` files failed for ``reason``; ``left_out`` are never copied, with reasons."""

    url: str
    files: int
    missing: tuple[str, ...] = ()
    reason: str = ""
    left_out: tuple[str, ...] = ()
    unlisted: str = ""  # why the files at the URL could not be compared; empty if they were


class _BlockedError(Exception):
    """A folder at the URL has the name of a file. Further attempts do not help, but other files can be copied."""


class Destination:
    """Folder at a URL that receives the copy of a local folder, and knows what is copied."""

    def __init__(self, folder: Path, url: str, *, verify: bool = False) -> None:
        """Open the URL. ``verify``: True to compare copied files. Raises InputError for an unusable URL."""
        self.folder, self.url = folder, url.rstrip("/")
        self._filesystem, self._root = filesystem_of(self.url, KEY)
        self._scheme = self.url.partition("://")[0].lower()
        if self._scheme == "file" and Path(self._root).absolute().is_relative_to(folder.absolute()):
            raise InputError(f"{KEY}: {url} is inside {folder}, so the copy would contain itself")
        kept = self._read_kept()
        self._begun = kept is not None
        self._there = kept or {}
        self._verify = verify
        self.reason = ""
        self.unlisted = ""  # why the files at the URL could not be compared

    def missing(self) -> list[str]:
        """Return local files that are not copied, or have changed since; :data:`LAST` come last."""
        return [name for name, state in self._local() if name not in self._there or self._there[name].state != state]

    def left_out(self) -> list[str]:
        """Return the names of local files that cannot be copied, with reasons, like ``pipe (not a plain file)``."""
        return [f"{visible(name)} ({reason})" for name, reason in _walk(self.folder) if reason]

    def compare(self) -> None:
        """Compare copies with the record: removed or changed ones are missing. Set :attr:`unlisted` if that fails."""
        if not self._there:
            return
        try:
            remote = self._listed()
        except Exception as error:  # each filesystem has errors of its own
            self.unlisted = plain_reason(error)
            return
        self.unlisted = ""
        for name, copy in list(self._there.items()):
            is_unchanged = remote.get(name) in ((copy.state[0], copy.there_ns), (copy.state[0], None))
            if not is_unchanged or (self._verify and not self._same_content(name)):
                del self._there[name]

    def _same_content(self, name: str) -> bool:
        """True if the local file ``name`` and its copy have the same bytes, or if the local file was removed."""
        try:
            with (
                open(self.folder / name, "rb") as local,
                self._filesystem.open_input_stream(f"{self._root}/{name}") as remote,
            ):
                return hashlib.file_digest(local, "sha256").digest() == hashlib.file_digest(remote, "sha256").digest()
        except FileNotFoundError:
            return not (self.folder / name).exists()

    @property
    def files(self) -> int:
        """Number of copied files."""
        return len(self._there)

    def copy_all(self, pause: Callable[[float], bool]) -> bool:
        """Copy the files of :meth:`missing`, and remove copies of removed ones (:func:`_may_go`). Return True if all
        are copied; else :attr:`reason` has the last failure. ``pause(seconds)`` before each new attempt returns False
        to give up.
        """
        blocked = ""
        for name in self.missing():
            try:
                if not self._copied(name, pause):
                    self._keep()
                    return False
            except _BlockedError as error:
                blocked = str(error)
        self._remove_gone()
        self._keep()
        self.reason = blocked
        return not blocked

    def check(self) -> None:
        """Write and remove a small file. Raises InputError if this fails, or for another study's files."""
        if not self._begun:
            try:
                self._refuse_another()
            except InputError as error:
                raise InputError(f"{KEY}: {self.url}: {error}") from error

        def waited(seconds: float) -> bool:
            time.sleep(seconds)
            return True

        for remaining in _attempts(waited):
            try:
                self._write_marker()
                break
            except Exception as error:  # each filesystem has errors of its own
                if not remaining:
                    raise InputError(
                        f"{KEY}: {self.url}: cannot be written ({plain_reason(error)}); give a writable URL, {WITHOUT}"
                    ) from error

    def _write_marker(self) -> None:
        marker = f"{self._root}/{MARKER}{uuid4().hex}"
        made = [] if self._scheme in _OBJECTS else self._make_folders()
        try:
            with self._filesystem.open_output_stream(marker) as file:
                file.write(b"written and removed by harness --upload\n")
        finally:
            with suppress(Exception):  # Copies do not need the right to remove files.
                self._filesystem.delete_file(marker)
            for folder in made:
                with suppress(Exception):  # A folder that others use by now stays.
                    self._remove_empty(folder)

    def _make_folders(self) -> list[str]:
        """Create the target folder with its parents. Return the paths of the new folders, deepest first."""
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
        for _ in _attempts(pause):
            try:
                self._copy(name)
                return True
            except _BlockedError:
                raise
            except InputError as error:
                self.reason = str(error)
                return False
            except FileNotFoundError as error:
                if not (self.folder / name).exists():  # a checkpoint that was removed meanwhile
                    return True
                self.reason = plain_reason(error)
            except Exception as error:  # each filesystem has errors of its own
                self.reason = plain_reason(error)
        return False

    def _copy(self, name: str) -> None:
        import pyarrow.fs as fs

        if not self._begun:
            self._refuse_another()
            self._begun = True
            self._keep()  # A resumed upload then recognizes the copied files as those of this folder.
        path = self.folder / name
        state = _state(path)
        target = f"{self._root}/{name}"
        if self._scheme in _OBJECTS:
            fs.copy_files(str(path), target, fs.LocalFileSystem(), self._filesystem, use_threads=False)
        else:
            if self._filesystem.get_file_info(target).type == fs.FileType.Directory:
                raise _BlockedError(f"there is a folder at {target}; remove it, or give another URL")
            parent, _, last = target.rpartition("/")
            temporary = f"{parent}/.{last}{UNFINISHED}"
            self._filesystem.create_dir(parent, recursive=True)
            fs.copy_files(str(path), temporary, fs.LocalFileSystem(), self._filesystem, use_threads=False)
            self._filesystem.move(temporary, target)
        there_ns = self._filesystem.get_file_info(target).mtime_ns
        # The state from before the copy: a log that grew in the meantime is copied again.
        self._there[name] = _CopiedFile(state, there_ns)

    def _refuse_another(self) -> None:
        """Raise InputError if the URL has files of another training, study or sweep, or any other files."""
        for name, key in IDENTITIES.items():
            try:
                with self._filesystem.open_input_stream(f"{self._root}/{name}") as file:
                    remote_id = json.loads(file.read()).get(key, "")
            except Exception:  # missing or unreadable; each filesystem has its own errors
                continue
            try:
                local_id = read_json(self.folder / name).get(key, "")
            except (OSError, ValueError, AttributeError):
                local_id = None  # a folder without an identity yet
            if remote_id == local_id:
                return
            kind = "sweep" if name == SWEEP else "training or study"
            raise InputError(f"it contains another {kind} ({name}); give another URL, or remove that one")
        with suppress(OSError):  # The place may forbid listing.
            if listed := self._listed():
                files = "1 file" if len(listed) == 1 else f"{len(listed):,} files"
                raise InputError(f"it already contains {files}; give another URL, or remove them")

    def _listed(self) -> dict[str, tuple[int, int | None]]:
        """Return (size, change time in ns or None) of the URL's files by name, without temporary ones."""
        import pyarrow.fs as fs

        selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        files = [file for file in self._filesystem.get_file_info(selector) if file.type == fs.FileType.File]
        start = len(self._root.rstrip("/")) + 1
        finished = (
            file for file in files if not file.base_name.startswith(MARKER) and not file.base_name.endswith(UNFINISHED)
        )
        return {file.path[start:]: (file.size, file.mtime_ns) for file in finished}

    def _remove_gone(self) -> None:
        local = {name for name, _ in self._local()}
        gone = [copied for copied in self._there if copied not in local and _may_go(copied, local)]
        for name in gone:
            with suppress(Exception):  # Stale files do no harm.
                self._filesystem.delete_file(f"{self._root}/{name}")
            del self._there[name]
        if self._scheme not in _OBJECTS:  # Other filesystems would keep empty folders of removed checkpoints.
            for parent in {removed.rpartition("/")[0] for removed in gone}:
                if parent and not (self.folder / parent).exists():
                    with suppress(Exception):
                        self._filesystem.delete_dir(f"{self._root}/{parent}")

    def _local(self) -> Iterator[tuple[str, _State]]:
        names = [name for name, reason in _walk(self.folder) if not reason and name != KEPT]
        for name in sorted(names, key=lambda path: (path.rpartition("/")[2] in LAST, path)):
            with suppress(FileNotFoundError):
                yield name, _state(self.folder / name)

    def _read_kept(self) -> dict[str, _CopiedFile] | None:
        """Return the copies in uploads.json by name; None without a valid record for this URL."""
        try:
            kept = read_json(self.folder / KEPT)
            if kept["url"] != self.url:
                return None
            return {
                str(name): _CopiedFile((int(size), int(changed)), None if copied_ns is None else int(copied_ns))
                for name, (size, changed, copied_ns) in kept["files"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _keep(self) -> None:
        if not self._begun:
            return
        files = {name: [*copy.state, copy.there_ns] for name, copy in sorted(self._there.items())}
        content: Any = {"url": self.url, "files": files}
        with suppress(OSError):
            write_json(self.folder / KEPT, content)


def _attempts(pause: Callable[[float], bool]) -> Iterator[int]:
    """Yield the number of further attempts, ATTEMPTS times at most, with growing pauses until ``pause`` gives up."""
    for remaining in reversed(range(ATTEMPTS)):
        yield remaining
        if not remaining or not pause(min(PAUSE_S * 2 ** (ATTEMPTS - 1 - remaining), LONGEST_PAUSE_S)):
            return


def checked_destination(folder: Path, url: str, limit_s: int = CHECK_S) -> Destination:
    """Return the tested target at ``url``. Raises InputError if the test fails or takes longer than ``limit_s``."""

    def reached() -> Destination:
        destination = Destination(folder, url)
        destination.check()
        return destination

    try:
        return Worker("upload-check").call(reached, limit_s)
    except TimeoutError as error:
        raise InputError(f"{KEY}: {url}: no answer within {limit_s} s; give another URL, {WITHOUT}") from error


def _may_go(name: str, here: Collection[str]) -> bool:
    """True if the copy of a locally removed file goes, too: not at the top level, and of a checkpoint only if a newer
    complete one is ``here``, because a user may free local space.
    """
    folder, _, rest = name.partition("/")
    if folder != CHECKPOINTS:
        return bool(rest)
    step = rest.partition("/")[0]
    newer = (path.split("/") for path in here if path.startswith(f"{CHECKPOINTS}/"))
    return any(parts[1] > step and parts[-1] == LAST[0] for parts in newer)


def _walk(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, reason why it cannot be copied, or "") for every file in ``folder`` but temporary ones and locks.

    Links are followed into each folder once, so that cyclic links end.
    """
    linked: set[str] = set()

    def entries(inside: Path, name: str, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        above = (*above, os.path.realpath(inside))
        with os.scandir(inside) as listed:
            names = sorted(entry.name for entry in listed if not _is_temporary(entry.name))
        for base in names:
            path, relative = inside / base, f"{name}{base}"
            try:
                relative.encode()
                mode = path.stat().st_mode
            except UnicodeEncodeError:
                yield relative, "its name is not UTF-8"
            except OSError as error:
                if path.is_symlink():
                    yield relative, f"a broken link: {error.strerror}"
                elif path.exists():  # Otherwise it was removed meanwhile.
                    yield relative, str(error.strerror)
            else:
                if stat.S_ISDIR(mode):
                    real = os.path.realpath(path)
                    if real in above:
                        yield relative, "a link to a folder that contains it"
                    elif path.is_symlink() and real in linked:
                        yield relative, "a second link to a folder"
                    else:
                        if path.is_symlink():
                            linked.add(real)
                        yield from entries(path, f"{relative}/", above)
                else:
                    yield relative, "" if stat.S_ISREG(mode) else "not a plain file"

    with suppress(FileNotFoundError):  # a checkpoint that is removed meanwhile
        yield from entries(folder, "", ())


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and (name.endswith((".tmp", ".partial")) or name in (".lock", ".writable", ".journal"))


def _state(path: Path) -> _State:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


class Uploader:
    """Thread that copies new files. Call ``begin`` once, ``ask`` after new files, ``end`` after the last ones."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._asked, self._ending = threading.Event(), threading.Event()
        self._end_s: float | None = None
        self._warned = ""
        self._compared = False
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)

    def begin(self) -> None:
        """Start the thread and its first pass. Call this after all forks. Later calls only ask for a pass."""
        if not self._thread.is_alive():
            self._thread.start()
        self.ask()

    def ask(self) -> None:
        """Ask the thread to copy the new files. Returns at once."""
        self._asked.set()

    def end(self, limit_s: float = UPLOAD_END_S) -> Uploaded:
        """Copy the remaining files, for ``limit_s`` seconds at most. Return the copied and the missing files."""
        self._end_s = time.monotonic() + limit_s
        self._ending.set()
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)
        elif self._thread.ident is None:  # The training ended before the first copy.
            self._pass()
        destination = self._destination
        missing = tuple(destination.missing())
        reason = destination.reason or (f"it took longer than {limit_s:g} s" if missing else "")
        return Uploaded(
            destination.url, destination.files, missing, reason, tuple(destination.left_out()), destination.unlisted
        )

    def _run(self) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            self._asked.wait()
            self._asked.clear()  # cleared before _ending is read: end() sets them in the other order
            ending = self._ending.is_set()
            self._pass()
            if ending:
                return

    def _pass(self) -> None:
        ending = self._ending.is_set()
        try:
            if not self._compared:
                self._destination.compare()
                self._compared = True
            complete = self._destination.copy_all(self._pause)
            if ending:
                self._destination.compare()
                if self._destination.missing():
                    complete = self._destination.copy_all(self._pause)
                    self._destination.compare()
        except Exception as error:  # The training continues in any case.
            complete, self._destination.reason = False, plain_reason(error)
        reason = "" if complete else self._destination.reason
        if reason and reason != self._warned and not ending:
            print(f"warning: upload to {self._destination.url}: {reason}; tried again later", file=sys.stderr)
        self._warned = reason

    def _pause(self, seconds: float) -> bool:
        if self._end_s is None:
            self._ending.wait(seconds)
            return True
        left_s = self._end_s - time.monotonic()
        time.sleep(max(0.0, min(seconds, left_s)))
        return left_s > seconds
