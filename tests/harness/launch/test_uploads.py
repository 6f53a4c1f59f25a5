"""Copies of a training's folder behind a URL: whole, tried again, never in the way; against fsspec, and S3 by moto."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from harness.launch import uploads
from harness.launch.uploads import KEPT, Destination, Uploader
from tests.commands import harness
from tests.s3 import filesystem, serving
from tests.trainer.data.conftest import make_texts, write_parquet
from trainer.errors import InputError

SCENARIO = """\
name: small
question: Does it train?
base:
  model: {{layers: 1, width: 32, heads: 2}}
  data:
    corpus: {{parquet: {corpus}}}
    tokenizer: {{train: {{vocab_size: 300}}}}
    path: text-stream
    sequence_length: 16
    batch_size: 3
  compute: {{device: cpu, threads: 1}}
  checkpoint: {{every_steps: 5, keep: 1}}
arms: {{plain: null}}
"""


class Flaky(MemoryFileSystem):  # type: ignore[misc]
    """A server that refuses to write as often as it is told to."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012  # of the class, as MemoryFileSystem has it
    pseudo_dirs = [""]  # noqa: RUF012
    refusals = 0

    def _open(self, path: str, mode: str = "rb", **settings: Any) -> Any:
        if "w" in mode and Flaky.refusals > 0:
            Flaky.refusals -= 1
            raise OSError("the server is busy")
        return super()._open(path, mode, **settings)


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty ones, and no time between attempts."""
    monkeypatch.setattr(uploads, "PAUSE_S", 0.0)
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    yield
    Flaky.refusals = 0
    Flaky.store.clear()
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a training leaves it."""
    place = tmp_path / "training"
    for step in (5, 10):
        checkpoint = place / f"checkpoints/step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "checkpoint.json").write_text(f"{step}")
        (checkpoint / "state.pt").write_bytes(bytes(step))
    (place / "losses.csv").write_text("step,tokens,loss\n")
    (place / ".lock").touch()
    (place / "checkpoints/.step-00000015.0.tmp").mkdir()
    (place / "checkpoints/.step-00000015.0.tmp/state.pt").write_bytes(b"half")
    return place


def copied(url: str) -> dict[str, bytes]:
    """What lies behind a URL, by its path there."""
    filesystem, root = fsspec.url_to_fs(url)
    return {path.removeprefix(f"{root}/"): filesystem.cat_file(path) for path in filesystem.find(root)}


def here(folder: Path) -> dict[str, bytes]:
    """What of a folder is to be copied."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path for path in files}
    return {name: path.read_bytes() for name, path in names.items() if "/." not in f"/{name}" and name != KEPT}


def ended(folder: Path, url: str) -> uploads.Uploaded:
    uploader = Uploader(Destination(folder, url))
    uploader.begin()
    return uploader.end(60)


@pytest.mark.parametrize("scheme", ["memory://bucket", "file://"])
def test_all_of_it_is_there_and_only_what_is_new_or_gone_or_replaced_is_copied_again(
    folder: Path, tmp_path: Path, scheme: str
) -> None:
    """It believed uploads.json, and said "uploaded" of a target that had been removed."""
    url = f"{scheme}{tmp_path}/there"
    found = ended(folder, f"{url}/")
    assert (found.files, found.missing) == (5, ())
    assert copied(url) == here(folder)
    (folder / "losses.csv").write_text("step,tokens,loss\n0,1,2.5\n")
    again = Destination(folder, url)
    assert again.missing() == ["losses.csv"]
    shutil.rmtree(folder / "checkpoints/step-00000005")
    assert again.copy_all(lambda _: True)
    before = copied(url)
    assert before == here(folder)
    filesystem, root = fsspec.url_to_fs(url)
    assert [Path(one).name for one in filesystem.ls(f"{root}/checkpoints", detail=False)] == ["step-00000010"]
    # Elsewhere all is missing; a checkpoint is said to be whole after its files.
    names = [name.rpartition("/")[2] for name in Destination(folder, f"{url}/elsewhere").missing()]
    assert names == ["state.pt", "losses.csv", "checkpoint.json"]

    of_same_size = bytes(len(before["losses.csv"]))
    filesystem.pipe_file(f"{root}/losses.csv", of_same_size if scheme == "file://" else b"something else")
    for lost in (None, f"{root}/checkpoints", root):
        if lost is not None:
            filesystem.rm(lost, recursive=True)
        assert ended(folder, url).missing == ()
        assert copied(url) == before


def test_what_cannot_be_copied_is_tried_again_a_few_times_stays_here_and_is_named(folder: Path) -> None:
    Flaky.refusals = uploads.ATTEMPTS - 1
    assert ended(folder, "flaky://bucket/first").missing == ()
    before = here(folder)
    assert copied("flaky://bucket/first") == before
    Flaky.refusals = 10**6
    done = harness("upload", str(folder), "flaky://bucket/there")
    assert done.returncode == 1
    assert here(folder) == before
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("harness: ")]
    assert "5 files not uploaded (" in line
    assert "the server is busy" in line
    command = line.rpartition("upload the rest with: ")[2].split()
    Flaky.refusals = 3
    assert harness(*command[1:]).returncode == 0
    assert copied("flaky://bucket/there") == before


def test_what_was_removed_here_to_make_room_stays_there(folder: Path) -> None:
    """But for a checkpoint that a newer one has replaced."""
    url = "memory://bucket/there"
    assert ended(folder, url).missing == ()
    before = copied(url)
    shutil.rmtree(folder / "checkpoints")
    (folder / "losses.csv").unlink()
    (folder / "new.csv").touch()
    assert ended(folder, url).missing == ()
    assert copied(url) == before | {"new.csv": b""}


def test_bytes_that_changed_there_are_found_where_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    """Neither size nor time shows it, as after a fault of a disk. What cannot be listed is not called verified."""
    words = ("upload", str(folder), f"file://{tmp_path}/there")
    assert harness(*words).returncode == 0
    there = tmp_path / "there/losses.csv"
    times = there.stat()
    there.write_bytes(bytes(len(there.read_bytes())))
    os.utime(there, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert harness(*words).returncode == 0
    assert there.read_bytes() != (folder / "losses.csv").read_bytes()
    assert harness(*words, "--verify").returncode == 0
    assert there.read_bytes() == (folder / "losses.csv").read_bytes()
    there.unlink()
    Path(os.fsdecode(os.fsencode(tmp_path / "there") + b"/\xff")).touch()
    for more, code in (((), 0), (("--verify",), 1)):
        done = harness(*words, *more)
        assert (done.returncode, "cannot be listed" in done.stderr) == (code, True)


def test_hidden_files_are_copied_but_for_temporary_ones(folder: Path, tmp_path: Path) -> None:
    (folder / ".hydra").mkdir()
    (folder / ".hydra/config.yaml").write_text("seed: 1\n")
    (folder / ".losses.csv.0123.tmp").write_text("half")
    found = ended(folder, f"file://{tmp_path}/there")
    assert (found.missing, found.left_out) == ((), ())
    assert copied(f"file://{tmp_path}/there") == here(folder) | {".hydra/config.yaml": b"seed: 1\n"}


def test_folders_that_link_to_one_another_are_copied_in_time(tmp_path: Path) -> None:
    """Nine of them were walked on every way through all others."""
    folder = tmp_path / "linked"
    for name in "abcdefghi":
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text(name)
        for other in "abcdefghi".replace(name, ""):
            (folder / name / f"to-{other}").symlink_to(folder / other)
    assert ended(folder, f"file://{tmp_path}/there").missing == ()
    there = copied(f"file://{tmp_path}/there")
    assert all(there[f"{name}/file"] == name.encode() for name in "abcdefghi")


def test_links_are_followed_and_what_cannot_be_copied_is_named(folder: Path, tmp_path: Path) -> None:
    """A pipe hung it for minutes, a name that is no UTF-8 ended it, and a link was left out without a word."""
    before = here(folder) | {"last.csv": (folder / "losses.csv").read_bytes()}
    (folder / "checkpoints").rename(tmp_path / "larger-disk")
    (folder / "checkpoints").symlink_to(tmp_path / "larger-disk")
    (folder / "last.csv").symlink_to("losses.csv")
    (folder / "gone.csv").symlink_to("nowhere")
    (folder / "loop").symlink_to(".")
    os.mkfifo(folder / "pipe")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.csv")).touch()
    done = harness("upload", str(folder), f"file://{tmp_path}/there")
    assert done.returncode == 1
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("harness: ")]
    assert line.startswith(f"harness: 4 of {folder} cannot be uploaded: ")
    for name in ("gone.csv", "loop", "pipe", "\\udcff.csv"):
        assert f" {name} (" in line
    assert copied(f"file://{tmp_path}/there") == before


def test_what_lies_there_is_not_written_over(folder: Path, tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/there/thesis.txt", b"of years")
    found = ended(folder, "memory://bucket/there")
    assert len(found.missing) == 5
    assert found.reason == "it already contains 1 file; give another URL, or remove them"
    assert copied("memory://bucket/there") == {"thesis.txt": b"of years"}
    there = tmp_path / "there"
    (there / "losses.csv" / "inner").mkdir(parents=True)  # a folder where a file belongs
    found = ended(folder, f"file://{there}")
    assert found.missing == ("losses.csv",)
    assert f"{there}/losses.csv" in found.reason
    assert [one.name for one in there.rglob("*uploading")] == []


def test_of_two_trainings_the_second_is_not_mixed_into_the_first(folder: Path) -> None:
    url = "memory://bucket/there"
    (folder / "study.json").write_text('{"id": "a"}')
    assert ended(folder, url).missing == ()
    (folder / KEPT).unlink()  # as after a kill: what lies there is known by its id
    assert ended(folder, url).missing == ()
    before = copied(url)
    (folder / KEPT).unlink()
    for content in ('{"id": "b"}', None):  # another one, and one that has just begun
        (folder / "study.json").unlink() if content is None else (folder / "study.json").write_text(content)
        found = ended(folder, url)
        assert found.missing
        assert found.reason.startswith("it contains another training or study (study.json); give another URL")
        assert copied(url) == before


def test_asking_never_waits_for_a_server_that_hangs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    copy = Destination._copy

    def hanging(self: Destination, name: str) -> None:
        answered.wait(240)
        copy(self, name)

    monkeypatch.setattr(Destination, "_copy", hanging)
    uploader = Uploader(Destination(folder, "memory://bucket/there"))
    uploader.begin()
    for _ in range(1000):
        uploader.ask()
    found = uploader.end(0.01)
    assert len(found.missing) == 5
    assert found.reason == "it took longer than 0.01 s"
    answered.set()
    uploader._thread.join(60)
    assert copied("memory://bucket/there") == here(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": "memory://bucket/there", "files": {"losses.csv": 3}}'])
def test_after_damage_everything_is_copied_again(folder: Path, content: str) -> None:
    (folder / KEPT).write_text(content)
    assert len(Destination(folder, "memory://bucket/there").missing()) == 5


@pytest.mark.parametrize(("url", "message"), [
    ("there", "upload: there: not a URL; give one"),
    ("nosuch://there", "upload: nosuch://: "),
    ("s3://me:secret@bucket/x", "must not contain credentials"),
    ("file://{folder}/in/it", "the copy would contain itself"),
])  # fmt: skip
def test_a_url_that_cannot_be_is_one_line(folder: Path, url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        Destination(folder, url.format(folder=folder))
    assert "secret" not in str(raised.value)


def test_a_place_is_tried_before_anything_is_trained_and_left_as_it_was(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for url in ("flaky://bucket/run", f"file://{tmp_path}/there/deep/run"):
        Flaky.refusals = uploads.ATTEMPTS - 1
        checked = uploads.checked_destination(folder, url)
        assert copied(url) == {}
        assert len(checked.missing()) == 5
    assert list(tmp_path.glob("there/*")) == []
    uploads.checked_destination(folder, f"file://{tmp_path}/there")
    assert list(tmp_path.glob("there/*")) == []


def test_where_nothing_can_be_written_no_training_begins(tmp_path: Path) -> None:
    """The scenario's key as the option, with one clear line and nothing left behind."""
    scenario, out = written(tmp_path), tmp_path / "out"
    (tmp_path / "taken").write_text("a file")
    with fsspec.filesystem("flaky").open("flaky://bucket/other/study.json", "wb") as file:
        file.write(b'{"id": "another"}')
    Flaky.refusals = 10**6
    for url, message in {
        "flaky://bucket/run": "upload: flaky://bucket/run: cannot be written (the server is busy",
        f"file://{tmp_path}/taken/run": f"upload: file://{tmp_path}/taken/run: cannot be written (",
        "flaky://bucket/other": "upload: flaky://bucket/other: it contains another training or study (study.json)",
        "nosuch://there": "upload: nosuch://: ",
    }.items():
        for words in (["--upload", url], ["--set", f"upload={url}"]):
            done = harness("train", scenario, "--out", str(out), "--steps", "12", *words)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert message in done.stderr
            assert not out.exists()


def test_a_place_that_does_not_answer_is_known_in_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(Destination, "_write_marker", lambda _: answered.wait(240))
    with pytest.raises(InputError, match="upload: memory://bucket/there: no answer within 1 s; give another URL"):
        uploads.checked_destination(folder, "memory://bucket/there", 1)
    answered.set()


def written(tmp_path: Path) -> str:
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    (tmp_path / "small.yaml").write_text(SCENARIO.format(corpus=corpus))
    return str(tmp_path / "small.yaml")


def trained(tmp_path: Path, url: str) -> Path:
    """Train a few steps with an upload, in this process; the folder."""
    out = tmp_path / "out"
    done = harness("train", written(tmp_path), "--out", str(out), "--upload", url, "--steps", "12")
    assert done.returncode == 0, done.stderr
    assert f"uploaded: {url} (" in done.stdout
    return out


@pytest.mark.slow
def test_a_training_is_copied_with_its_last_checkpoint_and_curve(tmp_path: Path) -> None:
    Flaky.refusals = 2
    out = trained(tmp_path, "flaky://bucket/run")
    there = copied("flaky://bucket/run")
    assert there == here(out)
    assert {"losses.csv", "loss.png", "study.json", "checkpoints/step-00000012/checkpoint.json"} <= there.keys()
    assert not any("step-00000005" in name for name in there)  # one is kept, there as here
    assert json.loads((out / KEPT).read_text())["url"] == "flaky://bucket/run"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(monkeypatch) as address:
        yield address


@pytest.mark.slow
def test_s3_takes_it_all_and_trains_again_on_what_lies_there(tmp_path: Path, s3: str) -> None:
    import pyarrow.fs as fs

    server, root = filesystem(s3), "trainings/small/run"
    server.create_dir("trainings")
    out = trained(tmp_path, f"s3://{root}")
    below = server.get_file_info(fs.FileSelector(root, recursive=True))
    files = [one.path for one in below if one.type == fs.FileType.File]
    assert {path.removeprefix(f"{root}/"): server.open_input_stream(path).read() for path in files} == here(out)
    lost = harness("upload", str(out), "s3://no-such-bucket/run")
    assert lost.returncode == 1
    assert "not uploaded (" in lost.stderr
    words = ("train", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "new"))
    refused = harness(*words, "--upload", "s3://no-such-bucket/run")
    assert refused.returncode == 2
    assert "upload: s3://no-such-bucket/run: cannot be written (" in refused.stderr
    assert not (tmp_path / "new").exists()
