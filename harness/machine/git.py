"""Asks git: which commit a checkout is at, and whether its files differ from it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

_GIT_S = 120  # a worktree of a large repository on a slow disk takes tens of seconds
# A hook's variables would point git at another repository than the folder's.
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def git(folder: Path, *arguments: str) -> str:
    """What ``git -C folder arguments`` prints. Raises OSError or subprocess.SubprocessError where it fails."""
    clean = {key: value for key, value in os.environ.items() if key not in _OF_A_HOOK}
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # a file's content may be in another encoding
        check=True,
        timeout=_GIT_S,
        env=clean,
    )
    return done.stdout.strip()


def describe_checkout(folder: Path) -> str | None:
    """The commit of the checkout ``folder`` is in, "+changes" where files differ from it; None outside one."""
    try:
        head = git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if git(folder, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def is_ignored(path: Path) -> bool:
    """Return True if ``path`` lies in a checkout whose rules keep it out of commits."""
    try:
        return bool(git(path.parent, "check-ignore", str(path.absolute())))
    except (OSError, subprocess.SubprocessError):  # not ignored, or no checkout
        return False


def checkout_fingerprint(folder: Path) -> str:
    """Another one means that files which git knows have changed in the checkout; empty outside of one."""
    but_bytecode = ":/", ":(top,exclude)*.pyc"  # which running code writes, where somebody committed it
    try:
        changes = git(folder, "diff", "HEAD", "--", *but_bytecode)
        return hashlib.sha256(changes.encode()).hexdigest() + git(folder, "rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return ""
