"""Ask git for the commit of a checkout, and for changes of its files."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

_GIT_S = 120  # seconds; a worktree of a large repository on a slow disk takes tens of seconds
# A git hook sets these variables, which would redirect git to another repository.
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def git(folder: Path, *arguments: str) -> str:
    """Run ``git -C folder arguments`` and return its output, stripped.

    Raise OSError or subprocess.SubprocessError if it fails.
    """
    clean = {key: value for key, value in os.environ.items() if key not in _OF_A_HOOK}
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # A file's content may have another encoding.
        check=True,
        timeout=_GIT_S,
        env=clean,
    )
    return done.stdout.strip()


def describe_checkout(folder: Path) -> str | None:
    """Return the short commit of the checkout around ``folder``, with "+changes" if tracked files differ from it.

    None outside of a checkout.
    """
    try:
        head = git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if git(folder, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def is_ignored(path: Path) -> bool:
    """Return True if git's ignore rules keep ``path`` out of commits; False outside of a checkout."""
    try:
        return bool(git(path.parent, "check-ignore", str(path.absolute())))
    except (OSError, subprocess.SubprocessError):  # ``path`` is not ignored, or there is no checkout.
        return False


def checkout_fingerprint(folder: Path) -> str:
    """Return a fingerprint that changes with the files tracked by git; empty outside of a checkout."""
    but_bytecode = ":/", ":(top,exclude)*.pyc"  # Running code writes bytecode, which may be committed.
    try:
        changes = git(folder, "diff", "HEAD", "--", *but_bytecode)
        return hashlib.sha256(changes.encode()).hexdigest() + git(folder, "rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return ""
