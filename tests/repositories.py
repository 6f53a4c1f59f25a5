"""Repositories of somebody's own, whose states tests compare."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> str:
    """What ``git words`` prints in ``folder``, whoever the machine's user is."""
    own = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def begin_repository(folder: Path) -> None:
    """A repository in ``folder`` whose only commit holds all that lies there."""
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
