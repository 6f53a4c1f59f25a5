"""Makes the sentences of an audit: a few for each row, gain and inference, and two lines for the whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import floor, log10

from harness.audit import scatter_text
from harness.audit.checks import AuditCheck, Setting
from harness.audit.figures import Interval
from harness.audit.fits import GRADIENT_PASSES, Clue, ReadingSupport
from harness.audit.gains import Gain, NotComparable
from harness.audit.reading_text import explained, short
from harness.audit.result import Formula, RowAudit
from harness.audit.scatter import Scatter
from harness.audit.solve import SAME, FittedReading
from harness.audit.table import Table
from harness.show.words import count, listing, percent, ratio
from trainer.devices.flops import parameters
from trainer.devices.roofline import FOREACH_ADAMW_PASSES, FUSED_ADAMW_PASSES

NAMED_ROWS = 3  # in the first line
STATUS_TEXT = {"consistent": "Consistent", "inconsistent": "Inconsistent", "apart": "Apart beyond rounding"}
COARSE = 0.01  # a ratio that its digits leave open by more is shown as a range
VERDICTS = {
    "not comparable": "not comparable",
    "no ceiling": "without isolated figures, so without a ceiling",
    "loss with a faster data path": "a loss although the data path is faster (so not its doing)",
    "gain with a slower data path": "a gain although the data path is slower (so not its doing)",
    "above the ceiling": "a gain above the ceiling",
    "below the floor": "a loss beyond what the slower data path can cause",
    "possible": "within what the data path can do",
}


def row_sentence(
    audited: RowAudit,
    setting: Setting,
    implied: Interval | None,
    formulas: Mapping[str, Formula],
    alike: Sequence[FittedReading],
    scatter: Scatter | None,
) -> str:
    """What the row's figures say of one another, in plain sentences."""
    reasons = [part for check in audited.checks if check.status == "not checkable" for part in check.reasons]
    missing = "; ".join(dict.fromkeys(reasons))
    if audited.status == "not checkable":
        return f"Not checkable: {missing or 'it gives no two figures'}."
    parts = [f"{STATUS_TEXT[audited.status]}: {_flops(audited, setting, implied)}{_checks(audited.checks)}."]
    if audited.status == "apart":
        parts.append(scatter_text.apart(scatter))
    if audited.status in ("apart", "inconsistent"):
        parts += explained(audited, formulas, alike, scatter)
    return " ".join(parts) + (f" Not all could be checked: {missing}." if missing else "")


def _flops(audited: RowAudit, setting: Setting, implied: Interval | None) -> str:
    if implied is None or audited.expected_gflops_per_token is None:
        return ""
    low, high, expected = implied.low / 1e9, implied.high / 1e9, audited.expected_gflops_per_token
    places = min(max(1 - floor(log10(high - low)), 0), 4) if high > low else 4  # as many as the printed digits carry
    text = (
        f"its figures amount to {low:.{places}f} to {high:.{places}f} GFLOP per token, the declared shape at sequence "
        f"{setting.sequence:,.0f} needs {expected:.{places}f}"
    )
    if not implied.holds(expected * 1e9):
        text += f" ({(implied.middle / 1e9 / expected - 1) * 100:+.2f} %)"
    return f"{text}; "


def _checks(found: Sequence[AuditCheck]) -> str:
    """All of an inconsistent row's checks; of a consistent row's the one nearest to its limit."""
    made = [check for check in found if check.discrepancy is not None and check.allowed is not None]
    if all(check.status == "consistent" for check in made):
        figures = [check for check in made if not check.reasons]
        tightest = max(figures, key=lambda check: abs(check.discrepancy or 0) / (check.allowed or 1), default=None)
        made = ([tightest] if tightest else []) + [check for check in made if check.reasons]
    return ", ".join(map(_check, made))


def _check(check: AuditCheck) -> str:
    agrees = "agree" if check.status == "consistent" else "disagree"
    rest = "".join(f"; {reason}" for reason in check.reasons)
    return (
        f"{check.name} {agrees} ({(check.discrepancy or 0) * 100:+.3f} %, rounding allows "
        f"{(check.allowed or 0) * 100:.3f} %{rest})"
    )


def formula_sentence(formulas: Sequence[Formula]) -> str | None:
    """Which way of counting FLOPs per token the table uses, and which others count the same."""
    best = max(formulas, key=lambda one: len(one.rows), default=None)
    if best is None or not best.rows:
        return None
    if 2 * len(best.rows) < best.of:
        return f"No known way of counting FLOPs per token fits more than {len(best.rows)} of {count(best.of, 'row')}."
    text = f"FLOPs per token counted {best.words} fit {len(best.rows)} of {count(best.of, 'row')}"
    equals = [one for one in formulas if one is not best and one.rows == best.rows]
    if not equals:
        return f"{text}, and counted in no other known way so many."
    text += f"; those rows cannot distinguish it from FLOPs counted {', or '.join(one.words for one in equals)}"
    if all(abs(one.gflops_per_token / best.gflops_per_token - 1) <= SAME for one in equals):
        text += f" (for this shape and sequence length the same {best.gflops_per_token:.2f} GFLOP per token)"
    return f"{text}."


def rows_line(rows: Sequence[RowAudit], supported: Mapping[str, str], scatters: Sequence[Scatter]) -> str:
    """``7 of 8 rows consistent, 1 inconsistent: padding-free b1 (…)``. ``supported``: reading by row."""
    states = Counter(row.status for row in rows)
    text = f"{states['consistent']} of {count(len(rows), 'row')} consistent"
    if open_rows := states["not checkable"]:
        text += f", {open_rows} not checkable"
    if apart := states["apart"]:
        text += f", {apart} apart beyond rounding {scatter_text.of_table(scatters)}"
    wrong = [row for row in rows if row.status == "inconsistent"]
    if not wrong:
        return f"{text}, none inconsistent."
    texts = []
    for row in wrong[:NAMED_ROWS]:
        more = f"; the other rows speak for {supported[row.name]}" if row.name in supported else ""
        texts.append(f"{row.name} ({short(row)}{more})")
    rest = f"; and {len(wrong) - NAMED_ROWS} more" if len(wrong) > NAMED_ROWS else ""
    return f"{text}, {states['inconsistent']} inconsistent: {'; '.join(texts)}{rest}."


def gains_line(found: Sequence[Gain], noise_known: bool) -> str:
    """How many comparisons are what, and whether anything can be decided about noise."""
    if not found:
        return "No comparison is declared, and none can be derived."
    states = Counter[str](gain.verdict for gain in found)
    texts = [f"{states[verdict]} {meaning}" for verdict, meaning in VERDICTS.items() if states[verdict]]
    text = f"{count(len(found), 'comparison')}: {', '.join(texts)}"
    if noise_known:
        return f"{text}; {sum(gain.noise == 'inside the noise' for gain in found)} inside the noise."
    return f"{text}; no noise floor is published, so no difference of single runs is decided."


def unexplained_sentence(worst: Gain | None, found: Sequence[Gain]) -> str | None:
    """How far the table's own figures scatter for reasons that are not its data paths."""
    if worst is None or not worst.unexplained:
        return None
    text = (
        f"{worst.candidate} against {worst.baseline} lies {percent(worst.unexplained)} outside what its data path can "
        "do: run-to-run differences or other changes in this table are at least that large"
    )
    small = [
        f"{gain.candidate} against {gain.baseline} ({change(gain)})"
        for gain in found
        if gain.measured is not None
        and gain.verdict in ("possible", "above the ceiling")
        and abs(gain.measured - 1) < worst.unexplained
    ]
    return f"{text}, and {listing(small)} cannot be distinguished from them." if small else f"{text}."


def gain_sentence(gain: Gain, table: Table, reason: NotComparable | None) -> str:
    """What the gain is, what the data path can do, and what noise could have done."""
    pair = f"{gain.candidate} against {gain.baseline}"
    if gain.measured is None or reason is not None:
        measured = "" if gain.measured is None else f" (as printed {change(gain)})"
        return f"{pair}: not comparable{measured}: {_not_comparable(reason)}."
    text = f"{pair}: {change(gain)}"
    if gain.step_ms is None or gain.data_ms is None or gain.isolated is None:
        return f"{text}; no ceiling, as isolated figures, batch size or step time are not given."
    data = f"data takes {gain.data_ms:.2f} ms of a {gain.step_ms:.1f} ms step ({percent(gain.data_ms / gain.step_ms)})"
    if gain.ceiling is None:
        return f"{text}; no ceiling, as by itself {data}: most of it must run beside the step."
    bound = (
        f"in isolation {ratio(gain.isolated)} as fast, but {data}, so even fully exposed the candidate's could give "
    )
    bound += f"at most {_change(gain.ceiling)}"
    if gain.ceiling_all is not None:
        bound += f", and no data time at all {_change(gain.ceiling_all)}"
    judged = {
        "loss with a faster data path": "a loss although the data path is faster: not the data path's doing",
        "gain with a slower data path": "a gain although the data path is slower: not the data path's doing",
        "above the ceiling": "outside the possible: something else changed, or noise",
        "below the floor": "a larger loss than the slower data path can cause: something else changed, or noise",
        "possible": "within what the data path can do",
    }[gain.verdict]
    return f"{text}, {judged} ({bound}). {_noise(gain, table)}"


def _not_comparable(reason: NotComparable | None) -> str:
    if reason is not None and reason.row is not None:
        return f"{reason.row} {reason.doubt}"
    if reason is not None and reason.tokens is not None:
        return f"their steps hold {reason.tokens[0]:,.0f} and {reason.tokens[1]:,.0f} tokens"
    return "the rows do not give the same figure"


def _noise(gain: Gain, table: Table) -> str:
    if table.noise is not None:
        return f"{(gain.noise or '').capitalize()} ({percent(table.noise.high)}, {table.noise.source})."
    text = "Undecidable as a difference: single runs, no noise floor published"
    if (typical := table.typical_noise) is not None:
        span = (
            percent(typical.high)
            if typical.low == typical.high
            else f"{percent(typical.low)} to {percent(typical.high)}"
        )
        text += f"; identical runs elsewhere differ by {span} ({typical.source})"
    return f"{text}."


def change(gain: Gain) -> str:
    """``+0.87 %`` in tokens/s, or ``+81 to +90 %`` where the digits carry no more."""
    if gain.measured is None or gain.measured_low is None or gain.measured_high is None:
        return "not given"
    if gain.measured_high - gain.measured_low < COARSE:
        return _change(gain.measured)
    return f"{(gain.measured_low - 1) * 100:+.0f} to {(gain.measured_high - 1) * 100:+.0f} %"


def _change(value: float) -> str:
    """Two decimals, because ceilings of this size are the point."""
    return f"{(value - 1) * 100:+.2f} %"


def clue_support(clue: Clue) -> ReadingSupport:
    """What the fixed part of its kind and steps as large say about a row's reading."""
    parts = []
    if fixed := clue.fixed:
        span = f"{fixed.low_ms:.1f} to {fixed.high_ms:.1f}" if fixed.kinds > 1 else f"{fixed.low_ms:.1f}"
        parts.append(
            f"Taken at its word, {clue.row.name} gives its kind a fixed part of {fixed.fixed_ms:.1f} ms a step, where "
            f"the other kinds have {span} ms."
        )
        if fixed.odd:
            parts.append("One optimizer cannot do both: its step is probably not what is declared.")
    for other in clue.as_large:
        assert clue.row.tflops is not None
        assert other.tflops is not None
        parts.append(
            f"At {clue.sequence:,.0f} its step holds {clue.tokens:,.0f} tokens, as many as that of {other.name}, and "
            f"reaches {clue.row.tflops.text} TFLOP/s against {other.tflops.text} "
            f"({(clue.row.tflops.value / other.tflops.value - 1) * 100:+.1f} %)."
        )
    odd = clue.fixed is not None and clue.fixed.odd
    return ReadingSupport(clue.row.name, f"sequence length {clue.sequence:,.0f}", odd, " ".join(parts))


def traffic_assumption(table: Table) -> str:
    """What the memory traffic of the table's optimizer rests on."""
    optimizer, shape = table.declared.optimizer, table.declared.shape
    assert optimizer is not None
    assert shape is not None
    update = FUSED_ADAMW_PASSES if optimizer.fused else FOREACH_ADAMW_PASSES
    name = f"{optimizer.name or 'the optimizer'} {'' if optimizer.fused else 'not '}fused"
    text = f"{name}: {update} reads or writes of a tensor as large as the parameters"
    if norm := GRADIENT_PASSES[optimizer.gradient_norm]:
        what = "norm" if optimizer.gradient_norm == "norm" else "norm and clipping"
        text += f", {norm} more for the gradient {what}"
    return f"{text}; {parameters(shape) / 1e9:.2f} billion parameters of {optimizer.bytes_per_value} bytes"
