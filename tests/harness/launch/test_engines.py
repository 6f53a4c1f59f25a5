"""What encodes is part of what a study is begun with, and of a run's record."""

from __future__ import annotations

import pytest

from harness.launch.facts import check_unchanged, facts_of_run
from harness.launch.preparation import prepare_data
from trainer.compute.build import build_compute
from trainer.config import TrainerConfig
from trainer.data import tokenizers
from trainer.data.engines import choose, proof
from trainer.data.engines.libraries import OTHERS, Fast
from trainer.data.prepare import prepare
from trainer.errors import InputError


def config(engine: str | None) -> TrainerConfig:
    tokenizer = {"train": {"vocab_size": 400}, "engine": engine}
    data = {"corpus": {"builtin": "python-docs", "documents": 30}, "tokenizer": tokenizer, "sequence_length": 16}
    return TrainerConfig.model_validate({"data": data, "compute": {"work": "none"}})


def test_an_engine_is_recorded_and_may_not_change_within_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "HARD", {"empty": ""})
    monkeypatch.setitem(OTHERS, "gigatoken", Fast)  # which need not be installed here
    monkeypatch.setattr(choose, "installed", lambda _: True)
    for module in (choose, tokenizers):
        monkeypatch.setattr(module, "version", lambda _: "1.0")
    asked = {"own": config(None), "other": config("gigatoken")}
    messages = prepare_data(asked, 30).by_arm
    assert "engine" not in messages["own"]
    assert messages["other"]["engine"] == "gigatoken 1.0"
    prepared = prepare(asked["other"].data)
    check_unchanged(asked["other"], prepared, None, messages["other"])
    facts = facts_of_run(asked["other"], build_compute(asked["other"], prepared.vocab_size), prepared, None)
    assert facts.tokenizer_engine == "gigatoken 1.0"
    assert facts.tokenizer_proof is not None
    assert facts.tokenizer_proof.startswith("proved to give the ids of tokenizers 1.0 on a sample of the corpus (30 ")
    messages["other"]["engine"] = "tiktoken 1.0"
    expected = r"^the tokenizer's engine changed since the study began \(tiktoken 1.0, now gigatoken 1.0\)"
    with pytest.raises(InputError, match=expected):
        check_unchanged(asked["other"], prepared, None, messages["other"])
