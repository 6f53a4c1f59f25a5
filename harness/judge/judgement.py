"""Decides which predictions a replay of an arm supports, for the report's advice and ``harness whatif``.

Some arms cannot be replayed at all (:func:`refusal`): too much of their time was not seen. Of others some changes are
barred (:func:`bar_of`), as the recording does not show what they depend on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from harness.explain.replay.predict import Replays
from harness.explain.replay.prediction import Prediction
from harness.explain.spans import spans_of
from harness.explain.statistics import MIN_BLOCKS
from harness.judge.doubts import Claim, Doubt, RemedyKind, barred, doubt
from harness.judge.policy import ENOUGH_BLOCKS, RESTART_SHARE_MAX
from harness.judge.unseen import unseen
from harness.scenario.edits import Edits
from harness.study.records import COMMAND, StudyRecord
from harness.study.run_data import RunData

# no loader: batches come from a function of the program, not from a DataLoader.
# no items: some workers made no batches, as their iterable dataset gave them none.
# unequal: some workers delivered far fewer batches than others, for an unknown reason.
# restarts: the loader begins anew in each epoch. Replay has workers ask for the next epoch's batches before this one
# ends, which no DataLoader does.
# sampler: it chooses what to read in the main thread, which no worker does for it.
Bar = Literal["no loader", "no items", "unequal", "sampler", "restarts"]
BARS: dict[str, Bar] = {kind: kind for kind in get_args(Bar)}


def few_blocks_remedy(study: StudyRecord) -> RemedyKind:
    """Return what to ask for where blocks are too few: the rest of an unfinished study, if that is enough.

    Studies of programs and of two states of the code cannot be resumed (``harness.launch.study.read_resumable``).
    """
    resumable = study.scenario_file and not any(COMMAND in arm.declared or arm.code is not None for arm in study.arms)
    unfinished = study.status != "done" and study.blocks >= MIN_BLOCKS
    return "finish the study" if resumable and unfinished and not study.is_training else "more blocks"


def refusal(runs: Sequence[RunData]) -> Doubt | None:
    """Return why ``runs`` support no prediction; None if a replay supports one."""
    hidden = unseen(runs)
    if hidden is None:
        return None
    recorded = all(run.has_spans and len(spans_of(run).kernels) for run in runs)
    return barred(hidden.doubts(runs[0].record.arm, recorded=recorded), "prediction")


def loader_doubts(runs: Sequence[RunData], replays: Replays) -> Iterator[Doubt]:
    """Yield what a replay of ``runs`` does not know of other loader settings."""
    arm = runs[0].record.arm
    if not all(run.record.facts.has_loader for run in runs):
        yield doubt("no loader", arm)
    if replays.unequal:
        yield doubt("no items" if all(run.record.facts.gave_no_items(1) for run in runs) else "unequal", arm)
    if (hidden := unseen(runs)) is not None and hidden.sampling > RESTART_SHARE_MAX:
        yield doubt("sampler", arm, share=hidden.sampling)
    if hidden is not None and hidden.restarting > RESTART_SHARE_MAX:
        yield doubt("restarts", arm, share=hidden.restarting)


def bar_of(edits: Edits, runs: Sequence[RunData], replays: Replays) -> Bar | None:
    """Return why ``runs`` cannot be predicted under ``edits``; None if they can."""
    claims: list[Claim] = ["workers"] if edits.workers is not None and edits.workers != replays.workers else []
    claims += ["prefetch"] if edits.prefetch is not None else []
    if not claims:
        return None
    known = [*loader_doubts(runs, replays)]
    found = next((one for claim in claims if (one := barred(known, claim)) is not None), None)
    return None if found is None else BARS[found.kind]


def prediction_doubts(unedited: Prediction, arm: str, few_blocks: RemedyKind = "more blocks") -> Iterator[Doubt]:
    """Yield why a prediction by the replay of ``unedited`` is shown only to those who ask for it."""
    if not unedited.validation.within_tolerance:
        yield doubt("replay off", arm, share=unedited.validation.typical)
    if unedited.interval_from != "blocks":
        yield doubt("too few blocks", arm, blocks=ENOUGH_BLOCKS, remedy=few_blocks)
