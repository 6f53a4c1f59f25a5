"""The picture of allocated memory over the profiled steps, one row per arm, process and device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.probes.memory_timeline import MemoryTimeline
from harness.analysis.probes.torch_profile import TorchProfile
from harness.report.drawing import short, title
from harness.report.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 8
_MOST_POINTS = 4000  # per curve: more than the picture has pixels
_CURVE, _PEAK, _STEP = "#0072B2", "#D55E00", "#DDDDDD"


def memory(profiles: Sequence[TorchProfile]) -> Figure | None:
    """The main processes' memory (the first few); None where none was recorded."""
    rows = [(profile.arm, one) for profile in profiles for one in profile.memory if one.role == "main"]
    if not rows:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = rows[:MOST_ROWS]
    figure = Figure(figsize=(10.5, 1.0 + 2.1 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (arm, one) in enumerate(shown):
        _row(figure.add_subplot(len(shown), 1, place + 1), arm, one)
    figure.axes[-1].set_xlabel("ms since the first event (profiled steps shaded by turns)")
    left_out = f" (the first {MOST_ROWS} of {len(rows)})" if len(rows) > MOST_ROWS else ""
    title(figure, f"Allocated memory over the profiled steps{left_out}")
    return figure


def _row(axes: Axes, arm: str, one: MemoryTimeline) -> None:
    first = int(one.time_ns[0])
    for place, (_, start, end) in enumerate(one.steps_ns):
        if place % 2 == 0:
            axes.axvspan((start - first) / 1e6, (end - first) / 1e6, color=_STEP, alpha=0.5, linewidth=0)
    time, size = thinned(one.time_ns, one.allocated_bytes)
    axes.step((time - first) / 1e6, size / 2**20, where="post", color=_CURVE, linewidth=1.1)
    where = f"step {one.peak_step}" if one.peak_step is not None else "outside the steps"
    during = f", {one.peak_phase}" if one.peak_phase else ""
    axes.plot((one.peak_ns - first) / 1e6, one.peak_bytes / 2**20, "o", color=_PEAK, markersize=5)
    peak = f"peak {number(one.peak_bytes / 2**20)} MiB: {where}{during}"
    axes.set_title(peak, loc="right", fontsize=8.5, color=_PEAK)
    axes.set_ylabel(f"{short(arm)}\n{one.device}, MiB", fontsize=8.5)
    axes.set_ylim(bottom=min(0.0, float(size.min()) / 2**20))
    axes.grid(axis="y", color="#EEEEEE")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def thinned(time: np.ndarray, size: np.ndarray, most: int = _MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Of long curves the lowest and the highest point of each of ``most / 2`` pieces, in order: no peak is lost."""
    if len(size) <= most:
        return time, size
    pieces = np.array_split(np.arange(len(size)), most // 2)
    kept = np.unique([at for piece in pieces for at in (piece[size[piece].argmin()], piece[size[piece].argmax()])])
    return time[kept], size[kept]
