"""The part of ``harness exec`` that runs inside the user's processes: standard library only, nothing of ``harness``.

Loaded as ``_harness_agent`` by the shim once torch is imported. It records the step ledger of the main
thread and the stages of every batch, and writes them to files of its own (``record.py``), one frame a step. It changes
nothing that the program computes, and it fails open: after a fault of ours every hook does nothing (``guard.py``).
"""

from __future__ import annotations


def begin(folder: str) -> None:
    """Patch what torch has imported so far, and whatever else is worth watching once it is imported."""
    from _harness_agent import boundaries, guard, loading, record, tokenizing, watching

    if not record.begin(folder):
        return
    guard.carefully(loading.patch)
    guard.carefully(boundaries.patch)
    guard.carefully(tokenizing.patch)
    guard.carefully(watching.patch)
