"""Writes every sentence of an audit: a few for each row, gain and inference, and two lines for the whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10

from harness.audit.checks import DURATION, Attention, AuditCheck, CheckReason, Convention, Weights
from harness.audit.checkup import Audit, RowAudit
from harness.audit.fits import Clue, Fit, Traffic
from harness.audit.gains import Gain, GainVerdict, Incomparable, NotComparable, unexplained
from harness.audit.policy import COARSE_DIGITS, LENGTH_STEP, READINGS_NAMED, ROWS_NAMED
from harness.audit.scatter import Scatter
from harness.audit.solve import SOLVED_ROUNDING, Excluded, FittedReading, NamedPeak, UnknownKind
from harness.audit.table import Interval, Table
from harness.show.words import capitalised, count, listing, percent, ratio

PALM = "as PaLM does"
WEIGHTS: Mapping[Weights, str] = {
    "palm": "",
    "all, lookups": "with embedding lookups (all parameters)",
    "all, positions": "with position embeddings (all parameters)",
    "no output projection": "without the output projection (no embeddings at all)",
    "no biases": "without biases",
    "positions, no biases": "with position embeddings, without biases",
    "matrices": "with weight matrices alone (no biases, no norms)",
    "layer matrices": "with the layers' weight matrices alone",
}
ATTENTION: Mapping[Attention, str] = {
    "full": "", "half": "with causal attention (half of it)", "none": "without attention",
}  # fmt: skip
SCALES = {
    "forward": "of the forward pass alone (a third)",
    "backward": "of the backward pass alone (two thirds)",
    "recomputation": "with the forward pass run twice, as with recomputation (four thirds)",
    "fused": "with a multiplication and its addition as one (half)",
    "twice": "twice",
}
KINDS: Mapping[UnknownKind, str] = {
    "formula": "way to count FLOPs per token",
    "scale": "part of the work",
    "sequence": "sequence length",
    "devices": "number of devices",
    "total": "count of devices in TFLOP/s",
    "unit": "unit",
    "peak": "device's peak",
    "padding": "share of padding",
    "average": "choice of steps",
    "duration": "duration",
}
REASONS: Mapping[CheckReason, str] = {
    "no rate": "the row gives no tokens/s",
    "step time alone": "the row gives no tokens/s (a step time needs the tokens of a step)",
    "no shape": "no model shape is declared",
    "no sequence": "no sequence length is declared",
    "no TFLOP/s": "the row gives no TFLOP/s",
    "no MFU": "the row gives no MFU",
    "no peak": "no peak is declared",
    "no duration": "the row gives no duration",
    "no steps": "the row gives no number of steps",
    "no step time": "the row gives no step time",
    "rest of the duration": "the rest may be evaluation, checkpoints and pauses",
}
STATUS = {"consistent": "Consistent", "inconsistent": "Inconsistent", "apart": "Apart beyond rounding"}
GAINS: Mapping[GainVerdict, tuple[str, str]] = {  # text for a number of gains, text for one gain
    "not comparable": ("not comparable", "not comparable"),
    "no ceiling": ("without a ceiling", "without a ceiling"),
    "loss with a faster data path": (
        "slower although the data path is faster", "a loss although the data path is faster: another cause made it",
    ),
    "gain with a slower data path": (
        "faster although the data path is slower", "a gain although the data path is slower: another cause made it",
    ),
    "above the ceiling": ("above the ceiling", "above the ceiling: something else changed, or noise"),
    "below the floor": (
        "slower than the data path can cause", "a larger loss than the data path can cause: something else, or noise",
    ),
    "possible": ("within what the data path can do", "within what the data path can do"),
}  # fmt: skip
NO_COMPARISON = "No comparison is declared, and none can be derived."
BEYOND = "Random scatter does not explain it: a setting differs, or its figures are from two measurements."
ASSUMPTION = (
    "Assumption: a step takes a fixed time (optimizer, gradient norm) plus a time per sample (forward, backward and "
    "exposed data). Two batch sizes then give both."
)
HOW_TO_READ = """## How to read this

- A printed figure is an interval: all values that round to it. A row is consistent if one truth fits all its intervals.
- FLOPs per token follow PaLM: 6 x weights without embedding lookups, plus 12 x layers x width x sequence.
- tokens/s counts all devices; MFU and TFLOP/s count one. Without a declared number, there is one device.
- A reading changes one declared value, or two if no single change fits.
- A reading with a free parameter (padding, an unknown peak, an average over other steps) fits any figure. It proves
  nothing.
- A reading is *firm* ("fits with") if at most 1 % of honest rows would get it.
- Rows *apart beyond rounding* need not be wrong: figures of different steps or runs differ like that.
- Figures can contradict each other. No table shows that its figures are right.
- Ceilings assume that all isolated data time is exposed, so the real gain can only be smaller."""


def conclusion(audit: Audit) -> list[str]:
    """Return the conclusion of the audit as two lines: one on the rows, one on the gains."""
    return [_rows_line(audit), _gains_line(audit)]


def _rows_line(audit: Audit) -> str:
    states = Counter[str](row.status for row in audit.rows)
    wrong = [row for row in audit.rows if row.status == "inconsistent"]
    text = f"{len(wrong) or 'None'} of {count(len(audit.rows), 'row')} {'is' if len(wrong) < 2 else 'are'} inconsistent"
    if wrong:
        supported = {clue.row.name for clue in audit.evidence if clue.supports}
        support = {row.name: "; other rows support the sequence length" for row in wrong if row.name in supported}
        text += ": " + "; ".join(f"{row.name} ({short(row)}{support.get(row.name, '')})" for row in wrong[:ROWS_NAMED])
        text += f"; and {len(wrong) - ROWS_NAMED} more" if len(wrong) > ROWS_NAMED else ""
    text += f". {states['consistent']} consistent"
    if states["apart"]:
        text += f", {states['apart']} apart beyond rounding {_of_table(audit.scatters)}"
    return text + (f", {states['not checkable']} not checkable." if states["not checkable"] else ".")


def _gains_line(audit: Audit) -> str:
    judged_gains = audit.gains
    if not judged_gains:
        return NO_COMPARISON
    states = Counter[str](gain.verdict for gain in judged_gains)
    texts = [f"{states[verdict]} {texts[0]}" for verdict, texts in GAINS.items() if states[verdict]]
    text = f"{count(len(judged_gains), 'gain')}: {', '.join(texts)}."
    if audit.table.noise is None:
        return f"{text} No noise floor is published, so single runs decide no difference."
    return f"{text} {sum(gain.noise == 'inside the noise' for gain in judged_gains)} inside the noise."


def convention(one: Convention) -> str:
    """Return how a formula counts FLOPs per token, as text that follows "FLOPs counted"."""
    return " and ".join(part for part in (WEIGHTS[one.counted], ATTENTION[one.attention]) if part) or PALM


def reading(one: FittedReading, full: bool = True) -> str:
    """Return what a reading changes, as a phrase. ``full``: True to add the range of values that the digits allow."""
    text = _reading(one, full)
    if one.changes == 1 or one.setting.convention is None:
        return text
    counted = convention(one.setting.convention)
    return f"{text}, with FLOPs counted as in other rows ({counted})" if one.as_others else (
        f"{text}, and FLOPs counted {counted}"
    )  # fmt: skip


def _reading(one: FittedReading, full: bool) -> str:
    value, declared_value = one.value or 0.0, one.was or 0.0
    match one.kind:
        case "formula":
            return f"FLOPs counted {'' if one.setting.convention is None else convention(one.setting.convention)}"
        case "scale":
            return f"FLOPs counted {SCALES[one.figures[0]]}"
        case "sequence":
            allowed = f" (its figures allow {one.low or 0:,.1f} to {one.high or 0:,.1f}"
            allowed += f", {one.among} multiples of {LENGTH_STEP})" if one.among > 1 else ")"
            declared = "" if one.was is None else f" instead of {declared_value:,.0f}"
            return f"sequence length {value:,.0f}{declared}{allowed if full else ''}"
        case "devices":
            text = f"{count(int(value), 'device')} instead of {declared_value:.0f}"
            if value == 1:
                return f"{text} (tokens/s counts one device, not all)"
            return f"{text} (its figures allow {value:.0f} to {one.most:.0f})" if one.among > 1 and full else text
        case "total":
            return f"TFLOP/s of all {declared_value:.0f} devices, not of one"
        case "unit":
            size = "small" if value > 1 else "large"
            return f"{one.figures[0]} too {size} by a factor of {max(value, 1 / value):,.0f}"
        case "peak":
            text = f"a peak of {value / 1e12:,.4g} TFLOP/s instead of {declared_value / 1e12:,.4g}"
            return f"{text}: {listing([*map(_peak, one.peaks)])}" if one.peaks else f"{text} (no known device has it)"
        case "padding":
            low, high = f"{(one.low or 0) * 100:.2f}", f"{(one.high or 0) * 100:.2f}"
            share = f"{low} %" if low == high else f"{low} to {high} %"
            return f"{listing([*one.figures])} of real tokens, {listing([*one.others])} of all positions ({share} real)"
        case "average":
            return f"tokens/s averaged over other steps than this step time ({value * 100:+.2f} %)"
        case "duration":
            return f"a step of {_span(one.low or 0, one.high or 0)} ms, or fewer steps (the duration is too short)"


def _peak(one: NamedPeak) -> str:
    if not one.device:
        return "twice the declared peak, as with 2:4 sparsity"
    return f"{one.device} ({', '.join(one.dtypes)}){' with 2:4 sparsity' if one.sparse else ''}"


def _span(first: float, last: float) -> str:
    low, high = f"{first:,.4g}", f"{last:,.4g}"
    return low if low == high else f"{low} to {high}"


def excluded(one: Excluded) -> str:
    """Return a kind of reading that does not explain a row, with the reason, as a phrase."""
    name = f"no other {KINDS[one.kind]}"
    match one.why:
        case "none fits":
            return name
        case "figures disagree":
            return f"{name} (the other figures already disagree)"
        case "needed":
            return f"{name} ({'' if one.needed is None else _span(one.needed.low, one.needed.high)} would be needed)"
        case "agrees":
            return f"{name} (MFU agrees with the declared one)"
        case "declared":
            return f"no padding ({'' if one.reading is None else reading(one.reading)}: the row declares none)"
        case "unspecific":
            return f"{name} in particular (readings as simple fit {percent(one.coverage or 0)} of such figures)"


def row_sentence(row: RowAudit, audit: Audit) -> str:
    """Return the verdict on a row as sentences: checks, readings that explain it, and what was not checkable."""
    missing = [REASONS[part] for check in row.checks if check.status == "not checkable" for part in check.reasons]
    lacks = "; ".join(dict.fromkeys(missing))
    if row.status == "not checkable":
        return f"Not checkable: {lacks or 'it gives no two figures'}."
    parts = [f"{STATUS[row.status]}: {_flops(row)}{_checks(row.checks)}."]
    if row.status == "apart":
        parts.append(_apart(row.scatter))
    if row.status in ("apart", "inconsistent"):
        parts += _explained(row, audit)
    return " ".join(parts) + (f" Not all could be checked: {lacks}." if lacks else "")


def _flops(row: RowAudit) -> str:
    implied, expected = row.implied, row.expected_gflops_per_token
    if implied is None or expected is None:
        return ""
    low, high = implied.low / 1e9, implied.high / 1e9
    # Keep the decimals that the printed figures support.
    places = min(max(1 - floor(log10(high - low)), 0), 4) if high > low else 4
    text = (
        f"its figures amount to {low:.{places}f} to {high:.{places}f} GFLOP per token, the declared shape at sequence "
        f"{row.setting.sequence:,.0f} needs {expected:.{places}f}"
    )
    deviation = "" if implied.holds(expected * 1e9) else f" ({(implied.middle / 1e9 / expected - 1) * 100:+.2f} %)"
    return f"{text}{deviation}; "


def _checks(found: Sequence[AuditCheck]) -> str:
    """Return comparisons of two figures as text: all, or if all agree the tightest and those with remarks."""
    made = [check for check in found if check.discrepancy is not None and check.allowed is not None]
    if all(check.status == "consistent" for check in made):
        figures = [check for check in made if not check.reasons]
        tightest = max(figures, key=lambda check: abs(check.discrepancy or 0) / (check.allowed or 1), default=None)
        made = ([tightest] if tightest else []) + [check for check in made if check.reasons]
    return ", ".join(map(_check, made))


def _check(check: AuditCheck) -> str:
    agrees = "agree" if check.status == "consistent" else "disagree"
    allowed = f"rounding allows {(check.allowed or 0) * 100:.3f} %"
    remarks = "".join(f"; {REASONS[cause]}" for cause in check.reasons)
    return f"{check.name} {agrees} ({(check.discrepancy or 0) * 100:+.3f} %, {allowed}{remarks})"


def _explained(row: RowAudit, audit: Audit) -> Iterator[str]:
    """Yield sentences on the readings that would explain a row, and how sure they are."""
    named = [fitted for fitted in row.readings if not fitted.free]
    free = "; ".join(reading(fitted) for fitted in row.readings if fitted.free)
    unknown = [f"Cannot be known from this table (each fits any figure): {free}."] if free else []
    not_it = "; ".join(map(excluded, row.excluded))
    contradicted = any(check.status == "inconsistent" and check.name != DURATION for check in row.checks)
    remark = [BEYOND] if row.status == "inconsistent" and contradicted else []
    if not named:
        if row.status == "apart":
            scattered = row.scatter is not None and not row.scatter.common  # described once for all rows
            yield from [] if scattered else [*unknown, *([f"Excluded: {not_it}."] if not_it else [])]
            return
        nothing = "No single change, and no pair," if not row.readings else "Nothing specific"
        yield from [f"{nothing} makes it consistent.{f' Tried: {not_it}.' if not_it else ''}", *remark, *unknown]
        return
    firm = any(fitted.firm for fitted in named)
    listed = [f"({number}) {reading(fitted)}{_worth(fitted, audit)}" for number, fitted in enumerate(named, 1)]
    opening = "What would make it consistent" if firm else "Possible, but chance explains it as well"
    yield from [f"{opening}: {'; '.join(listed)}.", *([] if firm else remark), *unknown]
    numbers = [f"({n})" for n, fitted in enumerate(named, 1) if fitted in row.alike]
    if len(numbers) > 1:
        gflops = row.alike[0].gflops_per_token or 0.0
        yield f"{listing(numbers)} count the same {gflops:.2f} GFLOP per token, so this row cannot distinguish them."
    if row.incomparable is not None:
        slip = any(fitted.kind == "sequence" and fitted.firm and fitted.shared == 1 for fitted in row.readings)
        yield f"Do not compare its tokens/s with other rows': it {incomparable(row.incomparable)}" + (
            " (one row with another length is a usual slip of launch scripts)." if slip else "."
        )
    if row.tokens_per_s_as_declared is not None:
        yield f"At the declared length and the same FLOP/s it would reach {row.tokens_per_s_as_declared:,.0f} tokens/s."
    yield from [f"Excluded: {not_it}."] if not_it else []


def _worth(one: FittedReading, audit: Audit) -> str:
    formula = None if one.setting.convention is None else audit.formulas.get(one.setting.convention)
    text = ""
    if one.kind == "formula" and formula is not None and formula.of > 1:
        text = f", which fits {len(formula.rows)} of {formula.of} rows"
    if one.firm or one.coverage is None:
        return text
    return f"{text} [readings as simple fit {percent(one.coverage)} of figures up to twice as far off]"


def short(row: RowAudit) -> str:
    """Return a row's main readings as a phrase: ``fits with sequence length 4,096 instead of 2,048, or …``."""
    named = [fitted for fitted in row.readings if not fitted.free]
    firm = [fitted for fitted in named if fitted.firm]
    padded = [fitted for fitted in row.readings if fitted.free and fitted.kind == "padding"]
    texts = [reading(fitted, full=False) for fitted in [*(firm or named), *(padded if named else [])]]
    if not texts:
        return "nothing fits" if not row.readings else "cause unknown"
    remaining = len(texts) - READINGS_NAMED
    ending = f", or {count(remaining, 'more reading')}" if remaining > 0 else ""
    return f"{'fits with' if firm else 'may be'} {', or '.join(texts[:READINGS_NAMED])}{ending}"


def incomparable(one: Incomparable) -> str:
    """Return why a row's tokens/s cannot be compared, as a clause that follows the row's name."""
    return {
        "sequence": f"may have run at sequence length {one.value or 0:,.0f}",
        "padding": "may count real tokens only",
        "devices": f"may count {count(int(one.value or 0), 'device')}",
        "nothing fits": "is inconsistent, and no reading explains it",
        "not known": "is inconsistent, and the cause is unknown",
    }[one.kind]


def formula_sentence(audit: Audit) -> str | None:
    """Return a sentence on the formula that fits most rows, and on formulas that fit exactly the same; None if none."""
    formulas = [*audit.formulas.values()]
    best = max(formulas, key=lambda formula: len(formula.rows), default=None)
    if best is None or not best.rows:
        return None
    if 2 * len(best.rows) < best.of:
        return f"No known way of counting FLOPs per token fits more than {len(best.rows)} of {count(best.of, 'row')}."
    fits = f"fit {len(best.rows)} of {count(best.of, 'row')}"
    text = f"FLOPs per token counted {convention(best.convention)} {fits}"
    equals = [formula for formula in formulas if formula is not best and formula.rows == best.rows]
    if not equals:
        return f"{text}; no other known way fits as many."
    text += f". So do FLOPs counted {', or '.join(convention(formula.convention) for formula in equals)}"
    if all(abs(formula.gflops_per_token / best.gflops_per_token - 1) <= SOLVED_ROUNDING for formula in equals):
        text += f" (for this shape and length the same {best.gflops_per_token:.2f} GFLOP per token)"
    return f"{text}."


def scatter_sentence(one: Scatter) -> str:
    """Return a sentence on two figures that differ in several rows: by how much, and if one cause is likely."""
    text = (
        f"{one.first} and {one.second} differ beyond rounding in {len(one.rows)} of {one.of} rows "
        f"({one.low * 100:+.2g} to {one.high * 100:+.2g} %)"
    )
    if one.common:
        return f"{text}, by about the same in each: one shared cause. This table does not show which."
    return (
        f"{text}: about {percent(one.typical)} (one standard deviation), with the first larger in {one.above}. They "
        "look measured separately: no single setting explains these rows. Smaller effects of a setting stay unknown."
    )


def _of_table(scatters: Sequence[Scatter]) -> str:
    if not scatters:
        return "(measured separately, or another setting: too few rows to know)"
    widest = max(scatters, key=lambda scatter: (len(scatter.rows), scatter.typical))
    text = f"{widest.first} and {widest.second} differ by about"
    if widest.common:
        return f"({text} {percent((widest.low + widest.high) / 2)} in each: one shared cause, unknown)"
    return f"({text} {percent(widest.typical)}: they look measured separately)"


def _apart(scatter: Scatter | None) -> str:
    """Return why a row that is apart beyond rounding is not called inconsistent. None: the others do not scatter."""
    if scatter is None:
        return "Figures of different steps or runs may differ that much; the other rows do not show which it is."
    if scatter.common:
        return f"That is about the same in {len(scatter.rows)} rows: one shared cause."
    return f"The rows of this table differ that much among themselves (about {percent(scatter.typical)})."


def gains_sentence(audit: Audit) -> str | None:
    """Return a sentence on the gain furthest beyond what its data path can cause, and the gains it drowns; or None."""
    worst = unexplained(audit.gains)
    if worst is None or not worst.unexplained:
        return None
    small = [
        f"{gain.candidate} against {gain.baseline} ({change(gain)})"
        for gain in audit.gains
        if gain.measured is not None
        and gain.verdict in ("possible", "above the ceiling")
        and abs(gain.measured - 1) < worst.unexplained
    ]
    text = (
        f"{worst.candidate} against {worst.baseline} is {percent(worst.unexplained)} outside of what its data path "
        "can cause. Noise or other changes in this table are at least that large"
    )
    return f"{text}, so {listing(small)} cannot be distinguished from them." if small else f"{text}."


def gain_sentence(gain: Gain, table: Table) -> str:
    """Return sentences on a gain: its size, its ceiling (ratio if all data time were exposed), and if it is noise."""
    pair = f"{gain.candidate} against {gain.baseline}"
    if gain.measured is None or gain.reason is not None:
        measured = "" if gain.measured is None else f" (as printed {change(gain)})"
        return f"{pair}: not comparable{measured}: {_not_comparable(gain.reason)}."
    text = f"{pair}: {change(gain)}"
    if gain.step_ms is None or gain.data_ms is None or gain.isolated is None:
        return f"{text}; no ceiling, because isolated figures, batch size or step time are not given."
    data = f"data takes {gain.data_ms:.2f} ms of a {gain.step_ms:.1f} ms step ({percent(gain.data_ms / gain.step_ms)})"
    if gain.ceiling is None:
        return f"{text}; no ceiling, because by itself {data}: most of it must overlap with the step."
    bound = f"In isolation its data path is {ratio(gain.isolated)} as fast, but {data}: at most {_change(gain.ceiling)}"
    if gain.ceiling_all is not None:
        bound += f", and without any data time {_change(gain.ceiling_all)}"
    return f"{text}, {GAINS[gain.verdict][1]}. {bound}. {_noise(gain, table)}"


def _not_comparable(why: NotComparable | None) -> str:
    if why is not None and why.row is not None and why.doubt is not None:
        return f"{why.row} {incomparable(why.doubt)}"
    if why is not None and why.tokens is not None:
        return f"their steps hold {why.tokens[0]:,.0f} and {why.tokens[1]:,.0f} tokens"
    return "the rows do not give the same figure"


def _noise(gain: Gain, table: Table) -> str:
    if table.noise is not None:
        return f"{capitalised(gain.noise or '')} ({percent(table.noise.high)}, {table.noise.source})."
    text = "Undecidable: single runs, and no noise floor is published"
    if (typical := table.typical_noise) is not None:
        low, high = percent(typical.low), percent(typical.high)
        text += f"; elsewhere identical runs differ by {high if low == high else f'{low} to {high}'} ({typical.source})"
    return f"{text}."


def change(gain: Gain) -> str:
    """Format a change in tokens/s: ``+0.87 %``, or ``+81 to +90 %`` if the digits support no more."""
    if gain.measured is None or gain.measured_low is None or gain.measured_high is None:
        return "not given"
    if gain.measured_high - gain.measured_low < COARSE_DIGITS:
        return _change(gain.measured)
    return f"{(gain.measured_low - 1) * 100:+.0f} to {(gain.measured_high - 1) * 100:+.0f} %"


def _change(value: float) -> str:
    """Format the ratio ``value`` as a signed change: ``+0.87 %`` for 1.0087."""
    return f"{(value - 1) * 100:+.2f} %"


def clue_sentence(clue: Clue) -> str:
    """Return sentences on the evidence for another length: fixed step time of its kind, and rows of as many tokens."""
    parts = []
    if fixed := clue.fixed:
        fixed_range = Interval(fixed.low_ms, fixed.high_ms)
        span = f"{fixed_range.low:.1f} to {fixed_range.high:.1f}" if fixed.kinds > 1 else f"{fixed_range.low:.1f}"
        parts.append(
            f"As declared, {clue.row.name} gives its kind a fixed {fixed.fixed_ms:.1f} ms a step; the other kinds have "
            f"{span} ms."
        )
        if fixed.odd:
            parts.append("One optimizer cannot do both: its step probably differs from the declared one.")
    for row in clue.as_large:
        assert clue.row.tflops is not None
        assert row.tflops is not None
        parts.append(
            f"At {clue.sequence:,.0f} its step holds {clue.tokens:,.0f} tokens, as does {row.name}'s, and reaches "
            f"{clue.row.tflops.text} TFLOP/s against {row.tflops.text} "
            f"({(clue.row.tflops.value / row.tflops.value - 1) * 100:+.1f} %)."
        )
    return " ".join(parts)


def traffic_assumption(traffic: Traffic, table: Table) -> str:
    """Return the assumptions behind the optimizer's memory traffic: reads and writes, parameters, bytes."""
    optimizer = table.declared.optimizer
    assert optimizer is not None
    name = f"{optimizer.name or 'the optimizer'} {'' if optimizer.fused else 'not '}fused"
    text = f"{name}: {traffic.update_passes} reads or writes of a tensor as large as the parameters"
    if traffic.norm_passes:
        purpose = "norm" if optimizer.gradient_norm == "norm" else "norm and clipping"
        text += f", {traffic.norm_passes} more for the gradient {purpose}"
    return f"{text}; {traffic.parameters / 1e9:.2f} billion parameters of {optimizer.bytes_per_value} bytes"


def traffic_sentence(traffic: Traffic, fits: Sequence[Fit], table: Table) -> str:
    """Return a sentence on the optimizer's memory traffic per step, against the fixed part (ms) in ``fits``."""
    text = f"Optimizer memory traffic ({traffic_assumption(traffic, table)}): {traffic.bytes / 1e9:,.0f} GB a step"
    full, fixed = traffic.ms_at_full_bandwidth, [fit.fixed_ms for fit in fits if not fit.doubtful]
    if full is None:
        return f"{text}; no memory bandwidth is declared, so no time follows."
    text += f", {full:.1f} ms at the declared bandwidth"
    if not fixed or min(fixed) <= 0:
        return f"{text}."
    shares = sorted(full / fixed_ms for fixed_ms in fixed)
    span = percent(shares[0]) if len(shares) == 1 else f"{percent(shares[0])} to {percent(shares[-1])}"
    relation = (
        "so the optimizer alone can be the fixed part" if shares[-1] <= 1 else "more than the fixed part: check both"
    )
    return f"{text}: {relation} (it would use {span} of that bandwidth)."


def taken_as_declared(rows: Sequence[str]) -> str:
    """Return a remark that a fit uses figures of the inconsistent rows ``rows`` (names) as declared."""
    return f" (takes {listing([*rows])} as declared)"
