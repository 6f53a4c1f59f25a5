"""The processes of a run by what they are for."""

from __future__ import annotations

import multiprocessing
import os


def process_roles() -> dict[int, str]:
    """By process id: main, and loader-K in the order they were started (Process-1, Process-2, ...)."""
    workers = sorted(multiprocessing.active_children(), key=lambda child: (len(child.name), child.name))
    return {os.getpid(): "main"} | {child.pid: f"loader-{number}" for number, child in enumerate(workers) if child.pid}
