"""Decides which predictions a replay of an arm supports, for the report's advice and ``harness whatif``.

Some arms cannot be replayed at all (:func:`refusal`): too much of their time was not seen. Of others some changes are
barred (:func:`bar_of`), as the recording does not show what they depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from harness.explain.replay.predict import Replays
from harness.explain.spans import spans_of
from harness.judge.unseen import MOST_RESTARTING, unseen
from harness.scenario.edits import Edits
from harness.study.run_data import RunData

# no loader: batches come from a function of the program, not from a DataLoader.
# no items: some workers made no batches, as their iterable dataset gave them none.
# unequal: some workers delivered far fewer batches than others, for an unknown reason.
# restarts: the loader begins anew in each epoch. Replay has workers ask for the next epoch's batches before this one
# ends, which no DataLoader does.
# sampler: it chooses what to read in the main thread, which no worker does for it.
Bar = Literal["no loader", "no items", "unequal", "sampler", "restarts"]
_REFUSED = {
    "no core": "its main thread had no core for too much of the time",
    "blocked": "too much of its time was not seen",
    "device": "what its device did was not recorded",
    "one stream": "its device's work on other streams, or launched within a fetch, was not recorded",
    "ranks": "its ranks wait for one another, so its own steps do not tell what one of them would gain",
}


def refusal(runs: Sequence[RunData]) -> str | None:
    """Return why ``runs`` support no prediction; None if a replay supports one."""
    hidden = unseen(runs)
    if hidden is None or hidden.reason is None:
        return None
    recorded = all(run.has_spans and len(spans_of(run).kernels) for run in runs)
    return _REFUSED["one stream" if hidden.reason == "device" and recorded else hidden.reason]


def bar_of(edits: Edits, runs: Sequence[RunData], replays: Replays) -> Bar | None:
    """Return why ``runs`` cannot be predicted under ``edits``; None if they can."""
    workers = edits.workers is not None and edits.workers != replays.workers
    if not workers and edits.prefetch is None:
        return None
    if not all(run.record.facts.has_loader for run in runs):
        return "no loader"
    if workers and replays.unequal:
        return "no items" if all(run.record.facts.gave_no_items(1) for run in runs) else "unequal"
    if (hidden := unseen(runs)) is None:
        return None
    if workers and hidden.sampling > MOST_RESTARTING:
        return "sampler"
    return "restarts" if hidden.restarting > MOST_RESTARTING else None
