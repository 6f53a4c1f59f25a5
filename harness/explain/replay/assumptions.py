"""Lists what a replay takes for granted: only what matters for this run and these edits.

``harness.show.dose`` makes the sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.explain.replay.handover import RING
from harness.explain.replay.recording import Recording
from harness.scenario.edits import Edits

AssumptionKind = Literal[
    "loader alone",
    "receive not observed",
    "hand-over not observed",
    "device not recorded",
    "busy not known",
    "hand-over",
    "stages inline",
    "prefetch without workers",
    "batch size",
    "device speed",
    "sync on a synchronous device",
    "deep queue",
    "ranks",
    "shared cores",
    "side by side",
]


@dataclass(frozen=True)
class Assumption:
    """Something a replay takes for granted. The figures are those of its kind; the others are 0."""

    kind: AssumptionKind
    cost_ms: float = 0.0  # of the two costs that were not observed: per batch
    tensors: int = 0  # "hand-over": of each batch
    tensor_ms: float = 0.0
    ring: bool = False  # by slots of shared memory
    asynchronous: bool = False  # "device speed": whether the recorded device was
    ranks: int = 0
    names: tuple[str, ...] = ()  # "busy not known": the device's work of which it is not known
    scaled: bool = False  # "busy not known": whether the edits make that work longer or shorter
    cores: float = 0  # "shared cores": shared by these threads and workers
    threads: int = 0
    workers: int = 0


def assumptions(recording: Recording, edits: Edits) -> tuple[Assumption, ...]:
    """What the replay of ``recording`` under ``edits`` takes for granted."""
    return tuple(_assumptions(recording, edits))


def _assumptions(recording: Recording, edits: Edits) -> Iterator[Assumption]:
    for cost in recording.batches.assumed:
        kind: AssumptionKind = "receive not observed" if cost.part == "receive" else "hand-over not observed"
        yield Assumption(kind, cost_ms=cost.ms)
    workers = recording.workers if edits.workers is None else edits.workers
    cores = edits.cores or recording.cores
    if recording.device_not_recorded:
        yield Assumption("device not recorded")
    if recording.busy_not_known:
        scaled = edits.device is not None or edits.batch_size not in (None, recording.batch_size)
        yield Assumption("busy not known", names=recording.busy_not_known, scaled=scaled)
    if workers and not recording.workers:
        yield Assumption(
            "hand-over",
            tensors=recording.tensors,
            tensor_ms=recording.transport.tensor_ms,
            ring=recording.transport == RING,
        )
    if recording.workers and not workers:
        yield Assumption("stages inline")
    if edits.prefetch is not None and not workers:
        yield Assumption("prefetch without workers")
    if edits.batch_size is not None and edits.batch_size != recording.batch_size:
        yield Assumption("batch size")
    if edits.device is not None:
        yield Assumption("device speed", asynchronous=recording.asynchronous)
    if edits.sync != "on" and not recording.asynchronous:
        yield Assumption("sync on a synchronous device")
    if edits.sync != "on" and recording.asynchronous and recording.queue_depth is None:
        yield Assumption("deep queue")
    if (edits.ranks or 1) > 1:
        yield Assumption("ranks", ranks=edits.ranks or 1)
    if (recording.threads + recording.workers > recording.cores) or (recording.threads + workers > cores):
        yield Assumption("shared cores", cores=cores, threads=recording.threads, workers=workers)
