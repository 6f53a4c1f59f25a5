"""Builds a study's report from its folder alone: summary.md, .html and .json, plots/ and timeline.json.gz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness.explain.ledger import derived_steps
from harness.explain.probes.torch_profile import TorchProfile
from harness.judge.probes.results import ProbeResults, probe_results, with_device_busy
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show import html, learning, markdown, profile
from harness.show.drawing import Picture
from harness.show.first_screen import FirstScreen, first_screen
from harness.show.names import ArmNames
from harness.show.summary import summary
from harness.show.timeline.build import timeline
from harness.show.timeline.chrome import CHROME_NAME
from harness.show.timeline.protobuf import PROTOBUF_NAME
from harness.show.timeline.sources import RecordedFiles, read_recorded
from harness.study.records import StudyRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder, write_json
from trainer.errors import InputError, one_line
from trainer.files import read_json, write_bytes, write_text


def build_report(folder: Path) -> FirstScreen:
    """Analyse the study in ``folder`` and write its report there; returns what is read first.

    Runs may have failed, be missing or still be to come: the report then lists that at its top.
    Raises InputError where ``folder`` is not a study, or where the tables that its report was made of are gone.
    """
    study = StudyFolder(folder)
    record = study.read_study()
    study.remove_leftovers()
    runs = list(study.runs())
    _check_tables(study, record, runs)
    # While a study runs, its launcher writes into the same folders.
    keep = [partial(keep_derived, study)] if record.status != "running" else []
    report, found, files = report_of(study, record, runs, *keep)
    screen = first_screen(report)
    pictures = draw(report, study, found.profiles, screen.names)
    shown = timeline(record, runs, files.sources)
    for name in (CHROME_NAME, PROTOBUF_NAME):
        if name == shown.name:
            write_bytes(study.path / name, shown.content)
        else:
            (study.path / name).unlink(missing_ok=True)  # of an earlier report
    write_json(study.summary_json, summary(report, screen, found, files.problems, files.cost))
    page = markdown.page(report, screen, list(pictures), found, files, shown.cut)
    write_text(study.summary_md, page.markdown)
    write_text(study.summary_html, html.page(page, pictures, report.step_times, screen.names))
    return screen


def report_of(
    study: StudyFolder, record: StudyRecord, runs: Sequence[RunData], *while_whole: Callable[[RunData], None]
) -> tuple[StudyReport, ProbeResults, RecordedFiles]:
    """Analyse a study with the results of its probes; ``while_whole`` as :func:`analyse` takes it. Writes nothing."""
    report = analyse(record, runs, *while_whole)
    files = read_recorded(study, runs)
    found = probe_results(runs, files.profiled)
    return with_device_busy(report, found.profiles, found.devices), found, files


def _check_tables(study: StudyFolder, record: StudyRecord, runs: Sequence[RunData]) -> None:
    """InputError where runs were measured but none has a table left: a report of nothing must not replace theirs."""
    if any(run.has_steps for run in runs) or not (record.status == "done" or _has_figures(study.summary_json)):
        return
    errors = (run.record.error for run in runs if run.record.error)
    why = next(errors, f"no {study.path / 'runs'}/*/*/run.json")
    raise InputError(f"{study.path}: no table of its runs is left ({one_line(why)}); its report stays as it is")


def _has_figures(summary_json: Path) -> bool:
    """Whether the report of before shows a run that was measured."""
    try:
        arms = read_json(summary_json)["arms"].values()
        return any(arm["blocks"] for arm in arms)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def keep_derived(study: StudyFolder, run: RunData) -> None:
    """Write the derived columns of a finished run into its steps table, for readers that are not this project.

    The contract names them; the recorded columns stay as they are. This project computes them anew each time.
    """
    if run.folder is None or run.record.status != "done":
        return
    found = derived_steps(run)
    if found.changed:
        study.write_steps(run.record, found.table)


def draw(
    report: StudyReport, study: StudyFolder, profiles: Sequence[TorchProfile], names: ArmNames
) -> dict[str, Picture]:
    """Write the pictures that have something to show; returns them by name. Pictures of an earlier report go."""
    from harness.show import plots  # matplotlib costs a second of import

    pictures = plots.pictures(report, names)
    if (picture := plots.in_both(partial(plots.memory, profiles), report.emulated)) is not None:
        pictures[profile.PICTURE] = picture
    for name in (*plots.NAMES, learning.PICTURE, profile.PICTURE):
        if name in pictures:
            write_bytes(study.plots / name, pictures[name].png)
        else:
            (study.plots / name).unlink(missing_ok=True)
    return pictures
