"""The recorder inside a loader worker: stage spans, shipped to the main process beside each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.machine.lifetime import die_with_parent
from harness.probes.ledger.stages import StageRecorder
from trainer import telemetry


def attach_in_worker(parent: int | None, probes: dict[str, Any], folder: Path, worker_id: int) -> None:
    """The loader's ``worker_init`` hook: what this worker is measured with, and its end when its parent ends.

    ``parent`` as in :func:`die_with_parent`, ``probes`` as by ``harness.launch.probing``, ``folder`` the run's own:
    bind them (functools.partial) before giving this to the loader.
    """
    die_with_parent(parent)
    if not probes["ledger"]:
        return
    if probes["py_spy"]:
        from harness.machine.ptrace import allow_tracing

        allow_tracing()
    profiler = probes["torch_profiler"]
    if profiler and profiler["workers"] and probes["windows"]:
        from harness.probes.profilers.torch_worker import attach_in_worker as profile_worker

        profile_worker(profiler, folder, worker_id)  # brings a recorder of its own
    else:
        telemetry.attach(StageRecorder(f"loader-{worker_id}"))
