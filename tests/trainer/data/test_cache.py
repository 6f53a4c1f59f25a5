"""What is cached appears whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from trainer.data import cache
from trainer.errors import InputError


def test_the_environment_chooses_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "chosen"))
    assert cache.cache_root() == tmp_path / "chosen"
    monkeypatch.delenv("HARNESS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_root() == tmp_path / "xdg" / "llm-harness"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache" / "llm-harness"


@pytest.mark.usefixtures("fresh_cache")
def test_a_folder_is_built_once() -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("content")

    first = cache.folder("kind", [1, "a"], build)
    assert cache.folder("kind", [1, "a"], build) == first
    assert (first / "file").read_text() == "content"
    assert len(built) == 1
    assert cache.folder("kind", [1, "b"], build) != first


def test_a_failed_build_leaves_nothing(fresh_cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("stopped in the middle")

    with pytest.raises(RuntimeError):
        cache.folder("kind", 1, build)
    assert list((fresh_cache / "kind").iterdir()) == []


def test_builders_at_the_same_time_agree_on_one_folder(fresh_cache: Path) -> None:
    barrier = threading.Barrier(4)
    found: list[str] = []

    def build(folder: Path) -> None:
        barrier.wait()  # all four are building before any is done
        (folder / "file").write_text(folder.name)

    def find() -> None:
        found.append((cache.folder("kind", 1, build) / "file").read_text())

    threads = [threading.Thread(target=find) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(list((fresh_cache / "kind").iterdir())) == 1


def damaged(path: Path, content: bytes) -> None:
    """Change a file so that neither its size nor its time shows it."""
    before = path.stat()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.usefixtures("fresh_cache")
def test_a_file_that_changed_behind_its_time_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("same")
    os.utime(path, (0, 0))
    before = cache.file_fingerprint(path)
    damaged(path, b"else")
    assert cache.file_fingerprint(path) != before


@pytest.mark.usefixtures("fresh_cache")
def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    monkeypatch.setattr(cache, "_TICK_NS", -1)  # as if it had been written long ago
    monkeypatch.setattr(cache, "_known", {})
    read: list[int] = []
    digest = cache.hashlib.file_digest
    monkeypatch.setattr(cache.hashlib, "file_digest", lambda *given: read.append(1) or digest(*given))
    assert cache.file_fingerprint(path) == cache.file_fingerprint(path)
    assert len(read) == 1
    told = json.loads(json.dumps(cache.known_digests()))  # as it goes to another process
    monkeypatch.setattr(cache, "_known", {})
    cache.trust(told)
    before = cache.file_fingerprint(path)
    assert len(read) == 1
    path.write_text("changed")  # as long as it was
    assert cache.file_fingerprint(path) != before
    assert len(read) == 2


def write_two(folder: Path) -> None:
    (folder / "one").write_text("content")
    (folder / "two").write_text("more")


def flip(path: Path) -> None:
    damaged(path, bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_file(made: Path) -> None:
    shutil.rmtree(made)
    made.write_text("a file")


def to_other(made: Path, kind: str) -> None:
    """Put another entry in its place, and the entry itself under no other name."""
    other = cache.folder(kind, 2, lambda to: (to / "one").write_text("other"))
    shutil.rmtree(made)
    other.rename(made)


def to_earlier(made: Path, digests: bool) -> None:
    """Leave what an earlier version wrote, without the entry's key, so that it may be any."""
    known = json.loads((made / cache.DIGESTS).read_text())
    del known[cache.ENTRY]
    (made / cache.ENTRY).unlink()
    (made / cache.DIGESTS).unlink()
    if digests:
        (made / cache.DIGESTS).write_text(json.dumps(known))


OTHER = "it is the entry of another key"
UNREADABLE = "digests.json: not readable.*"


@pytest.mark.parametrize(("damage", "why"), [
    (lambda made: flip(made / "one"), "one differs from what was written"),
    (lambda made: (made / "one").write_text(""), "one differs from what was written"),
    (lambda made: to_folder(made / "one"), "one: Is a directory"),
    (lambda made: (made / "two").unlink(), "two is gone"),
    (lambda made: flip(made / cache.DIGESTS), UNREADABLE),
    (lambda made: (made / cache.DIGESTS).write_text(""), UNREADABLE),
    (lambda made: to_folder(made / cache.DIGESTS), "digests.json: Is a directory"),
    (lambda made: (made / cache.DIGESTS).write_text("[]"), "digests.json: not an object"),
    (lambda made: (made / cache.DIGESTS).write_text("{}"), "entry.txt differs from what was written"),
    (to_file, "not a folder"),
    (lambda made: to_other(made, "kind"), OTHER),
    (lambda made: to_other(made, "another kind"), OTHER),
    (lambda made: to_earlier(made, True), "an earlier version wrote it, without its key"),
    (lambda made: to_earlier(made, False), "digests.json is gone"),
])  # fmt: skip
def test_a_damaged_folder_is_built_again_and_says_so(fresh_cache, capsys, damage, why: str) -> None:
    made = cache.folder("kind", 1, write_two)
    damage(made)
    assert cache.folder("kind", 1, write_two) == made
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"damaged in the cache: {made}: {why}; built again", line)
    assert (made / "one").read_text() == "content"
    assert {path.name for path in made.iterdir()} == {"one", "two", cache.ENTRY, cache.DIGESTS}
    cache.folder("kind", 1, write_two)
    assert capsys.readouterr().err == ""
    assert list((fresh_cache / "kind").iterdir()) == [made]


@pytest.mark.usefixtures("fresh_cache")
def test_a_folder_that_is_not_what_was_asked_for_is_built_again(capsys: pytest.CaptureFixture[str]) -> None:
    def check(folder: Path) -> None:
        if (folder / "one").read_text() != "content":
            raise InputError(f"{folder}: one is wrong")

    made = cache.folder("kind", 1, lambda to: (to / "one").write_text("other"))
    assert cache.folder("kind", 1, write_two, check) == made
    assert capsys.readouterr().err == f"damaged in the cache: {made}: one is wrong; built again\n"
    assert (made / "one").read_text() == "content"


@pytest.mark.usefixtures("fresh_cache")
def test_a_memory_under_another_key_is_computed_again(fresh_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.remember("fact", 1, lambda: [1])
    (one,) = (fresh_cache / "facts").iterdir()
    cache.remember("fact", 2, lambda: [2])
    (two,) = set((fresh_cache / "facts").iterdir()) - {one}
    shutil.copy(two, one)
    assert cache.remember("fact", 1, lambda: [1]) == [1]
    assert capsys.readouterr().err.endswith("its digest is not that of its value; computed again\n")


def test_a_changed_memory_is_made_again_and_says_so(fresh_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.remember("fact", 1, lambda: [1, 2])
    (file,) = (fresh_cache / "facts").iterdir()
    file.write_text(file.read_text().replace("[1, 2]", "[1, 3]"))
    assert cache.remember("fact", 1, lambda: [1, 2]) == [1, 2]
    assert capsys.readouterr().err == (
        f"damaged in the cache: {file}: its digest is not that of its value; computed again\n"
    )
    to_folder(file)
    assert cache.remember("fact", 1, lambda: [1, 2]) == [1, 2]
    assert "Is a directory; computed again" in capsys.readouterr().err
    assert cache.remember("fact", 1, lambda: [4]) == [1, 2]


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o775), (0o077, 0o700)])
@pytest.mark.usefixtures("fresh_cache")
def test_a_cached_folder_has_the_mode_that_the_user_asks_for(umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        made = cache.folder("kind", 1, write_two)
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == mode
