"""Room for studies and for the cache."""

from __future__ import annotations

from harness.machine.checks.check import Check, fail, ok, size, warn
from harness.machine.storage import Storage

NEEDED_BYTES = 100 * 2**20  # a small study with its corpus
LEAST_FREE_BYTES = 5 * 2**30  # profiles and pretokenized corpora of some size


def check_storage(name: str, storage: Storage, other: str) -> Check:
    """``other``: how another folder is chosen."""
    there = "" if storage.existing == storage.folder else " (not yet there)"
    kind = f", {storage.kind}" if storage.kind else ""
    finding = f"{storage.folder}{there}: {size(storage.free_bytes)} free{kind}"
    if not storage.writable:
        return fail(name, f"{finding}; {storage.existing} may not be written", f"another folder: {other}")
    if storage.free_bytes < NEEDED_BYTES:
        return fail(name, f"{finding}: a study needs {size(NEEDED_BYTES)} and more", f"make room, or {other}")
    if storage.free_bytes < LEAST_FREE_BYTES:
        return warn(name, f"{finding}: profiles and corpora may not fit", f"make room, or {other}")
    return ok(name, f"{finding}{' over the network: reading pays for it' if storage.network else ''}")
