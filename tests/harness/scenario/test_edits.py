"""Parsing of what-if edits, and which arm already is what they ask for."""

from __future__ import annotations

from typing import Any

import pytest

from harness.explain.replay.whatif import validation_arms
from harness.scenario.edits import Edits, StageEdit, parse_edits
from harness.scenario.overrides import expand
from harness.study.records import RunRecord
from trainer.errors import InputError


def test_every_form_is_understood() -> None:
    texts = ["read=0", "tokenize=0.5x", "pack=3ms", "transfer=.2 ms", "device=2x", "workers=4", "prefetch=3"]
    edits = parse_edits([*texts, "ranks=16", " batch_size = 8 ", "cores=32", "sync=off"])
    changes = {
        "read": StageEdit(0.0),
        "tokenize": StageEdit(0.5),
        "pack": StageEdit(ms=3.0),
        "transfer": StageEdit(ms=0.2),
    }
    assert edits.stages == changes
    assert (edits.device, edits.workers, edits.prefetch, edits.ranks) == (2.0, 4, 3, 16)
    assert (edits.batch_size, edits.cores, edits.sync) == (8, 32, "off")
    assert edits.texts[-3:] == ("batch_size=8", "cores=32", "sync=off")


def test_no_edit_is_false_and_a_later_text_replaces_an_earlier_one() -> None:
    assert not parse_edits([])
    assert not parse_edits(["sync=on"])
    edits = parse_edits(["tokenize=0.5x", "workers=2"]).with_text("tokenize=0")
    assert edits == Edits({"tokenize": StageEdit(0.0)}, workers=2, texts=("workers=2", "tokenize=0"))


@pytest.mark.parametrize(("text", "says"), [
    ("tokenise=0", "unknown key 'tokenise'; did you mean 'tokenize'?"),
    ("tokenize", "expected KEY=VALUE"),
    ("tokenize=", "expected KEY=VALUE"),
    ("tokenize=5", "0 (removed), a factor such as 0.5x, or a time per batch such as 3ms"),
    ("tokenize=-1x", "a factor such as 0.5x"),
    ("tokenize=nanx", "a factor such as 0.5x"),
    ("read=99999999ms", "a time per batch such as 3ms"),
    ("device=2", "a speed factor"),
    ("device=0x", "a speed factor"),
    ("workers=-1", "a whole number from 0 to 256"),
    ("workers=2.5", "a whole number from 0 to 256"),
    ("prefetch=0", "a whole number from 1 to 1024"),
    ("ranks=0", "a whole number from 1 to"),
    ("cores=many", "a whole number from 1 to"),
    ("sync=no", "off (no blocking on the gradient norm), late (on that of the previous step) or on"),
])  # fmt: skip
def test_a_wrong_edit_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=r"^--set ") as caught:
        parse_edits([text])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="tokenize is given twice"):
        parse_edits(["tokenize=0", "tokenize=0.5x"])


def arm(name: str, control: str | None = None, of: str | None = None, **keys: Any) -> RunRecord:
    base = {"data.workers": 1, "data.prefetch": 2, "data.batch_size": 4, "compute.check_finite": True, "seed": 0}
    config = expand({**base, "compute.device": "cpu", **{key.replace("__", "."): value for key, value in keys.items()}})
    return RunRecord(name, 0, "done", control, of, config=config)


@pytest.mark.parametrize(("texts", "same"), [
    (["workers=2"], ["w2"]),
    (["workers=0"], ["inline"]),
    (["workers=0", "prefetch=7"], ["inline"]),  # no effect without workers
    (["prefetch=2"], ["other-seed"]),
    (["sync=off"], ["no-sync", "late"]),
    (["sync=late"], ["late"]),
    (["tokenize=3x"], ["a+dose"]),
    (["tokenize=0.5x"], []),
    (["tokenize=3ms"], []),
    (["workers=2", "ranks=4"], []),
    (["device=2x"], []),  # a real device has no such key
    (["read=0", "tokenize=0", "pack=0", "transfer=0"], ["a+ideal-data"]),
    (["read=0", "tokenize=0", "pack=0", "transfer=0", "workers=2"], []),
    (["read=0", "tokenize=0"], []),
    ([], []),
])  # fmt: skip
def test_the_arm_that_already_is_what_the_edits_ask_for(texts: list[str], same: list[str]) -> None:
    records = [
        arm("a"),
        arm("a+a-a", "a-a", "a"),
        arm("a+ideal-data", "ideal-data", "a", data__workers=0, data__replay=True),
        arm("a+dose", "dose", "a", data__extra_tokenizations=2),
        arm("other-seed", seed=3),
        arm("w2", data__workers=2),
        arm("inline", data__workers=0, data__prefetch=4),
        arm("no-sync", compute__check_finite=False),
        arm("late", compute__sync="late"),
        arm("each", compute__sync="every-step"),
    ]
    assert validation_arms(records, "a", parse_edits(texts)) == same


def test_a_device_on_paper_has_its_validation_arm_by_speed() -> None:
    slow = {"emulated": "gh200", "speed": 1.0}
    records = [arm("a", compute__device=slow), arm("fast", compute__device={**slow, "speed": 2.0})]
    assert validation_arms(records, "a", parse_edits(["device=2x"])) == ["fast"]
    assert validation_arms(records, "fast", parse_edits(["device=0.5x"])) == ["a"]


def test_ranks_have_their_validation_arm_in_as_many_processes() -> None:
    two = {"torchrun": {"nproc": 2}, "parallel": "ddp", "timeout_s": 60}
    records = [
        arm("a", launch=None),
        arm("two", launch=two),
        arm("two, longer", launch={**two, "timeout_s": 5}),
        arm("three", launch={**two, "torchrun": {"nproc": 3}}),
        arm("sharded", launch={**two, "parallel": "fsdp"}),
        arm("other batch", launch=two, data__batch_size=3),
    ]
    assert validation_arms(records, "a", parse_edits(["ranks=2"])) == ["two", "two, longer"]
    assert validation_arms(records, "two", parse_edits(["ranks=1"])) == ["a"]
    assert validation_arms(records, "a", parse_edits(["ranks=4"])) == []
