"""Makes the summary that a user reads in ten seconds: warnings, a line per comparison, a small table, next steps."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.explain.statistics import Estimate
from harness.explain.wall import AFTER_STEPS, OTHER_STEPS, START_UP, Wall
from harness.judge.comparisons import Absent, Measured
from harness.judge.confounds import ConfoundKind
from harness.judge.diagnosis import NOTED
from harness.judge.policy import SAME_TOKENS_WITHIN
from harness.judge.report_types import ArmReport, Comparison, DiagnosisKind, NotCompared, StudyReport
from harness.judge.study import comparison_doubts
from harness.show.advice import NextSteps, next_steps
from harness.show.lone_arms import (
    UNSEEN_LINES,
    Headline,
    cause_findings,
    control_findings,
    engine_lines,
    group_lines,
    left_out_lines,
    loader_texts,
    lone_lines,
    skipped_lines,
)
from harness.show.names import ArmNames, change
from harness.show.policy import (
    BAR_PARTS_MAX,
    COMMAND_LONGEST,
    COMPARISONS_MANY,
    DIFFERENCES_SHOWN,
    FINDINGS_SHOWN,
    REMEDY_REPEATS,
    SPENT_SHARE_MIN,
    WAIT_SHARE,
    WORTH_SHARE,
)
from harness.show.ranks import rank_lines, scaling_lines
from harness.show.sentences import believed_ratio, ceiling_text, data_text, disagreements, emulated_devices
from harness.show.tables import NOT_MEASURED
from harness.show.text.doubts import confound_lines, problem_lines, remedy_text
from harness.show.text.findings import TITLES, diagnosis_remedy, diagnosis_text, finding_text, part_label, trust_text
from harness.show.text.verdicts import (
    VERDICTS,
    also_noteworthy,
    finding,
    horizon_text,
    missing_text,
    more_blocks,
    undecided_because,
)
from harness.show.words import count, listing, number, part_of, percent, ratio, steps_read
from trainer.errors import one_line

AMONG_CAUSES = [noted.kind for noted in NOTED.values()]  # Diagnoses that have a more detailed line among the causes.
# Differences that are always listed, never only counted.
LEARNED: tuple[ConfoundKind, ...] = ("diverged", "losses", "repeated data")
HEADER = ("comparison", "verdict", "in isolation", "could gain", "predicted", "measured")


@dataclass(frozen=True)
class FirstScreen:
    """The first screen of a report. Markdown, HTML and terminal show it."""

    question: str
    emulated: str
    beware: tuple[str, ...]  # missing and failed runs, and all undeclared differences; comes first
    headlines: tuple[Headline, ...]  # all comparisons, or of many only the best and the worst
    each: tuple[Headline, ...]  # one for each comparison, in the order of the scenario
    rows: tuple[tuple[str, ...], ...]
    legend: tuple[tuple[str, str], ...]
    next_steps: NextSteps
    names: ArmNames  # short names, used on the whole page
    card: VerdictCard | None = None  # card of an attached program, shown instead of the headlines
    horizon: str = ""  # measured part of the trainings; "" if nothing was measured, or if the card's title names it

    @property
    def next_note(self) -> str:
        """Note on the recommended changes; "" if nothing is recommended and the diagnosis is not about data."""
        about_data = self.card is None or self.card.kind == "input-bound" or self.next_steps.ranked
        return self.next_steps.note if about_data else ""

    @property
    def columns(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and rows of the table of comparisons, without columns that have no figure; the last one stays."""
        last = len(HEADER) - 1
        shown = [i for i in range(last + 1) if i == last or any(row[i] != NOT_MEASURED for row in self.rows)]
        return tuple(HEADER[i] for i in shown), [tuple(row[i] for i in shown) for row in self.rows]


def first_screen(report: StudyReport) -> FirstScreen:
    names = ArmNames([arm.name for arm in report.arms if not arm.control])
    shown: set[str] = set()  # baselines whose cost of data is already in a line
    lines: list[Headline] = []
    headlines: dict[int, Headline] = {}  # by the id() of the comparison
    remedies = Counter(ask for c in report.compared if (ask := more_blocks(c.measured)) is not None)
    repeated = [ask for ask, times in remedies.items() if times > REMEDY_REPEATS]
    ordered, shown_alone = _ordered(report)
    if len(shown_alone) < len(ordered):
        lines.append(_tally(ordered))
    alone_ids = {id(c) for c in shown_alone}
    for c in (*shown_alone, *(entry for entry in report.comparisons if id(entry) not in alone_ids)):
        headlines[id(c)] = _headline(report, c, names, c.baseline not in shown, repeated)
        if isinstance(c, Comparison):
            shown.add(c.baseline)
    lines += [headlines[id(c)] for c in shown_alone]
    lines += [Headline(f"To decide the {remedies[ask]} undecided comparisons", ask, "") for ask in repeated]
    if not repeated:
        lines += _undecided_lines([c for c in ordered if id(c) not in alone_ids], names)
    compared = {name for c in report.comparisons for name in (c.baseline, c.candidate)}
    involved = [arm for arm in report.arms if arm.name in compared]
    lines += left_out_lines(involved, names) + skipped_lines(involved, names) + engine_lines(involved, names)
    advised = [*report.advice]
    if not report.comparisons:
        involved = [arm for arm in report.arms if not arm.control]
        lines = [
            *group_lines(involved, report.group, names),
            *(line for arm in involved for line in lone_lines(arm, names)),
        ]
        # The line of such an arm gives the reason why nothing is predicted.
        advised = [advice for advice in advised if advice.refused is None or advice.refused.kind not in UNSEEN_LINES]
    lines += [*scaling_lines(report.compared, names), *rank_lines(report.arms, names)]
    ideal = {arm.name: estimate for arm in report.arms if (estimate := arm.explained.ideal_measured) is not None}
    card = verdict_card(report, names, next(iter(headlines.values())) if len(headlines) == 1 else None)
    return FirstScreen(
        question=one_line(report.study.question),
        emulated=_emulated(report),
        beware=(
            *[f"{line}." for line in problem_lines(report.problems)],
            *_differences([names.shorten(c) for c in report.comparisons]),
        ),
        headlines=tuple(lines),
        each=tuple(headlines[id(c)] for c in report.comparisons),
        rows=tuple(_row(c, names) for c in ordered),
        legend=tuple(names.legend),
        next_steps=next_steps(advised, names, ideal),
        names=names,
        card=card,
        horizon=_horizon(involved) if report.compared or (card is None and not report.comparisons) else "",
    )


def _horizon(arms: Sequence[ArmReport]) -> str:
    """Return sentences on the fewest blocks and steps that were measured; "" if no arm has a block."""
    measured = [arm for arm in arms if arm.blocks]
    if not measured:
        return ""
    longest = max((arm.epoch_steps for arm in measured if arm.epoch_steps is not None), default=None)
    return horizon_text(min(arm.blocks for arm in measured), min(arm.block_steps for arm in measured), longest)


def _ordered(report: StudyReport) -> tuple[list[Comparison | NotCompared], list[Comparison | NotCompared]]:
    """Return all comparisons, and those with a line of their own: of many the best, the worst, and any warned of."""
    if len(report.comparisons) < COMPARISONS_MANY or len(report.compared) < COMPARISONS_MANY:
        return [*report.comparisons], [*report.comparisons]
    by_gain = sorted(report.compared, key=lambda comparison: -comparison.measured.ratio.median)
    decided = _decided(by_gain)
    broken = {arm.name for arm in report.arms if loader_texts(arm, arm.name)}  # workers repeat batches or deliver none
    ends = decided if len(decided) > 1 else by_gain
    own_line = [
        comparison
        for comparison in by_gain
        if comparison in (ends[0], ends[-1])
        or comparison.drift is not None
        or {comparison.candidate, comparison.baseline} & broken
    ]
    absent = [comparison for comparison in report.comparisons if isinstance(comparison, NotCompared)]
    return [*by_gain, *absent], [*own_line]


def _tally(comparisons: Sequence[Comparison | NotCompared]) -> Headline:
    """Return a line that counts the comparisons by verdict, for a report in which only some have their own line."""
    verdicts = Counter(
        VERDICTS[comparison.measured.verdict] for comparison in comparisons if isinstance(comparison, Comparison)
    )
    absent = sum(isinstance(comparison, NotCompared) for comparison in comparisons)
    parts = [f"{number} {verdict}" for verdict, number in verdicts.most_common()]
    parts += [f"{absent} not measured"] if absent else []
    decided = " that are decided" if len(_decided(comparisons)) > 1 else ""
    support = f"Next are the fastest and the slowest{decided}, and those with a warning. The table has all."
    return Headline(count(len(comparisons), "comparison"), listing(parts), support)


def _decided(comparisons: Sequence[Comparison | NotCompared]) -> list[Comparison]:
    return [
        comparison
        for comparison in comparisons
        if isinstance(comparison, Comparison) and comparison.measured.verdict != "undecided"
    ]


def _undecided_lines(comparisons: Sequence[Comparison | NotCompared], names: ArmNames) -> Iterator[Headline]:
    """Yield a line per cause of "undecided": the number of comparisons, and the first one's reason and remedy."""
    by_cause: dict[str, list[Comparison]] = {}
    for c in comparisons:
        if isinstance(c, Comparison) and c.measured.undecided is not None:
            by_cause.setdefault(c.measured.undecided, []).append(c)
    for group in by_cause.values():
        because = undecided_because(group[0].measured) or ""
        first = f"{names.short(group[0].candidate)}: " if len(group) > 1 else ""
        yield Headline(f"{count(len(group), 'comparison')} undecided", f"{first}{because}", "")


def _headline(
    report: StudyReport, c: Comparison | NotCompared, names: ArmNames, with_data: bool, once: Collection[str]
) -> Headline:
    """Return a comparison's line. ``with_data``: True to add the cost of data. ``once``: remedies to leave out."""
    changed = change(report.study, c.baseline, c.candidate)
    candidate, baseline = names.short(c.candidate), names.short(c.baseline)
    subject = f"{changed} ({candidate})" if changed else f"{candidate} against {baseline}"
    if isinstance(c, NotCompared):
        return Headline(subject, f"not measured ({missing_text(c.missing)})", "")
    subject += _device(report, c, names)
    served = [arm for name in (c.candidate, c.baseline) if (arm := report.arm(name)) is not None]
    support = [text for arm in served for text in loader_texts(arm, names.short(arm.name))][:1]
    if c.drift is not None:
        support.append(_drift(c.drift, baseline, c))
    support += [data_text(names.shorten_compared(c))] if with_data else []
    # If all comparisons have confounds, the warnings above list them.
    if c.confounds and not all(comparison.confounds for comparison in report.compared):
        support.append("The arms differ in more than that: see the warnings above.")
    if disagreements(c):
        support.append("Estimates disagree: see the details.")
    m = names.shorten_compared(c).measured
    support = [*_learned(m, emulated=bool(c.explained.emulated)), *support, *also_noteworthy(m)]
    return Headline(subject, finding(m, once), " ".join(support))


def _drift(found: Estimate, baseline: str, c: Comparison) -> str:
    times = percent(found.median - 1)
    drifts = next(entry for entry in comparison_doubts(c) if entry.kind == "drift")
    todo = "" if drifts.remedy is None else f" To see where that ends, {remedy_text(drifts.remedy)}."
    return (
        f"Compared with {baseline}, its steps got {times} {'slower' if found.median > 1 else 'faster'} from the "
        f"beginning of a run to its end, so later steps may differ.{todo}"
    )


def _device(report: StudyReport, c: Comparison, names: ArmNames) -> str:
    """Return " on an emulated gh200", with the arm that ran on a real device, if any; "" if none is emulated."""
    devices = emulated_devices(c)
    if devices is None:
        return ""
    arms = [report.arm(name) for name in (c.candidate, c.baseline)]
    real = [names.short(arm.name) for arm in arms if arm is not None and arm.speed.emulation is None]
    return f" on an {devices}, {real[0]} on a real device" if len(real) == 1 else f" on an {devices}"


def _learned(m: Measured, *, emulated: bool) -> list[str]:
    """Return a sentence if losses diverged, differ or were not compared (unless ``emulated``); else none."""
    if m.undecided in ("diverged", "other loss"):
        return []
    if m.losses.diverged:
        return [f"The loss of {listing([*m.losses.diverged])} diverged."]
    if m.losses.unlike:
        return ["The losses differ: see the warnings above."]
    if m.losses.some_blocks is not None:
        (differing, blocks), base_loss, candidate_loss = m.losses.some_blocks, m.losses.baseline, m.losses.candidate
        return [
            f"The losses differ in {differing} of {count(blocks, 'block')} ({base_loss:.3f} against "
            f"{candidate_loss:.3f})."
        ]
    unknown = m.losses.baseline is None or m.losses.candidate is None
    return ["Losses were not compared."] if m.verdict == "gain" and unknown and not emulated else []


def _row(c: Comparison | NotCompared, names: ArmNames) -> tuple[str, ...]:
    label = names.pair(c.candidate, c.baseline)
    if isinstance(c, NotCompared):
        return (label, "not measured", *([NOT_MEASURED] * (len(HEADER) - 2)))
    m = c.measured
    estimates = (m.isolated, m.ceiling, believed_ratio(c), m.figure)
    figures = [
        NOT_MEASURED if estimate is None else f"{ratio(estimate.median)}{_or_none(estimate)}" for estimate in estimates
    ]
    tokens_ratio = m.measured_per_step
    if (
        m.figure is not None
        and m.step_time is not None
        and m.steps is not None
        and tokens_ratio is not None
        and abs(tokens_ratio - 1) > SAME_TOKENS_WITHIN
    ):
        unsure = " unclear" if m.steps.verdict in ("none", "undecided") else ""
        figures[-1] += f" ({ratio(m.step_time.median)}{unsure} a step)"  # The ceiling also concerns steps.
    if m.ceilings is not None:
        figures[1] = ceiling_text(m)

    predicted = c.explained.predicted
    if isinstance(predicted, Absent) and predicted.kind == "more than the data path differs" and m.ceiling:
        figures[1] += " by data"  # Other differences may gain more.
    return (label, VERDICTS[m.verdict], *figures)


def _or_none(one: Estimate) -> str:
    """Return " unclear" for a ratio whose interval includes 1 and also a change worth reporting; else ""."""
    holds = one.ci_low is not None and one.ci_high is not None and one.ci_low <= 1 <= one.ci_high
    return " unclear" if holds and (one.distance or 0.0) >= WORTH_SHARE else ""


def _differences(comparisons: Sequence[Comparison | NotCompared]) -> list[str]:
    """Return a line per undeclared difference. Above :data:`DIFFERENCES_SHOWN`, those of speed are counted by kind."""
    lines = difference_lines(comparisons)
    if len(lines) <= DIFFERENCES_SHOWN:
        return [f"The arms also differ: {line}" for line in lines]
    learned = difference_lines(comparisons, only=LEARNED)
    confounds = [
        confound
        for c in comparisons
        if isinstance(c, Comparison)
        for confound in {d.kind: d for d in c.confounds}.values()
    ]
    kinds = Counter(confound.kind for confound in confounds if confound.kind not in LEARNED)
    return [
        *(f"The arms also differ: {line}" for line in learned),
        *(
            f"The arms also differ ({_KINDS.get(kind, kind)}) in {count(times, 'comparison')}: see the details"
            for kind, times in kinds.items()
        ),
    ]


_KINDS = {"host load": "host load by other processes", "fact": "facts of the run", "throttled": "throttling"}


def difference_lines(
    comparisons: Sequence[Comparison | NotCompared], only: Collection[ConfoundKind] | None = None
) -> list[str]:
    """Return a line per undeclared difference, with the comparisons that have it. ``only``: kinds; None for all."""
    pairs_by_line: dict[str, list[str]] = {}
    for c in comparisons:
        differing = c.confounds if isinstance(c, Comparison) else ()
        for line in confound_lines([confound for confound in differing if only is None or confound.kind in only]):
            pairs_by_line.setdefault(line, []).append(f"{c.candidate} against {c.baseline}")
    return [f"{text} ({'; '.join(pairs)})" for text, pairs in pairs_by_line.items()]


def _emulated(report: StudyReport) -> str:
    if not report.emulated:
        return ""
    devices = [arm.speed.device for arm in report.arms if arm.speed.device and arm.speed.emulation]
    named = f" ({listing(list(dict.fromkeys(devices)))})" if devices else ""
    return f"the device{named} exists on paper: its kernels take time and compute nothing; the data path is real."


REST_OF_PARTS = "everything else"


@dataclass(frozen=True)
class BarPart:
    """Part of the bar that divides a step's time in a :class:`VerdictCard`. ``label`` and ``ms`` are texts as shown."""

    label: str
    ms: str
    length: float  # share of the step by the clock
    share: float | None  # share of the step without waits for a core; None if the part is such a wait

    @property
    def percent(self) -> str:
        return NOT_MEASURED if self.share is None else f"{100 * self.share:.0f} %"


@dataclass(frozen=True)
class VerdictCard:
    """Diagnosis of one attached program (which ``harness exec`` runs and times), as texts ready to print."""

    kind: DiagnosisKind
    title: str  # the command, its steps, and the time of a step by the clock
    diagnosis: str  # title of the diagnosis, in capitals
    cost: str  # cost of the diagnosed part, with its saving and remedy
    bar: tuple[BarPart, ...]  # parts of the step, the largest first
    findings: tuple[str, ...]
    trust: str


def card_arms(report: StudyReport) -> tuple[list[ArmReport], ArmReport | None]:
    """Return the diagnosed arms (of comparisons: the candidates), and the one that works longest in a step."""
    arms = [arm for arm in report.arms if not arm.control and arm.diagnoses and arm.wall is not None]
    if report.comparisons:
        candidates = {comparison.candidate for comparison in report.compared}
        arms = [arm for arm in arms if arm.name in candidates]
    return arms, max(arms, key=lambda rank: rank.wall.worked_ms if rank.wall is not None else 0.0, default=None)


def verdict_card(report: StudyReport, names: ArmNames, compared: Headline | None) -> VerdictCard | None:
    """Return the card of the attached program, with the only comparison (``compared``) in place of the diagnosis."""
    arms, arm = card_arms(report)
    if arm is None or arm.wall is None or (report.comparisons and compared is None):
        return None
    step_ms = arm.wall.step_ms.median
    first, *later = arm.diagnoses
    name = f"{TITLES[first.kind]} ({first.name})" if first.kind == "input-bound" else TITLES[first.kind]
    cost = f"{diagnosis_text(first, step_ms)} {diagnosis_remedy(first.remedy, first.figures)}"
    findings = [
        *(line.text for line in group_lines(arms, report.group, names)),  # waits of ranks for each other
        *control_findings(arm),
        *([f"{name}: {cost}"] if compared is not None and first.kind not in AMONG_CAUSES else []),
        *loader_texts(arm, names.short(arm.name)),
        *(finding_text(diagnosis, step_ms) for diagnosis in later if diagnosis.kind not in ("unknown", *AMONG_CAUSES)),
        *cause_findings(arm),
    ]
    return VerdictCard(
        kind=first.kind,
        title=_title(report, arm, names, several=len(arms) > 1),
        diagnosis=name if compared is None else compared.subject,
        cost=cost if compared is None else compared.finding_text,
        bar=_bar(arm.wall),
        findings=tuple(findings[:FINDINGS_SHOWN]),
        trust=trust_text(arm),
    )


def _title(report: StudyReport, arm: ArmReport, names: ArmNames, *, several: bool) -> str:
    assert arm.wall is not None
    command = report.study.command
    program = command[command.index("--") + 1 :] if "--" in command else command
    text = shlex.join(Path(path).name if path.startswith("/") else path for path in program) or names.short(arm.name)
    if len(text) > COMMAND_LONGEST:
        text = f"...{text[3 - COMMAND_LONGEST :]}"
    rank = f", {names.short(arm.name)}" if several else ""
    step_ms = arm.wall.step_ms.median
    times = {part.name: part.ms for part in arm.wall.program}
    shares = {part.name: part.share for part in arm.wall.program}
    named = (START_UP, *[entry for entry in (OTHER_STEPS,) if shares.get(entry, 0.0) >= SPENT_SHARE_MIN], AFTER_STEPS)
    ends = [f"{name} {number(times[name] / 1e3)} s" for name in named if name in times]
    ending = f"; {', '.join(ends)}" if ends else ""
    part = part_of(step_ms)
    waits = arm.wall.total("core") >= SPENT_SHARE_MIN * step_ms
    basis = f"; shares are of the {part(arm.wall.on_cores_ms)} without waits for a core" if waits else ""
    steps = steps_read(arm.wall.steps + arm.wall.thinned_steps, arm.epoch_steps)
    if arm.wall.thinned_steps:
        steps += f", of which {arm.wall.steps} were kept"
    return f"{text}{rank}: {steps}, {part(step_ms)} a step by the clock{basis}{ending}"


def _bar(wall: Wall) -> tuple[BarPart, ...]:
    parts, step_ms = wall.parts, wall.step_ms.median
    shown = list(parts if len(parts) <= BAR_PARTS_MAX else parts[: BAR_PARTS_MAX - 1])
    # Waits for a core are no part of the shares, so they are not summed up with other parts.
    for waits in (
        entry for entry in parts if entry.kind == "core" and entry.share >= WAIT_SHARE and entry not in shown
    ):
        shown[-1] = waits
    part = part_of(step_ms)
    bar_parts = [
        BarPart(
            part_label(entry), part(entry.ms.median), entry.share, None if entry.kind == "core" else wall.share(entry)
        )
        for entry in shown
    ]
    if remaining := [entry for entry in parts if entry not in shown]:
        rest_ms = sum(entry.ms.median for entry in remaining)
        share = sum(wall.share(entry) for entry in remaining if entry.kind != "core")
        bar_parts.append(BarPart(REST_OF_PARTS, part(rest_ms), rest_ms / step_ms, share))
    return tuple(bar_parts)
