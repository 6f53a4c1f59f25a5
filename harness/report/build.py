"""Builds a study's report from its folder alone: summary.md, summary.json, plots/ and timeline.json.gz."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import timeline
from harness.analysis.ledger import derived_steps
from harness.analysis.probes.device_busy import with_profiled_busy
from harness.analysis.probes.results import probe_results
from harness.analysis.probes.torch_profile import TorchProfile
from harness.analysis.report_types import StudyReport
from harness.analysis.study import analyse
from harness.analysis.whole_run import release, work_out
from harness.report import markdown, profile
from harness.report.recorded import read_recorded
from harness.report.sentences import sentence
from harness.report.summary import summary
from harness.study.run_data import RunData
from harness.study.store import StudyFolder, write_json
from trainer.files import write_bytes, write_text


def build_report(folder: Path) -> list[str]:
    """Analyse the study in ``folder`` and write its report there; returns the verdict sentences.

    Runs may have failed, be missing or still be to come: the report then lists that at its top.
    Raises InputError where ``folder`` is not a study.
    """
    study = StudyFolder(folder)
    record = study.read_study()
    runs = list(study.runs())
    for run in runs:  # one at a time: the spans of a long run are large
        work_out(run)
        keep_derived(study, run)
        release(run)
    files = read_recorded(study, runs)
    found = probe_results(runs, files.profiled)
    report = with_profiled_busy(analyse(record, runs), found.profiles)
    pictures = draw(report, study, found.profiles)
    shown = timeline.timeline(record, runs, files.sources)
    for name in (timeline.CHROME_NAME, timeline.PROTOBUF_NAME):
        if name == shown.name:
            write_bytes(study.path / name, shown.content)
        else:
            (study.path / name).unlink(missing_ok=True)  # of an earlier report
    write_json(study.summary_json, summary(report, found, files.problems))
    write_text(study.summary_md, markdown.summary(report, pictures, found, files, shown.cut))
    return [sentence(comparison) for comparison in report.comparisons]


def keep_derived(study: StudyFolder, run: RunData) -> None:
    """Write the derived columns of a finished run into its steps table, for readers that are not this project.

    The contract names them; the recorded columns stay as they are. This project computes them anew each time.
    """
    if run.folder is None or run.record.status != "done":
        return
    found = derived_steps(run)
    if found.changed:
        study.write_steps(run.record.arm, run.record.block, found.table)


def draw(report: StudyReport, study: StudyFolder, profiles: Sequence[TorchProfile]) -> list[str]:
    """Write the pictures that have something to show; returns their names. Pictures of an earlier report go."""
    from harness.report import plots  # matplotlib costs a second of import
    from harness.report.drawing import png

    pictures = plots.pictures(report)
    if (figure := plots.memory(profiles)) is not None:
        pictures[profile.PICTURE] = png(figure, report.emulated)
    for name in (*plots.NAMES, profile.PICTURE):
        if name in pictures:
            write_bytes(study.plots / name, pictures[name])
        else:
            (study.plots / name).unlink(missing_ok=True)
    return list(pictures)
