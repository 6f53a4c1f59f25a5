"""What commands write is copied behind a URL, and models are read from there: memory://, and S3 by moto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest

from harness.launch.training_files import EvaluationRow
from tests import s3
from tests.commands import Done, harness
from tests.harness.commands.test_plot import training
from tests.harness.commands.test_train import SCENARIO
from tests.harness.sweep.test_run import SWEEP
from tests.trainer.data.conftest import make_texts, write_parquet
from trainer import checkpoint_folder, trained_model


@dataclass(frozen=True)
class Place:
    """A bucket. ``url``: of it."""

    url: str
    filesystem: Any  # pyarrow's

    def files(self, folder: str) -> dict[str, bytes]:
        """What lies below ``folder``, by its path there."""
        import pyarrow.fs as fs

        root = f"bucket/{folder}"
        below = self.filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        paths = [one.path for one in below if one.type == fs.FileType.File]
        return {path.partition(f"{root}/")[2]: self.filesystem.open_input_stream(path).read() for path in paths}


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "s3":
        with s3.serving(monkeypatch) as address:
            filesystem = s3.filesystem(address)
            filesystem.create_dir("bucket")
            yield Place("s3://bucket", filesystem)
        return
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield Place("memory://bucket", PyFileSystem(FSSpecHandler(memory)))
    memory.store.clear()


def here(folder: Path) -> dict[str, bytes]:
    """What of a folder is to be copied."""
    files = {one.relative_to(folder).as_posix(): one for one in folder.rglob("*") if one.is_file()}
    return {
        name: path.read_bytes() for name, path in files.items() if "/." not in f"/{name}" and name != "uploads.json"
    }


@pytest.mark.slow
def test_a_corpus_without_near_duplicates_and_its_tokens_are_there(place: Place, tmp_path: Path) -> None:
    corpus = str(write_parquet(tmp_path / "corpus.parquet", make_texts()))
    out, url = tmp_path / "dedup", f"{place.url}/dedup"
    done = harness("data", "dedup", "--corpus", corpus, "--out", str(out), "--upload", url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["documents"] == 60
    assert f"uploaded: {url} (" in done.stderr
    assert place.files("dedup") == here(out)
    assert {name.partition("/")[0] for name in here(out)} >= {"kept", "dedup.json", "s-curve.png"}

    refused = harness("data", "dedup", "--corpus", corpus, "--out", str(tmp_path / "again"), "--upload", url)
    assert refused.returncode == 2
    assert "files; give another URL, or remove them" in refused.stderr
    assert not (tmp_path / "again").exists()

    tokens, words = tmp_path / "tokens", ("data", "pretokenize", "--corpus", str(out / "kept"), "--format", "flat")
    done = harness(*words, "--tokenizer", "bpe:300", "--out", str(tokens), "--upload", f"{place.url}/tokens")
    assert done.returncode == 0, done.stderr
    assert place.files("tokens") == here(tokens) != {}


def test_a_run_that_lies_there_is_plotted_beside_one_that_lies_here(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.fs as fs

    there = training(tmp_path / "there", [4.0, 3.0, 3.5], EvaluationRow(2, 3.25, None, 64))
    (there / "checkpoints/step-00000002").mkdir(parents=True)
    (there / "checkpoints/step-00000002/weights").write_bytes(bytes(100))
    fs.copy_files(str(there), "bucket/runs/one", fs.LocalFileSystem(), place.filesystem)
    monkeypatch.setattr(trained_model, "_temporary_folder", lambda: tmp_path / "fetched")
    here_too, out = training(tmp_path / "here", [4.0, 2.0]), tmp_path / "out"
    done = harness("plot", f"{place.url}/runs/one", str(here_too), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    remote, local = json.loads((out / "runs.json").read_text())["runs"]
    assert remote["lowest_training"] == {"steps": 2, "loss": 3.0}
    assert remote["lowest_validation"] == {"steps": 3, "loss": 3.25}
    assert local["lowest_training"] == {"steps": 2, "loss": 2.0}
    assert remote["run"].endswith("bucket/runs/one")
    assert here(tmp_path / "fetched/one").keys() == {"losses.csv", "evaluations.csv"}
    missing = harness("plot", f"{place.url}/runs/two", "--out", str(out))
    assert missing.returncode == 2
    assert missing.stderr == f"harness: plot: {place.url}/runs/two: there is no such file or folder\n"


@pytest.mark.slow
def test_text_is_generated_from_what_lies_there(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    text = (
        SCENARIO.format(corpus=corpus).replace("pack_ms: 5", "pack_ms: 0").replace("every_steps: 10", "every_steps: 2")
    )
    (tmp_path / "small.yaml").write_text(text)
    out, url = tmp_path / "out", f"{place.url}/runs/small"
    words = ("train", str(tmp_path / "small.yaml"), "--arm", "plain", "--steps", "4", "--out", str(out))
    done = harness(*words, "--upload", url)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(trained_model, "_temporary_folder", lambda: tmp_path / "fetched")
    fetched = tmp_path / "fetched/small"
    newest = "checkpoints/step-00000004"

    def generated(model: str) -> dict[str, Any]:
        found = harness("generate", "--model", model, "--prompt", "the quick", "--max-tokens", "4", "--json")
        assert found.returncode == 0, found.stderr
        content: dict[str, Any] = json.loads(found.stdout)
        return {name: content[name] for name in ("text", "ids", "prompt_ids")}

    expected = generated(str(out))
    assert generated(url) == generated(f"{url}/{newest}") == generated(f"file://{out}") == expected
    names = {name for name in here(out) if name.startswith((newest, "tokenizer"))}
    assert here(fetched).keys() == names  # no older checkpoint, no tables
    assert checkpoint_folder.read(fetched / newest).steps == 4

    assert harness("export", "llmc-model", url, "--out", str(tmp_path / "model.bin")).returncode == 0
    seed = f"{place.url}/seeds/model.bin"
    place.filesystem.create_dir("bucket/seeds")
    for name, content in (("model.bin", (tmp_path / "model.bin").read_bytes()), ("broken.bin", b"no model")):
        with place.filesystem.open_output_stream(f"bucket/seeds/{name}") as stream:
            stream.write(content)

    def resumed(out: str, name: str) -> Done:
        given = "--set", f"resume={{llmc: '{name}', step: 4}}", "--out", str(tmp_path / out)
        return harness(*words[:4], "--steps", "6", *given)

    done = resumed("seeded", seed)
    assert done.returncode == 0, done.stderr
    assert f"begun at step 4 with the weights of {seed} (fingerprint " in done.stderr
    assert resumed("local", str(tmp_path / "model.bin")).returncode == 0
    losses = [(tmp_path / name / "losses.csv").read_text() for name in ("seeded", "local")]
    assert losses[0] == losses[1]
    for name, why in (("none.bin", "there is no such file or folder"), ("broken.bin", "")):
        refused = resumed("refused", seed.replace("model.bin", name))
        assert refused.returncode == 2
        (line,) = [one for one in refused.stderr.splitlines() if one.startswith("harness: ")]
        assert f"{place.url}/seeds/{name}" in line
        assert why in line
    done = harness("generate", "--model", f"{place.url}/none", "--prompt", "the")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"harness: --model: {place.url}/none: there is no such file or folder"]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_sweep_is_there_with_every_trial_and_its_report(place: Place, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts(60))
    (tmp_path / "small.yaml").write_text(SWEEP.format(corpus=corpus).replace("trials: 4", "trials: 2"))
    url = f"{place.url}/sweep"
    words = ("sweep", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"), "--upload", url)
    done = harness(*words)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out/small").iterdir()
    assert f"uploaded: {url} (" in done.stdout
    assert place.files("sweep") == here(folder)
    assert {"sweep.json", "trials.journal", "summary.md", "trials/0001/losses.csv"} <= here(folder).keys()

    refused = harness(*words)
    assert refused.returncode == 2
    assert "it contains another sweep (sweep.json); give another URL, or remove that one" in refused.stderr
    assert len(list((tmp_path / "out/small").iterdir())) == 1
    again = harness("sweep", "--resume", str(folder), "--upload", f"{place.url}/elsewhere")
    assert again.returncode == 0, again.stderr
    assert place.files("elsewhere") == here(folder)
