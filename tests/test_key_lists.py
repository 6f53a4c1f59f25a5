"""Lists of configuration keys name keys that exist: a renamed key would drop out of them in silence."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from harness.explain.replay.whatif import UNCHECKED
from harness.judge.advice import PATH_KEYS
from harness.judge.claims import FIXES
from harness.judge.confounds import BATCHES, OF_USER_CODE, REASONS, SAME_BATCHES
from harness.judge.controls import OF_RANKS
from harness.judge.predictions import REPLAYABLE
from harness.regress.across import FINGERPRINTED, WORK
from harness.scenario.overrides import DOSES, HAND_OVER
from harness.show.plotted_runs import NO_NAMES
from harness.study.records import COMMAND
from trainer.checkpoint import FREE
from trainer.config_base import BEFORE

SCHEMA = Path(__file__).parents[1] / "scenarios" / "schema.json"


def keys_of(schema: object) -> Iterator[str]:
    """Yield all property names of a JSON schema, dotted ones included."""
    if isinstance(schema, Mapping):
        yield from schema.get("properties", ())
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from keys_of(part)


KEYS = set(keys_of(json.loads(SCHEMA.read_text())))
ALL_REASONS = {key for keys in REASONS.values() for key in keys or ()} - {COMMAND}
LISTS: Mapping[str, Collection[str]] = {
    "BATCHES": BATCHES, "SAME_BATCHES": SAME_BATCHES, "OF_USER_CODE": OF_USER_CODE.values(), "REASONS": ALL_REASONS,
    "PATH_KEYS": PATH_KEYS, "FIXES": FIXES, "OF_RANKS": OF_RANKS, "REPLAYABLE": REPLAYABLE, "UNCHECKED": UNCHECKED,
    "FINGERPRINTED": FINGERPRINTED, "WORK": WORK, "DOSES": DOSES.values(), "NO_NAMES": NO_NAMES, "FREE": FREE,
    "BEFORE": BEFORE, "HAND_OVER": HAND_OVER,
}  # fmt: skip


def unknown(entries: Collection[str]) -> list[str]:
    """Return the entries that begin no key."""
    return [entry for entry in entries if not any(key.startswith(entry) for key in KEYS)]


@pytest.mark.parametrize("name", LISTS)
def test_each_entry_of_a_list_is_a_key(name: str) -> None:
    assert LISTS[name]
    assert not unknown(LISTS[name])


def test_a_resumed_training_may_change_how_batches_reach_the_loop() -> None:
    assert set(HAND_OVER) <= FREE


def test_an_entry_that_is_no_key_is_found() -> None:
    assert unknown(["data.prefetch", "data.extra_", "data.prefetched"]) == ["data.prefetched"]
