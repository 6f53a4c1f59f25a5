"""Read free space, type and write permission of the disks that a study writes to."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.machine.files import Mount, mount_of
from trainer.files import expanded

NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs", "fuse.sshfs", "fuse.gcsfuse"}


@dataclass(frozen=True)
class Storage:
    """Free space and write permission of a folder that studies write to, read by :func:`read_storage`."""

    folder: Path
    existing: Path
    """The folder itself, or its nearest existing parent."""
    free_bytes: int
    writable: bool
    kind: str | None
    """Type of the file system."""

    @property
    def network(self) -> bool:
        return self.kind in NETWORK


def read_storage(folder: Path, mounts: list[Mount]) -> Storage:
    """Read free space and write permission of ``folder``, or of its nearest existing parent. Creates nothing.

    It may hang with the file system, so call it with a timeout.
    """
    folder = expanded(folder).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    mount = mount_of(existing.resolve(), mounts)
    return Storage(folder, existing, shutil.disk_usage(existing).free, writable, None if mount is None else mount.kind)
