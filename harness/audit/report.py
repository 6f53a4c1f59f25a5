"""Writes an audit as markdown that also reads in a terminal: conclusion, rows, ceilings and gains, inferences."""

from __future__ import annotations

import json
from dataclasses import asdict

from harness.audit.fits import Fit, Traffic
from harness.audit.gains import Gain
from harness.audit.reading_text import short
from harness.audit.result import Audit, RowAudit
from harness.audit.table import AuditRow, Declared, Table
from harness.show.tables import NOT_MEASURED, Markdown, safe, table
from harness.show.words import count, listing, percent
from trainer.devices.flops import parameters

SHORT = {
    "consistent": "consistent",
    "apart": "apart beyond rounding",
    "inconsistent": "**inconsistent**",
    "not checkable": "not checkable",
}


def as_json(audit: Audit) -> str:
    """The dataclasses, field by field."""
    return json.dumps(asdict(audit), indent=1) + "\n"


def as_text(audit: Audit, published: Table) -> str:
    """The whole page; ``published`` lends the figures as they were printed."""
    parts = [
        f"# Audit: {safe(audit.title)}",
        "\n".join(f"- **{safe(line)}**" for line in audit.conclusion),
        f"Source: {safe(audit.source)}\n\n{_declared(published.declared)}",
        safe(audit.notes or ""),
        _rows(audit, published),
        _gains(audit),
        _inferences(audit),
        HOW_TO_READ,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _declared(declared: Declared) -> str:
    """What the table says of itself, and what it does not."""
    declared_texts = {
        "model": declared.shape
        and f"{parameters(declared.shape) / 1e6:,.1f} million parameters ({declared.shape.family})",
        "sequence length": declared.sequence_length and f"sequence length {declared.sequence_length:,}",
        "devices": declared.devices and count(declared.devices, "device"),
        "peak": declared.peak_flops_per_s and f"peak {declared.peak_flops_per_s / 1e12:,.6g} TFLOP/s a device",
        "dtype": declared.dtype,
    }
    missing = [name for name, text in declared_texts.items() if not text]
    text = f"Declared: {', '.join(safe(str(text)) for text in declared_texts.values() if text) or 'nothing'}"
    return f"{text}; not declared for all rows: {', '.join(missing)}." if missing else f"{text}."


HOW_TO_READ = """## How to read this

A printed figure stands for every value that would have been printed the same; a row is consistent where these
intervals allow one truth for all its figures. FLOPs per token are PaLM's (6 x weights without embedding lookups, plus
12 x layers x width x sequence) unless a reading says otherwise. tokens/s counts all devices, MFU and TFLOP/s one;
devices that are not declared count as one. Readings are single changes of what is declared, or two at once where no
single one fits. What has a free parameter (padding, an unknown peak, an average over other steps) fits any figure: it
is named as what cannot be known. A reading is *firm* ("fits with") only where honest figures would get it in at most
1 % of rows: the row is further apart than the rows of the table scatter, and readings as simple fit few of the figures
that are as far off. Rows *apart beyond rounding* are not called wrong: tokens/s and MFU of different steps, or of
different runs, differ like that. A table cannot show that its figures are right, only that they contradict each other.
Ceilings take the isolated data time as fully exposed: the truth can only be less."""


def _rows(audit: Audit, published: Table) -> str:
    printed = {row.name: row for row in published.rows}
    header = ["row", "tokens/s", "MFU %", "TFLOP/s", "step ms", "GFLOP/token", "shape says", "verdict"]
    lines = [_cells(row, printed[row.name]) for row in audit.rows]
    texts = []
    for row in audit.rows:
        about = printed[row.name]
        aside = "".join(f" *{safe(text.strip())}*" for text in (about.note, about.source) if text)
        texts.append(f"- **{safe(row.name)}**: {safe(row.sentence)}{aside}")
    formula = f"\n\n{safe(audit.formula_sentence)}" if audit.formula_sentence else ""
    formula += "".join(f"\n\n{safe(sentence)}" for sentence in audit.scatter_sentences)
    return f"## Rows\n\n{table(header, lines)}{formula}\n\n" + "\n".join(texts)


def _cells(row: RowAudit, printed: AuditRow) -> list[str]:
    figures = [printed.tokens_per_s, printed.mfu_percent, printed.tflops]
    verdict = SHORT[row.status]
    if row.status == "inconsistent" or (row.status == "apart" and any(not one.free for one in row.readings)):
        verdict += f", {safe(short(row))}"
    return [
        row.name,
        *(NOT_MEASURED if figure is None else figure.text for figure in figures),
        _fixed(row.step_ms, 1) if printed.step_ms is None else printed.step_ms.text,
        _fixed(row.gflops_per_token, 4),
        _fixed(row.expected_gflops_per_token, 4),
        Markdown(verdict),
    ]


def _fixed(value: float | None, places: int) -> str:
    return NOT_MEASURED if value is None else f"{value:,.{places}f}"


def _gains(audit: Audit) -> str:
    if not audit.gains:
        return ""
    header = [
        "candidate / baseline",
        "step ms",
        "data ms",
        "its data ms",
        "ceiling: no data",
        "ceiling",
        "measured",
        "verdict",
    ]
    lines = [_gain_cells(gain) for gain in audit.gains]
    texts = "\n".join(f"- {safe(gain.sentence)}" for gain in audit.gains)
    scatter = f"\n\n{safe(audit.gains_sentence)}" if audit.gains_sentence else ""
    return f"## Ceilings and gains\n\n{table(header, lines)}\n\n{texts}{scatter}"


def _gain_cells(gain: Gain) -> list[str]:
    verdict = (
        gain.verdict if gain.noise is None or gain.verdict == "not comparable" else f"{gain.verdict}; {gain.noise}"
    )
    return [
        f"{gain.candidate} / {gain.baseline}",
        _fixed(gain.step_ms, 1),
        _fixed(gain.data_ms, 2),
        _fixed(gain.candidate_data_ms, 2),
        *(
            NOT_MEASURED if value is None else f"{value:.4f}x"
            for value in (gain.ceiling_all, gain.ceiling, gain.measured)
        ),
        verdict,
    ]


def _inferences(audit: Audit) -> str:
    if not audit.fits and not audit.evidence:
        return ""
    parts = ["## Inferences"]
    if audit.fits:
        parts.append(
            "Assumption: the time of a step is a fixed part (optimizer, gradient norm) plus a part that grows linearly "
            "with the batch (forward, backward and, where exposed, data). Two batch sizes then give both."
        )
        header = ["kind", "batch sizes", "fixed ms", "ms per sample", "forward and backward TFLOP/s", "of peak"]
        parts.append(table(header, map(_fit_cells, audit.fits)))
        parts += [safe(_traffic(audit.traffic, audit.fits))] if audit.traffic is not None else []
    parts += [f"- {safe(one.sentence)}" for one in audit.evidence]
    return "\n\n".join(parts)


def _fit_cells(fit: Fit) -> list[str]:
    doubt = f" (takes {listing(fit.doubtful)} at its word)" if fit.doubtful else ""
    return [
        fit.kind + doubt,
        ", ".join(map(str, fit.batch_sizes)),
        _fixed(fit.fixed_ms, 1),
        _fixed(fit.per_sample_ms, 1),
        _fixed(None if fit.flops_per_s is None else fit.flops_per_s / 1e12, 0),
        NOT_MEASURED if fit.share_of_peak is None else percent(fit.share_of_peak),
    ]


def _traffic(traffic: Traffic, fits: list[Fit]) -> str:
    text = f"The optimizer's memory traffic: {traffic.assumption}: {traffic.bytes / 1e9:,.0f} GB a step"
    full = traffic.ms_at_full_bandwidth
    fixed = [fit.fixed_ms for fit in fits if not fit.doubtful]
    if full is None:
        return f"{text}; no memory bandwidth is declared, so no time follows."
    text += f", {full:.1f} ms at the declared bandwidth"
    if not fixed or min(fixed) <= 0:
        return f"{text}."
    shares = sorted(full / one for one in fixed)
    span = percent(shares[0]) if len(shares) == 1 else f"{percent(shares[0])} to {percent(shares[-1])}"
    verdict = (
        "so the optimizer alone can be the fixed part" if shares[-1] <= 1 else
        "more than the fixed part: the assumption, or the fit, is wrong"
    )  # fmt: skip
    return f"{text}: {verdict} (it would run at {span} of that bandwidth)."
