"""Writes the tables of figures: comparisons, arms, controls and data paths, each narrow enough for a pull request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.explain.statistics import Estimate
from harness.judge.claims import PARTS, ArmUse, JudgedClaim
from harness.judge.controls import DataPath
from harness.judge.policy import SAME_TOKENS_WITHIN
from harness.judge.report_types import ArmReport, ArmTotals, Comparison
from harness.scenario.claims import SHARES, ClaimKind
from harness.show.names import ArmNames, without_point
from harness.show.policy import CLAIM_KEYS_NAMED, PADDED_SHARE
from harness.show.sentences import believed_ratio, left_open, steps_text
from harness.show.tables import (
    NOT_MEASURED,
    Markdown,
    bulleted,
    cell,
    column_table,
    estimate_cell,
    interval_cell,
    joined,
    number_cell,
    percent_cell,
    ratio_cell,
    safe,
    stages_cell,
)
from harness.show.text.verdicts import mfu_reason, reason
from harness.show.words import capitalised, count, listing, ms, number, part_of, percent, ratio
from harness.study.contract import STAGES

CONVENTIONS = {
    "palm": "PaLM's 6N + 12LHQT: N without embedding lookups, attention as the full square",
    "causal-half": "6N + 6LHQT: as PaLM, with the half of attention that a causal mask leaves",
    "non-embedding": "6N: N without embeddings and output projection, no attention",
}
STEP_TIMES = "step mean, p50, p95 (ms)"


def comparisons(compared: Sequence[Comparison], names: ArmNames) -> str:
    """Return two Markdown tables: possible and measured speedups of each comparison. "" if nothing was compared."""
    if not compared:
        return ""
    pair: dict[str, Callable[[Comparison], str]] = {
        "candidate / baseline": lambda c: names.pair(c.candidate, c.baseline)
    }
    possible: dict[str, Callable[[Comparison], str]] = {
        "isolated": lambda c: ratio_cell(c.measured.isolated),
        "ceiling": lambda c: ratio_cell(c.measured.ceiling),
        "ideal data": lambda c: ratio_cell(c.measured.ideal),
    }
    measured: dict[str, Callable[[Comparison], str]] = {
        "predicted": lambda c: ratio_cell(believed_ratio(c)),
        "measured": lambda c: ratio_cell(c.measured.figure),
        "step time": lambda c: ratio_cell(None if c.measured.figure is None else c.measured.step_time),
        "noise floor": lambda c: percent_cell(None if c.measured.figure is None else c.measured.noise_floor),
    }
    # If all steps train as many tokens, step time and throughput agree.
    timed = any(abs((c.measured.trained_per_step or 1) - 1) > SAME_TOKENS_WITHIN for c in compared)
    if not timed:
        del measured["step time"]
    mismatched = [
        absent
        for c in compared
        if (absent := c.measured.absent.get("ideal")) and absent.kind == "ideal-data of another length"
    ]
    measures = " or ".join(dict.fromkeys(c.measured.measure for c in compared))
    return joined(
        column_table(compared, pair | possible),
        column_table(compared, pair | measured),
        f"How many times as fast, median [95 % interval]. *measured* counts {measures}; "
        f"{'*step time*, ' if timed else ''}*ceiling* and *ideal data* concern the time of a step; *isolated* is "
        "the data path alone; *predicted* is what replaying the baseline's steps with the candidate's data path "
        "gives for *measured*.",
        *dict.fromkeys(f"Without *ideal data*: {safe(reason(gap))}." for gap in mismatched),
    )


def arms(shown: Sequence[ArmReport], names: ArmNames) -> str:
    """Return three Markdown tables of the arms (speed, data work, model figures such as MFU and loss), and a note."""
    blocks = " or ".join(map(str, sorted({arm.blocks for arm in shown})))
    reasons = dict.fromkeys(missing for arm in shown if (missing := mfu_reason(arm.speed.no_mfu)))
    peaks = dict.fromkeys(arm.speed.mfu_of for arm in shown if arm.speed.mfu is not None)
    note = (
        f"Medians over {blocks} blocks [95 % interval]; milliseconds are means per step; the loss is that of the last "
        f"measured steps; {NOT_MEASURED} is not measured."
    )
    if peaks:
        note += f" MFU is the share of: {safe('; '.join(map(str, peaks)))}."
    counted = dict.fromkeys(arm.speed.convention for arm in shown if arm.speed.flops_per_s is not None)
    if counted:
        note += f" Model FLOPs are counted by: {safe('; '.join(CONVENTIONS.get(rule, rule) for rule in counted))}."
        note += _padding(shown)
    if reasons:
        note += f" MFU is not given: {safe('; '.join(reasons))}."
    name: dict[str, Callable[[ArmReport], str]] = {"arm": lambda arm: names.short(arm.name)}
    speed: dict[str, Callable[[ArmReport], str]] = {
        "tokens/s": lambda arm: estimate_cell(arm.totals.tokens_per_s),
        "trained tokens/s": lambda arm: estimate_cell(arm.totals.trained_tokens_per_s),
        STEP_TIMES: step_times,
    }
    model: dict[str, Callable[[ArmReport], str]] = {
        "model GFLOP/s": lambda arm: number_cell(arm.speed.flops_per_s, 1e9),
        "MFU": lambda arm: percent_cell(arm.speed.mfu),
        "loss": lambda arm: _loss(arm.totals),
    }
    return joined(column_table(shown, name | speed), _data_work(shown, names), column_table(shown, name | model), note)


def _padding(shown: Sequence[ArmReport]) -> str:
    """Return a remark that model FLOPs count padding, with the share of trained positions; "" for little padding."""
    shares = sorted(
        arm.totals.useful_fraction
        for arm in shown
        if arm.speed.flops_per_s is not None and arm.totals.useful_fraction is not None
    )
    if not shares or shares[0] >= PADDED_SHARE:
        return ""
    ends = list(dict.fromkeys(percent(share) for share in (shares[0], shares[-1])))
    return f" They are those of all positions, padding included, of which {' to '.join(ends)} are trained on."


def _data_work(shown: Sequence[ArmReport], names: ArmNames) -> str:
    ranges = []
    for arm in shown:
        if open_ms := left_open(arm.totals.waited_range_ms, sum(arm.totals.phase_ms.values())):
            ranges.append(f"{names.short(arm.name)} {number(open_ms[0])} to {number(open_ms[1])} ms")
    note = (
        "CUDA events do not show when the device worked while the host was still launching. Exposed and hidden assume "
        f"one of the cases. In either case, a step waits for data: {listing(ranges)}."
    )
    columns: dict[str, Callable[[ArmReport], str]] = {
        "arm": lambda arm: names.short(arm.name),
        f"exposed ms: {' / '.join(STAGES)}": lambda arm: stages_cell(arm.totals.exposed_ms, STAGES),
        f"hidden ms: {' / '.join(STAGES[:3])}": lambda arm: stages_cell(arm.totals.hidden_ms, STAGES[:3]),
        "waiting for a core ms": lambda arm: number_cell(arm.totals.contended_ms),
    }
    return joined(column_table(shown, columns), note if ranges else "")


def controls(shown: Sequence[ArmReport], names: ArmNames) -> str:
    """Return a table of the control arms, each with the arm that it belongs to; "" without controls."""
    if not shown:
        return ""
    rows = column_table(shown, {
        "of": lambda arm: names.short(arm.of or ""),
        "control": lambda arm: arm.control or "",
        STEP_TIMES: step_times,
        "tokens/s": lambda arm: cell(arm.totals.tokens_per_s, lambda estimate: number(estimate.median)),
        "times as fast as its arm": lambda arm: ratio_cell(arm.against_arm),
        "waiting for a core ms": lambda arm: number_cell(arm.totals.contended_ms),
    })  # fmt: skip
    note = (
        "*a-a*: the arm against itself, so how far its interval reaches from 1 is the noise floor. *ideal-data*: no "
        "data cost. *data-only*: no compute."
    )
    return f"{rows}\n\n{note}"


def step_times(arm: ArmReport) -> str:
    """Format mean, median and 95th percentile of an arm's step times (ms) as ``31.0, 30.1, 42.5``."""
    return ", ".join(map(number_cell, (arm.totals.mean_step_ms, arm.totals.p50_ms, arm.totals.p95_ms)))


def _loss(totals: ArmTotals) -> str:
    if totals.diverged:
        return Markdown("**diverged**")
    return NOT_MEASURED if totals.loss is None else f"{totals.loss:.3f}"


def data_paths(found: Sequence[DataPath], names: ArmNames) -> str:
    """Return two tables on the arms' data paths (alone, and in training) with notes; "" without any."""
    if not found:
        return ""
    baselines = list(dict.fromkeys(path.baseline for path in found))
    reference = names.short(baselines[0]) if len(baselines) == 1 else without_point(baselines[0])
    data_alone = column_table(found, {
        "arm": lambda path: names.short(path.arm),
        "ms a sample": lambda path: interval_cell(path.sample_ms, _digits),
        "tokens/s": lambda path: estimate_cell(path.tokens_per_s),
        "trained tokens/s": lambda path: estimate_cell(path.trained_tokens_per_s),
        f"times as fast as {reference}": lambda path: ratio_cell(path.times),
    })  # fmt: skip
    training = column_table(found, {
        "arm": lambda path: names.short(path.arm),
        "step ms (median of blocks)": lambda path: estimate_cell(path.step_ms),
        "waits for data, ms a step": lambda path: number_cell(path.waited_ms),
        "alone": lambda path: ratio_cell(path.times),
        "in training": lambda path: ratio_cell(path.training_times),
    })  # fmt: skip
    measures = " or ".join(dict.fromkeys(path.measure for path in found if path.measure))
    point = " at the same point of the matrix" if len(baselines) > 1 else ""
    loops = [path.loop_ms for path in found if path.loop_ms is not None]
    span = " to ".join(dict.fromkeys(ms(end(loops)) for end in (min, max))) if loops else ""
    loop_note = (
        f" Of each step alone {span} are the loop around the data path, the ledger's marks among it: a path that takes "
        "as long or less is faster than its figures here."
    )
    return joined(
        *map(safe, _path_findings(found, names)),
        data_alone,
        "Medians over the blocks of the data-only controls [95 % interval]. A sample is a row of a batch with its "
        f"padding, which tokens/s and the ratio to {safe(reference)}{point} count too.{loop_note if loops else ''}",
        "What it is worth in training:",
        training,
        f"*alone* and *in training*: times as fast as {safe(reference)}{point}"
        f"{f', in training by {measures}' if measures else ''}.",
    )


def _path_findings(found: Sequence[DataPath], names: ArmNames) -> list[str]:
    """Return a sentence per baseline: the fastest data path alone, and what it makes of the training."""
    lines = []
    for baseline in dict.fromkeys(path.baseline for path in found):
        paths = [
            path for path in found if path.baseline == baseline and path.arm != baseline and path.times is not None
        ]
        if not paths:
            continue
        best = max(paths, key=lambda path: path.times.median if path.times is not None else 0.0)
        assert best.times is not None
        line = f"Alone {names.short(best.arm)} is {ratio(best.times.median)} as fast as {names.short(baseline)}"
        base = next((path for path in found if path.arm == baseline), None)
        if base is not None and base.mean_step_ms is not None and base.waited_ms is not None:
            part = part_of(base.mean_step_ms)
            waits = f"{part(base.waited_ms)} of its {part(base.mean_step_ms)} a step"
            line += f"; data costs {names.short(baseline)} {waits}"
        if (trained_with := steps_text(best.step_time, best.steps)) is not None:
            line += f"; trained with, {trained_with}"
        if best.training_times is not None:  # Padding is counted too, although it is no data work.
            line += f"; by {best.measure}, which include the size of a step, {ratio(best.training_times.median)}"
        lines.append(f"{line}.")
    return lines


def _digits(value: float) -> str:
    """Format a positive value with three significant digits, also below 1, as in ``0.00412``."""
    return number(value) if value >= 1 else f"{value:.5f}" if value < 0.01 else f"{value:.3f}"


def claim_text(one: JudgedClaim) -> str:
    """Return the text of a claim as the scenario words it, else a text built from its figure and bounds."""
    kind = one.kind
    if kind.text:
        return kind.text
    text = f"{kind.of} of {one.arm} is {kind.low:g} to {kind.high:g}"
    return text if one.baseline is None else f"{text} times that of {one.baseline}"


def claims(uses: Sequence[ArmUse], judged: Sequence[JudgedClaim], names: ArmNames) -> str:
    """Return the verdict on each claim and the tables behind them; "" if the scenario has no claims."""
    if not judged:
        return ""
    parts = " / ".join(PARTS)
    rows = column_table(uses, {
        "arm": lambda use: names.short(use.arm),
        "step ms (median of runs)": lambda use: estimate_cell(use.step_ms),
        "tokenizing ms per 1000 tokens": lambda use: estimate_cell(use.tokenizing_ms),
        f"{parts}: % of the step":
            lambda use: _parts({part: f"{100 * share.median:.0f}" for part, share in use.shares.items()}),
        f"{parts}: CPU cores": lambda use: _parts({part: f"{cores:.2f}" for part, cores in use.cores.items()}),
        "all processes: cores": lambda use: number_cell(use.all_cores),
        "device idle": lambda use: percent_cell(use.idle_share),
    })  # fmt: skip
    note = (
        "Medians over the runs [95 % interval]. The step's shares are of its time on the main thread (a checkpoint's "
        "is in none of them); on an asynchronous device compute is launching, and the last column is the time that it "
        "had no work. Cores are CPU time per second of the measured steps by the same parts; processes that tokenize "
        "for the main thread count as tokenization, but for those that are started for each batch."
    )
    if any(use.ranks > 1 for use in uses):
        note += " Of several ranks the shares and the cores by part are those of rank 0, *all processes* of every rank."
    return joined(bulleted(safe(claim_sentence(claim, names)) for claim in judged), rows, note)


def _parts(known: Mapping[str, str]) -> str:
    return " / ".join(known.get(part, NOT_MEASURED) for part in PARTS)


def claim_sentence(one: JudgedClaim, names: ArmNames) -> str:
    """Return a claim's verdict: ``"Batching is faster": does not hold here: 1.03x [...] (a against b).``"""
    kind = one.kind
    reference = "" if one.baseline is None else f" against {names.short(one.baseline)}"
    figure, comparative = "nothing was measured", ""
    if one.figure is not None:
        figure = _figure(one.figure, kind)
        comparative = {"tokenizing speed": " as fast", "training speed": " the trained tokens per second"}.get(
            kind.of, ""
        )
    elif one.without:
        figure = f"no finished run of {listing([names.short(arm) for arm in one.without])} has that figure"
    cpu = "" if one.values is None else f" of the cores ({number(one.values[0])} to {number(one.values[1])})"
    text = capitalised(claim_text(one))
    limits = f"{_most(one)}{_limits(one)}{_why_open(one)}"
    measured = f"{figure}{comparative if kind.ratio else ''}{cpu}"
    return f"“{text}”: {_verdict(one)}: {measured} ({names.short(one.arm)}{reference}){limits}."


def _verdict(one: JudgedClaim) -> str:
    if one.claim is None:
        open_text = "not measured" if one.figure is None else "undecided"
        return {"holds": "held", "does not hold": "not held", "not measurable": open_text}[one.outcome]
    return "not measurable here" if one.outcome == "not measurable" else f"{one.outcome} here"


def _why_open(one: JudgedClaim) -> str:
    """Return why a measured figure neither confirms nor refutes a tested claim, as a clause; "" if it does."""
    if one.outcome != "not measurable" or one.figure is None:
        return ""
    if one.figure.ci_low is None:
        return "; too few blocks for an interval"
    if one.untested is not None:
        return ""
    wider = "" if one.noise_floor is None else f", with the noise floor of {percent(one.noise_floor)},"
    return f"; the interval{wider} reaches across the claim's bounds"


def _most(one: JudgedClaim) -> str:
    """Return a clause if sharing the work on the arm's cores cannot give the measured or the claimed speedup."""
    if one.processes is None or one.cores is None or one.figure is None:
        return ""
    speedup_max = min(one.processes, one.cores)
    shared = f"{one.processes} process{'' if one.processes == 1 else 'es'} on {count(one.cores, 'core')}"
    low = one.figure.median if one.figure.ci_low is None else one.figure.ci_low
    if low > speedup_max:
        return f"; more than {shared} can give by sharing the work, so something else is faster as well"
    return f"; {shared} can be no more than {speedup_max}x by sharing the work" if speedup_max < one.kind.low else ""


def _limits(one: JudgedClaim) -> str:
    """Return clauses on what weakens a claim's verdict: not tested, other keys differ, no A/A control."""
    text = f"; both have data.tokenize {one.untested}, so the claim was not tested" if one.untested else ""
    if one.differs:
        keys = listing([*one.differs[:CLAIM_KEYS_NAMED], *(["others"] if len(one.differs) > CLAIM_KEYS_NAMED else [])])
        text += f"; the arms differ in {keys} as well"
    if one.kind.ratio and one.figure is not None and one.noise_floor is None:
        text += "; no A/A control shows how much two runs of one arm differ"
    return text


def _figure(figure: Estimate, kind: ClaimKind) -> str:
    show = ratio if kind.ratio else percent if kind.of in SHARES else number
    if figure.ci_low is None or figure.ci_high is None:
        return f"{show(figure.median)} [no interval]"
    return f"{show(figure.median)} [{show(figure.ci_low)} to {show(figure.ci_high)}]"
