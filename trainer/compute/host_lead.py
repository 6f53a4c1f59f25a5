"""Tells whether the host is as far ahead of its device as it gets.

A host that launches faster than its device works gets further ahead with each step, until it has to wait for the
device. Until then a step takes as long as the host does; from then on, as long as the device does. So steps that begin
on an idle device are too fast at first:

    host     |launch 1|launch 2|launch 3|=== wait ===|launch 4|=== wait ===|
    device    |----- 1 -----|----- 2 -----|----- 3 -----|----- 4 -----|

Where the device runs dry, how far ahead the host was before makes no difference any more.
"""

from __future__ import annotations

# A call that need not wait returns in about ten microseconds, and a host that is slower than its device by less per
# step than this is as fast as the device.
_WAITED_NS = 50_000


class HostLead:
    """Of one device; told of every step from when the device last stood idle (:meth:`device_idle`)."""

    def __init__(self) -> None:
        self.watched = False  # nobody need look whether the device runs dry once the lead has settled
        self.device_idle()

    def device_idle(self) -> None:
        """The host waited until the device had done everything: the next piece of work finds it idle anyway."""
        self.watched, self._begins = True, True
        self._waited = self._dry = self._dry_before = False

    def begin_step(self) -> None:
        if self.settled:
            self.watched = False
        self._dry_before, self._dry, self._waited = self._dry, False, False

    def waited(self, took_ns: int) -> None:
        """The host waited for the device, for ``took_ns``."""
        self._waited |= took_ns >= _WAITED_NS

    def launched(self, *, dry: bool) -> None:
        """The device has work; ``dry``: it had had nothing queued, or waited for the launch."""
        self._dry |= dry and not self._begins
        self._begins = False

    @property
    def settled(self) -> bool:
        """Whether the host waited in the last step, or the device ran dry in each of the last two.

        One step in which it ran dry may be a rare slow one, which a host that is further ahead would have hidden.
        """
        return self._waited or (self._dry and self._dry_before)
