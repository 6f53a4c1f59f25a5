"""Models of files in a study: masked-LM and a config's model are trained, and a changed model ends its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import harness.launch.study as launch
from harness.launch.block import modules_of
from harness.launch.preparation import prepare_data
from harness.regress.states import _anchored
from harness.study.store import StudyFolder
from tests.commands import ROOT, harness
from trainer.config import TrainerConfig
from trainer.errors import InputError

QWEN = {"model_type": "qwen2", "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
QWEN |= {"num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 512, "max_position_embeddings": 32}


def config(model: dict[str, Any], **keys: Any) -> TrainerConfig:
    data = {"corpus": {"builtin": "python-docs", "documents": 30}, "tokenizer": {"train": {"vocab_size": 400}}}
    asked = {"model": model, "data": data | {"sequence_length": 16}, "compute": {"device": "cpu"}} | keys
    return TrainerConfig.model_validate(asked)


def test_a_config_in_the_scenario_is_recorded_with_it_and_one_in_a_folder_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    arms = {
        "inline": config({"config": QWEN}),
        "folder": config({"config": str(tmp_path)}),
        "more": config({"config": str(tmp_path), "vocab_size": 1024}),
    }
    found = prepare_data(arms, 30)
    titles = {f"model.config: {tmp_path}", f"model.config: {tmp_path}, vocab_size 1024"}
    assert {name for name in found.fingerprints if name.startswith("model")} == titles
    assert len({found.by_arm[arm]["model"] for arm in arms}) == 2  # the folder holds what the scenario does


def test_folders_named_from_here_are_found_by_runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    assert _anchored(config({"config": "here"})).model.config == str(tmp_path / "here")
    assert _anchored(config({"pretrained": "here"})).model.pretrained == str(tmp_path / "here")
    assert _anchored(config({"config": QWEN})).model.config == QWEN
    data = {"corpus": {"path": "texts", "chat_template": "chat.jinja"}, "tokenizer": {"pretrained": "tokenizer.json"}}
    found = _anchored(TrainerConfig.model_validate({"data": data})).data
    assert (found.corpus.path, found.corpus.chat_template) == (str(tmp_path / "texts"), str(tmp_path / "chat.jinja"))
    assert found.tokenizer.pretrained == str(tmp_path / "tokenizer.json")
    remote = {"corpus": {"path": "s3://bucket/texts"}, "tokenizer": {"pretrained": "owner/name"}}
    found = _anchored(TrainerConfig.model_validate({"data": remote})).data
    assert (found.corpus.path, found.tokenizer.pretrained) == ("s3://bucket/texts", "owner/name")


@pytest.mark.parametrize(("model", "compute", "line"), [
    ({"config": QWEN | {"vocab_size": 300}}, {}, "has 300 token ids, fewer than the tokenizer"),
    ({"config": QWEN | {"max_position_embeddings": 8}}, {}, "data.sequence_length: 16, but model.config: a qwen2 h"),
    ({"config": QWEN, "objective": "masked"}, {}, "arm one: model.objective: masked, but a qwen2 is a causal mode"),
    ({"preset": "distilbert", "vocab_size": 400}, {}, "model.vocab_size: 400 is smaller than the tokenizer's"),
    ({"config": {"model_type": "mamba", "vocab_size": 512}}, {"device": {"emulated": "gh200"}}, "an emulated devi"),
])  # fmt: skip
def test_what_cannot_work_is_refused_before_the_first_run(
    model: dict[str, Any], compute: dict[str, Any], line: str
) -> None:
    with pytest.raises(InputError) as caught:
        prepare_data({"one": config(model, compute={"device": "cpu", "precision": "bf16"} | compute)}, 30)
    assert line in str(caught.value)


def test_an_emulated_device_takes_times_from_a_config_whose_family_is_known() -> None:
    gpt2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512}
    compute = {"device": {"emulated": "gh200"}, "precision": "bf16"}
    for model in ({"config": gpt2}, {"config": QWEN}):
        assert prepare_data({"one": config(model, compute=compute)}, 30).needs[0].training is None


def test_the_fork_server_imports_the_model_of_each_arm() -> None:
    def imported(model: dict[str, Any]) -> set[str]:
        found = modules_of([config(model).model_dump(mode="json")])
        return {one.removeprefix("transformers.models.") for one in found if one.startswith("transformers")}

    auto = "auto.modeling_auto"
    assert imported({"preset": "distilbert"}) == {"distilbert.modeling_distilbert"}
    assert imported({"config": QWEN}) == {auto, "qwen2.modeling_qwen2"}
    assert imported({"config": {"model_type": "data2vec-text"}}) == {auto}
    assert imported({"config": "nowhere"}) == {auto}
    assert imported({"factory": "a:b"}) == {"gpt2.modeling_gpt2"}


SCENARIO = """
name: files
question: Do they train?
base:
  data: {{corpus: {{builtin: python-docs, documents: 60}}, tokenizer.train.vocab_size: 400, sequence_length: 16}}
  compute: {{device: cpu, threads: 1}}
  steps: 4
  warmup_steps: 1
arms:
  qwen: {{model.config: {folder}, compute.flops_convention: causal-half}}
  masked: {{model: {{preset: distilbert, layers: 1, width: 24, vocab_size: 512, activation_checkpointing: true}}}}
controls: []
repeats: 2
"""


@pytest.mark.slow
def test_a_study_of_models_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a config whose folder changes between the blocks, and of DistilBERT's masked-LM."""
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "files.yaml").write_text(SCENARIO.format(folder=folder))
    run_block = launch.run_block

    def run_block_and_change(*given: Any) -> None:
        run_block(*given)
        (folder / "config.json").write_text(json.dumps(QWEN | {"hidden_size": 64}))

    monkeypatch.setattr(launch, "run_block", run_block_and_change)
    done = harness("run", "files.yaml", cwd=tmp_path)
    assert done.returncode == 1, done.stderr[-3000:]
    (study,) = (tmp_path / "results" / "files").iterdir()
    runs = {(run.record.arm, run.record.block): run for run in StudyFolder(study).runs()}
    facts = {arm: runs[arm, 0].record.facts for arm in ("qwen", "masked")}
    assert [facts[arm].flops_convention for arm in facts] == ["causal-half", "palm"]
    assert {one.attention for one in facts.values()} == {"sdpa"}
    fingerprints = json.loads((study / "study.json").read_text())["fingerprints"]
    assert fingerprints[f"model.config: {folder}"] == facts["qwen"].model_fingerprint
    assert facts["masked"].model_fingerprint is None
    error = json.loads((study / "runs" / "qwen" / "1" / "run.json").read_text())["error"]
    assert error.startswith(f"the content of model.config {folder} changed since the study began (")
    steps = runs["masked", 1].steps
    assert 0.05 < sum(steps["trained_tokens"].to_pylist()) / sum(steps["tokens"].to_pylist()) < 0.25  # BERT's 15 %
    page = (study / "summary.md").read_text()
    assert "Model FLOPs are counted by: " in page
    assert "6N + 6LHQT: as PaLM, with the half of attention that a causal mask leaves" in page
    resumed = harness("run", "--resume", str(study), cwd=tmp_path)
    assert resumed.returncode == 2
    assert f"model.config: {folder} changed since the study began" in resumed.stderr


@pytest.mark.slow
@pytest.mark.nightly
def test_the_shipped_masked_lm_trains(tmp_path: Path) -> None:
    words = ["--repeats", "1", "--set", "steps=8", "--set", "data.corpus.documents=100", "--arm", "text-padded"]
    done = harness("run", str(ROOT / "scenarios" / "masked-lm.yaml"), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (study,) = (tmp_path / "results" / "masked-lm").iterdir()
    (run,) = [run for run in StudyFolder(study).runs() if run.record.arm == "text-padded"]
    losses = [one for one in run.steps["loss"].to_pylist() if one is not None]
    assert losses[-1] < losses[0]
    assert {"read", "tokenize", "pack"} <= set(run.spans["name"].to_pylist())
