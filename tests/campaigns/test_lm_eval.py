"""The numbers of lm-evaluation-harness, on the same file and a small random model. It is no dependency of ours:
``pip install lm_eval`` beside torch and transformers, and this test runs."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.data.conftest import make_texts, write_parquet
from tests.trainer.questions import FILE, QUESTIONS
from trainer.compute.build import build_compute
from trainer.compute.torch_compute import TorchCompute
from trainer.config import MultipleChoiceConfig, TrainerConfig
from trainer.data.prepare import prepare
from trainer.multiple_choice import Choices, load_choices

TASK = {
    "task": "ours",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "validation_split": "validation",
    "test_split": None,
    "doc_to_target": "{{label}}",
    "metric_list": [
        {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm", "acc_bytes")
    ],
}
PLAIN = {"doc_to_text": "{{ctx}}", "doc_to_choice": "endings"}


def raw() -> dict[str, Any]:
    """As its own hellaswag.yaml has it, with its own function that cleans the text."""
    found = importlib.util.find_spec("lm_eval")
    assert found is not None
    assert found.submodule_search_locations is not None
    place = Path(found.submodule_search_locations[0]) / "tasks" / "hellaswag" / "utils.py"
    spec = importlib.util.spec_from_file_location("lm_eval_hellaswag_utils", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {"doc_to_text": "{{query}}", "doc_to_choice": "choices", "process_docs": module.process_docs}


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "positions"), [("ctx", 128), ("lm-eval", 128), ("ctx", 40)])
def test_acc_and_acc_norm_are_those_of_lm_evaluation_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, positions: int
) -> None:
    """Each likelihood, answer and share; with 40 positions many contexts lose their beginning."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (pip install lm_eval)")
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    corpus = write_parquet(
        tmp_path / "texts.parquet",
        [*make_texts(), *(f"{one['ctx']} {ending}" for one in QUESTIONS for ending in one["endings"])],
    )
    config = TrainerConfig.model_validate(
        {
            "model": {"family": "gpt2", "preset": "gpt2-small", "layers": 1, "width": 32, "heads": 2},
            "data": {
                "corpus": {"parquet": str(corpus)},
                "tokenizer": {"train": {"vocab_size": 400}},
                "path": "text-stream",
                "sequence_length": 128,
            },
            "compute": {"device": "cpu", "threads": 1},
        }
    )
    prepared = prepare(config.data)
    compute = build_compute(config, prepared.vocab_size)
    assert isinstance(compute, TorchCompute)
    with torch.no_grad():  # so that answers differ by more than their lengths
        compute._model.transformer.wte.weight.mul_(20)  # type: ignore[operator,union-attr]
    asked = MultipleChoiceConfig.model_validate({"path": str(FILE), "prompt": prompt})
    choices = load_choices(asked, prepared.tokenizer, positions + 1)
    likelihoods = compute.log_likelihoods(choices.rows, lambda: None)
    ours = choices.scores(likelihoods)
    assert bool(choices.shortened) == (positions == 40)

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=prepared.tokenizer.location, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    state = random.getstate()
    theirs = simple_evaluate(
        model=HFLM(pretrained=compute._model.eval(), tokenizer=tokenizer, max_length=positions, batch_size=8),
        tasks=[
            {
                **TASK,
                **(PLAIN if prompt == "ctx" else raw()),
                "dataset_kwargs": {"data_files": {"validation": str(FILE)}, "cache_dir": str(tmp_path / "datasets")},
            }
        ],
        bootstrap_iters=0,
    )
    random.setstate(state)
    assert theirs is not None
    samples = sorted(theirs["samples"]["ours"], key=lambda one: one["doc_id"])
    values = [float(one[0]) for sample in samples for one in sample["filtered_resps"]]
    assert likelihoods == pytest.approx(values, rel=1e-4, abs=1e-3)
    for at, sample in enumerate(samples):  # each answer, and not the shares alone
        four = slice(4 * at, 4 * at + 4)
        assert choices.texts is not None
        one = Choices(choices.rows[four], choices.labels[at : at + 1], choices.texts[four]).scores(likelihoods[four])
        assert (one.acc, one.acc_norm, one.acc_bytes) == (sample["acc"], sample["acc_norm"], sample["acc_bytes"]), at
    found = theirs["results"]["ours"]
    for name in ("acc", "acc_norm", "acc_bytes"):
        assert getattr(ours, name) == pytest.approx(found[f"{name},none"]), name
