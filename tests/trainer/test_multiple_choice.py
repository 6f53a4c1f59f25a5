"""Multiple choice by likelihood: files, shares of right answers, and passes that leave training as it is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.data.conftest import make_texts, write_parquet
from tests.trainer.questions import FILE, QUESTIONS, write_bin
from tests.trainer.refusals import refusal
from tests.trainer.test_evaluate import run
from trainer.compute.build import build_compute
from trainer.compute.scores import EndingRow
from trainer.config import MultipleChoiceConfig, TrainerConfig
from trainer.data.prepare import Prepared, prepare
from trainer.data.tokenizers import load_tokenizer
from trainer.errors import InputError
from trainer.multiple_choice import Choices, check_causal, load_choices

TEXTS = [*make_texts(), *(f"{one['ctx']} {ending}" for one in QUESTIONS for ending in one["endings"])]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("corpus") / "texts.parquet", TEXTS)


def configured(corpus: Path, choices: dict[str, Any] | None = None, **sections: Any) -> TrainerConfig:
    data = {
        "corpus": {"parquet": str(corpus)},
        "tokenizer": {"train": {"vocab_size": 400}},
        "path": "text-stream",
        "sequence_length": 128,
        "batch_size": 4,
        **sections.pop("data", {}),
    }
    defaults = {
        "model": {"family": "gpt2", "preset": "gpt2-tiny", "layers": 1, "width": 32, "heads": 2},
        "compute": {"device": "cpu", "threads": 1},
        "evaluation": {"fraction": 0.2, "batches": 1},
    }
    nested = {**defaults, **sections, "data": data}
    if choices is not None:
        nested["evaluation"] = {**nested["evaluation"], "multiple_choice": {"path": str(FILE), **choices}}
    return TrainerConfig.model_validate(nested)


@pytest.fixture(scope="module")
def prepared(corpus: Path) -> Prepared:
    config = configured(corpus)
    return prepare(config.data, evaluation=config.evaluation)


def loaded(prepared: Prepared, longest_row: int | None = None, **asked: Any) -> Choices:
    config = MultipleChoiceConfig.model_validate({"path": str(FILE), **asked})
    return load_choices(config, prepared.tokenizer, longest_row)


def test_an_ending_s_likelihood_is_the_sum_over_its_own_tokens(corpus: Path, prepared: Prepared) -> None:
    """Against logits of each row alone, without padding or batches."""
    config = configured(corpus)
    compute = build_compute(config, prepared.vocab_size)
    choices = loaded(prepared)
    found = compute.log_likelihoods(choices.rows, lambda: None)
    engine = load_tokenizer(prepared.tokenizer)
    with torch.no_grad():
        for at, value in enumerate(found):
            question = QUESTIONS[at // 4]
            context = engine.encode(question["ctx"])
            whole = engine.encode(f"{question['ctx']} {question['endings'][at % 4]}")
            logits = compute._model(input_ids=torch.tensor([whole])).logits[0].double().log_softmax(-1)
            expected = sum(float(logits[place - 1, whole[place]]) for place in range(len(context), len(whole)))
            assert value == pytest.approx(expected, rel=1e-5)
    assert len({len(one.ids) for one in choices.rows}) > 10  # so there was padding
    assert compute._model.training


def test_the_shares_differ_in_what_a_likelihood_is_divided_by() -> None:
    """Worked out by hand: each way of dividing has another ending as the largest."""
    rows = tuple(EndingRow(np.zeros(9, dtype=np.int64), scored) for scored in (2, 8, 5, 6))
    texts = ("ab", "éééé", "abcdef", "漢字漢字漢字")  # 2, 4, 6, 6 characters; 2, 8, 6, 18 bytes
    sums = [-4.0, -6.0, -8.9, -9.1]
    right = [Choices(rows, np.array([label]), texts).scores(sums) for label in range(4)]
    assert [one.acc for one in right] == [1, 0, 0, 0]
    assert [one.acc_norm for one in right] == [0, 0, 1, 0]
    assert [one.acc_bytes for one in right] == [0, 0, 0, 1]
    assert [one.acc_tokens for one in right] == [0, 1, 0, 0]
    unknown = Choices(rows, np.array([0]), None).scores(sums)
    assert (unknown.acc_norm, unknown.acc_bytes, unknown.questions) == (None, None, 1)
    diverged = Choices(rows, np.array([0]), texts).scores([math.nan, -1, -1, -1])
    assert math.isnan(diverged.acc)  # not 0 or 1: the first of several NaN is no answer
    assert math.isnan(diverged.acc_tokens)


def test_a_bin_has_the_same_rows_as_the_text_that_it_was_made_of(prepared: Prepared, tmp_path: Path) -> None:
    engine = load_tokenizer(prepared.tokenizer)
    made = [
        (engine.encode(one["ctx"]), [engine.encode(f" {ending}") for ending in one["endings"]], one["label"])
        for one in QUESTIONS
    ]
    path = write_bin(tmp_path / "questions.bin", made)
    text, tokens = loaded(prepared), loaded(prepared, path=str(path))
    assert text.texts == tokens.texts
    assert text.labels.tolist() == tokens.labels.tolist() == [one["label"] for one in QUESTIONS]
    for ours, theirs in zip(text.rows, tokens.rows, strict=True):
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.scored == theirs.scored
    assert len(loaded(prepared, path=str(path), most=5).labels) == len(loaded(prepared, most=5).labels) == 5


def test_the_raw_fields_are_cleaned_as_lm_evaluation_harness_cleans_them(tmp_path: Path) -> None:
    from trainer.data.questions import read_jsonl

    raw = list(read_jsonl(str(FILE), "x", None, "lm-eval"))
    assert raw[0].context == "Baking bread: A baker kneads dough on a floured table. She"
    assert raw[2].context == (
        "How to water a plant: How to water a plant. Check the soil. Push a finger into the soil."
    )
    assert raw[2].endings[0] == " Call the fire brigade at once."
    assert [one.prompt for one in read_jsonl(str(FILE), "x", 1, None)] == ["ctx"]
    without = {name: value for name, value in QUESTIONS[0].items() if name != "ctx"} | {"label": "3"}
    path = tmp_path / "raw.jsonl"
    path.write_text(f"\n{json.dumps(without)}\n\n")
    (only,) = read_jsonl(str(path), "x", None, None)
    assert (only.context, only.label, only.prompt) == (raw[0].context, 3, "lm-eval")


def test_passes_at_intervals_of_their_own_change_nothing_that_is_trained(corpus: Path) -> None:
    plain, asked = run(configured(corpus), 5), run(configured(corpus, {"every_steps": 2}), 5)
    assert plain.losses == asked.losses
    assert [one.step for one in asked.validations if one.questions is None] == [4]
    passes = [one for one in asked.validations if one.questions is not None]
    assert [one.step for one in passes] == [1, 3, 4]
    assert {one.questions for one in passes} == {len(QUESTIONS)}
    assert all(one.loss is one.tokens is one.accuracy is None for one in passes)
    assert all(0 <= (one.acc or 0) <= 1 for one in passes)
    asked.pause()
    rows = asked.rows()
    spans = [one for one in rows.phases if one.name == "evaluate"]
    assert len(spans) == 4
    for one in spans:  # in no step, and so in no throughput
        assert not any(
            step.start_ns < one.end_ns and one.start_ns < step.start_ns + step.wall_ns for step in rows.steps
        )
    assert [one.loss for one in plain.validations] == [one.loss for one in asked.validations if one.questions is None]


def test_a_model_of_the_user_s_own_is_asked_by_its_loss(corpus, prepared, tmp_path, monkeypatch) -> None:
    """The same model behind a factory that returns its loss alone gives the same likelihoods."""
    (tmp_path / "own_asked.py").write_text(
        "import torch\n"
        "class Alone(torch.nn.Module):\n"
        "    def __init__(self, inner):\n"
        "        super().__init__()\n"
        "        self.inner = inner\n"
        "    def forward(self, input_ids, labels):\n"
        "        return self.inner(input_ids=input_ids, labels=labels).loss\n"
        "def make(vocab_size):\n"
        "    from trainer.model import Shape, build_model\n"
        "    from tests.trainer.test_multiple_choice import own_shape\n"
        "    return Alone(build_model(own_shape(vocab_size)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    data = {"sequence_length": 128}
    own = configured(corpus, data=data, model={"factory": "own_asked:make"})
    compute = build_compute(own, prepared.vocab_size)
    choices = loaded(prepared, compute.longest_row, most=3)
    found = compute.log_likelihoods(choices.rows, lambda: None)
    inside = build_compute(configured(corpus, data=data), prepared.vocab_size)
    inside._model.load_state_dict(compute._model.inner.state_dict())  # type: ignore[operator,union-attr]
    assert found == pytest.approx(inside.log_likelihoods(choices.rows, lambda: None), rel=1e-5)


def own_shape(vocab_size: int) -> Any:
    from trainer.config import ModelConfig
    from trainer.model import resolve_shape

    model = {"family": "gpt2", "preset": "gpt2-tiny", "layers": 1, "width": 32, "heads": 2}
    return resolve_shape(ModelConfig.model_validate(model), vocab_size, 128)


def test_a_context_that_is_too_long_loses_its_beginning(prepared: Prepared) -> None:
    whole, cut = loaded(prepared), loaded(prepared, 40)
    longer = [len(one.ids) > 40 for one in whole.rows]
    assert 0 < cut.shortened == sum(longer) < len(longer)
    for before, after in zip(whole.rows, cut.rows, strict=True):
        assert after.ids.tolist() == before.ids.tolist()[-40:]
        assert after.scored == before.scored
    with pytest.raises(
        InputError, match=r"questions.jsonl:\d+: ending \d \(from 0\) has \d+ tokens, and the model"
    ) as e:
        loaded(prepared, 12)
    assert "\n" not in str(e.value)


LINE = {"ctx": "A man", "endings": ["a", "b", "c", "d"], "label": 1}


@pytest.mark.parametrize(("lines", "message"), [
    ([{**LINE, "endings": ["a", "b", "c"]}], "questions.jsonl:1: endings: 3 of them; allowed: 4"),
    ([LINE, {"ctx": "A man", "label": 0}], "questions.jsonl:2: endings: missing; allowed: 4"),
    ([{**LINE, "endings": "abcd"}], "questions.jsonl:1: endings: not a list; allowed: 4"),
    ([{**LINE, "endings": ["a", "b", "c", 4]}], r"1: endings: number 3 \(from 0\) is 4; allowed: text"),
    ([{**LINE, "endings": ["a", "b", " ", "d"]}], r"1: endings: number 2 \(from 0\) is ' '; allowed: text"),
    ([{**LINE, "label": 4}], "questions.jsonl:1: label: 4; allowed: 0 to 3"),
    ([{**LINE, "label": -1}], "label: -1; allowed"),
    ([{**LINE, "label": ""}], "label: ''; allowed"),
    ([{**LINE, "label": True}], "label: True; allowed"),
    ([{**LINE, "label": 10**30}], "label: 1000"),
    ([{**LINE, "ctx": ""}], "1: ctx: empty"),
    ([{**LINE, "ctx": 7}], "1: ctx: 7; allowed: text"),
    ([{"endings": LINE["endings"], "label": 0}], "1: activity_label: missing; allowed: text"),
    ([[1, 2]], "1: no object"),
    (["\n", "\n"], "holds no question"),
    ([], "holds no question"),
    ([b"{not json"], "1: no JSON"),
    ([b"\xff\xfe{}"], "1: no JSON"),
    ([b"x" * (1 << 21)], "1: longer than 1 MiB"),
])  # fmt: skip
def test_a_file_that_is_none_is_refused_in_one_line(prepared, tmp_path, lines, message) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(
        b"\n".join(one if isinstance(one, bytes) else b"" if one == "\n" else json.dumps(one).encode() for one in lines)
    )
    with pytest.raises(InputError, match=message) as error:
        loaded(prepared, path=str(path))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("evaluation.multiple_choice.path: ")


def test_a_bin_that_is_none_is_refused_in_one_line(prepared: Prepared, tmp_path: Path) -> None:
    good = write_bin(tmp_path / "good.bin", [([5, 6], [[7], [8], [9], [10]], 2)]).read_bytes()

    def refused(content: bytes) -> str:
        path = tmp_path / "bad.bin"
        path.write_bytes(content)
        return refused_path(prepared, path)

    def changed(at: int, value: int, kind: str = "<u2", offset: int = 1024) -> bytes:
        whole = bytearray(good)
        size = 4 if kind == "<i4" else 2
        whole[offset + size * at : offset + size * (at + 1)] = np.array([value], dtype=kind).tobytes()
        return bytes(whole)

    assert "empty; allowed" in refused(b"")
    assert "cut short: 100 bytes" in refused(good[:100])
    assert "begins with 20240520, as of tokens to train on" in refused(changed(0, 20240520, "<i4", 0))
    assert "begins with 7; a file of questions" in refused(changed(0, 7, "<i4", 0))
    assert "version 2; allowed: 1" in refused(changed(1, 2, "<i4", 0))
    assert "holds no question" in refused(changed(2, 0, "<i4", 0))
    assert "question 1 of 2: the file is cut short there" in refused(changed(2, 2, "<i4", 0))
    assert "question 0 of 1: begins with 1, 0" in refused(changed(0, 1))
    assert "has a size of 3 bytes" in refused(changed(1, 3))
    assert "label: 4; allowed: 0 to 3" in refused(changed(3, 4))
    assert "5 endings; allowed: 4" in refused(changed(4, 5))
    assert "context: no token in it" in refused(changed(5, 0))
    assert "reach beyond the question" in refused(changed(5, 3000))
    assert "2 bytes follow the last of the 1 questions" in refused(good + b"\0\0")
    assert "an even number, as every token has two" in refused(good + b"\0")
    assert "holds the id 60000, and the arm's tokenizer has" in refused(changed(6, 60000))
    for end in range(1024, len(good), 2):
        assert "cut short there" in refused(good[:end])
    assert "cut short there" in refused(good[:-1])  # half a number
    assert "no such file" in refused_path(prepared, tmp_path / "none.bin").lower()


def refused_path(prepared: Prepared, path: Path) -> str:
    return refusal(loaded, prepared, path=str(path))


def test_a_bin_of_another_tokenizer_is_refused(prepared: Prepared, tmp_path: Path) -> None:
    """Ids that exist here, but that this tokenizer would never give for their text."""
    engine = load_tokenizer(prepared.tokenizer)
    letters = [engine.encode(letter)[0] for letter in "the"]
    assert engine.encode("the") != letters
    path = write_bin(tmp_path / "questions.bin", [(letters, [[7], [8], [9], [10]], 2)])
    assert "decoded and encoded again by the arm's tokenizer, has other ids" in refused_path(prepared, path)


def test_a_masked_model_answers_nothing(prepared: Prepared) -> None:
    with pytest.raises(InputError, match=r"^evaluation\.multiple_choice: .* causal model, but model.objective is"):
        check_causal(prepared.with_objective("masked").objective)
