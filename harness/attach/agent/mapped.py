"""A file that frames are put at the end of, through a mapping: they outlive the process, and take no system call.

Writing a frame takes 15 us within a training step, as the kernel's code is cold; storing it takes half of that. The
room is reserved ahead. Where that fails, or where the filesystem may break such a promise, each frame is written.
"""

from __future__ import annotations

import errno
import mmap
import os

WINDOW_BYTES = 1 << 18  # are reserved and mapped at once: some hundred steps
LENGTH_BYTES = 4  # before each frame, little endian

# In these, room that is reserved is there when it is used. One that writes copies (btrfs, or what an overlay may lie
# on) needs more room for a page that it has written once, and kills a process that stores into it when there is none.
_RESERVE = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})


class MappedFile:
    """Appends frames. ``at``: the end of the last one, in the mapped window."""

    __slots__ = ("_begin", "_descriptor", "_identity", "_mapped", "at", "room", "window")

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        found = os.fstat(self._descriptor)
        self._identity = found.st_dev, found.st_ino
        self._mapped = _filesystem(found.st_dev) in _RESERVE
        self._begin = self.at = self.room = 0  # the window's place in the file, the end of the frames, its length
        self.window: mmap.mmap | bytearray = bytearray()

    def add(self, frame: bytes) -> None:
        """Put ``frame``, which begins with its length, at the end; when this returns it outlives the process.

        What every step does of this is in :func:`record.write`.
        """
        length, content = frame[:LENGTH_BYTES], frame[LENGTH_BYTES:]
        size = len(content)
        while True:
            at = self.at
            start = at + LENGTH_BYTES
            end = start + size
            if end <= self.room:
                self.at = end
                self.window[start:end] = content
                self.window[at:start] = length
                return
            if not self._make_room(LENGTH_BYTES + size):
                self._write(frame)
                return

    def close(self) -> None:
        """Give back what was reserved and not used. Does nothing where the program has closed our file."""
        self.window, self.room = bytearray(), 0
        if self._ours():
            os.ftruncate(self._descriptor, self._begin + self.at)
            os.close(self._descriptor)

    def _make_room(self, size: int) -> bool:
        """Reserve and map the next window; False where frames of this file are to be written."""
        if not self._mapped:
            return False
        end = self._begin + self.at
        begin = end - end % mmap.ALLOCATIONGRANULARITY
        room = max(WINDOW_BYTES, -(-(end - begin + size) // WINDOW_BYTES) * WINDOW_BYTES)
        try:
            if not self._ours():
                raise OSError(errno.EBADF, "the program closed the file")
            os.posix_fallocate(self._descriptor, begin, room)
            window = mmap.mmap(self._descriptor, room, offset=begin)
        except (OSError, ValueError):  # a full disk, or no room for mappings
            self._mapped = False
            return False
        if self._begin + self.at == end:  # else another thread, or a signal handler, has made room meanwhile
            self._begin, self.window, self.room, self.at = begin, window, room, end - begin
        return True

    def _write(self, frame: bytes) -> None:
        start = self._begin + self.at
        self.at += len(frame)
        if os.pwrite(self._descriptor, frame, start) < len(frame):
            raise OSError(errno.ENOSPC, "half a frame was written")

    def _ours(self) -> bool:
        """Whether the descriptor is still this file's: a program may close all, and open others under their numbers."""
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity


def _filesystem(device: int) -> str:
    """The type of the filesystem that is this device; empty where that is not told."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:  # see proc_pid_mountinfo(5)
                mount, _, source = line.partition(" - ")
                if mount.split(" ", 3)[2] == number:
                    return source.split(" ", 1)[0]
    except OSError:
        pass
    return ""
