"""Predicts one edit over a range of values, and finds the arms of a study that measured an edit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.explain.policy import CROSSING_SHARE
from harness.explain.replay.predict import Replays
from harness.explain.replay.prediction import Prediction
from harness.scenario.edits import COUNTS, Edits, parse_edits
from harness.scenario.overrides import DOSES, Nested, flatten, lookup, lookup_number
from harness.study.contract import STAGES
from harness.study.records import RunRecord
from trainer.config_base import BEFORE
from trainer.errors import InputError
from trainer.json_types import JsonObject

SWEPT = ("device", *COUNTS)
_HALVINGS = 6  # bisections between the neighbours of a crossover


@dataclass(frozen=True)
class Crossing:
    """Value of a swept key, between two given ones, at which tokenization costs 1 % of the step."""

    at: float  # first value on the other side
    between: tuple[str, str]  # neighbours, as given
    matters_below: bool  # tokenization matters at the lower neighbour and not at the higher one


@dataclass(frozen=True)
class Sweep:
    """Predictions for several values of one edit key, in rising order, with and without tokenization."""

    key: str
    was: float  # recorded value
    values: tuple[float, ...]
    texts: tuple[str, ...]  # the values as given
    recorded: tuple[Prediction, ...]
    without: tuple[Prediction, ...]  # predictions with tokenize=0
    crossings: tuple[Crossing, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the step (0 to 1) that tokenization costs, at each value."""
        return tuple(_share(full, free) for full, free in zip(self.recorded, self.without, strict=True))


def parse_sweep(text: str, edits: Edits) -> tuple[str, list[tuple[float, str]]]:
    """Return key and rising (number, text) values of ``device=1x,2x``. Raises InputError, also if ``edits`` set it."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or key not in SWEPT:
        raise InputError(f"--sweep {text}: expected KEY=VALUE,VALUE,... with one of the keys {', '.join(SWEPT)}")
    if any(edit_text.partition("=")[0] == key for edit_text in edits.texts):
        raise InputError(f"--sweep {text}: {key} is set by --set as well")
    texts = list(dict.fromkeys(value.strip() for value in values.split(",")))
    if len(texts) < 2:
        raise InputError(f"--sweep {text}: a sweep needs at least 2 different values, separated by commas")
    parsed = []
    for value in texts:
        try:
            edit = parse_edits([f"{key}={value}"])
        except InputError as error:
            raise InputError(str(error).replace("--set", "--sweep", 1)) from error
        parsed.append((float(getattr(edit, key)), value))
    return key, sorted(parsed)


def sweep(replays: Replays, edits: Edits, key: str, values: Sequence[tuple[float, str]]) -> Sweep:
    """Return predictions for ``values`` of ``key`` on top of ``edits``, each with and without tokenization."""

    def at(text: str) -> tuple[Prediction, Prediction]:
        full = edits.with_text(f"{key}={text}")
        return replays.predict(full), replays.predict(full.with_text("tokenize=0"))

    points = [at(text) for _, text in values]
    matters = [_share(*point) > CROSSING_SHARE for point in points]
    return Sweep(
        key,
        replays.recorded(key),
        tuple(value for value, _ in values),
        tuple(text for _, text in values),
        tuple(full for full, _ in points),
        tuple(free for _, free in points),
        tuple(
            _crossing(key, values[i], values[i + 1], matters[i], lambda text: _share(*at(text)) > CROSSING_SHARE)
            for i in range(len(values) - 1)
            if matters[i] != matters[i + 1]
        ),
    )


def _share(full: Prediction, free: Prediction) -> float:
    return 1 - free.step_ms.median / full.step_ms.median


def _crossing(
    key: str, low: tuple[float, str], high: tuple[float, str], before: bool, matters: Callable[[str], bool]
) -> Crossing:
    """Return, by bisection, the value between two neighbours from which tokenization matters, or no longer matters.

    ``low``, ``high``: the neighbours, (number, text). ``before``: True if it matters at ``low``. ``matters``: takes the
    text of a value, and returns True if tokenization matters there (costs over CROSSING_SHARE of the step)."""
    lower, upper = low[0], high[0]
    for _ in range(_HALVINGS):
        middle = math.sqrt(lower * upper) if key == "device" else (lower + upper) // 2
        if middle in (lower, upper):
            break
        if matters(f"{middle:.6g}x" if key == "device" else f"{middle:.0f}") == before:
            lower = middle
        else:
            upper = middle
    return Crossing(upper, (low[1], high[1]), before)


# Keys that differ between blocks or only set how long to measure.
IGNORED = ("seed", "steps", "warmup_steps")
UNCHECKED: JsonObject = {"compute.check_finite": False}
EXTRA_WORK: Mapping[str, str] = {
    str(stage): key for stage, key in DOSES.items()
}  # key that repeats the work of each stage


def validation_arms(records: Sequence[RunRecord], arm: str, edits: Edits) -> list[str]:
    """Return other arms (and controls, not A/A ones) that ran ``arm`` under ``edits``; empty without edits."""
    arm_record = next((record for record in records if record.arm == arm), None)
    if arm_record is None or not edits:
        return []
    if _removes_data(edits):
        return list(dict.fromkeys(r.arm for r in records if r.control == "ideal-data" and r.of == arm))
    wanted = _edited(arm_record.config, edits)
    arms = [r.arm for r in records if r.arm != arm and r.control != "a-a" and _comparable(r.config) in wanted]
    return list(dict.fromkeys(arms))


def _removes_data(edits: Edits) -> bool:
    removed = all(stage in edits.stages and edits.stages[stage].removes for stage in STAGES)
    return removed and all(text.partition("=")[0] in STAGES for text in edits.texts)


def _edited(config: JsonObject, edits: Edits) -> list[Nested]:
    """Return the configurations equivalent to ``config`` with ``edits``; empty if no key can express the edits."""
    flat = flatten(config)
    if edits.cores is not None:
        return []
    if edits.ranks is not None:
        flat |= {"launch.torchrun.nproc": edits.ranks, "launch.torchrun.nnodes": 1}
    for stage, change in edits.stages.items():
        times = change.factor
        if change.ms is not None or stage not in EXTRA_WORK or times < 1 or times != int(times):
            return []
        flat[EXTRA_WORK[stage]] = (1 + int(lookup_number(config, EXTRA_WORK[stage], 0))) * int(times) - 1
    if edits.device is not None:
        if not isinstance(lookup(config, "compute.device"), Mapping):
            return []
        flat["compute.device.speed"] = lookup_number(config, "compute.device.speed", 1.0) * edits.device
    for key, value in (("workers", edits.workers), ("prefetch", edits.prefetch), ("batch_size", edits.batch_size)):
        if value is not None:
            flat[f"data.{key}"] = value
    if edits.sync == "on":
        return [_comparable(flat)]
    if edits.sync == "late":
        return [_comparable({**flat, "compute.sync": "late"})]
    # The values are not read at all, or one step later.
    return [_comparable({**flat, **unread}) for unread in ({**UNCHECKED, **BEFORE}, {"compute.sync": "late"})]


def _comparable(config: JsonObject) -> Nested:
    flat = {**BEFORE, **{key: value for key, value in flatten(config).items() if key not in IGNORED}}
    if not flat.get("data.workers"):
        flat.pop("data.prefetch", None)  # no effect
    # The launcher of a single rank does not matter. For several ranks only their number and the sharing of the model
    # count.
    launch = {key: flat.pop(key) for key in list(flat) if key == "launch" or key.startswith("launch.")}
    nproc, nodes = (launch.get(f"launch.torchrun.{key}", 1) for key in ("nproc", "nnodes"))
    ranks = nproc * nodes if isinstance(nproc, int) and isinstance(nodes, int) else 1
    if ranks != 1:
        flat |= {"ranks": ranks, "parallel": launch.get("launch.parallel", "ddp")}
    return flat
