"""harness whatif: predicts the effect of changes to an arm of a study, by replaying its recorded durations."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import add_study, study_path
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.explain.replay import Edits, Prediction
    from harness.explain.replay.whatif import Sweep
    from harness.show.whatif import ValidationArms
    from harness.study.run_data import RunData


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    parser.add_argument("--arm", metavar="NAME", help="the arm to replay (needed if the study has several)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="read, tokenize, pack, transfer: 0, 0.5x or 3ms; device=2x; workers, prefetch, ranks, batch_size, "
        "cores=N; sync=off; may be repeated",
    )
    parser.add_argument("--sweep", metavar="KEY=V1,V2,...", help="predict each value, and draw a picture")
    parser.add_argument("--out", metavar="DIR", help="folder for the picture of --sweep (default: the current one)")
    parser.add_argument("--json", action="store_true", help="print the prediction as JSON")


def whatif(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Predict an arm's steps under the edits of ``--set``, and under each value of ``--sweep``. Print text or JSON."""
    from harness.explain.replay import Replays, parse_edits
    from harness.explain.replay.whatif import parse_sweep, sweep
    from harness.judge.doubts import in_order
    from harness.judge.predictions import StudyRuns, bar_of, edit_doubts, refusal, with_any_handover
    from harness.launch.preparation import check_writable
    from harness.show import advice as report_advice
    from harness.show import whatif as report
    from harness.show.text.doubts import doubt_text
    from harness.study.store import StudyFolder
    from trainer.files import expanded

    edits = parse_edits(arguments.set)
    swept = parse_sweep(arguments.sweep, edits) if arguments.sweep else None
    if not edits and swept is None:
        raise InputError("whatif: nothing to change; give --set KEY=VALUE (tokenize=0, device=2x, ...) or --sweep")
    if arguments.out is not None and swept is None:
        raise InputError("whatif: --out needs --sweep, which draws a picture")
    out = expanded(arguments.out or "")
    if swept is not None:
        check_writable(out)
    folder = StudyFolder(study_path(arguments.study))
    study = folder.read_study()
    runs = list(folder.runs())
    arm = _arm(arguments.arm, runs)
    arm_runs = [run for run in runs if run.record.arm == arm]
    if (reason := refusal(arm_runs)) is not None:
        raise InputError(f"whatif: {report_advice.cannot_be_replayed(arm, doubt_text(reason))}")
    replays = Replays(arm_runs)
    variants = [edits, *(edits.with_text(f"{swept[0]}={text}") for _, text in swept[1])] if swept else [edits]
    for variant in variants:
        if (bar := bar_of(variant, arm_runs, replays)) is not None:
            raise InputError(f"whatif: {report_advice.barred_text(bar, arm)}")
    prediction = with_any_handover(replays, replays.predict(edits))
    checks = _checks(runs, arm, edits)
    by_arm: dict[str, list[RunData]] = {}
    for run in runs:
        by_arm.setdefault(run.record.arm, []).append(run)
    study_runs = StudyRuns(study, by_arm)
    ranged = None if swept is None else sweep(replays, edits, *swept)
    predictions = [prediction, *(() if ranged is None else ranged.recorded)]
    doubts = in_order(
        {doubt for predicted in predictions for doubt in edit_doubts(study_runs, arm, replays, predicted)}
    )
    answer = report.answer_json(study.scenario, arm, prediction, checks, doubts)
    lines = report.prediction_lines(study.scenario, arm, prediction, checks, doubts)
    if ranged is not None:
        by_value = [_checks(runs, arm, replayed.edits) for replayed in ranged.recorded]
        path = _draw(out, arm, ranged, prediction, by_value)
        answer["sweep"] = report.sweep_json(ranged, by_value, str(path))
        lines += ["", *report.sweep_lines(ranged, by_value), f"picture: {path}"]
    say(json.dumps(answer, indent=1, allow_nan=False) if arguments.json else "\n".join(lines))
    return 0


def _arm(wanted: str | None, runs: Sequence[RunData]) -> str:
    """Return the arm to replay: ``wanted``, or the study's only arm. Raises InputError if missing or not unique."""
    from harness.scenario.errors import did_you_mean

    names = list(dict.fromkeys(run.record.arm for run in runs))
    plain = list(dict.fromkeys(run.record.arm for run in runs if run.record.control is None))
    if wanted is None:
        if len(plain) == 1:
            return plain[0]
        raise InputError(f"whatif: give --arm NAME; arms: {', '.join(plain) or 'none has run'}")
    if wanted not in names:
        listed = ", ".join(names) or "none has run"
        raise InputError(f"--arm {wanted}: no such arm{did_you_mean(wanted, names) or ';'} arms: {listed}")
    return wanted


def _checks(runs: Sequence[RunData], arm: str, edits: Edits) -> ValidationArms:
    """Return the arms with the settings of ``arm`` under ``edits``, each with its measured step time (ms)."""
    from harness.explain.replay.whatif import validation_arms
    from harness.judge.predictions import step_ms_of

    checks = []
    for name in validation_arms([run.record for run in runs], arm, edits):
        value = step_ms_of([run for run in runs if run.record.arm == name])
        if value is not None:
            checks.append((name, value))
    return checks


def _draw(out: Path, arm: str, ranged: Sweep, prediction: Prediction, checks: Sequence[ValidationArms]) -> Path:
    from harness.show.drawing import write_picture
    from harness.show.sweeps import picture  # matplotlib costs a second of import
    from harness.study.files import check_folder_name

    path = out / check_folder_name(f"whatif-{arm}-{ranged.key}.png", "whatif: picture")
    measured = [(position, value) for position, arms in zip(ranged.values, checks, strict=True) for _, value in arms]
    write_picture(path, picture(ranged, arm, prediction, measured))
    return path
