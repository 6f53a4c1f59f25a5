"""``python -m tests.campaigns detection_power --work DIR --out FOLDER``.

Record the blocks, hold the trials, write the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from statistics import stdev
from typing import Any

import yaml

from harness.launch.study import run_study
from harness.regress.series import rounds
from harness.scenario.load import load_scenario
from harness.scenario.plan import make_plan
from harness.study.store import StudyFolder
from tests.campaigns.detection_power.load import busy
from tests.campaigns.detection_power.trials import (
    BASE,
    GATE,
    LEVELS,
    WITHIN,
    Block,
    Trial,
    arm_of,
    blocks_of,
    plain_gate,
    successive,
    trials,
)

# A real data path: rows are read from Arrow and packed, as the loader of a training run does. No model: importing one
# takes longer than a block. Its steps cost the same each time and take a few milliseconds, repetitions are short: what
# alternates quickly is hit alike by a machine that changes its speed.
BASE_CONFIG: dict[str, Any] = {
    "data": {
        "path": "tokens-padded", "access": "scalar", "sequence_length": 128, "batch_size": 32,
        "tokenizer": {"train": {"vocab_size": 2048}},
    },
    "compute": {"threads": 1, "work": "none"},
    "steps": 240,
    "warmup_steps": 4,
    "log_every": 1000,
}  # fmt: skip
CHUNK = 20  # blocks of one study
LONGER = 21  # blocks of a trial that may take long: a look


def scenario(injected_ms: Mapping[int, float]) -> dict[str, Any]:
    """The base, its A/A control, and an arm for each level, slowed by ``injected_ms``.

    Wall time: as little as this is spun away, and to the microsecond, where busy work would overshoot by several.
    """
    arms: dict[str, Any] = {BASE: None}
    for level, milliseconds in injected_ms.items():
        arms[arm_of(level)] = {"data.inject": {"pack_ms": milliseconds, "how": "sleep"}}
    return {
        "name": "detection-power",
        "question": "How small a slowdown of this arm is found here?",
        "base": BASE_CONFIG,
        "arms": arms,
        "controls": ["a-a"],
        "interleave": "slices",
        "slice_steps": 2,
        "probes": {"host": False},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=19)
    parser.add_argument("--loaded-trials", type=int, default=1, help="so many more beside a busy process")
    parser.add_argument("--most", type=int, default=9, help="blocks a trial may take")
    parser.add_argument("--work", type=Path, required=True, help="folder for the studies; those in it are used again")
    parser.add_argument("--out", type=Path, required=True, help="folder for table.md and trials.json")
    arguments = parser.parse_args()
    step_ms = _pilot_ms(arguments.work)
    injected_ms = {level: round(step_ms * level / 100, 5) for level in LEVELS}
    print(f"base: {step_ms:.3f} ms a step; injected: {injected_ms}", flush=True)
    quiet = _record(arguments.work / "quiet", injected_ms, arguments.trials * arguments.most, loaded=False)
    with busy():
        blocks = arguments.loaded_trials * arguments.most
        loaded = _record(arguments.work / "loaded", injected_ms, blocks, loaded=True)
    found = trials(quiet, arguments.most) + trials(loaded, arguments.most)
    arguments.out.mkdir(parents=True, exist_ok=True)
    longer = successive(quiet, LONGER)
    text = table(found, longer, quiet, loaded, arguments.most, step_ms, _block_s(arguments.work / "quiet"))
    (arguments.out / "table.md").write_text(text)
    everything = {
        "trials": [asdict(one) for one in found], "longer_trials": [asdict(one) for one in longer],
        "blocks": [asdict(one) for one in [*quiet, *loaded]],
    }  # fmt: skip
    (arguments.out / "trials.json").write_text(json.dumps(everything) + "\n")
    print(text)


def _pilot_ms(work: Path) -> float:
    """Typical step time of the base, among as many arms as there will be: they push one another out of the caches."""
    (study,) = _studies(work / "pilot", 4, dict.fromkeys(LEVELS, 0.0))
    values = [one.typical_ms("step") for run in study.runs() if (one := rounds(run)) is not None]
    return statistics.median(value for value in values if value is not None)


def _block_s(work: Path) -> float:
    """Seconds that a block took, starting its processes included."""
    records = [StudyFolder(path.parent).read_study() for path in work.glob("*/detection-power/*/study.json")]
    spent = [datetime.fromisoformat(one.ended_utc) - datetime.fromisoformat(one.created_utc) for one in records]
    return sum(one.total_seconds() for one in spent) / sum(one.blocks for one in records)


def _record(work: Path, injected_ms: Mapping[int, float], blocks: int, *, loaded: bool) -> list[Block]:
    studies = _studies(work, blocks, injected_ms)
    return [block for study in studies for block in blocks_of(list(study.runs()), injected_ms, loaded)]


def _studies(work: Path, blocks: int, injected_ms: Mapping[int, float]) -> Iterator[StudyFolder]:
    """Studies of at most CHUNK blocks, each with documents of its own; those that are there already, as they are."""
    for place, start in enumerate(range(0, blocks, CHUNK)):
        folder = work / str(place)
        done = sorted(folder.glob("detection-power/*/study.json"))
        if done and StudyFolder(done[-1].parent).read_study().status == "done":
            yield StudyFolder(done[-1].parent)
            continue
        content = scenario(injected_ms)
        content["base"] = {**content["base"], "seed": 1000 * (place + 1)}
        content["seed"] = place
        content["repeats"] = min(CHUNK, blocks - start)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "detection-power.yaml"
            path.write_text(yaml.safe_dump(content, sort_keys=False))
            plan = make_plan(load_scenario(path), str(path))
            outcome = run_study(plan, folder, ["python", "-m", "tests.campaigns", "detection_power"], str(path))
        assert outcome.status == "done", outcome
        yield StudyFolder(outcome.folder)


def table(
    found: Sequence[Trial],
    longer: Sequence[Trial],
    quiet: Sequence[Block],
    loaded: Sequence[Block],
    most: int,
    step_ms: float,
    block_s: float,
) -> str:
    """Detection, false alarms and blocks by level; the plain gate beside them."""
    every = [*quiet, *loaded]
    of_0, of_5 = ([block.logs[arm_of(level)] for block in quiet] for level in (0, 5))
    alone, unpaired = ([getattr(block, way)[arm_of(0)] for block in quiet] for way in ("alone", "unpaired"))
    effects = []
    for level in LEVELS:
        injected = statistics.median(block.injected[arm_of(level)] for block in every)
        typical = statistics.median(block.logs[arm_of(level)] for block in quiet)
        effects.append(f"{level} %: {injected:.2f} % declared, {typical * 100:+.2f} % found")
    gates = [
        f"| {row.level} % | {row.apart:.0%} | {row.beside:.0%} | {'false alarms' if row.level == 0 else 'found'} |"
        for row in plain_gate(quiet)
    ]
    nulls = sum(one.level == 0 for one in found)
    under_load = [one for one in found if one.loaded]
    beside = "; ".join(
        f"{level} %: {', '.join(one.outcome for one in under_load if one.level == level)}" for level in LEVELS
    )
    return "\n".join(
        [
            "# Detection power",
            "",
            f"A real arm (rows are read from Arrow and packed, {step_ms:.1f} ms a step), slowed by time "
            f"spun away in each step; {len(quiet)} blocks on a quiet machine and {len(loaded)} beside a process that "
            f"takes half a core. {len(found) // len(LEVELS)} trials a level, each over blocks of its own; slower: by "
            f"more than {WITHIN:.0%}. A trial may take {most} blocks; a block with all {len(LEVELS) + 2} arms took "
            f"{block_s:.1f} s, so even {LONGER} blocks are far from ten minutes. Blocks scatter (standard deviation of "
            f"logarithms) by {stdev(of_0):.2%} at 0 % and {stdev(of_5):.2%} at 5 %; at 0 % they would by "
            f"{stdev(alone):.2%} if rounds were held against the base alone, not its A/A control too, and by "
            f"{stdev(unpaired):.2%} if the median rounds of both were divided instead of each round by its neighbour.",
            "",
            f"What was injected, as a share of the base's typical step, medians over blocks: {'; '.join(effects)}.",
            "",
            *_rows(found),
            "",
            "The arms are forked from one fork server; two states of the code have one each, whose luck comes on top.",
            f"No false alarm in {nulls} trials says that the rate is below {1 - 0.05 ** (1 / nulls):.0%} "
            "(95 % confidence), not that it is 0.",
            "",
            f"Beside a load (among the above): {beside}.",
            "",
            f"The same quiet blocks again, each trial going on until it is decided or has {LONGER} blocks, the next "
            "beginning with the block after (so levels that take longer have fewer trials):",
            "",
            *_rows(longer),
            "",
            f"The plain gate, pytest-benchmark's `--benchmark-compare-fail={GATE}`, on the same runs of the quiet "
            f"blocks ({len(quiet)} blocks): a saved base of one block against the arm in the next, and, kinder than "
            "life, of the same block.",
            "",
            "| injected | fails, saved a block before | fails, same block | that is |",
            "| ---: | ---: | ---: | --- |",
            *gates,
            "",
        ]
    )


def _rows(found: Sequence[Trial]) -> Iterator[str]:
    yield "| injected | trials | slower | same | undecided | faster | blocks: median (most) |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for level in LEVELS:
        ours = [one for one in found if one.level == level]
        blocks = [one.blocks for one in ours]
        shown = " | ".join(_share(ours, outcome) for outcome in ("slower", "same", "undecided", "faster"))
        yield f"| {level} % | {len(ours)} | {shown} | {statistics.median(blocks):g} ({max(blocks)}) |"


def _share(found: Sequence[Trial], outcome: str) -> str:
    count = sum(one.outcome == outcome for one in found)
    return f"{count} ({count / len(found):.0%})"


if __name__ == "__main__":
    main()
