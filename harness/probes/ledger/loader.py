"""Attach the ledger and the other probes inside a loader worker, when the worker starts."""

from __future__ import annotations

from pathlib import Path

from harness.probes.ledger.stages import StageRecorder
from harness.probes.run_probes import RunProbes
from trainer import telemetry
from trainer.lifetime import die_with_parent


def attach_in_worker(parent: int | None, probes: RunProbes, folder: Path, worker_id: int) -> None:
    """Attach the run's probes in a loader worker; the loader's ``worker_init`` hook.

    The worker ends when its parent ends.
    ``parent``: see :func:`die_with_parent`. ``folder``: the run's folder.
    Bind the first three arguments (functools.partial) before passing this to the loader.
    """
    die_with_parent(parent)
    if not probes.ledger:
        return
    telemetry.attach(StageRecorder(f"loader-{worker_id}"))
    for kind, settings in probes.chosen():
        kind.load().attach_in_worker(settings, folder, worker_id, windows=probes.windows)
