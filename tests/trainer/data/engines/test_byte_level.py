"""A tokenizer.json that tiktoken can express is read exactly; any other is refused in a line that says why."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import prepare_corpus
from trainer.data.engines.byte_level import GPT2_PATTERN, CannotExpressError, read
from trainer.data.tokenizers import prepare_tokenizer
from trainer.files import read_json

DIGITS = {"type": "Digits", "individual_digits": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\w+|\W+"}, "behavior": "Isolated", "invert": False}
TOKEN = {"id": 299, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "special": True}


@pytest.fixture(scope="module")
def plain(corpus_glob: str) -> dict[str, Any]:
    config = TokenizerConfig.model_validate({"train": {"kind": "bpe", "vocab_size": 300}})
    found = read_json(Path(prepare_tokenizer(config, prepare_corpus(CorpusConfig(parquet=corpus_glob))).location))
    assert isinstance(found, dict)
    return found


def changed(plain: dict[str, Any], **changes: Any) -> str:
    found = copy.deepcopy(plain)
    found["model"].update(changes.pop("model", {}))
    return json.dumps({**found, **changes})


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def test_ranks_and_ids_of_a_plain_one(plain: dict[str, Any]) -> None:
    bpe = read(json.dumps(plain))
    vocabulary = plain["model"]["vocab"]
    assert bpe.pattern == GPT2_PATTERN
    assert (bpe.added, bpe.special) == ({"<|endoftext|>": 299}, {"<|endoftext|>"})
    assert not bpe.ids_are_ranks  # the special token comes first here
    assert bpe.ids[299] == 0
    assert bpe.ids[bpe.ranks[b" "]] == vocabulary["Ġ"]
    assert sorted(bpe.ids) == sorted(vocabulary.values())
    merged = ["".join(merge) for merge in plain["model"]["merges"]]
    assert [vocabulary[piece] for piece in merged] == bpe.ids[256:299]


@pytest.mark.parametrize("split", [SPLIT, {**SPLIT, "behavior": "Removed", "invert": True}])
def test_a_pattern_of_its_own(plain: dict[str, Any], split: dict[str, Any]) -> None:
    assert read(changed(plain, pre_tokenizer=sequence(split, BYTES))).pattern == r"\w+|\W+"


@pytest.mark.parametrize(("changes", "why"), [
    ({"model": {"type": "Unigram"}}, "the model is Unigram, not BPE"),
    ({"normalizer": {"type": "NFC"}}, r"it normalizes text first \(NFC\)"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}},
     r"it normalizes text first \(NFKC, Lowercase\)"),
    ({"model": {"dropout": 0.1}}, "its model has dropout"),
    ({"model": {"byte_fallback": True}}, "its model has byte_fallback"),
    ({"model": {"end_of_word_suffix": "</w>"}}, "its model has end_of_word_suffix"),
    ({"pre_tokenizer": None}, "it splits text by nothing"),
    ({"pre_tokenizer": {"type": "Whitespace"}}, "it splits text by Whitespace"),
    ({"pre_tokenizer": sequence(DIGITS, BYTES)}, "it splits text by Digits and ByteLevel, not by one pattern"),
    ({"pre_tokenizer": sequence(SPLIT, SPLIT, BYTES)}, "it splits text by Split and Split and ByteLevel"),
    ({"pre_tokenizer": BYTES}, "it does not split text into words"),
    ({"pre_tokenizer": {**BYTES, "add_prefix_space": True}}, "it puts a space before the text"),
    ({"pre_tokenizer": sequence({**SPLIT, "behavior": "MergedWithNext"}, BYTES)}, "in more than one way"),
    ({"pre_tokenizer": sequence(SPLIT, {**BYTES, "use_regex": True})}, "in more than one way"),
    ({"added_tokens": [{**TOKEN, "lstrip": True}]}, "its token '<x>' has lstrip"),
    ({"added_tokens": [TOKEN, {**TOKEN, "content": "<x>y"}]}, "its token '<x>' is part of its token '<x>y'"),
    ({"model": {"vocab": {"a": 0}, "merges": []}}, "its vocabulary lacks 255 of the 256 bytes"),
    ({"model": {"merges": [["漢", "字"]]}}, "a merge makes '漢字', which is no token of bytes"),
])  # fmt: skip
def test_what_it_cannot_express(plain: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotExpressError, match=why):
        read(changed(plain, **changes))


def test_words_that_no_merge_makes(plain: dict[str, Any]) -> None:
    vocabulary = {**plain["model"]["vocab"], "whole": 300}
    assert 300 not in read(changed(plain, model={"vocab": vocabulary})).ids  # never found without the switch
    with pytest.raises(CannotExpressError, match="1 of its words come from no merge, such as 'whole'"):
        read(changed(plain, model={"vocab": vocabulary, "ignore_merges": True}))
