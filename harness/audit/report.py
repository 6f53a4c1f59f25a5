"""Writes an audit as markdown that also reads in a terminal: conclusion, rows, ceilings and gains, inferences."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from harness.audit import text
from harness.audit.checkup import Audit, RowAudit
from harness.audit.gains import Gain
from harness.audit.table import AuditRow, Declared, Table
from harness.show.tables import NOT_MEASURED, Markdown, bulleted, cell, column_table, joined, percent_cell, safe, table
from harness.show.words import count
from trainer.devices.estimates import parameters

SHORT = {
    "consistent": "consistent",
    "apart": "apart beyond rounding",
    "inconsistent": "**inconsistent**",
    "not checkable": "not checkable",
}


_READING = ("value", "low", "high", "gflops_per_token", "free", "changes", "firm", "coverage", "shared")


def as_json(audit: Audit) -> str:
    """Return the audit as JSON text: all records field by field, with a sentence for each kind of finding."""
    content = {
        "title": audit.table.title,
        "source": audit.table.source,
        "notes": audit.table.declared.notes,
        "conclusion": text.conclusion(audit),
        "rows": [_row_json(row, audit) for row in audit.rows],
        "formulas": [
            {"words": text.convention(key), **_fields(formula, "gflops_per_token", "rows", "of")}
            for key, formula in audit.formulas.items()
            if formula.rows
        ],
        "formula_sentence": text.formula_sentence(audit),
        "gains": [{**asdict(gain), "sentence": text.gain_sentence(gain, audit.table)} for gain in audit.gains],
        "gains_sentence": text.gains_sentence(audit),
        "fits": [asdict(fit) for fit in audit.fits],
        "traffic": audit.traffic
        and {**asdict(audit.traffic), "assumption": text.traffic_assumption(audit.traffic, audit.table)},
        "evidence": [
            {"row": clue.row.name, "reading": f"sequence length {clue.sequence:,.0f}", "supports": clue.supports,
             "sentence": text.clue_sentence(clue)}
            for clue in audit.evidence
        ],
        "scatters": [asdict(scatter) for scatter in audit.scatters],
        "scatter_sentences": [text.scatter_sentence(scatter) for scatter in audit.scatters],
    }  # fmt: skip
    return json.dumps(content, indent=1) + "\n"


def _fields(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _row_json(row: RowAudit, audit: Audit) -> dict[str, Any]:
    return {
        **_fields(row, "name", "status"),
        "checks": [
            {**asdict(check), "reasons": [text.REASONS[reason] for reason in check.reasons]} for check in row.checks
        ],
        "readings": [
            {"kind": reading.kind, "words": text.reading(reading), **_fields(reading, *_READING)}
            for reading in row.readings
        ],
        "excluded": [text.excluded(entry) for entry in row.excluded],
        "excluded_kinds": [_fields(entry, "kind", "why", "coverage") for entry in row.excluded],
        **_fields(row, "step_ms", "gflops_per_token", "expected_gflops_per_token"),
        "incomparable": None if row.incomparable is None else text.incomparable(row.incomparable),
        **_fields(row, "tokens_per_s_as_declared"),
        "sentence": text.row_sentence(row, audit),
    }


def as_text(audit: Audit, published: Table) -> str:
    """Return the audit as Markdown. ``published``: the table with the figures as printed."""
    page = joined(
        f"# Audit: {safe(published.title)}",
        bulleted(f"**{safe(line)}**" for line in text.conclusion(audit)),
        f"Source: {safe(published.source)}\n\n{_declared(published.declared)}",
        safe(published.declared.notes or ""),
        _rows(audit, published),
        _gains(audit),
        _inferences(audit),
        text.HOW_TO_READ,
    )
    return f"{page}\n"


def _declared(declared: Declared) -> str:
    """Return a sentence on what the table declares for all rows, and which of these declarations are missing."""
    shape, peak = declared.shape, declared.peak_flops_per_s
    stated = {
        "model": shape and f"{parameters(shape) / 1e6:,.1f} million parameters ({shape.family})",
        "sequence length": declared.sequence_length and f"sequence length {declared.sequence_length:,}",
        "devices": declared.devices and count(declared.devices, "device"),
        "peak": peak and f"peak {peak / 1e12:,.6g} TFLOP/s each",
        "dtype": declared.dtype,
    }
    missing = [name for name, value in stated.items() if not value]
    line = f"Declared: {', '.join(safe(str(value)) for value in stated.values() if value) or 'nothing'}"
    return f"{line}; not declared: {', '.join(missing)}." if missing else f"{line}."


def _rows(audit: Audit, published: Table) -> str:
    printed = {row.name: row for row in published.rows}
    header = ["row", "tokens/s", "MFU %", "TFLOP/s", "step ms", "GFLOP/token", "shape says", "verdict"]
    texts = []
    for row in audit.rows:
        printed_row = printed[row.name]
        aside = "".join(f" *{safe(remark.strip())}*" for remark in (printed_row.note, printed_row.source) if remark)
        texts.append(f"**{safe(row.name)}**: {safe(text.row_sentence(row, audit))}{aside}")
    sentences = [text.formula_sentence(audit), *map(text.scatter_sentence, audit.scatters)]
    return joined(
        "## Rows",
        table(header, [_cells(row, printed[row.name]) for row in audit.rows]),
        *(safe(sentence or "") for sentence in sentences),
        bulleted(texts),
    )


def _cells(row: RowAudit, printed: AuditRow) -> list[str]:
    figures = [printed.tokens_per_s, printed.mfu_percent, printed.tflops]
    verdict = SHORT[row.status]
    if row.status == "inconsistent" or (row.status == "apart" and any(not reading.free for reading in row.readings)):
        verdict += f", {safe(text.short(row))}"
    return [
        row.name,
        *(NOT_MEASURED if figure is None else figure.text for figure in figures),
        _fixed(row.step_ms, 1) if printed.step_ms is None else printed.step_ms.text,
        _fixed(row.gflops_per_token, 4),
        _fixed(row.expected_gflops_per_token, 4),
        Markdown(verdict),
    ]


def _fixed(value: float | None, places: int) -> str:
    return cell(value, f"{{:,.{places}f}}".format)


def _gains(audit: Audit) -> str:
    if not audit.gains:
        return ""

    def verdict(gain: Gain) -> str:
        judged = gain.noise is not None and gain.verdict != "not comparable"
        return f"{gain.verdict}; {gain.noise}" if judged else gain.verdict

    return joined(
        "## Ceilings and gains",
        column_table(audit.gains, {
            "candidate / baseline": lambda gain: f"{gain.candidate} / {gain.baseline}",
            "step ms": lambda gain: _fixed(gain.step_ms, 1),
            "data ms": lambda gain: _fixed(gain.data_ms, 2),
            "its data ms": lambda gain: _fixed(gain.candidate_data_ms, 2),
            "ceiling: no data": lambda gain: cell(gain.ceiling_all, "{:.4f}x".format),
            "ceiling": lambda gain: cell(gain.ceiling, "{:.4f}x".format),
            "measured": lambda gain: cell(gain.measured, "{:.4f}x".format),
            "verdict": verdict,
        }),
        bulleted(safe(text.gain_sentence(gain, audit.table)) for gain in audit.gains),
        safe(text.gains_sentence(audit) or ""),
    )  # fmt: skip


def _inferences(audit: Audit) -> str:
    parts = []
    if audit.fits:
        parts = [text.ASSUMPTION, column_table(audit.fits, {
            "kind": lambda fit: fit.kind + (text.taken_as_declared(fit.doubtful) if fit.doubtful else ""),
            "batch sizes": lambda fit: ", ".join(map(str, fit.batch_sizes)),
            "fixed ms": lambda fit: _fixed(fit.fixed_ms, 1),
            "ms per sample": lambda fit: _fixed(fit.per_sample_ms, 1),
            "forward and backward TFLOP/s":
                lambda fit: _fixed(None if fit.flops_per_s is None else fit.flops_per_s / 1e12, 0),
            "of peak": lambda fit: percent_cell(fit.share_of_peak),
        })]  # fmt: skip
        if audit.traffic is not None:
            parts.append(safe(text.traffic_sentence(audit.traffic, audit.fits, audit.table)))
    parts += [f"- {safe(text.clue_sentence(clue))}" for clue in audit.evidence]
    return joined("## Inferences", *parts) if parts else ""
