"""Dotted keys and layers, as properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.scenario.overrides import EXCLUSIVE, DottedKeyError, expand, flatten, lookup, merge
from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer

NAMES = st.sampled_from("abc")
LEAVES = st.one_of(st.none(), st.integers(0, 9), st.booleans())
NESTED = st.dictionaries(NAMES, st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, min_size=1)))
ABSENT = object()


def related(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


@given(NESTED)
def test_flatten_and_expand_are_inverse(nested: dict[str, Any]) -> None:
    flat = flatten(nested)
    assert not any(isinstance(value, dict) and value for value in flat.values())
    assert expand(flat) == nested


@given(NESTED)
def test_expanding_what_is_nested_changes_nothing(nested: dict[str, Any]) -> None:
    assert expand(nested) == nested


@given(NESTED, NESTED)
def test_the_layer_above_wins_and_touches_nothing_else(under: dict[str, Any], over: dict[str, Any]) -> None:
    merged = merge(under, over)
    for key, value in flatten(over).items():
        assert lookup(merged, key, ABSENT) == value
    for key, value in flatten(under).items():
        if not any(related(key, other) for other in flatten(over)):
            assert lookup(merged, key, ABSENT) == value
    for key in flatten(merged):
        assert lookup(over, key, ABSENT) is not ABSENT or lookup(under, key, ABSENT) is not ABSENT


@given(NESTED, NESTED)
def test_merging_changes_neither_layer_and_is_idempotent(under: dict[str, Any], over: dict[str, Any]) -> None:
    before = repr((under, over))
    merged = merge(under, over)
    assert repr((under, over)) == before
    assert merge(merged, over) == merged


@pytest.mark.parametrize(("mapping", "message"), [
    ({"a.b": 1, "a": {"b": 2}}, "a.b: given twice"),
    ({"a": {"b": 2}, "a.b": 1}, "a.b: given twice"),
    ({"a": 1, "a.b": 1}, "a: given twice, once as a value and once by a.b"),
    ({"a.b": 1, "a": 1}, "a: given twice"),
    ({"a": {"b.c": 1, "b": {"c": 1}}}, "a.b.c: given twice"),
    ({"a..b": 1}, "a..b: a dotted key needs a name before and after each dot"),
])  # fmt: skip
def test_one_value_said_twice_is_refused(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(DottedKeyError, match=f"^{message}$"):
        expand(mapping)


def test_a_mapping_adds_to_a_section_and_null_removes_it() -> None:
    base = {"data": {"inject": {"read_ms": 1}, "workers": 2}}
    assert merge(base, {"data": {"inject": {"pack_ms": 2}}})["data"]["inject"] == {"read_ms": 1, "pack_ms": 2}
    assert merge(base, {"data": {"inject": None}})["data"] == {"inject": None, "workers": 2}
    assert merge({"data": {"inject": None}}, {"data": {"inject": {}}})["data"]["inject"] == {}


@pytest.mark.parametrize(("section", "under", "over"), [
    ("tokenizer", {"train": {"vocab_size": 300}}, {"pretrained": "x"}),
    ("corpus", {"builtin": "p"}, {"parquet": "x"}),
    ("corpus", {"parquet": "p"}, {"path": "x"}),
    ("corpus", {"path": "p"}, {"builtin": "x"}),
])  # fmt: skip
def test_setting_one_of_an_exclusive_group_drops_the_others(section: str, under: Any, over: Any) -> None:
    merged = merge({"data": {section: {**under, "kept": 1}}}, {"data": {section: over}})
    assert merged["data"][section] == {**over, "kept": 1}


def test_the_exclusive_groups_are_those_of_the_configuration() -> None:
    tokenizer = TokenizerConfig(train=TrainTokenizer())
    others = {"engine", "prove", "special_tokens_in_text"}
    assert {*others, *EXCLUSIVE["data", "tokenizer"]} == set(type(tokenizer).model_fields)
    others = {"column", "documents", "format", "split", "chat_template"}
    assert {*others, *EXCLUSIVE["data", "corpus"]} == set(CorpusConfig.model_fields)
