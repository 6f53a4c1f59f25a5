"""Writes the tables of figures: comparisons, arms, controls and data paths, each narrow enough for a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.explain.statistics import Estimate
from harness.judge.claims import PARTS, ArmUse, JudgedClaim
from harness.judge.comparisons import Measured
from harness.judge.controls import DataPath
from harness.judge.policy import SAME_TOKENS_WITHIN
from harness.judge.report_types import ArmReport, ArmTotals, Comparison
from harness.scenario.claims import SHARES, ClaimKind
from harness.show.names import ArmNames, without_point
from harness.show.policy import CLAIM_KEYS_NAMED, PADDED_SHARE
from harness.show.sentences import believed_ratio, left_open, steps_text
from harness.show.tables import NOT_MEASURED, Markdown, estimate_cell, number_cell, ratio_cell, safe, stages_cell, table
from harness.show.text.verdicts import mfu_reason, reason
from harness.show.words import capitalised, count, listing, ms, number, part_of, percent, ratio
from harness.study.contract import STAGES

CONVENTIONS = {
    "palm": "PaLM's 6N + 12LHQT: N without embedding lookups, attention as the full square",
    "causal-half": "6N + 6LHQT: as PaLM, with the half of attention that a causal mask leaves",
    "non-embedding": "6N: N without embeddings and output projection, no attention",
}
STEP_TIMES = "step mean, p50, p95 (ms)"


def _floor(m: Measured) -> str:
    return NOT_MEASURED if m.noise_floor is None or m.figure is None else percent(m.noise_floor)


def _measured(c: Comparison, *, timed: bool) -> list[Estimate | None]:
    """What was predicted and measured; None where the runs were too noisy for a figure."""
    m = c.measured
    return [believed_ratio(c), m.figure, *([None if m.figure is None else m.step_time] if timed else [])]


def comparisons(compared: Sequence[Comparison], names: ArmNames) -> str:
    """What could have been gained, and what was; empty where nothing was compared."""
    if not compared:
        return ""
    could = [
        [
            names.pair(c.candidate, c.baseline),
            *map(ratio_cell, (c.measured.isolated, c.measured.ceiling, c.measured.ideal)),
        ]
        for c in compared
    ]
    # Where steps train as many tokens, their time says the same as the throughput.
    timed = any(abs((c.measured.trained_per_step or 1) - 1) > SAME_TOKENS_WITHIN for c in compared)
    was = [
        [
            names.pair(c.candidate, c.baseline),
            *map(ratio_cell, _measured(c, timed=timed)),
            _floor(c.measured),
        ]
        for c in compared
    ]
    apart = [
        one for c in compared if (one := c.measured.absent.get("ideal")) and one.kind == "ideal-data of another length"
    ]
    header = ["candidate / baseline", "predicted", "measured", *(["step time"] if timed else []), "noise floor"]
    measures = " or ".join(dict.fromkeys(c.measured.measure for c in compared))
    return "\n\n".join(
        [
            table(["candidate / baseline", "isolated", "ceiling", "ideal data"], could),
            table(header, was),
            f"How many times as fast, median [95 % interval]. *measured* counts {measures}; "
            f"{'*step time*, ' if timed else ''}*ceiling* and *ideal data* concern the time of a step; *isolated* is "
            "the data path alone; *predicted* is what replaying the baseline's steps with the candidate's data path "
            "gives for *measured*.",
            *dict.fromkeys(f"Without *ideal data*: {safe(reason(one))}." for one in apart),
        ]
    )


def arms(shown: Sequence[ArmReport], names: ArmNames) -> str:
    """Speed, data work and model of every arm."""
    blocks = " or ".join(map(str, sorted({arm.blocks for arm in shown})))
    reasons = dict.fromkeys(why for arm in shown if (why := mfu_reason(arm.speed.no_mfu)))
    peaks = dict.fromkeys(arm.speed.mfu_of for arm in shown if arm.speed.mfu is not None)
    note = (
        f"Medians over {blocks} blocks [95 % interval]; milliseconds are means per step; the loss is that of the last "
        f"measured steps; {NOT_MEASURED} is not measured."
    )
    if peaks:
        note += f" MFU is the share of: {safe('; '.join(map(str, peaks)))}."
    counted = dict.fromkeys(arm.speed.convention for arm in shown if arm.speed.flops_per_s is not None)
    if counted:
        note += f" Model FLOPs are counted by: {safe('; '.join(CONVENTIONS.get(one, one) for one in counted))}."
        note += _padding(shown)
    if reasons:
        note += f" MFU is not given: {safe('; '.join(reasons))}."
    return "\n\n".join([_speed(shown, names), _data_work(shown, names), _model(shown, names), note])


def _padding(shown: Sequence[ArmReport]) -> str:
    """That padding counts as model FLOPs: an arm that pads may have the MFU of one that trains on far more tokens."""
    shares = sorted(
        arm.totals.useful_fraction
        for arm in shown
        if arm.speed.flops_per_s is not None and arm.totals.useful_fraction is not None
    )
    if not shares or shares[0] >= PADDED_SHARE:
        return ""
    ends = list(dict.fromkeys(percent(one) for one in (shares[0], shares[-1])))
    return f" They are those of all positions, padding included, of which {' to '.join(ends)} are trained on."


def _speed(shown: Sequence[ArmReport], names: ArmNames) -> str:
    rows = [
        [
            names.short(arm.name),
            estimate_cell(arm.totals.tokens_per_s),
            estimate_cell(arm.totals.trained_tokens_per_s),
            step_times(arm),
        ]
        for arm in shown
    ]
    return table(["arm", "tokens/s", "trained tokens/s", STEP_TIMES], rows)


def _data_work(shown: Sequence[ArmReport], names: ArmNames) -> str:
    header = [
        "arm",
        f"exposed ms: {' / '.join(STAGES)}",
        f"hidden ms: {' / '.join(STAGES[:3])}",
        "waiting for a core ms",
    ]
    rows = [
        [
            names.short(arm.name),
            stages_cell(arm.totals.exposed_ms, STAGES),
            stages_cell(arm.totals.hidden_ms, STAGES[:3]),
            number_cell(arm.totals.contended_ms),
        ]
        for arm in shown
    ]
    return "\n\n".join([table(header, rows), *_by_either(shown, names)])


def _by_either(shown: Sequence[ArmReport], names: ArmNames) -> list[str]:
    """Of which arms exposed and hidden are one of two readings, and what a step waits by both."""
    found = []
    for arm in shown:
        open_ms = left_open(arm.totals.waited_range_ms, sum(arm.totals.phase_ms.values()))
        if open_ms is not None:
            found.append(f"{names.short(arm.name)} {number(open_ms[0])} to {number(open_ms[1])} ms")
    if not found:
        return []
    return [
        "Exposed and hidden are by one reading of when the device worked while the host was still launching, which its "
        f"events leave open. By either, a step waits for data: {listing(found)}."
    ]


def _model(shown: Sequence[ArmReport], names: ArmNames) -> str:
    rows = [
        [
            names.short(arm.name),
            NOT_MEASURED if arm.speed.flops_per_s is None else number(arm.speed.flops_per_s / 1e9),
            NOT_MEASURED if arm.speed.mfu is None else percent(arm.speed.mfu),
            _loss(arm.totals),
        ]
        for arm in shown
    ]
    return table(["arm", "model GFLOP/s", "MFU", "loss"], rows)


def controls(shown: Sequence[ArmReport], names: ArmNames) -> str:
    """The controls, each with its arm; empty where there is none."""
    if not shown:
        return ""
    header = ["of", "control", STEP_TIMES, "tokens/s", "times as fast as its arm", "waiting for a core ms"]
    rows = [
        [
            names.short(arm.of or ""),
            arm.control or "",
            step_times(arm),
            number_cell(None if arm.totals.tokens_per_s is None else arm.totals.tokens_per_s.median),
            ratio_cell(arm.against_arm),
            number_cell(arm.totals.contended_ms),
        ]
        for arm in shown
    ]
    note = (
        "*a-a*: the arm against itself, so how far its interval reaches from 1 is the noise floor. *ideal-data*: no "
        "data cost. *data-only*: no compute."
    )
    return f"{table(header, rows)}\n\n{note}"


def step_times(arm: ArmReport) -> str:
    """The mean, as sentences and pictures give it, and the quantiles of single steps."""
    return ", ".join(map(number_cell, (arm.totals.mean_step_ms, arm.totals.p50_ms, arm.totals.p95_ms)))


def _loss(totals: ArmTotals) -> str:
    if totals.diverged:
        return Markdown("**diverged**")
    return NOT_MEASURED if totals.loss is None else f"{totals.loss:.3f}"


def data_paths(found: Sequence[DataPath], names: ArmNames) -> str:
    """Both tables, each with its note; empty where the scenario does not ask for them."""
    if not found:
        return ""
    baselines = list(dict.fromkeys(one.baseline for one in found))
    against = names.short(baselines[0]) if len(baselines) == 1 else without_point(baselines[0])
    alone = [
        [
            names.short(one.arm),
            _sample_cell(one.sample_ms),
            estimate_cell(one.tokens_per_s),
            estimate_cell(one.trained_tokens_per_s),
            ratio_cell(one.times),
        ]
        for one in found
    ]
    training = [
        [
            names.short(one.arm),
            estimate_cell(one.step_ms),
            number_cell(one.waited_ms),
            ratio_cell(one.times),
            ratio_cell(one.training_times),
        ]
        for one in found
    ]
    measures = " or ".join(dict.fromkeys(one.measure for one in found if one.measure))
    point = " at the same point of the matrix" if len(baselines) > 1 else ""
    return "\n\n".join(
        [
            *(f"{safe(line)}" for line in _path_findings(found, names)),
            table(["arm", "ms a sample", "tokens/s", "trained tokens/s", f"times as fast as {against}"], alone),
            "Medians over the blocks of the data-only controls [95 % interval]. A sample is a row of a batch with its "
            f"padding, which tokens/s and the ratio to {safe(against)}{point} count too.{_loop_note(found)}",
            "What it is worth in training:",
            table(["arm", "step ms (median of blocks)", "waits for data, ms a step", "alone", "in training"], training),
            f"*alone* and *in training*: times as fast as {safe(against)}{point}"
            f"{f', in training by {measures}' if measures else ''}.",
        ]
    )


def _path_findings(found: Sequence[DataPath], names: ArmNames) -> list[str]:
    """The fastest path alone, and what is left of that in training, at each baseline."""
    lines = []
    for baseline in dict.fromkeys(one.baseline for one in found):
        paths = [one for one in found if one.baseline == baseline and one.arm != baseline and one.times is not None]
        if not paths:
            continue
        best = max(paths, key=lambda one: one.times.median if one.times is not None else 0.0)
        assert best.times is not None
        line = f"Alone {names.short(best.arm)} is {ratio(best.times.median)} as fast as {names.short(baseline)}"
        base = next((one for one in found if one.arm == baseline), None)
        if base is not None and base.mean_step_ms is not None and base.waited_ms is not None:
            part = part_of(base.mean_step_ms)
            waits = f"{part(base.waited_ms)} of its {part(base.mean_step_ms)} a step"
            line += f"; data costs {names.short(baseline)} {waits}"
        if (trained_with := steps_text(best.step_time, best.steps)) is not None:
            line += f"; trained with, {trained_with}"
        if best.training_times is not None:  # what a step holds counts in it, too: padding is no data work
            line += f"; by {best.measure}, which count what a step holds, {ratio(best.training_times.median)}"
        lines.append(f"{line}.")
    return lines


def _loop_note(found: Sequence[DataPath]) -> str:
    """How much of the steps alone is no data path: it hides how fast the fastest are."""
    known = [one.loop_ms for one in found if one.loop_ms is not None]
    if not known:
        return ""
    span = ms(max(known)) if min(known) == max(known) else f"{ms(min(known))} to {ms(max(known))}"
    return (
        f" Of each step alone {span} are the loop around the data path, the ledger's marks among it: a path that takes "
        "as long or less is faster than its figures here."
    )


def _sample_cell(sample: Estimate | None) -> str:
    if sample is None:
        return NOT_MEASURED
    if sample.ci_low is None or sample.ci_high is None:
        return f"{_digits(sample.median)} [no interval]"
    return f"{_digits(sample.median)} [{_digits(sample.ci_low)}–{_digits(sample.ci_high)}]"


def _digits(value: float) -> str:
    """Three significant digits also of what is far below 1: ``0.00412``."""
    return number(value) if value >= 1 else f"{value:.5f}" if value < 0.01 else f"{value:.3f}"


def claim_text(one: JudgedClaim) -> str:
    """The claim as it is commonly made, or by its figure and bounds."""
    kind = one.kind
    if kind.text:
        return kind.text
    text = f"{kind.of} of {one.arm} is {kind.low:g} to {kind.high:g}"
    return text if one.baseline is None else f"{text} times that of {one.baseline}"


def claims(uses: Sequence[ArmUse], judged: Sequence[JudgedClaim], names: ArmNames) -> str:
    """Empty where the scenario names no claim."""
    if not judged:
        return ""
    sentences = "\n".join(f"- {safe(claim_sentence(one, names))}" for one in judged)
    header = [
        "arm",
        "step ms (median of runs)",
        "tokenizing ms per 1000 tokens",
        f"{' / '.join(PARTS)}: % of the step",
        f"{' / '.join(PARTS)}: CPU cores",
        "all processes: cores",
        "device idle",
    ]
    rows = [
        [
            names.short(one.arm),
            estimate_cell(one.step_ms),
            estimate_cell(one.tokenizing_ms),
            _parts({part: f"{100 * share.median:.0f}" for part, share in one.shares.items()}),
            _parts({part: f"{cores:.2f}" for part, cores in one.cores.items()}),
            number_cell(one.all_cores),
            NOT_MEASURED if one.idle_share is None else percent(one.idle_share),
        ]
        for one in uses
    ]
    note = (
        "Medians over the runs [95 % interval]. The step's shares are of its time on the main thread (a checkpoint's "
        "is in none of them); on an "
        "asynchronous device compute is launching, and sync with compute.sync late waits for the step before while the "
        "device works; the last column is the time that it had no work. Cores are CPU time per second of the measured "
        "steps by the same parts; processes that tokenize for the main thread count as tokenization, but for those "
        "that are started for each batch, which live too short to be sampled."
    )
    if any(one.ranks > 1 for one in uses):
        note += (
            " Of several ranks the shares and the cores by part are those of rank 0, and *all processes* are those of "
            "every rank."
        )
    return f"{sentences}\n\n{table(header, rows)}\n\n{note}"


def _parts(known: Mapping[str, str]) -> str:
    return " / ".join(known.get(part, NOT_MEASURED) for part in PARTS)


def claim_sentence(one: JudgedClaim, names: ArmNames) -> str:
    """``"Batching makes tokenization 20 to 30 % faster": does not hold here: 1.03x [1.01x to 1.05x] (a against b).``"""
    kind = one.kind
    against = "" if one.baseline is None else f" against {names.short(one.baseline)}"
    found, what = "nothing was measured", ""
    if one.figure is not None:
        found = _figure(one.figure, kind)
        what = {"tokenizing speed": " as fast", "training speed": " the trained tokens per second"}.get(kind.of, "")
    elif one.without:
        found = f"no finished run of {listing([names.short(arm) for arm in one.without])} has that figure"
    cpu = "" if one.values is None else f" of the cores ({number(one.values[0])} to {number(one.values[1])})"
    text = capitalised(claim_text(one))
    limits = f"{_most(one)}{_limits(one)}{_why_open(one)}"
    measured = f"{found}{what if kind.ratio else ''}{cpu}"
    return f"“{text}”: {_verdict(one)}: {measured} ({names.short(one.arm)}{against}){limits}."


def _verdict(one: JudgedClaim) -> str:
    if one.claim is None:
        open_text = "not measured" if one.figure is None else "undecided"
        return {"holds": "held", "does not hold": "not held", "not measurable": open_text}[one.outcome]
    return "not measurable here" if one.outcome == "not measurable" else f"{one.outcome} here"


def _why_open(one: JudgedClaim) -> str:
    """Return why a measured figure neither confirms nor refutes the claim."""
    if one.outcome != "not measurable" or one.figure is None:
        return ""
    if one.figure.ci_low is None:
        return "; too few blocks for an interval"
    if one.untested is not None:
        return ""
    wider = "" if one.noise_floor is None else f", with the noise floor of {percent(one.noise_floor)},"
    return f"; the interval{wider} reaches across the claim's bounds"


def _most(one: JudgedClaim) -> str:
    """What sharing the work can give by itself, where that is less than is claimed, or than was measured."""
    if one.processes is None or one.cores is None or one.figure is None:
        return ""
    most = min(one.processes, one.cores)
    shared = f"{_processes(one.processes)} on {count(one.cores, 'core')}"
    low = one.figure.median if one.figure.ci_low is None else one.figure.ci_low
    if low > most:
        return f"; more than {shared} can give by sharing the work, so something else is faster as well"
    return f"; {shared} can be no more than {most}x by sharing the work" if most < one.kind.low else ""


def _processes(number: int) -> str:
    return f"{number} process{'' if number == 1 else 'es'}"


def _limits(one: JudgedClaim) -> str:
    """What takes from the verdict: another difference of the arms, no difference of strategy, no A/A control."""
    text = f"; both have data.tokenize {one.untested}, so nothing of the claim was tried" if one.untested else ""
    if one.differs:
        others = listing(
            [*one.differs[:CLAIM_KEYS_NAMED], *(["others"] if len(one.differs) > CLAIM_KEYS_NAMED else [])]
        )
        text += f"; the arms differ in {others} as well"
    if one.kind.ratio and one.figure is not None and one.noise_floor is None:
        text += "; no A/A control says how far two runs of one arm lie apart"
    return text


def _figure(figure: Estimate, kind: ClaimKind) -> str:
    show = ratio if kind.ratio else percent if kind.of in SHARES else number
    if figure.ci_low is None or figure.ci_high is None:
        return f"{show(figure.median)} [no interval]"
    return f"{show(figure.median)} [{show(figure.ci_low)} to {show(figure.ci_high)}]"
