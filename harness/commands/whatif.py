"""harness whatif: predicts an arm of a study under edits, by replaying its recorded durations."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.commands.arguments import add_study
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.analysis.replay import Edits, Prediction
    from harness.analysis.replay.sweep import Sweep
    from harness.analysis.statistics import Estimate
    from harness.study.store import RunData, StudyFolder

    Twins = list[tuple[str, Estimate]]  # arms of the study that are what the edits ask for, and their step time in ms


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The study, the arm and the edits."""
    add_study(parser)
    parser.add_argument("--arm", metavar="NAME", help="the arm to replay (needed where the study has several)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="read, tokenize, pack, transfer: 0, 0.5x or 3ms; device=2x; workers, prefetch, ranks, batch_size, "
        "cores=N; sync=off; may be repeated",
    )
    parser.add_argument("--sweep", metavar="KEY=V1,V2,...", help="every value in turn, with a picture under plots/")
    parser.add_argument("--json", action="store_true", help="print the prediction as JSON")


def whatif(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Predict the edits of ``--set``, and every value of ``--sweep`` on top of them; print it, or JSON."""
    from harness.analysis.replay import Replays, parse_edits
    from harness.analysis.replay.sweep import parse_sweep, sweep
    from harness.study.store import StudyFolder

    edits = parse_edits(arguments.set)
    swept = parse_sweep(arguments.sweep, edits) if arguments.sweep else None
    if not edits and swept is None:
        raise InputError("whatif: nothing to change; give --set KEY=VALUE (tokenize=0, device=2x, ...) or --sweep")
    folder = StudyFolder(Path(arguments.study))
    study = folder.read_study()
    runs = list(folder.runs())
    arm = _arm(arguments.arm, runs)
    replays = Replays([run for run in runs if run.record.arm == arm])
    prediction = replays.predict(edits)
    twins = _twins(runs, arm, edits)
    found = _as_json(study.scenario, arm, prediction, twins)
    lines = _lines(study.scenario, arm, prediction, twins)
    if swept is not None:
        ranged = sweep(replays, edits, *swept)
        checks = [_twins(runs, arm, one.edits) for one in ranged.recorded]
        path = _draw(folder, arm, ranged, prediction, checks)
        found["sweep"] = _sweep_json(ranged, checks, path)
        lines += ["", *_table(ranged, checks), ranged.sentence, f"picture: {path}"]
    print(json.dumps(found, indent=1, allow_nan=False) if arguments.json else "\n".join(lines))
    return 0


def _arm(wanted: str | None, runs: Sequence[RunData]) -> str:
    """The arm to replay; InputError where it is not one of the study's, or not clear."""
    from harness.scenario.errors import did_you_mean

    names = list(dict.fromkeys(run.record.arm for run in runs))
    plain = list(dict.fromkeys(run.record.arm for run in runs if run.record.control is None))
    if wanted is None:
        if len(plain) == 1:
            return plain[0]
        raise InputError(f"whatif: which arm? give --arm NAME; arms: {', '.join(plain) or 'none has run'}")
    if wanted not in names:
        raise InputError(f"--arm {wanted}: no such arm{did_you_mean(wanted, names) or ';'} arms: {', '.join(names)}")
    return wanted


def _twins(runs: Sequence[RunData], arm: str, edits: Edits) -> Twins:
    """Arms of the study that are what the edits ask for, with their measured step time in ms."""
    from harness.analysis.ledger import measure
    from harness.analysis.replay.validation_arms import validation_arms
    from harness.analysis.statistics import estimate

    found = []
    for name in validation_arms([run.record for run in runs], arm, edits):
        ledgers = [ledger for run in runs if run.record.arm == name and (ledger := measure(run)) is not None]
        value = estimate({one.record.block: {0: (one.mean_step_ms, 1.0)} for one in ledgers})
        if value is not None:
            found.append((name, value))
    return found


def _lines(scenario: str, arm: str, prediction: Prediction, twins: Twins) -> list[str]:
    """The answer as text, one line a fact."""
    from harness.report.words import count, ms, number, percent, ratio

    p = prediction
    edits = f" with {' '.join(p.edits.texts)}" if p.edits.texts else ""
    lines = [f"{arm} of {scenario}, replayed{edits}{', on an emulated device' if p.emulated else ''}"]
    lines.append(f"measured   {_ms(p.measured_ms)} per step, {count(p.measured_ms.n, 'run')}")
    lines.append(f"validation {validation(p)}")
    if not p.edits:
        return lines
    said = "predicted" if p.validation.granted else "NOT LICENSED"
    how = "" if p.interval_from == "blocks" else " (interval from replicates of too few runs: it knows nothing of luck)"
    lines.append(
        f"{said:<10} {_ms(p.step_ms)} per step{how}: {ratio(p.ratio.median)} the measured step, "
        f"{ratio(p.speedup.median)} as fast"
    )
    if p.tokens_per_s is not None:
        ranks = p.edits.ranks or 1
        each = f" over {ranks} ranks, {number(p.tokens_per_s.median / ranks)} each" if ranks > 1 else ""
        lines.append(f"           {_span(p.tokens_per_s)} tokens/s{each}")
    what = "device starved while waiting for" if p.starved_ms is not None else "step waits for"
    stages = [stage for stage in p.waits_ms if max(p.waits_ms[stage], p.was_waits_ms[stage]) >= 0.005]
    changes = [f"{stage} {number(p.was_waits_ms[stage])} -> {number(p.waits_ms[stage])} ms" for stage in stages]
    lines.append(f"why        {what} {', '.join(changes) or 'nothing'}")
    if p.starved_ms is not None and p.was_starved_ms is not None:
        lines.append(f"           device starved in all {number(p.was_starved_ms)} -> {ms(p.starved_ms)} a step")
    for name, value in twins:
        off = p.step_ms.median / value.median - 1
        direction = "more" if off > 0 else "less"
        lines.append(f"beside     {name} measured {_ms(value)}: the prediction is {percent(off)} {direction}")
    lines += [f"assumes    {text}" for text in p.assumptions]
    return lines


def validation(prediction: Prediction) -> str:
    """What the errors of the unedited replay allow, in words."""
    from harness.analysis.replay.prediction import TOLERANCE
    from harness.report.words import count, percent

    given = prediction.validation
    text = (
        f"the unedited replay is {_signed(given.median)} off (worst {_signed(given.worst)} of "
        f"{count(len(given.errors), 'run')}; resampled {_signed(given.resampled_median)})"
    )
    if given.granted:
        return text
    return f"{text}: more than {percent(TOLERANCE)}, so this prediction is not licensed"


def _table(ranged: Sweep, checks: Sequence[Twins]) -> list[str]:
    """The sweep as aligned lines; what other arms measured stands beside."""
    from harness.report.words import number, percent

    rows = [[ranged.key, "step ms", "tokenize=0 ms", "tokenization costs", *(["measured ms"] if any(checks) else [])]]
    points = zip(ranged.texts, ranged.recorded, ranged.without, ranged.shares, checks, strict=True)
    for text, full, free, share, twins in points:
        beside = ", ".join(f"{number(value.median)} by {name}" for name, value in twins)
        rows.append(
            [
                text,
                number(full.step_ms.median),
                number(free.step_ms.median),
                percent(max(0.0, share)),
                *([beside] if any(checks) else []),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _draw(folder: StudyFolder, arm: str, ranged: Sweep, prediction: Prediction, checks: Sequence[Twins]) -> Path:
    from harness.report.sweeps import picture  # matplotlib costs a second of import
    from harness.study.store import write_bytes

    path = folder.plots / f"whatif-{arm}-{ranged.key}.png"
    measured = [(at, value) for at, twins in zip(ranged.values, checks, strict=True) for _, value in twins]
    write_bytes(path, picture(ranged, arm, prediction, measured))
    return path


def _as_json(scenario: str, arm: str, prediction: Prediction, twins: Twins) -> dict[str, Any]:
    found = {"scenario": scenario, "arm": arm, **_prediction_json(prediction)}
    found["beside"] = _twins_json(twins)
    return found


def _sweep_json(ranged: Sweep, checks: Sequence[Twins], picture: Path) -> dict[str, Any]:
    points = zip(ranged.texts, ranged.recorded, ranged.without, checks, strict=True)
    return {
        "key": ranged.key,
        "points": [
            {
                "value": text,
                "recorded": _prediction_json(full),
                "without_tokenization": _prediction_json(free),
                "beside": _twins_json(twins),
            }
            for text, full, free, twins in points
        ],
        "crossings": [crossing._asdict() for crossing in ranged.crossings],
        "sentence": ranged.sentence,
        "picture": str(picture),
    }


def _twins_json(twins: Twins) -> list[dict[str, Any]]:
    return [{"arm": name, "step_ms": _estimate_json(value)} for name, value in twins]


def _prediction_json(p: Prediction) -> dict[str, Any]:
    return {
        "edits": list(p.edits.texts),
        "emulated": p.emulated,
        "measured_ms": _estimate_json(p.measured_ms),
        "step_ms": _estimate_json(p.step_ms),
        "tokens_per_s": _estimate_json(p.tokens_per_s),
        "ratio": _estimate_json(p.ratio),
        "speedup": _estimate_json(p.speedup),
        "interval_from": p.interval_from,
        "licence": {
            "granted": p.validation.granted,
            "median": p.validation.median,
            "worst": p.validation.worst,
            "resampled_median": p.validation.resampled_median,
            "by_block": {str(block): error for block, error in p.validation.errors.items()},
        },
        "waits_ms": dict(p.waits_ms),
        "unedited_waits_ms": dict(p.was_waits_ms),
        "starved_ms": p.starved_ms,
        "unedited_starved_ms": p.was_starved_ms,
        "assumptions": list(p.assumptions),
    }


def _estimate_json(value: Estimate | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"median": value.median, "ci_low": value.ci_low, "ci_high": value.ci_high, "n": value.n}


def _span(value: Estimate) -> str:
    from harness.report.words import number

    if value.ci_low is None or value.ci_high is None:
        return number(value.median)
    return f"{number(value.median)} ({number(value.ci_low)} to {number(value.ci_high)})"


def _ms(value: Estimate) -> str:
    from harness.report.words import number

    if value.ci_low is None or value.ci_high is None:
        return f"{number(value.median)} ms"
    return f"{number(value.median)} ms ({number(value.ci_low)} to {number(value.ci_high)})"


def _signed(fraction: float) -> str:
    from harness.report.words import percent

    return f"{'+' if fraction >= 0 else '-'}{percent(fraction)}".replace("+under", "under").replace("-under", "under")
