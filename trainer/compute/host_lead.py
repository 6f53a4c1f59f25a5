"""Tells whether the host is as far ahead of its device as it gets, and how to bring it there.

A host that launches faster than its device works gets further ahead with each step, until it has to wait for the
device. Until then a step takes as long as the host does; from then on, as long as the device does. So steps that begin
on an idle device are too fast at first:

    host     |launch 1|launch 2|launch 3|=== wait ===|launch 4|=== wait ===|
    device    |----- 1 -----|----- 2 -----|----- 3 -----|----- 4 -----|

Two observations end this, both from the host's own clock and from events that were reached:

- The host waited for work of the step before. It is as far ahead as it gets.
- The device ran dry in two steps running, not counting the first. The host is the slower one, and never gets ahead.

Often neither happens. A host that is 2 % faster than its device needs fifty steps to get one step ahead. A host that
waits in a launch, because the driver's queue is full, is as far ahead as it gets, but no call says that it waited. A
few steps do not tell one from the other. So the device is held for as long as the host takes for a step. Meanwhile the
host launches one, and is then as far ahead as a whole step or the queue allows, whichever is less:

    host     |launch 1|launch 2|launch 3|=== wait ===|launch 4|=== wait ===|
    device    |----- 1 -----|-- held --|----- 2 -----|----- 3 -----|----- 4 -----|

Holding does no harm where the host turns out to be the slower one. Such a host does not wait, so each step takes as
long as the host does, however far ahead it is.
"""

from __future__ import annotations

import math

# A call that need not wait returns in about ten microseconds, and a host that is slower than its device by less per
# step than this is as fast as the device.
_WAITED_NS = 50_000
_FEWEST_STEPS = 3  # before the device is held: a host that is much faster has waited by then
_HOLD = 1.5  # of a step: launching the next one may take longer than the fastest one did
_LONGEST_HOLD_NS = 10_000_000_000


class HostLead:
    """The lead over one device, which is told of every step from when the device last stood idle."""

    def __init__(self) -> None:
        self.device_idle()

    def device_idle(self) -> None:
        """The host waited until the device had done everything: the next piece of work finds it idle anyway."""
        self._begins = True
        self._waited = self._dry = self._held = False
        self._steps = self._dry_steps = 0  # steps begun; of them the last ones before this in which the device ran dry
        self._begun_ns = 0
        self._fastest_ns = math.inf

    def begin_step(self, now_ns: int) -> None:
        """The open step ends at ``now_ns``, and the next one begins."""
        if self._steps:
            self._fastest_ns = min(self._fastest_ns, now_ns - self._begun_ns)
        self._dry_steps = self._running_dry()
        self._dry = self._waited = False
        self._steps, self._begun_ns = self._steps + 1, now_ns

    def waited(self, took_ns: int) -> None:
        """The host waited ``took_ns`` for work of the step before, while the device had more to do."""
        self._waited |= took_ns >= _WAITED_NS

    def launched(self, *, dry: bool) -> None:
        """The device has work; ``dry``: it had had nothing queued, or waited for the launch."""
        self._dry |= dry and not self._begins
        self._begins = False

    def hold_ns(self, now_ns: int) -> int | None:
        """How long to hold the device before the next step, which begins at ``now_ns``.

        None while that would be too early: the first step may be a slow one, and a device that ran dry in the last one
        may do so in each.
        """
        if self._steps < _FEWEST_STEPS or self._running_dry():
            return None
        return round(min(_HOLD * min(self._fastest_ns, now_ns - self._begun_ns), _LONGEST_HOLD_NS))

    def held(self) -> None:
        """The device is held: behind the next step, the host is as far ahead as it gets."""
        self._held = True

    @property
    def settled(self) -> bool:
        """True if the host waited in the last step, the device ran dry in each of the last two, or it was held."""
        return self._held or self._waited or self._running_dry() > 1

    def _running_dry(self) -> int:
        """In how many steps running, up to the open one, the device ran dry. The first step does not count."""
        return self._dry_steps + 1 if self._dry and self._steps > 1 else 0
