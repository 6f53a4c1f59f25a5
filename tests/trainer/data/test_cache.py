"""What is cached appears whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trainer.data import cache


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
