"""Collects all doubts about an arm, a comparison or a study, for every reader of their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from harness.explain.ledger import Blocks, arm_lead
from harness.explain.statistics import MIN_BLOCKS
from harness.judge.doubts import Doubt, DoubtKind, RemedyKind, doubt, in_order
from harness.judge.policy import ENOUGH_BLOCKS
from harness.judge.report_types import ArmExplained, ArmTotals, Comparison, StudyReport
from harness.judge.unseen import Unseen
from harness.study.contract import PROFILED

_KINDS: Mapping[str, DoubtKind] = {kind: kind for kind in get_args(DoubtKind)}


def arm_doubts(
    arm: str,
    totals: ArmTotals,
    hidden: Unseen | None,
    explained: ArmExplained,
    blocks: Blocks,
    few_blocks: RemedyKind = "more blocks",
) -> tuple[Doubt, ...]:
    """Everything that a reader must know beside the figures of one arm."""
    found = [*hidden.doubts(arm)] if hidden is not None else []
    attached = hidden is not None
    if 0 < len(blocks) < MIN_BLOCKS:  # of an attached program blocks are parts of its one run
        found.append(
            doubt("too few blocks", arm, blocks=ENOUGH_BLOCKS, remedy="more steps" if attached else few_blocks)
        )
    if explained.replay_error is not None and not explained.within_tolerance:
        found.append(doubt("replay off", arm, share=explained.replay_error))
    found += [doubt("diverged", arm, share=totals.diverged / len(blocks))] if totals.diverged else []
    found += [doubt("uneven", arm)] if totals.uneven is not None else []
    if totals.step_kinds is not None:
        found.append(doubt("step kinds", arm, share=totals.step_kinds.above_share))
    if totals.long_steps is not None:
        found.append(doubt("rare long steps", arm, share=totals.long_steps.steps / totals.long_steps.of))
    use = arm_lead(blocks)
    if use is not None and use.is_worth_saying:
        sliced = any(run.record.interleave == "slices" for run in blocks.values())
        how: RemedyKind = "more --warmup steps" if attached else "longer slices" if sliced else "more warm-up steps"
        found.append(doubt("used lead", arm, share=use.share, remedy=how))
    compiled = sum(bool(run.record.facts.measured_compilations) for run in blocks.values())
    found += [doubt("compiled", arm, share=compiled / len(blocks))] if compiled else []
    return in_order(found)


def comparison_doubts(c: Comparison) -> tuple[Doubt, ...]:
    """The doubts of the verdict, then what else differs between both arms, undeclared."""
    m = c.measured
    found = [*m.doubts]
    for one in c.confounds:
        if one.kind not in ("diverged", "losses", "lead"):  # the verdict's own doubts have these
            found.append(doubt(_KINDS[one.kind], *(name for name in one.names if name), where=one.key))
    if m.ceilings is not None:
        found.append(doubt("ceilings apart", c.baseline, share=m.ceilings[1] / m.ceilings[0] - 1))
    if c.drift is not None:
        found.append(doubt("drift", c.candidate, share=c.drift.median - 1))
    return in_order(found)


def study_doubts(report: StudyReport) -> tuple[Doubt, ...]:
    """Every doubt about a figure of ``report``, each once."""
    return in_order(
        [
            *(one for arm in report.arms for one in arm.doubts),
            *(one for c in report.compared for one in comparison_doubts(c)),
            *(one for advice in report.advice for one in advice.doubts),
            *(doubt("probe problem", *one.runs) for one in report.probe_problems),
            *(doubt("profiled", arm.name) for arm in report.study.arms if arm.control == PROFILED),
        ]
    )
