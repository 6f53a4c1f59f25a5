"""Write every sentence of a regression check: the decision, its certainty, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.explain.policy import MIN_BLOCKS
from harness.explain.statistics import Estimate
from harness.judge.doubts import DoubtKind, barred
from harness.judge.policy import USELESS_FLOOR
from harness.regress.across import CommonMove
from harness.regress.decision import TOTAL, Cause, Decision, Difference, HighBlocks, Outcome, Part, StateComparison
from harness.regress.policy import DAY_DEVIATION, FIRST_LOOK, MIN_SESSIONS
from harness.show.text.doubts import confound_lines, doubt_text, remedy_text, too_noisy_text
from harness.show.text.verdicts import rarer_text
from harness.show.words import blocks_named, capitalised, count, floor_percent, horizon, listing, ms, percent, ratio
from harness.study.records import OtherDefault

if TYPE_CHECKING:
    from harness.regress.baselines import Baseline
    from harness.regress.run import RegressionResult

SAME_STUDY = "the same study: nothing to compare"
AT_OTHER_TIMES = (
    "The two studies ran at different times, and a machine changes between days. The intervals allow for that. "
    "For narrower ones, use harness regress: it alternates both states"
)
APART = (
    "Step: the typical round; above 0 is slower. Intervals: 95 %, from blocks and days. Days: as the kept sessions of "
    f"the baseline differ; below {MIN_SESSIONS} sessions a standard deviation of {percent(DAY_DEVIATION)} is assumed. "
    "Noise floor: how far the baseline's A/A control is from 0."
)
NOTHING_MEASURED = "Nothing was measured on both sides."
NO_BLOCK = "no block in which both sides finished"


@dataclass(frozen=True)
class CauseText:
    """Text for one cause of "undecided"; braces in templates name keys of :func:`_values` and :func:`_more_values`."""

    cause: str
    remedy: str  # action that would decide it; "" for none


_BUDGET = "Allow more time with --budget"
CAUSES: Mapping[Cause | DoubtKind, CauseText] = {
    "failed runs": CauseText("{details}", "Fix the failed run; its log is in the study's folder"),
    "no shared block": CauseText(NO_BLOCK, f"{_BUDGET}, or fewer steps"),
    "other tokens per step": CauseText(
        "steps of {ours} and of {theirs} tokens: their times cannot be compared",
        "Give both sides one batch size and sequence length",
    ),
    "code changed": CauseText("{details} changed during the measurement", "Run the check again, without edits"),
    "differences": CauseText("not comparable: {details}", "Measure both with the same settings, or pass --allow KEY"),
    "no baseline": CauseText("{details}", "Keep a baseline first"),
    "too few blocks": CauseText(f"only {{blocks}} of the {MIN_BLOCKS} blocks that an interval needs", _BUDGET),
    "within the noise": CauseText(
        "the change is no larger than the noise floor of {floor}", "Use a quiet machine, or longer runs"
    ),
    "both possible": CauseText("the interval includes changes within {within} and beyond", _BUDGET),
    "at the limit": CauseText(
        "the change is about as large as the limit of {within}", "Choose another --within; more blocks hardly help"
    ),
    "scattered": CauseText(
        "blocks differ by far more than the limit of {within}", "Use a quiet machine, longer runs, or a larger --within"
    ),
    "not compared": CauseText("nothing was compared", ""),
    "day to day": CauseText(
        "day-to-day variation alone may change the speed by {days}", "Use harness regress, which alternates both states"
    ),
    "other work": CauseText("the two sides do different work: {work}", "Give both sides the same work"),
    "used lead": CauseText("{lead}", "Give both more warm-up steps, or longer runs"),
    "slow blocks": CauseText("{slow}", "Compare the logs of these runs with those of the others"),
    "other check open": CauseText("{checks} may have grown by more than allowed", _BUDGET),
}
DOUBTED = CauseText("{doubt}", "{settle}")
NOISE: frozenset[Cause | DoubtKind] = frozenset({"within the noise", "both possible", "at the limit", "scattered"})


def cause_text(c: StateComparison) -> CauseText:
    """Return why the comparison ``c`` is undecided, and what would decide it; both empty if it is decided."""
    if c.cause is None:
        return CauseText("", "")
    return _filled(c.cause, c.step, c)


def reason(decision: Decision) -> str:
    """Return why a decision is undecided; empty if it is decided."""
    return "" if decision.why is None else _filled(decision.why, decision).cause


def remedy(decision: Decision) -> str:
    """Return what would decide an undecided ``decision``; empty if it is decided."""
    return "" if decision.why is None else _filled(decision.why, decision).remedy


def too_noisy(decision: Decision) -> bool:
    """Return True if an undecided check cannot exclude a change to 2x; its figure is then useless and not shown."""
    if decision.outcome != "undecided" or decision.change is None:
        return False
    return max(decision.floor or 0.0, decision.change.ci_high or 0.0) > USELESS_FLOOR


def _filled(cause: Cause | DoubtKind, decision: Decision, c: StateComparison | None = None) -> CauseText:
    if cause in NOISE and too_noisy(decision):
        return CauseText(too_noisy_text(None), CAUSES["scattered"].remedy)
    values = _values(decision) | ({} if c is None else _more_values(c))
    text = CAUSES.get(cause, DOUBTED)
    run_more = (
        f"Run about {count(decision.more_blocks, 'more block')} (a longer --budget)" if decision.more_blocks else ""
    )
    action = run_more if run_more and cause == decision.why else text.remedy.format(**values)
    return CauseText(text.cause.format(**values), action)


def _values(decision: Decision) -> dict[str, str]:
    estimate, day_scatter = decision.change, decision.between
    values = {"blocks": str(0 if estimate is None else estimate.n), "within": percent(decision.within)}
    values["floor"] = "" if decision.floor is None else floor_percent(decision.floor)
    if day_scatter is not None:
        source = f"by {count(day_scatter.sessions, 'kept session')}" if day_scatter.known else "assumed"
        values["days"] = f"{percent(day_scatter.allowance)} ({source})"
    return values


def _more_values(c: StateComparison) -> dict[str, str]:
    values, m = {"checks": listing([*c.open])}, c.missing
    if m is not None:
        values["details"] = listing(list(m.details)) or NO_BLOCK
        if m.kind == "differences":
            values["details"] = "; ".join(difference(entry) for entry in c.differences if entry.forbids)
        if m.tokens is not None:
            values |= {"ours": f"{m.tokens[0]:,.0f}", "theirs": f"{m.tokens[1]:,.0f}"}
    if (doubt := barred(c.doubts, "loss")) is not None:
        values["doubt"] = doubt_text(doubt)
        values["settle"] = "" if doubt.remedy is None else capitalised(remedy_text(doubt.remedy))
    values["work"] = "" if c.other_work is None else confound_lines([c.other_work])[0]
    values["slow"] = "" if c.slow_blocks is None else _high_blocks_text(c.slow_blocks, c.blocks, "slower than")
    values["lead"] = "" if c.used_lead is None else confound_lines([c.used_lead])[0]
    return values


def sentence(c: StateComparison) -> str:
    """Return one comparison in a few self-contained sentences: the verdict, its figures, and what to do."""
    name = f"{c.name} (emulated device)" if c.emulated else c.name
    if c.same_study:
        return f"{name}: {SAME_STUDY}."
    cause = cause_text(c)
    todo = f" {cause.remedy}." if cause.remedy else ""
    if c.missing is not None:
        return f"{name}: undecided, {cause.cause}.{todo}"
    assert c.baseline_ms is not None
    assert c.candidate_ms is not None
    verdict = c.verdict if c.cause is None else f"undecided, because {cause.cause}"
    if c.verdict == "same":
        verdict = f"same within {percent(c.step.within)}"
    elif c.verdict == "slower":
        grew = [gate.name for gate in c.gates if gate.decision.outcome == "slower"]
        verdict = f"{listing(grew)} grew by more than allowed"
        if c.step.outcome == "slower" or c.rare:
            verdict = f"slower by more than the {percent(c.step.within)} allowed"
    changed = "The step time was too noisy" if too_noisy(c.step) else f"A step's time changed {moved(c.step)}"
    measured = horizon(c.blocks, c.steps, c.epoch_steps) if c.steps else count(c.blocks, "block")
    figures = (
        f"{changed}: {ms(c.baseline_ms)} at {c.baseline}, {ms(c.candidate_ms)} at "
        f"{c.candidate} ({measured}, {_floor(c.step)})."
    )
    grown = [
        f" {capitalised(gate.name)} grew {moved(gate.decision)}."
        for gate in c.gates
        if gate.decision.outcome == "slower"
    ]
    if c.rare and c.total is not None:
        grown.append(f" {capitalised(TOTAL)} changed {moved(c.total)}: {_rare(c)}.")
    unseen = f" {rarer_text(c.steps)}" if c.verdict in ("same", "faster") and c.steps else ""
    return f"{name}: {verdict}. {figures}{''.join(grown)}{todo}{unseen}"


def _rare(c: StateComparison) -> str:
    """Return why the total is slower although the typical round is not, as a clause."""
    if c.slow_blocks is not None:
        return _high_blocks_text(c.slow_blocks, c.blocks, "slower than")
    return "the typical step alone is undecided" if c.step.outcome == "undecided" else "rare steps got longer"


def _high_blocks_text(high: HighBlocks, blocks: int, relation: str) -> str:
    """Return that some of the ``blocks`` were ``relation`` ("slower than") the others, as a clause."""
    return (
        f"{len(high.blocks)} of {count(blocks, 'block')} were {percent(high.change)} {relation} the others "
        f"({blocks_named(high.blocks)}), as if some processes start in another state"
    )


def missing(c: StateComparison) -> str:
    """Return why nothing could be compared, as a clause."""
    return cause_text(c).cause


def difference(one: Difference) -> str:
    """Return text such as ``environment.cores is 2 against 4``, the baseline's value first."""
    return f"{one.key} is {_shown(one.baseline, one.unit)} against {_shown(one.candidate, one.unit)}"


def _shown(value: Any, unit: str) -> str:
    if unit and value is None:
        return "unknown"
    if unit:
        return percent(value) if unit == "share" else f"{value:.{2 if unit == 'cores' else 0}f} {unit}"
    return value if isinstance(value, str) else repr(value)


def default(one: OtherDefault) -> str:
    """Return a line on a configuration key whose default differs between base and head, or that one of them lacks."""
    if one.text:
        return one.text
    if one.lacking:
        return (
            f"default: {one.lacking} has no key {one.key} and behaves as with {one.base!r}; the other uses the setting "
            f"({', '.join(one.asked)})"
        )
    return f"default: {one.key} is {one.base!r} at base and {one.head!r} at head; both ran one configuration"


def differing(c: StateComparison) -> list[str]:
    """Return a line for each difference of the two sides, but those that :func:`missing` reports."""
    shown = c.differences if c.missing is None else [entry for entry in c.differences if not entry.forbids]
    return [
        *confound_lines(c.confounds),
        *map(default, c.defaults),
        *(f"probes: only in the runs of {problem.arm}: {problem.message}" for problem in c.problems),
        *map(difference, shown),
    ]


def inside(c: StateComparison) -> list[str]:
    """Return a line per changed part of the step, for the total, other undecided checks, and what bars a verdict."""
    changed = [part for part in c.parts if part.decision.outcome in ("slower", "faster") or not part.decision.change]
    lines = [_part(c, part) for part in changed]
    if c.rare and c.total is not None:
        lines.append(f"{c.name}: {TOTAL} changed {moved(c.total)}: {_rare(c)}")
    lines += [f"{c.name}: {name} may have grown: {change(decision)}" for name, decision in c.open.items()]
    lines += [
        f"{c.name}: {gate.name}: {_high_blocks_text(gate.high_blocks, c.blocks, 'above')}"
        for gate in c.gates
        if gate.high_blocks is not None
    ]
    for confound, barred_outcomes in ((c.other_work, "the same"), (c.used_lead, "the same or faster")):
        if confound is not None:
            lines.append(f"{c.name}: {confound_lines([confound])[0]}, so the sides are not called {barred_outcomes}")
    return lines


def _part(c: StateComparison, part: Part) -> str:
    name = f"{c.name}: {part.kind} {part.name}"
    if part.decision.change is None:  # no baseline time to divide by
        return f"{name}: from {ms(part.baseline_ms)} to {ms(part.candidate_ms)} per step"
    gap_ms = part.decision.change.median * part.baseline_ms  # paired, like the change
    text = f"{name} is {part.decision.outcome}: {change(part.decision)}, {'+' if gap_ms > 0 else '-'}{ms(abs(gap_ms))}"
    if part.kind == "stage" and c.step.outcome == "same":
        return (
            f"{text} per step; {'it runs hidden behind the step' if part.hidden else 'too little to change the step'}"
        )
    return text + (" per step" if c.step.outcome == part.decision.outcome else f" per step; the step: {c.step.outcome}")


def headline(verdict: Outcome, comparisons: int) -> str:
    """Return the title of the page: the worst verdict, and the number of comparisons."""
    return f"Regression check: {verdict}" + (f" (worst of {comparisons})" if comparisons > 1 else "")


def change(decision: Decision) -> str:
    """Format a change with its interval: ``+3.1 % [+2.2 %, +4.0 %]``, above 100 % ``2.50x [2.31x, 2.74x]``."""
    estimate = decision.change
    if estimate is None:
        return "no figure"
    if too_noisy(decision):
        return "unclear, 2x not excluded"
    if _doubles(estimate):
        ends = [ratio(1 + end) for end in (estimate.ci_low, estimate.ci_high) if end is not None]
        return f"{ratio(1 + estimate.median)} [{', '.join(ends) or 'no interval'}]"
    return f"{_signed(estimate.median)} {_interval(estimate)}"


def moved(decision: Decision) -> str:
    """Format a change to follow a verb: ``by +3.1 % [...]`` or ``to 2.50x [...]``."""
    estimate = decision.change
    if too_noisy(decision):
        return "by an unknown amount (2x is not excluded)"
    return f"{'to' if estimate is not None and _doubles(estimate) else 'by'} {change(decision)}"


def _doubles(found: Estimate) -> bool:
    return max(found.median, found.ci_high or 0.0) > USELESS_FLOOR


def _interval(found: Estimate) -> str:
    if found.ci_low is None or found.ci_high is None:
        return "[no interval]"
    return f"[{_signed(found.ci_low)}, {_signed(found.ci_high)}]"


def _signed(fraction: float) -> str:
    return f"{fraction * 100:+.{2 if abs(fraction) < 0.1 else 1}f} %"


def _floor(decision: Decision) -> str:
    text = "no noise floor" if decision.floor is None else f"noise floor {floor_percent(decision.floor)}"
    if (day_scatter := decision.between) is None:
        return text
    return f"{text}, day to day {percent(day_scatter.allowance)}{'' if day_scatter.known else ' assumed'}"


def kept_note(kept: Baseline, within: float) -> str:
    """Return a note on the smallest slowdown that a check of another day against ``kept`` detects."""
    detection = kept.limits_of_detection(within)
    text = f"{count(len(kept.sessions), 'session')} kept. A check on another day detects +{percent(detection.slowdown)}"
    text += f" or more (--within {percent(within)})"
    if not detection.same:
        text += "; it cannot call a change the same"
    if detection.known:
        return text
    return (
        f"{text}. It assumes that days differ by {percent(DAY_DEVIATION)}: save on "
        f"{count(detection.more_sessions, 'more day')} to measure that"
    )


def common_move_note(move: CommonMove) -> str:
    """Return a note that all arms changed alike, so the machine is the likelier cause."""
    return (
        f"All {move.arms} arms changed alike ({move.least * 100:+.1f} % to {move.most * 100:+.1f} %). The machine is "
        "a likelier cause than one arm's code: repeat with harness regress"
    )


def blocks_note(result: RegressionResult, budget_s: float) -> str | None:
    """Return a note if the budget ended the check in the middle of a block, or before the first look; else None."""
    blocks = max((comparison.blocks for comparison in result.comparisons), default=0)
    if result.cut is not None:
        progress = f"after {count(blocks, 'block')}" if blocks else "before the first block ended"
        return (
            f"the budget of {budget_s:.0f} s was spent {progress}, in the middle of the next: {result.cut}. "
            "Raise --budget, or stop the process that hangs"
        )
    if result.status != "done" or blocks >= FIRST_LOOK or not blocks:
        return None
    return (
        f"the budget of {budget_s:.0f} s was spent after {blocks} of the {FIRST_LOOK} blocks of a first look "
        f"({result.spent_s / blocks:.0f} s each). Allow at least {result.spent_s / blocks * FIRST_LOOK:.0f} s"
    )


def footnote(comparisons: list[StateComparison]) -> str:
    """Return the note below the table of a check whose sides alternated: what its figures and intervals mean."""
    levels = dict.fromkeys(
        f"{comparison.step.confidence * 100:.2f} %" for comparison in comparisons if comparison.missing is None
    )
    blocks = dict.fromkeys(count(comparison.blocks, "block") for comparison in comparisons)
    if not levels:
        return NOTHING_MEASURED
    return (
        f"Step: the typical round, paired round by round over {listing(list(blocks))}; above 0 is slower. Intervals: "
        f"{listing(list(levels))}, so that all looks at one arm together err in at most 5 %. Noise floor: how far the "
        "baseline's A/A control is from 0."
    )


def same_code_note(commit: str) -> str:
    """Return a note that both sides are the commit ``commit``, so the check measures noise alone."""
    return f"both sides are commit {commit}, so this measures noise alone. For an older state, give --base HEAD~1"


def left_out_note(comparisons: Sequence[str]) -> str:
    """Return a note that these comparisons do not run, because they contain no user code."""
    return f"skipped, because none of your code runs in them: {', '.join(comparisons)}"
