"""``python -m tests.campaigns removals --work DIR --out FOLDER``: run the pipelines, predict, and write the table."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from harness.explain.ledger import measure
from harness.explain.replay.predict import Replays, unedited_error
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests import warmup
from tests.campaigns.removals.pipelines import NAME, STEPS, WARMUP, arm, draw, scenario
from tests.studies import run_study

AT_ONCE = 4  # pipelines of one study: four arms each
SPOILED = 0.01  # share of a step that a run waited for a core; it is repeated
WITHIN = 0.03


@dataclass(frozen=True)
class Row:
    """One removal. Step times in ms."""

    seed: int
    pipeline: str
    part: str
    step_ms: float
    predicted_ms: float
    measured_ms: float
    unedited: float
    waited_for_cores: float  # share of the step, the larger of both runs

    @property
    def workers(self) -> int:
        return int(self.pipeline.partition(", ")[2].partition(" x ")[0])

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="seed of the first pipeline")
    parser.add_argument("--seeds", type=int, nargs="+", help="these pipelines, in place of --first and --pipelines")
    parser.add_argument("--tries", type=int, default=3, help="of a pipeline; 0: only analyse the studies there are")
    parser.add_argument("--work", type=Path, required=True, help="folder for the studies; those there count as tries")
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md and table.json")
    arguments = parser.parse_args()
    wanted = arguments.seeds or list(range(arguments.first, arguments.first + arguments.pipelines))
    rows = _best(arguments.work, wanted)
    for _ in range(arguments.tries):
        again = [seed for seed in wanted if seed not in rows or _waited(rows[seed]) > SPOILED]
        for start in range(0, len(again), AT_ONCE):
            seeds = again[start : start + AT_ONCE]
            run_study(scenario(seeds), arguments.work / f"{len(list(arguments.work.glob('*')))}-{seeds[0]}")
        rows = _best(arguments.work, wanted)
    every = [row for _, found in sorted(rows.items()) for row in found]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "README.md").write_text(page(every, _repeated(arguments.work, wanted)))
    (arguments.out / "table.json").write_text(json.dumps([asdict(row) for row in every], indent=1) + "\n")
    print(summary(every), flush=True)


def _best(work: Path, wanted: list[int]) -> dict[int, list[Row]]:
    """Of each pipeline the rows of the study in which its runs waited least for a core."""
    best: dict[int, list[Row]] = {}
    for study in sorted(work.glob(f"*/{NAME}/*")):
        runs = {run.record.arm: run for run in StudyFolder(study).runs()}
        for seed in wanted:
            if arm(seed) in runs:
                rows = _rows(seed, runs)
                if seed not in best or _waited(rows) < _waited(best[seed]):
                    best[seed] = rows
    return best


def _repeated(work: Path, wanted: list[int]) -> int:
    """How many pipelines ran in more than one study."""
    runs = Counter(run.record.arm for study in work.glob(f"*/{NAME}/*") for run in StudyFolder(study).runs())
    return sum(runs[arm(seed)] > 1 for seed in wanted)


def _waited(rows: list[Row]) -> float:
    return max(row.waited_for_cores for row in rows)


def _rows(seed: int, runs: dict[str, RunData]) -> list[Row]:
    pipeline, without = draw(seed)
    base = runs[arm(seed)]
    found = {(one.kind, one.name): one for one in Replays([base]).removals()}
    was, delay = _step_ms(base)
    rows = []
    for part in without:
        now, other_delay = _step_ms(runs[arm(seed, part)])
        # A part that took under a thousandth of the step has no figure of its own: nothing is saved.
        speedup = found[part].speedup.median if part in found else 1.0
        rows.append(
            Row(
                seed=seed,
                pipeline=f"{'asynchronous' if pipeline.kernels else 'synchronous'}, {pipeline.workers} x "
                f"{pipeline.prefetch}, {' + '.join(f'{cost:g}' for cost in pipeline.stages.values())}, "
                f"{pipeline.transfer:g} ms",
                part=" ".join(part),
                step_ms=was,
                predicted_ms=was / speedup,
                measured_ms=now,
                unedited=unedited_error(base),
                waited_for_cores=max(delay, other_delay),
            )
        )
    return rows


def _step_ms(run: RunData) -> tuple[float, float]:
    """Mean step time, and the share of it that the run waited for a core."""
    ledger = measure(run)
    assert ledger is not None
    return ledger.mean_step_ms, (ledger.contended_ms or 0.0) / ledger.mean_step_ms


def summary(rows: list[Row]) -> str:
    quiet = [row for row in rows if row.waited_for_cores <= SPOILED]
    misses = [row for row in rows if abs(row.error) > WITHIN]
    fed, inline = ([row for row in rows if (row.workers > 0) is wanted] for wanted in (True, False))
    large = [row for row in rows if abs(row.measured_ms / row.step_ms - 1) > WITHIN]
    return "\n".join(
        [
            f"- removals: {len(rows)} of {len({row.seed for row in rows})} pipelines",
            f"- predicted {_within(rows)} (asked: 95 %)",
            f"- of these {len(quiet)} whose runs waited for a core for at most {SPOILED:.0%} of their steps: "
            f"{_within(quiet) if quiet else 'none'}",
            f"- with loader workers, {len(fed)}: {_within(fed) if fed else 'none'}; without, {len(inline)}: "
            f"{_within(inline) if inline else 'none'}",
            f"- that change the step by over {WITHIN:.0%}, {len(large)}: {_within(large) if large else 'none'}",
            f"- had each been predicted to save nothing: {np.mean([_blind(row) <= WITHIN for row in rows]):.1%} within",
            "- misses (and the share of the step that a run waited for a core): "
            + (", ".join(f"{m.seed} {m.part} {m.error:+.1%} ({m.waited_for_cores:.0%})" for m in misses) or "none"),
        ]
    )


def _within(rows: list[Row]) -> str:
    errors = np.abs([row.error for row in rows])
    return (
        f"within {WITHIN:.0%} of the step: {np.mean(errors <= WITHIN):.1%}; "
        f"median {np.median(errors):.2%}, p95 {np.quantile(errors, 0.95):.2%}, worst {errors.max():.2%}"
    )


def _blind(row: Row) -> float:
    return abs(row.step_ms / row.measured_ms - 1)


def page(rows: list[Row], repeated: int) -> str:
    header = (
        "| seed | device, workers x prefetch, read + tokenize + pack, transfer | without | step ms | predicted ms | "
    )
    header += "measured ms | error | unedited replay | waited for a core |"
    head = [
        "# What removing a part saves: predicted and really run",
        "Random pipelines (tests/campaigns/removals/pipelines.py) of declared costs, run for real (sleeping, on an "
        "emulated device where asynchronous), and each of them without three of its parts. The prediction rests on the "
        "run of the whole alone (`harness/explain/replay/attribution.py`); the measurement is another process, before "
        f"or after it. One block of {STEPS} steps each, a whole number of batches of every worker, after {WARMUP} to "
        f"{warmup.MOST} of warm-up, until the prefetched batches as the loop began are used up. {repeated} "
        f"pipelines one of whose runs waited for a core for more than {SPOILED:.0%} of its steps were run again (the "
        "quietest study counts). `python -m tests.campaigns removals`.",
        summary(rows),
        f"{header}\n|{' --- |' * 9}",
    ]
    body = [
        f"| {row.seed} | {row.pipeline} | {row.part} | {row.step_ms:.2f} | {row.predicted_ms:.2f} | "
        f"{row.measured_ms:.2f} | {row.error:+.2%}{' **out**' if abs(row.error) > WITHIN else ''} | "
        f"{row.unedited:+.2%} | {row.waited_for_cores:.0%} |"
        for row in rows
    ]
    return "\n\n".join(head) + "\n" + "\n".join(body) + "\n"


if __name__ == "__main__":
    main()
