"""Run one tracker: ``python -m harness.launch.tracking.worker NAME FOLDER PARENT``, fed by :class:`TrackerFeed`.

It answers each line of JSON with a line. A tracker may print, raise or hang: its output goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from harness.launch.tracking.trackers import MetricRow, Tracker, open_tracker
from trainer.errors import in_words, one_line
from trainer.json_types import JsonObject
from trainer.lifetime import die_with_parent

MAX_TRACKER_FAILURES = 3  # consecutive failures after which the tracker is dropped


def serve(tracker: Tracker, messages: TextIO, answer: Callable[[JsonObject], None]) -> None:
    """Answer each message as done or failed. End after :data:`MAX_TRACKER_FAILURES` consecutive failures."""
    failures = 0
    for line in messages:
        message = json.loads(line)
        try:
            work_of(tracker, message)()
            failures = 0
            answer({"done": message["number"]})
        except Exception as error:
            failures += 1
            answer({"failed": message["number"], "error": one_line(in_words(error))})
            if failures == MAX_TRACKER_FAILURES:
                return


def work_of(tracker: Tracker, message: Any) -> Callable[[], None]:
    """Return a function without arguments that calls the tracker's method for ``message``."""
    run = str(message.get("run"))
    match message["do"]:
        case "begin":
            return partial(tracker.begin, run, message["parent"], message["parameters"], message["start_ms"])
        case "metrics":
            return partial(tracker.metrics, run, [MetricRow(*row) for row in message["rows"]])
        case "attach":
            return partial(tracker.attach, run, [Path(path) for path in message["files"]])
        case "end":
            return partial(tracker.end, run, str(message["status"]))
    return tracker.close


def main() -> int:
    """Run the tracker for messages on standard input. Return 0 at their end, 1 if it cannot be opened."""
    name, folder, parent = sys.argv[1:4]
    die_with_parent(int(parent))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # Trackers may print.

    def answer(content: JsonObject) -> None:
        answers.write(json.dumps(content) + "\n")

    try:
        tracker = open_tracker(name, Path(folder))
    except Exception as error:
        answer({"failed": -1, "error": one_line(in_words(error))})
        return 1
    answer({"done": -1})
    serve(tracker, sys.stdin, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
