"""How much of its steps a run waited for a core, as it recorded itself: what spoils a run, and by how much at most."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from harness.explain.probes.samples import split, total
from harness.study.run_data import RunData

NOTHING = 0.01  # share of a step: a quiet machine shows less, and then nothing is allowed for it
SPOILED = 0.05  # a run that waited longer is repeated
HOPELESS = 0.8  # a test that is left with such a run is skipped


def waited_share(run: RunData) -> float:
    """Share of the measured steps' time; 0 where the kernel reports no run-queue delay.

    That of the main thread (column ``contended_ns``) and of all its loader workers (host probe) together: no step is
    longer by more than that because of it.
    """
    return run.once("waited for a core", lambda: _waited_share(run))


def _waited_share(run: RunData) -> float:
    columns = run.step_columns(("warmup", "wall_ns", "contended_ns"))
    assert columns is not None
    steps = [step for step in columns.to_pylist() if not step["warmup"]]
    main = sum(step["contended_ns"] or 0 for step in steps) / sum(step["wall_ns"] for step in steps)
    samples = split(run.samples)
    seconds = total([samples], "host", "interval_s")
    workers = {source for source, _ in samples if source.startswith("host:loader")}
    delays = [total([samples], worker, "run_queue_delay_s") or 0.0 for worker in workers]
    return main + (sum(delays) / seconds if seconds else 0.0)


def mean_waited(runs: Iterable[RunData]) -> float:
    """Mean over the runs of an arm, whose figures are means or medians over them."""
    return fmean(waited_share(run) for run in runs)


def allowance(share: float) -> float:
    """What may be off because runs waited for that share of their steps: 0 of an unspoiled run, to the digit."""
    return share if share > NOTHING else 0.0
