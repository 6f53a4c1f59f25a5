"""Says where too much of a step passed unseen for a claim about it: in a program that nobody here wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.explain.causes import CODE, slow_causes
from harness.judge.doubts import Doubt, barred, doubt, in_order
from harness.judge.policy import CORE_WAIT_SHARE_MAX, UNSEEN_SHARE_MAX
from harness.study.records import RunFacts
from harness.study.run_data import RunData

_REASONS: Mapping[str, Literal["no core", "blocked", "device", "ranks"]] = {
    "no core": "no core",
    "blocked": "blocked",
    "device": "device",
    "ranks": "ranks",
}


@dataclass(frozen=True)
class Unseen:
    """Shares of the time of measured steps, means over blocks. ``place``: where most of the blocked time passed."""

    blocked: float = 0.0
    place: str | None = None
    waiting: float = 0.0
    device: bool = False  # an asynchronous one computed: the host's waits say nothing of what they cost there
    ranks: int = 1  # that wait for one another: what one of them would gain by itself, nobody knows from its own steps
    restarting: float = 0.0  # waits in which an epoch ended, or a loader's first batch came anew
    sampling: float = 0.0  # share of time in a DataLoader's sampler, in the main thread
    workers: int = 0  # number of workers of its DataLoader
    persistent_workers: bool = False  # true if these outlive an epoch
    # Loader workers whose loader began no epoch anew in the measured steps of any block; 0: it did, or it is not known.
    never_restarted: int = 0
    tokenizing: float = 0.0  # in the training loop itself, in no fetch: part of no claim about data
    evaluating_steps: int = 0  # of all blocks: left out, as an evaluation ran within them
    evaluating: float = 0.0  # of the time of these and the measured steps

    def doubts(self, arm: str = "", *, recorded: bool = False) -> tuple[Doubt, ...]:
        """What of its time was not seen. ``recorded``: the device's work was, but for other streams."""
        arms = (arm,) if arm else ()
        found = []
        if self.waiting > CORE_WAIT_SHARE_MAX:
            found.append(doubt("no core", *arms, share=self.waiting))
        if self.blocked > UNSEEN_SHARE_MAX:
            found.append(doubt("blocked", *arms, share=self.blocked, where=self.place or ""))
        if self.device:
            found.append(doubt("one stream" if recorded else "device", *arms))
        if self.ranks > 1:
            found.append(doubt("ranks", *arms))
        if self.evaluating_steps:
            found.append(doubt("evaluation left out", *arms, share=self.evaluating))
        return in_order(found)

    @property
    def reason(self) -> Literal["no core", "blocked", "device", "ranks"] | None:
        """Why nothing can be said of what a change would save; None where it can."""
        found = barred(self.doubts(), "prediction")
        return None if found is None else _REASONS[found.kind]


def waiting_share(facts: Sequence[RunFacts]) -> float | None:
    """Mean share of the time in which the main thread of attached runs had no core; None of other runs."""
    known = [one.waiting_share for one in facts if one.waiting_share is not None]
    return sum(known) / len(known) if known else None


def unseen(runs: Sequence[RunData]) -> Unseen | None:
    """Return :func:`unseen_of` the facts of ``runs``."""
    return unseen_of([run.record.facts for run in runs])


def unseen_of(runs: Sequence[RunFacts]) -> Unseen | None:
    """Return what was not seen of attached runs; None for those that this trainer's own ledger recorded."""
    facts = [one for one in runs if one.attached is not None]
    if not facts:
        return None
    blocked = sum(one.unseen_share or 0.0 for one in facts) / len(facts)
    return Unseen(
        blocked=blocked,
        place=_place(facts, blocked),
        waiting=sum(one.waiting_share or 0.0 for one in facts) / len(facts),
        sampling=sum(one.sampling_share or 0.0 for one in facts) / len(facts),
        workers=max(one.workers or 0 for one in facts),
        persistent_workers=all(one.persistent_workers for one in facts),
        restarting=sum(one.restarting_share or 0.0 for one in facts) / len(facts),
        never_restarted=max(one.workers or 0 for one in facts) if all(one.epoch_ends == 0 for one in facts) else 0,
        tokenizing=sum(one.tokenizing_share or 0.0 for one in facts) / len(facts),
        evaluating_steps=sum(one.evaluating_steps or 0 for one in facts),
        evaluating=sum(one.evaluating_share or 0.0 for one in facts) / len(facts),
        device=any(one.asynchronous for one in facts),
        ranks=max(one.ranks or 1 for one in facts),
    )


def _place(facts: Sequence[RunFacts], blocked: float) -> str | None:
    """Return the sampled line that takes most of the ``blocked`` share of the time; else what the agent noted."""
    sampled = [one for one in slow_causes(facts) if one.kind == CODE and not one.phase and one.place]
    most = max(sampled, key=lambda one: one.spent_share, default=None)
    if most is not None and most.spent_share >= blocked / 2:
        return f"{most.place} ({most.code})" if most.code else most.place
    return next((one.unseen_place for one in facts if one.unseen_place is not None), None)
