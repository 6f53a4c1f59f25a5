"""Builds the one timeline of a study: ledger, workers, device, torch operators, counters and samples on one clock.

All times are CLOCK_MONOTONIC, which every process of a host shares, counted from one base for the whole file.
"""

from harness.show.timeline.build import CHROME_NAME, PROTOBUF_NAME, SizeLimits, Timeline, run_timeline, timeline
from harness.show.timeline.sources import Sources
from harness.show.timeline.whole import damage

__all__ = ["CHROME_NAME", "PROTOBUF_NAME", "SizeLimits", "Sources", "Timeline", "damage", "run_timeline", "timeline"]
