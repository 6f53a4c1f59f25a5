"""Convert samples for speedscope.app (github.com/jlfwong/speedscope, src/lib/file-format-spec.ts)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainer.json_types import Json, JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

_FRAME = re.compile(r"(.*) \((.*?)(?::(\d+))?\)")
_ORDER = ("main", "loader-")


def speedscope(samples: pa.Table) -> JsonObject:
    """Return a speedscope file for a table of ``read_stacks``, in ns. A sample's weight is the time to the next one."""
    frames: dict[str, int] = {}
    threads: dict[tuple[int, int, str], list[tuple[int, int, list[int]]]] = {}
    for row in samples.to_pylist():
        stack = [frames.setdefault(frame, len(frames)) for frame in row["stack"]]
        thread = row["pid"], row["tid"], row["role"]
        threads.setdefault(thread, []).append((row["time_ns"], row["duration_ns"], stack))
    origin_ns = min((spans[0][0] for spans in threads.values()), default=0)
    profiles: list[Json] = []
    for (pid, tid, role), spans in sorted(threads.items(), key=lambda item: _place(*item[0])):
        weights = [duration for _, duration, _ in spans]
        start = spans[0][0] - origin_ns
        profiles.append(
            {
                "type": "sampled",
                "name": f"{role} {pid}" if role != "other" else f"process {pid}, thread {tid}",
                "unit": "nanoseconds",
                "startValue": start,
                "endValue": start + sum(weights),
                "samples": [stack for _, _, stack in spans],
                "weights": weights,
            }
        )
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": "stacks",
        "exporter": "llm-training-harness",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(text) for text in frames]},
        "profiles": profiles,
    }


def _place(pid: int, tid: int, role: str) -> tuple[int, str, int, int]:
    matches = [place for place, start in enumerate(_ORDER) if role.startswith(start)]
    return matches[0] if matches else len(_ORDER), role, pid, tid


def _frame(text: str) -> dict[str, Json]:
    match = _FRAME.fullmatch(text)
    if match is None:
        return {"name": text}
    frame: dict[str, Json] = {"name": match[1], "file": match[2]}
    return frame if match[3] is None else {**frame, "line": int(match[3])}
