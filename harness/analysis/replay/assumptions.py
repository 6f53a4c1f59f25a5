"""What a replay takes for granted, in words: only what matters for this run and these edits."""

from __future__ import annotations

from harness.analysis.replay.handover import DEFAULT_TENSOR_MS
from harness.analysis.replay.recording import Recording
from harness.scenario.edits import Edits


def assumptions(recording: Recording, edits: Edits) -> tuple[str, ...]:
    """One sentence each, without a full stop."""
    found = list(recording.batches.assumed)
    workers = recording.workers if edits.workers is None else edits.workers
    cores = edits.cores or recording.cores
    if recording.untold:
        found.append(
            "what the device did was not recorded: time on the host stands for it, and a wait of the host counts as one"
        )
    if workers and not recording.workers:
        found.append(
            "the recording has no workers: handing a batch over to the main thread is taken to cost "
            f"{DEFAULT_TENSOR_MS} ms for each of its {recording.tensors} tensors (transfer=... sets it otherwise)"
        )
    if recording.workers and not workers:
        found.append("without workers the stages take as long inline as they did in the workers, with no hand-over")
    if edits.prefetch is not None and not workers:
        found.append("prefetch has no effect without workers")
    if edits.batch_size is not None and edits.batch_size != recording.batch_size:
        found.append(
            "stages, h2d, forward and backward grow in proportion to the batch (consecutive recorded batches "
            "are put together), gradient norm and optimizer do not, nor does the hand-over"
        )
    if edits.device is not None:
        found.append(
            "all work on the device changes speed alike"
            + ("" if recording.asynchronous else ", and forward, backward and optimizer are all of it")
        )
    if not edits.sync and not recording.asynchronous:
        found.append("sync=off changes little here: on a synchronous device there is no queue to wait for")
    if not edits.sync and recording.asynchronous and recording.queue_depth is None:
        found.append("the device's queue is taken to be deep enough to hold all that is launched between two syncs")
    if (edits.ranks or 1) > 1:
        found.append(
            f"each of {edits.ranks} ranks draws its own stretch of the recording and has cores of its own; "
            "backward ends when the slowest rank's does, and the communication itself takes no time"
        )
    if (recording.threads + recording.workers > recording.cores) or (recording.threads + workers > cores):
        found.append(
            f"{cores} cores are shared fairly among {recording.threads} compute threads and {workers} workers, which "
            "want them independently of one another (mean field); other processes are left out"
        )
    return tuple(found)
