"""Finds arms of the same study that already are what the edits ask for: their measurement checks the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.scenario.edits import Edits
from harness.scenario.overrides import DOSES, Nested, flatten, lookup, lookup_number
from harness.study.contract import STAGES
from harness.study.records import RunRecord
from trainer.config_base import BEFORE
from trainer.json_types import JsonObject

# Differ between blocks, or say how long to measure.
IGNORED = ("seed", "steps", "warmup_steps")
UNCHECKED: JsonObject = {"compute.check_finite": False}
EXTRA_WORK: Mapping[str, str] = {
    str(what): key for what, key in DOSES.items()
}  # by stage: the key that repeats its work


def validation_arms(records: Sequence[RunRecord], arm: str, edits: Edits) -> list[str]:
    """Names of other arms (controls included, A/A controls left out) that ran what ``arm`` would be under ``edits``."""
    own = next((record for record in records if record.arm == arm), None)
    if own is None or not edits:
        return []
    if _removes_data(edits):
        return list(dict.fromkeys(r.arm for r in records if r.control == "ideal-data" and r.of == arm))
    wanted = _edited(own.config, edits)
    found = [r.arm for r in records if r.arm != arm and r.control != "a-a" and _comparable(r.config) in wanted]
    return list(dict.fromkeys(found))


def _removes_data(edits: Edits) -> bool:
    removed = all(stage in edits.stages and edits.stages[stage].removes for stage in STAGES)
    return removed and all(text.partition("=")[0] in STAGES for text in edits.texts)


def _edited(config: JsonObject, edits: Edits) -> list[Nested]:
    """The configurations that are this one under ``edits``; none where its keys cannot express them."""
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
    # Nothing is read within the step, or one step later.
    return [_comparable({**flat, **unread}) for unread in ({**UNCHECKED, **BEFORE}, {"compute.sync": "late"})]


def _comparable(config: JsonObject) -> Nested:
    flat = {**BEFORE, **{key: value for key, value in flatten(config).items() if key not in IGNORED}}
    if not flat.get("data.workers"):
        flat.pop("data.prefetch", None)  # no effect
    # One rank is one however it is started; of several only their number, and how they share the model, count.
    launch = {key: flat.pop(key) for key in list(flat) if key == "launch" or key.startswith("launch.")}
    each, nodes = (launch.get(f"launch.torchrun.{key}", 1) for key in ("nproc", "nnodes"))
    ranks = each * nodes if isinstance(each, int) and isinstance(nodes, int) else 1
    if ranks != 1:
        flat |= {"ranks": ranks, "parallel": launch.get("launch.parallel", "ddp")}
    return flat
