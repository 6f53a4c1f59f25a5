"""harness doctor says of a scenario what harness run would refuse: by the same arithmetic, without any data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch.fit import check_fit
from harness.launch.needs import check_memory, choose_interleave, need_of
from harness.machine.check import Check
from harness.scenario.load import load_scenario
from harness.scenario.plan import Plan, make_plan
from tests.harness.launch.running import set_free_memory
from trainer.errors import InputError

ARMS = "arms: {a: null, b: null, c: null, d: null, e: null}\ncontrols: []\n"
WORKERS = f"{ARMS}base: {{compute.device: cpu, data.workers: 256}}\n"


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    set_free_memory(monkeypatch, 22)


def plan(folder: Path, text: str) -> Plan:
    file = folder / "s.yaml"
    file.write_text(f"name: s\nquestion: Does it fit?\n{text}")
    return make_plan(load_scenario(str(file)), str(file))


def lines(folder: Path, text: str) -> dict[str, Check]:
    return {check.name: check for check in check_fit(plan(folder, text))}


def one(base: str) -> str:
    return f"base: {{compute.device: cpu, {base}}}\narms: {{one: null}}\ncontrols: []\n"


def test_runs_in_jobs_need_sbatch_and_none_of_this_machines_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "base: {compute.device: cuda, launch.slurm: {partition: gpu}}\narms: {one: null}\ncontrols: []\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    found = lines(tmp_path, text)
    assert "device" not in found
    assert found["slurm need"].status == "fail"
    assert found["slurm need"].finding == "launch.slurm: no sbatch, squeue, scancel here"
    assert "slurm need" not in lines(tmp_path, text.replace(", launch.slurm: {partition: gpu}", ""))


def test_workers_of_arms_that_alternate_are_too_many(tmp_path: Path) -> None:
    """In the words of harness run, which refuses them."""
    text = f"interleave: slices\n{WORKERS}"
    line = lines(tmp_path, text)["memory need"]
    assert line.status == "fail"
    assert line.finding.startswith("5 arms that alternate: needs at least 25.")
    assert "22.0 GiB is free: the largest, arm a: " in line.finding
    assert line.fix.startswith("give --interleave runs, which needs 5.")
    needed = [need_of(arm.name, arm.config, 4096) for arm in plan(tmp_path, text).arms]
    with pytest.raises(InputError) as refused:
        check_memory(needed, (), "slices")
    assert str(refused.value) == f"{line.finding}; {line.fix}"


def test_arms_that_run_one_after_the_other_need_what_one_needs(tmp_path: Path) -> None:
    line = lines(tmp_path, f"interleave: auto\n{WORKERS}")["memory need"]
    assert (line.status, line.fix[:14]) == ("warn", "make the model")  # as auto leads to runs here
    assert line.finding.startswith("arm a may not fit: needs 5.")


def test_a_model_that_fits_and_one_that_does_not(tmp_path: Path) -> None:
    line = lines(tmp_path, one("data.batch_size: 1"))["memory need"]
    assert line.status == "ok"
    assert line.finding.startswith("arm one: 0.1 to ")
    assert line.finding.endswith(" GiB of memory, 22.0 GiB is free")
    line = lines(tmp_path, one("model: {preset: llama-8b}, data.tokenizer.pretrained: nowhere"))["memory need"]
    assert line.status == "fail"  # the preset says its vocabulary: no tokenizer is asked
    assert "arm one: needs at least 1" in line.finding
    assert line.fix.endswith(", or start anyway with --force")


def test_a_vocabulary_that_only_the_tokenizer_or_its_corpus_knows(tmp_path: Path) -> None:
    line = lines(tmp_path, one("data.tokenizer.pretrained: nowhere"))["memory need"]
    assert (line.status, line.finding[:7]) == ("ok", "unknown")
    assert not any(letter.isdigit() for letter in line.finding)
    found = lines(tmp_path, one("data.tokenizer.pretrained: nowhere, model.width: 65536, model.layers: 9"))
    assert found["memory need"].status == "fail"  # whatever the vocabulary is
    # One that a small corpus may not fill is a warning.
    wide = "model.width: 4096, model.layers: 1, data.tokenizer.train.vocab_size: 1000000"
    line = lines(tmp_path, one(wide))["memory need"]
    assert line.status == "warn"
    assert "less if the tokenizer learns fewer tokens than data.tokenizer.train asks for" in line.finding
    line = lines(tmp_path, one(f"{wide}, model.vocab_size: 1000000"))["memory need"]
    assert line.status == "fail"


def test_a_card_has_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = "base: {compute.device: cuda, model.preset: llama-8b}\narms: {one: null}\ncontrols: []\n"
    set_free_memory(monkeypatch, 1000, 12, 80)
    found = lines(tmp_path, big)
    assert (found["memory need"].status, found["GPU need"].status) == ("ok", "fail")
    assert "GiB of GPU memory, 80.0 GiB is free" in found["GPU need"].finding
    assert "GPU need" not in lines(tmp_path, one("data.batch_size: 1"))


def test_a_model_of_ones_own_is_of_unknown_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    found = lines(tmp_path, one("model.factory: mine:make"))
    assert found["memory need"].finding.startswith("unknown: the size of the model of arm one is known only")
    needed = [need_of(arm.name, arm.config, 0) for arm in plan(tmp_path, one("model.factory: mine:make")).arms]
    assert "without models of unknown size (model.factory, or no formula)" in choose_interleave("auto", needed)[1]


@pytest.mark.parametrize(("base", "name", "finding"), [
    ("compute.device: cuda", "device", "compute.device: cuda, but there is no NVIDIA device here"),
    ("compute.device: {emulated: gh299}", "device", "unknown device profile 'gh299'"),
    ("compute.device: {emulated: gh200}, model.preset: llama-8b", "device", "does not fit gh200"),
    ("data.source: nowhere:make", "own code", "data.source: nowhere:make: no module nowhere in "),
    ("model.factory: nowhere:make", "own code", "model.factory: nowhere:make: no module nowhere in "),
    ("data.corpus: {parquet: no/such.parquet, column: text}", "files", "no file matches no/such.parquet"),
    ("data.corpus: {path: no/such}", "files", "data.corpus.path: no no/such"),
    ("data.corpus: {path: nowhere://such}", "files", "data.corpus.path: nowhere://: "),
    ("data.corpus: {path: ., format: text, chat_template: no/such}", "files", "data.corpus.chat_template: no no/such"),
    ("data.tokenizer.pretrained: no/such", "files", "no/such is neither a directory nor in the"),
    ("data.tokenizer.sentencepiece: no/such", "files", "data.tokenizer.sentencepiece: no file no/such"),
    ("model.config: no/such", "files", "model.config: no file no/such; give a folder with config.json"),
    ("model.pretrained: no/such", "files", "model.pretrained: no folder no/such; give a local one"),
    ("model: {preset: gpt2-tiny, objective: masked}", "files", "but gpt2 is a causal model; allowed: causal"),
    ("model.config: {model_type: llama, num_hidden_layers: 99, hidden_size: 16384}, compute.device: "
     "{emulated: gh200}", "device", "llama does not fit gh200"),
])  # fmt: skip
def test_what_is_not_there_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, name: str, finding: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://nowhere.invalid")
    base = base if "compute.device" in base else f"compute.device: cpu, {base}"
    text = f"base: {{{base}}}\narms: {{one: null, two: null}}\ncontrols: []\n"
    line = lines(tmp_path, text)[name]
    assert line.status == "fail"
    assert line.finding.startswith("arm one: ")
    assert finding in line.finding


def test_a_config_of_a_known_family_is_sized_without_torch(tmp_path: Path) -> None:
    big = {"model_type": "llama", "num_hidden_layers": 99, "hidden_size": 8192, "num_attention_heads": 64}
    text = ", ".join(f"{key}: {value}" for key, value in big.items())
    line = lines(tmp_path, one(f"model.config: {{{text}}}"))["memory need"]
    assert line.status == "fail"
    assert "arm one: needs at least " in line.finding
    data = "data: {batch_size: 64, sequence_length: 2048}"
    model = ("{vocab_size: 5000}", "{vocab_size: 5000, activation_checkpointing: true}")
    half, kept = (lines(tmp_path, one(f"{data}, model: {keys}"))["memory need"].finding for keys in model)
    assert kept != half


def test_free_memory_that_is_not_known_is_not_compared_and_a_model_that_cannot_be_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = lines(tmp_path, one("model.heads: 7"))["model"]
    assert (line.status, line.finding[:17]) == ("fail", "model.width: 128 ")
    set_free_memory(monkeypatch, None)
    line = lines(tmp_path, one("model.preset: llama-8b"))["memory need"]
    assert (line.status, line.finding[:12]) == ("ok", "not compared")


@pytest.mark.parametrize(("documents", "enough", "too_many", "finding"), [
    (60, "data.workers: 60", "data.workers: 61", "61 loader workers for at most 60 documents: each worker"),
    (5, "launch.torchrun.nproc: 5", "launch.torchrun.nproc: 6", "6 ranks for at most 5 documents: each rank"),
    (5, "launch.torchrun.nproc: 2", "launch.torchrun.nproc: 2, data.workers: 3",
     "2 ranks of 3 loader workers for at most 5 documents: each worker"),
])  # fmt: skip
def test_more_workers_or_ranks_than_documents(
    tmp_path: Path, documents: int, enough: str, too_many: str, finding: str
) -> None:
    base = f"data.corpus: {{builtin: python-docs, documents: {documents}}}, "
    assert lines(tmp_path, one(base + enough))["documents"].status == "ok"
    line = lines(tmp_path, one(base + too_many))["documents"]
    assert (line.status, line.finding) == ("fail", f"arm one: {finding} needs its own document")
    assert "documents" not in lines(tmp_path, one("data.workers: 256"))


@pytest.mark.slow
def test_no_torch_is_imported() -> None:
    code = "import sys, harness.launch.fit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3]).returncode == 0
