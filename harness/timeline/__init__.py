"""The one timeline of a study: ledger, workers, device, torch operators, counters and samples on one clock.

Everything is CLOCK_MONOTONIC, which all processes of a host share, counted from one base for the whole file.
"""

from harness.timeline.build import CHROME_NAME, PROTOBUF_NAME, SizeLimits, Timeline, run_timeline, timeline
from harness.timeline.sources import Sources
from harness.timeline.whole import damage

__all__ = ["CHROME_NAME", "PROTOBUF_NAME", "SizeLimits", "Sources", "Timeline", "damage", "run_timeline", "timeline"]
