"""Builds a study's report from its folder alone: summary.md, summary.json, plots/ and timeline.json.gz."""

from __future__ import annotations

from pathlib import Path

from harness import timeline
from harness.analysis.report_types import StudyReport
from harness.analysis.study import analyse
from harness.report import evidence, markdown, profile
from harness.report.summary import summary
from harness.study.store import StudyFolder, write_bytes, write_json, write_text


def build_report(folder: Path) -> list[str]:
    """Analyse the study in ``folder`` and write its report there; returns the verdict sentences.

    Works on what is there: runs may have failed, be missing or still be to come, and the report says so at its top.
    Raises InputError where ``folder`` is not a study.
    """
    study = StudyFolder(folder)
    record = study.read_study()
    runs = list(study.runs())
    report = analyse(record, runs)
    found = evidence.gather(study, runs)
    pictures = draw(report, study, found)
    shown = timeline.timeline(record, runs, found.sources)
    for name in (timeline.CHROME_NAME, timeline.PROTOBUF_NAME):
        if name == shown.name:
            write_bytes(study.path / name, shown.content)
        else:
            (study.path / name).unlink(missing_ok=True)  # of an earlier report
    write_json(study.summary_json, summary(report, found))
    write_text(study.summary_md, markdown.summary(report, pictures, found, shown.cut))
    return [comparison.sentence for comparison in report.comparisons]


def draw(report: StudyReport, study: StudyFolder, found: evidence.ProbeResults) -> list[str]:
    """Write the pictures that have something to show; returns their names. Pictures of an earlier report go."""
    from harness.report import memory_plot, plots  # matplotlib costs a second of import
    from harness.report.drawing import png

    pictures = plots.pictures(report)
    if (figure := memory_plot.memory(found.profiles)) is not None:
        pictures[profile.PICTURE] = png(figure, report.emulated)
    for name in (*plots.NAMES, profile.PICTURE):
        if name in pictures:
            write_bytes(study.plots / name, pictures[name])
        else:
            (study.plots / name).unlink(missing_ok=True)
    return list(pictures)
