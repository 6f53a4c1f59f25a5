"""What is cached appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
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


def test_a_damaged_memory_is_made_again(fresh_cache: Path) -> None:
    assert cache.remember("fact", 1, lambda: [1, 2]) == [1, 2]
    assert cache.remember("fact", 1, lambda: [3]) == [1, 2]
    (file,) = (fresh_cache / "facts").iterdir()
    file.write_text("{")
    assert cache.remember("fact", 1, lambda: [3]) == [3]


@pytest.mark.usefixtures("fresh_cache")
def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("same")
    two.write_text("same")
    assert cache.file_fingerprint(one) == cache.file_fingerprint(two)
    two.write_text("else!")
    assert cache.file_fingerprint(one) != cache.file_fingerprint(two)


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


@pytest.mark.parametrize("name", ["one", cache.DIGESTS])
@pytest.mark.parametrize(("damage", "why"), [
    (flip, "one differs from what was written|digests.json: not readable"),
    (lambda path: path.write_text(""), "one differs from what was written|digests.json: not readable"),
    (to_folder, "one: Is a directory|digests.json: Is a directory"),
    (lambda path: path.write_text("[]"), "one differs from what was written|digests.json: not an object"),
    (lambda path: path.write_text("{}"), "(one|entry.txt) differs from what was written"),
])  # fmt: skip
def test_a_damaged_folder_is_built_again_and_says_so(
    fresh_cache: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], object], why: str
) -> None:
    made = cache.folder("kind", 1, write_two)
    damage(made / name)
    assert cache.folder("kind", 1, write_two) == made
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"damaged in the cache: {made}: ({why}); built again", line)
    assert (made / "one").read_text() == "content"
    assert {path.name for path in made.iterdir()} == {"one", "two", cache.ENTRY, cache.DIGESTS}
    cache.folder("kind", 1, write_two)
    assert capsys.readouterr().err == ""
    assert list((fresh_cache / "kind").iterdir()) == [made]


@pytest.mark.usefixtures("fresh_cache")
def test_a_file_in_place_of_a_folder_and_a_file_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    made = cache.folder("kind", 1, write_two)
    (made / "two").unlink()
    cache.folder("kind", 1, write_two)
    assert "two is gone; built again" in capsys.readouterr().err
    cache.remove(made)
    made.write_text("a file")
    cache.folder("kind", 1, write_two)
    assert "not a folder; built again" in capsys.readouterr().err
    assert (made / "two").read_text() == "more"


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
@pytest.mark.parametrize("kind", ["kind", "another kind"])
def test_an_entry_under_another_key_or_kind_is_built_again(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = cache.folder("kind", 1, write_two)
    other = cache.folder(kind, 2, lambda to: (to / "one").write_text("other"))
    shutil.rmtree(made)
    shutil.copytree(other, made)
    assert cache.folder("kind", 1, write_two) == made
    line = f"damaged in the cache: {made}: it is the entry of another key; built again\n"
    assert capsys.readouterr().err == line
    assert (made / "one").read_text() == "content"
    cache.folder("kind", 1, write_two)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("fresh_cache")
def test_a_memory_under_another_key_is_computed_again(fresh_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.remember("fact", 1, lambda: [1])
    (one,) = (fresh_cache / "facts").iterdir()
    cache.remember("fact", 2, lambda: [2])
    (two,) = set((fresh_cache / "facts").iterdir()) - {one}
    shutil.copy(two, one)
    assert cache.remember("fact", 1, lambda: [1]) == [1]
    assert capsys.readouterr().err.endswith("its digest is not that of its value; computed again\n")


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.usefixtures("fresh_cache")
def test_an_entry_of_an_earlier_version_is_built_again(digests: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not say which entry it is, so it may be any."""
    made = cache.folder("kind", 1, write_two)
    known = json.loads((made / cache.DIGESTS).read_text())
    (made / cache.ENTRY).unlink()
    (made / cache.DIGESTS).unlink()
    if digests:
        del known[cache.ENTRY]
        (made / cache.DIGESTS).write_text(json.dumps(known))
    cache.folder("kind", 1, write_two)
    why = "an earlier version wrote it, without its key" if digests else "digests.json is gone"
    assert capsys.readouterr().err == f"damaged in the cache: {made}: {why}; built again\n"


@pytest.mark.usefixtures("fresh_cache")
def test_an_earlier_version_takes_an_entry_of_this_one() -> None:
    """It asks that digests.json has a file's name and digest for every key, and every file a key."""
    made = cache.folder("kind", 1, write_two)
    known = json.loads((made / cache.DIGESTS).read_text())
    files = [path for path in made.iterdir() if path.name != cache.DIGESTS]
    assert known == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


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
