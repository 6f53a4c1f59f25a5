"""Defines what can limit a step beside an asynchronous device, and the figures that say which of them does.

data      the largest part of the step is what data work costs it: removing that would save most. Also where loader
          workers are at work nearly all the time and the step waits for them
host      ... is device idle time while the host did other work than data, launching before a phase begins included
launch    ... lies in launch-bound phases, which the device ends with their launches (``launches``)
device or launch
          none of these is noticeable, but the time in other phases that the device was at while the host was still
          launching them: it worked or waited for launches, and the events do not tell which
device    nor that, and fetching could last noticeably longer for next to nothing, or nobody knows how much longer
balanced  nor that, and there is no such room either
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.explain.policy import LIMIT_SHARE_MIN, LOADERS_BUSY_SHARE

Bound = Literal["data", "host", "launch", "device or launch", "device", "balanced"]


@dataclass(frozen=True)
class BoundShares:
    """Shares of a step, from 0 to 1."""

    data: float  # what data work costs it
    host: float  # device idle while the host did not work on data, outside of launch-bound phases
    launch: float  # within launch-bound phases; an upper bound of the idle time in them unless that is known
    room: float  # what fetching could last longer for next to nothing, see ``room``; NaN: not known
    open: float = 0.0  # within other phases that the device was at while the host was still launching them
    loader: float = 0.0  # of the time of loader workers, that in which they worked; 0 without workers

    @property
    def bound(self) -> Bound:
        """The name of the largest known share, where it is noticeable; see the head of this file."""
        if self.loader > LOADERS_BUSY_SHARE and self.data > LIMIT_SHARE_MIN:
            return "data"
        shares: dict[Bound, float] = {"data": self.data, "host": self.host, "launch": self.launch}
        largest = max(shares, key=lambda name: shares[name])
        if shares[largest] > LIMIT_SHARE_MIN:
            return largest
        if self.open > LIMIT_SHARE_MIN:
            return "device or launch"
        return "device" if math.isnan(self.room) or self.room > LIMIT_SHARE_MIN else "balanced"


def agreed(blocks: Mapping[Bound, int]) -> Bound | None:
    """What limits all ``blocks``, which are counted by that; None where they differ, and of none."""
    return next(iter(blocks)) if len(blocks) == 1 else None


def mean_shares(found: list[BoundShares]) -> BoundShares | None:
    """The mean of each figure; None of none."""
    if not found:
        return None
    rows = [(one.data, one.host, one.launch, one.room, one.open, one.loader) for one in found]
    return BoundShares(*(sum(values) / len(found) for values in zip(*rows, strict=True)))
