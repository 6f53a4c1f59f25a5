"""How long a pipeline of declared costs runs until it is in its steady state."""

from __future__ import annotations

import math

OF_THE_LOOP = 0.02  # of the time of a batch: what the loop takes beside its declared costs
MOST = 400  # steps


def until_used_up(making_ms: float, consuming_ms: float, ready: int, *, least: int) -> int:
    """Steps until the prefetched batches when a loop began are used up: ``least`` to :data:`MOST`.

    Workers make a batch every ``making_ms``, the rest of a step takes ``consuming_ms``, and at most ``ready`` batches
    lay ready: how many is a race of processes that start. Where making takes longer, a step uses up the share of a
    batch by which it does, and until then waits are hidden that the steady state has.
    """
    if making_ms <= consuming_ms:
        return least
    used_up = 1 - consuming_ms / making_ms - OF_THE_LOOP
    return min(MOST, max(least, math.ceil(ready / used_up))) if used_up > 0 else MOST
