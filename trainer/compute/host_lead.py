"""Decides if the host's lead over its device has stopped growing, and how to get there.

A host that launches faster than its device works gets further ahead with each step, until it has to wait for the
device. Until then a step takes as long as the host needs; from then on, as long as the device needs. So steps that
start on an idle device are too fast at first:

    host     |launch 1|launch 2|launch 3|=== wait ===|launch 4|=== wait ===|
    device    |----- 1 -----|----- 2 -----|----- 3 -----|----- 4 -----|

Two observations end this, both from the host's own clock and from events that were reached:

- The host waited for work of the step before. Its lead has stopped growing.
- The device ran dry in two consecutive steps, not counting the first. The host is slower, and never gets ahead.

Often neither happens. A host that is 2 % faster than its device needs fifty steps to get one step ahead. A host may
also wait in a launch, because the driver's queue is full. Its lead has stopped growing, but no call shows the wait. A
few steps do not distinguish these cases. So the device is held for about the host's time per step. Meanwhile the host
launches one step. Then it is ahead by a whole step or by the queue's limit, whichever is less:

    host     |launch 1|launch 2|launch 3|=== wait ===|launch 4|=== wait ===|
    device    |----- 1 -----|-- held --|----- 2 -----|----- 3 -----|----- 4 -----|

Holding is harmless if the host is the slower one. Such a host does not wait, so each step takes as long as the host
needs, with any lead.
"""

from __future__ import annotations

import math

# A call that need not wait returns in about ten microseconds. A host that is slower than its device by less than this
# per step counts as equally fast.
_WAITED_NS = 50_000
_FEWEST_STEPS = 3  # minimum steps before the device is held; a much faster host has waited by then
_HOLD = 1.5  # share of a step; launching the next one may take longer than the fastest one did
_LONGEST_HOLD_NS = 10_000_000_000


class HostLead:
    """Tells if the host's lead over one device has stopped growing since the device was last idle."""

    def __init__(self) -> None:
        self.device_idle()

    def device_idle(self) -> None:
        """Start again after the host waited for all work. The next piece of work finds the device idle."""
        self._begins = True
        self._waited = self._dry = self._held = False
        # number of steps, and of the latest consecutive steps in which the device ran dry
        self._steps = self._dry_steps = 0
        self._begun_ns = 0
        self._fastest_ns = math.inf

    def begin_step(self, now_ns: int) -> None:
        """End the open step at ``now_ns``, and begin the next one."""
        if self._steps:
            self._fastest_ns = min(self._fastest_ns, now_ns - self._begun_ns)
        self._dry_steps = self._running_dry()
        self._dry = self._waited = False
        self._steps, self._begun_ns = self._steps + 1, now_ns

    def waited(self, took_ns: int) -> None:
        """Record that the host waited ``took_ns`` for work of the step before, while the device had more work."""
        self._waited |= took_ns >= _WAITED_NS

    def launched(self, *, dry: bool) -> None:
        """Record a launch. ``dry``: True if the device's queue was empty, or the device waited for this launch."""
        self._dry |= dry and not self._begins
        self._begins = False

    def hold_ns(self, now_ns: int) -> int | None:
        """Return for how many ns to hold the device before the step that begins at ``now_ns``; None: not at all."""
        if self._steps < _FEWEST_STEPS or self._running_dry():
            return None
        return round(min(_HOLD * min(self._fastest_ns, now_ns - self._begun_ns), _LONGEST_HOLD_NS))

    def held(self) -> None:
        """Record that the device is held (paused). This settles the host's lead: :attr:`settled` is then True."""
        self._held = True

    @property
    def settled(self) -> bool:
        """True if the host's lead has stopped growing.

        One of three is enough: the host waited for the device in the latest step; the device ran dry in each of the
        latest two steps; the device was held (paused) since it was last idle.
        """
        return self._held or self._waited or self._running_dry() > 1

    def _running_dry(self) -> int:
        """Return in how many latest steps in a row the device ran dry. The first after an idle device never counts."""
        return self._dry_steps + 1 if self._dry and self._steps > 1 else 0
