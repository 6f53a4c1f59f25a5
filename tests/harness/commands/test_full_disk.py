"""A full disk is no wrong input: exit code 1, one line that names the place, and nothing half written."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli
from tests.campaigns.faults.caches import scenario
from tests.commands import ROOT, harness
from trainer.data import cache
from trainer.errors import InputError, cannot_write


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["write_text", "_write_digests"])
def test_a_cache_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, what, full)
    assert cli.main(["data", "pretokenize", str(scenario(tmp_path))]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"harness: {tmp_path}/cache")
    assert line.endswith(": No space left on device; HARNESS_CACHE=DIR chooses another cache\n")
    assert not list(tmp_path.rglob(".*.tmp"))


def test_a_full_disk_of_a_folder_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cache would not help it."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(OSError, match="No space left on device; another folder can be named"):
        cache.create_folder(tmp_path / "out", full)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, OSError), (errno.EDQUOT, OSError), (errno.EFBIG, OSError), (errno.EACCES, InputError)],
)
def test_a_place_that_may_not_be_written_is_wrong_input_and_a_full_one_is_not(number: int, kind: type) -> None:
    found = cannot_write("there", OSError(number, os.strerror(number)), "choose another")
    assert type(found) is kind
    assert "there" in str(found)
    assert str(found).endswith("choose another" if kind is InputError else "choose another: 'there'")


@pytest.mark.slow
@pytest.mark.parametrize(("kibibytes", "what"), [
    pytest.param(0, "facts", marks=pytest.mark.nightly),
    pytest.param(4, "tokenizer", marks=pytest.mark.nightly),
    (1, "pretokenized"),
], ids=["Python", "tokenizers", "pyarrow"])  # fmt: skip
def test_a_limit_of_file_sizes(tmp_path: Path, kibibytes: int, what: str) -> None:
    """Each library that writes into the cache meets it: Python, tokenizers, pyarrow."""
    file = scenario(tmp_path)
    environment = {**os.environ, "HARNESS_CACHE": str(tmp_path / "cache")}
    if what == "pretokenized":
        assert harness("data", "pretokenize", str(file), HARNESS_CACHE=environment["HARNESS_CACHE"]).returncode == 0
        shutil.rmtree(tmp_path / "cache" / what)
    command = f"ulimit -f {kibibytes}; exec {sys.executable} -B -m harness data pretokenize {file}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith(f"harness: {tmp_path}/cache/{what}/")
    assert "File too large; HARNESS_CACHE=DIR chooses another cache" in done.stderr
    assert not list(tmp_path.rglob(".*.tmp"))


@pytest.mark.slow
def test_what_exec_recorded_is_kept_where_its_study_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = str(ROOT / "tests" / "harness" / "attach" / "programs" / "plain.py")
    words = ("exec", "--out", str(tmp_path), "--", sys.executable, program, "--steps", "40")
    with monkeypatch.context() as disk:
        disk.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
        done = harness(*words)
    kept, last = done.stderr.splitlines()[-2:]
    assert done.returncode == 1
    assert last.startswith(f"harness: {tmp_path}/exec/")
    assert last.endswith(".parquet: No space left on device")
    assert not list(tmp_path.rglob(".*.tmp"))
    raw = kept.removeprefix("harness: the recording is kept; make a study: harness exec --recorded ").split()[0]
    again = harness("exec", "--out", str(tmp_path / "elsewhere"), "--recorded", raw)
    assert (again.returncode, "study: " in again.stdout) == (0, True)
