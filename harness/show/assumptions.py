"""Makes the sentences on what a replay takes for granted, a line each."""

from __future__ import annotations

from collections.abc import Iterable

from harness.explain.policy import HANDOVER_TIMES_MAX
from harness.explain.replay.prediction import Assumption
from harness.show.words import listing, ms


def assumption_lines(found: Iterable[Assumption]) -> list[str]:
    """One line each, without a full stop."""
    return [_text(one) for one in found]


def _cost(value_ms: float) -> str:
    return f"{value_ms:.1f} ms" if value_ms >= 0.1 else ms(value_ms)


def _text(one: Assumption) -> str:
    match one.kind:
        case "loader alone":
            return "the loader costs what it cost in the other arm's data-only runs, where it had the machine to itself"
        case "receive not observed":
            return (
                f"no batch lay ready: receiving one is taken to cost {_cost(one.cost_ms)}, and intervals hold that it "
                "costs nothing, or all that a hand-over takes"
            )
        case "hand-over not observed":
            return (
                f"no batch was waited for: its hand-over is taken to last {_cost(one.cost_ms)}, and intervals hold "
                f"that it lasts no longer than receiving the batch does, or {HANDOVER_TIMES_MAX} times as long, as far "
                "as the recorded order allows that"
            )
        case "device not recorded":
            return (
                "what the device did was not recorded: time on the host stands for it, and a wait of the host counts "
                "as one"
            )
        case "busy not known":
            text = (
                f"while {listing(list(one.names))} {'was' if len(one.names) == 1 else 'were'} still being launched the "
                "device worked or waited for launches: the interval holds either; launching is taken to last as long "
                "as it did"
            )
            return f"{text}, so the step may last longer than this where that work gets longer" if one.scaled else text
        case "hand-over":
            return (
                "the recording has no workers: handing a batch over to the main thread is taken to cost "
                f"{one.tensor_ms} ms for each of its {one.tensors} tensors"
                f"{', as data.transport is ring' if one.ring else ''} (transfer=... sets it otherwise)"
            )
        case "stages inline":
            return "without workers the stages take as long inline as they did in the workers, with no hand-over"
        case "prefetch without workers":
            return "prefetch has no effect without workers"
        case "batch size":
            return (
                "stages, h2d, forward and backward grow in proportion to the batch (consecutive recorded batches "
                "are put together), gradient norm and optimizer do not, nor does the hand-over"
            )
        case "device speed":
            rest = "" if one.asynchronous else ", and forward, backward and optimizer are all of it"
            held_up = (
                "; launching is taken to last as long as it did: where a full queue held it up, a faster device gains "
                "more"
                if one.asynchronous
                else ""
            )
            return f"all work on the device changes speed alike{rest}{held_up}"
        case "sync on a synchronous device":
            return "sync=off changes little here: on a synchronous device there is no queue to wait for"
        case "deep queue":
            return "the device's queue is taken to be deep enough to hold all that is launched between two syncs"
        case "ranks":
            return (
                f"each of {one.ranks} ranks draws its own stretch of the recording and has cores of its own; "
                "backward ends when the slowest rank's does, and the communication itself takes no time"
            )
        case "side by side":
            return (
                "what stages wait for (a disk, a network, a lock) serves several workers side by side; where it serves "
                "one at a time, a step lasts longer than this, or with fewer workers less long"
            )
        case "shared cores":
            return (
                f"{one.cores} cores are shared fairly among {one.threads} compute threads and {one.workers} workers, "
                "which want them independently of one another (mean field); other processes are left out"
            )
