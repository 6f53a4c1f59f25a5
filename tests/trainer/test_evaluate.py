"""Held-out documents, and passes over them that leave training as it is."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from harness.probes.ledger.recorders import StepRecorder
from trainer import evaluate, telemetry
from trainer.compute.build import build_compute
from trainer.config import EvaluationConfig, TrainerConfig
from trainer.data.dataset import make_pipeline, training_order
from trainer.data.loader import open_batches
from trainer.data.prepare import BUCKETS, check_workers, content_hash, prepare, warnings_of
from trainer.data.tokenizers import load_tokenizer
from trainer.errors import InputError
from trainer.evaluate import make_evaluator, validation_batches
from trainer.loop import train

TEXTS = [f"def f_{number}(x): return x * {number} + {'abc' * (number % 7)}" for number in range(120)]
STEPS = 6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "texts.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path)
    return path


def configured(corpus: Path, **sections: Any) -> TrainerConfig:
    data = {
        "corpus": {"parquet": str(corpus)},
        "tokenizer": {"train": {"vocab_size": 300}},
        "path": "text-padded",
        "sequence_length": 32,
        "batch_size": 4,
        **sections.pop("data", {}),
    }
    defaults = {
        "model": {"preset": "llama-tiny", "layers": 1, "width": 32},
        "compute": {"device": "cpu", "threads": 1},
        "evaluation": {"fraction": 0.2, "every_steps": 2},
    }
    return TrainerConfig.model_validate(defaults | sections | {"data": data})


def run(config: TrainerConfig, steps: int = STEPS) -> StepRecorder:
    prepared = prepare(config.data, evaluation=config.evaluation)
    recorder = StepRecorder()
    with open_batches(config.data, prepared, config.seed) as batches:
        compute = build_compute(config, prepared.vocab_size)
        evaluator = None if config.evaluation is None else make_evaluator(config, prepared, compute)
        telemetry.attach(recorder)
        try:
            loop = train(config, compute, batches, evaluator=evaluator)
            for _ in range(steps):
                next(loop)
            if evaluator is not None:
                evaluator.finish()
            loop.close()
        finally:
            telemetry.attach(None)
    return recorder


def rows_read(config: TrainerConfig, worker: int = 0, workers: int = 1) -> Iterator[int]:
    prepared = prepare(config.data, evaluation=config.evaluation)
    pipeline = make_pipeline(config.data, prepared, 0, worker, workers)
    for _ in range(40):
        yield from pipeline._order.take(4).tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["text-padded", "text-stream", "tokens-padded", "tokens-stream"])
@pytest.mark.parametrize("workers", [1, 3])
def test_no_step_ever_reads_a_held_out_document(corpus: Path, path: str, workers: int) -> None:
    config = configured(corpus, data={"path": path})
    read = {row for worker in range(workers) for row in rows_read(config, worker, workers)}
    held = {row for row, text in enumerate(TEXTS) if content_hash(text) % BUCKETS < 0.2 * BUCKETS}
    assert 10 < len(held) < 40
    assert read == set(range(len(TEXTS))) - held


def test_a_held_out_corpus_that_is_trained_on_is_warned_of(corpus: Path, tmp_path: Path) -> None:
    shutil.copy(corpus, tmp_path / "same.parquet")
    for held_out, warned in ((tmp_path / "same.parquet", True), (None, False)):
        evaluation = {"batches": 1, **({"corpus": {"path": str(held_out)}} if held_out else {"fraction": 0.2})}
        config = configured(corpus, evaluation=evaluation)
        found = warnings_of(config.data, prepare(config.data, evaluation=config.evaluation))
        assert any("evaluation.corpus contains the training documents" in line for line in found) == warned


def test_the_split_is_of_contents_not_of_places(corpus: Path, tmp_path: Path) -> None:
    """Other files, another order and copies: the same documents are held out, and validated in the same batches."""
    order = np.random.default_rng(0).permutation(len(TEXTS)).tolist()
    shuffled = [TEXTS[place] for place in order]
    pq.write_table(pa.table({"text": shuffled[:50]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": shuffled[50:]}), tmp_path / "b.parquet")
    ours, theirs = configured(corpus), configured(tmp_path / "*.parquet")
    held = []
    for config, texts in ((ours, TEXTS), (theirs, shuffled)):
        split = prepare(config.data, evaluation=config.evaluation).split
        held.append([texts[row] for row in split.held_out_rows()])
    assert held[0] == held[1]


@pytest.mark.parametrize("access", ["scalar", "zero-copy"])
@pytest.mark.parametrize("path", ["text-padded", "text-stream", "tokens-padded", "tokens-stream"])
def test_a_corpus_of_its_own_is_evaluated_and_the_other_trained_on_whole(corpus, tmp_path, path, access) -> None:
    """llm.c's -iv. The batches are those of the documents, in their order, under the tokenizer of data.corpus."""
    texts = [f"held out {number} " + TEXTS[number][::-1] for number in range(7)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "held.parquet")
    evaluation = {"corpus": {"path": str(tmp_path / "held.parquet")}, "batches": 100}
    config = configured(corpus, evaluation=evaluation, data={"path": path, "access": access})
    prepared = prepare(config.data, evaluation=config.evaluation)
    assert len(training_order(config.data, prepared, 0, endless=False).take(1000)) == len(TEXTS)
    engine, eos_id = load_tokenizer(prepared.tokenizer), prepared.tokenizer.eos_id
    assert eos_id is not None
    length = config.data.sequence_length
    documents = [[*engine.encode(text), eos_id] for text in texts]
    rows = [row for batch in validation_batches(config, prepared) for row in batch.input_ids.tolist()]
    if path.endswith("-padded"):
        assert [row[: len(document)] for row, document in zip(rows, documents, strict=True)] == [
            document[:length] for document in documents
        ]
    else:
        stream = [token for document in documents for token in document]
        assert rows == [stream[at : at + length] for at in range(0, len(stream) - length + 1, length)]


def test_a_corpus_of_its_own_that_cannot_be_used_is_named(corpus: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "none.parquet")
    config = configured(corpus, evaluation={"corpus": {"path": place}})
    with pytest.raises(InputError, match=r"^evaluation\.corpus\.path: "):
        prepare(config.data, evaluation=config.evaluation)
    line = wrong(corpus, evaluation={"corpus": {"path": place}, "fraction": 0.1})
    assert "allowed: one of fraction, documents, corpus, source" in line


def test_training_is_bit_identical_however_often_it_is_evaluated(corpus: Path) -> None:
    often, once = (run(configured(corpus, evaluation={"fraction": 0.2, "every_steps": n})) for n in (1, None))
    assert [one.step for one in often.validations] == list(range(STEPS))
    assert [one.step for one in once.validations] == [STEPS - 1]
    assert often.losses == once.losses
    assert often.validations[-1].loss == once.validations[-1].loss
    assert len({one.loss for one in often.validations}) == STEPS  # the model learns between them


def test_what_is_compiled_in_a_pass_is_known_to_be_of_no_step(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(corpus)
    prepared = prepare(config.data, evaluation=config.evaluation)
    counts = iter([3, 5, 7, 7])  # graphs before and after each of two passes
    monkeypatch.setattr(evaluate, "compilations", lambda: next(counts))
    evaluator = make_evaluator(config, prepared, build_compute(config, prepared.vocab_size))
    for step in (0, 1):
        evaluator.after(step)
        evaluator.finish()
    assert evaluator.compilations == 2


def test_a_pass_draws_from_no_random_state_and_leaves_each_module_in_its_mode(corpus: Path) -> None:
    config = configured(corpus)
    prepared = prepare(config.data, evaluation=config.evaluation)
    compute = build_compute(config, prepared.vocab_size)
    frozen = next(iter(compute._model.children()))
    frozen.eval()
    modes = [one.training for one in compute._model.modules()]
    drawn: list[float] = []
    compute._model.register_forward_pre_hook(lambda *_: drawn.append(float(torch.rand(()))))
    states = torch.random.get_rng_state(), np.random.get_state()[1].tolist()
    compute.validate(validation_batches(config, prepared), lambda: None)
    assert drawn
    assert torch.equal(states[0], torch.random.get_rng_state())
    assert states[1] == np.random.get_state()[1].tolist()
    assert modes == [one.training for one in compute._model.modules()]
    assert {True, False} == set(modes)


def test_pretokenized_and_on_the_fly_runs_of_one_seed_have_the_same_losses(corpus: Path) -> None:
    for pair in (("text-padded", "tokens-padded"), ("text-stream", "tokens-stream")):
        fly, files = (run(configured(corpus, data={"path": path})) for path in pair)
        assert fly.losses == files.losses
        assert [one._replace(start_ns=0, end_ns=0) for one in fly.validations] == [
            one._replace(start_ns=0, end_ns=0) for one in files.validations
        ]
        assert len(fly.validations) == STEPS // 2


def test_the_loss_is_the_mean_over_labels_not_over_batches(corpus: Path) -> None:
    """Against logits and cross entropy worked out here, of batches of unequal label counts."""
    config = configured(corpus)
    prepared = prepare(config.data, evaluation=config.evaluation)
    compute = build_compute(config, prepared.vocab_size)
    batches = validation_batches(config, prepared)
    assert len({one.trained_tokens for one in batches}) > 1
    total, labels = 0.0, 0
    with torch.no_grad():
        for one in batches:
            logits = compute._model(input_ids=one.input_ids).logits[:, :-1].double()
            targets = one.labels[:, 1:]
            total += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
            labels += int((targets != -100).sum())
    found = compute.validate(batches, lambda: None)
    assert found.loss == pytest.approx(total / labels, rel=1e-6)
    assert (found.tokens, found.accuracy) == (labels, None)


def test_the_time_of_a_pass_belongs_to_no_step(corpus: Path) -> None:
    recorder = run(configured(corpus))
    recorder.pause()
    rows = recorder.rows()
    passes = [one for one in rows.phases if one.name == "evaluate"]
    assert len(passes) == len(recorder.validations) == 3
    for one in passes:
        assert not any(
            step.start_ns < one.end_ns and one.start_ns < step.start_ns + step.wall_ns for step in rows.steps
        )
    assert all(sum(step.phases_ns) == step.wall_ns for step in rows.steps)


def test_a_masked_lm_s_accuracy_is_of_the_labels_own_positions() -> None:
    from trainer.compute.scores import validate
    from trainer.data.batch import Batch

    class Model(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(ids, 5).float()

    ids, labels = torch.tensor([[1, 2, 3], [4, 0, 1]]), torch.tensor([[1, -100, 4], [-100, 0, -100]])
    batch = Batch(ids, labels, None, 6, 3, 2)
    score: Callable[[Batch], Any] = lambda one: (torch.tensor(0.5), Model()(one.input_ids))  # noqa: E731
    found = validate(Model(), [batch], score, lambda one: one, masked=True, beat=lambda: None)
    assert found == (0.5, pytest.approx(2 / 3), 3)


def test_the_learning_rate_of_each_step_is_recorded(corpus: Path) -> None:
    optimizer = {"learning_rate": 0.01, "schedule": "linear", "lr_warmup_steps": 2, "schedule_steps": 6}
    recorder = run(configured(corpus, optimizer=optimizer))
    assert recorder.learning_rates == pytest.approx({0: 0.005, 1: 0.01, 2: 0.01, 3: 0.0075, 4: 0.005, 5: 0.0025})


def wrong(corpus: Path, **sections: Any) -> str:
    with pytest.raises(ValidationError) as error:
        configured(corpus, **sections)
    return str(error.value)


def test_what_cannot_be_evaluated_is_refused(corpus: Path) -> None:
    emulated = {"device": {"emulated": "gh200"}}
    assert "an emulated device computes nothing" in wrong(corpus, compute=emulated)
    assert "allowed: evaluation.source MODULE:FUNCTION" in wrong(corpus, data={"source": "mine:data"})
    assert "needs data.source" in wrong(corpus, evaluation={"source": "mine:held_out"})
    assert "one of fraction, documents, corpus, source" in wrong(corpus, evaluation={"fraction": 0.1, "documents": 3})


@pytest.mark.parametrize(("asked", "message"), [
    ({"fraction": 1e-6}, "holds out none"),
    ({"fraction": 0.9999999}, "leaves none"),
    ({"documents": len(TEXTS)}, "evaluation.documents: 120 of the corpus' 120; give fewer"),
])  # fmt: skip
def test_a_split_with_an_empty_side_is_refused(corpus: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        prepare(configured(corpus).data, evaluation=EvaluationConfig.model_validate(asked))
    assert "\n" not in str(error.value)


def test_more_workers_or_ranks_than_documents_left_are_refused(corpus: Path) -> None:
    config = configured(corpus, data={"workers": 60}, evaluation={"documents": 100})
    found = prepare(config.data, evaluation=config.evaluation)
    with pytest.raises(InputError, match=r"beside the \d+ held out"):
        check_workers(config.data, found)
    alone, left = configured(corpus).data, found.split.training - found.split.training_empty
    check_workers(alone, found, left)
    with pytest.raises(InputError, match=rf"^launch.torchrun.nproc: {left + 1} ranks but .*allowed: at most {left} r"):
        check_workers(alone, found, left + 1)


def test_a_source_of_the_user_s_own_gives_its_held_out_data(tmp_path, monkeypatch, corpus) -> None:
    (tmp_path / "own_evaluated.py").write_text(
        "import torch\n"
        "def rows(first, count):\n"
        "    return [{'input_ids': torch.full((16,), first + n)} for n in range(count)]\n"
        "def data(): return rows(0, 64)\n"
        "def held_out(count): return rows(100, count)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    evaluation = {"source": "own_evaluated:held_out", "arguments": {"count": 9}}
    model = {"preset": "llama-tiny", "layers": 1, "width": 32, "vocab_size": 256}
    data = {"source": "own_evaluated:data", "sequence_length": 16}
    config = configured(corpus, data=data, evaluation=evaluation, model=model)
    batches = validation_batches(config, prepare(config.data, evaluation=config.evaluation))
    assert [one.input_ids[:, 0].tolist() for one in batches] == [[100, 101, 102, 103], [104, 105, 106, 107]]
    found = run(config, 2).validations
    assert [one.step for one in found] == [1]
    assert math.isfinite(found[0].loss)
    worse = configured(corpus, data=data, model=model, evaluation={**evaluation, "arguments": {"count": 2}})
    with pytest.raises(InputError, match=r"^evaluation\.source: own_evaluated:held_out gave 2 items"):
        validation_batches(worse, prepare(worse.data, evaluation=worse.evaluation))
