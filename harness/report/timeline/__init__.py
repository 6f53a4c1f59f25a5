"""The one timeline of a study: ledger, workers, device, torch operators, counters and samples on one clock.

Everything is CLOCK_MONOTONIC, which all processes of a host share, counted from one base for the whole file.
"""

from harness.report.timeline.build import CHROME_NAME, PROTOBUF_NAME, Limits, Timeline, run_timeline, timeline
from harness.report.timeline.sources import Sources
from harness.report.timeline.whole import damage

__all__ = ["CHROME_NAME", "PROTOBUF_NAME", "Limits", "Sources", "Timeline", "damage", "run_timeline", "timeline"]
