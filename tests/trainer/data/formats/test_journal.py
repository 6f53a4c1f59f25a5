"""Whatever a kill or a damage leaves of a journal: what it gives back was written, and it goes on behind that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.engines.base import Encoded, with_end_of_text
from trainer.data.formats.flat import JOURNAL, PLACES, TOKENS, FlatWriter, TokenJournal, open_flat, token_type
from trainer.errors import InputError

DTYPE = np.dtype("<u2")
GROUPS = [[[1, 2, 3], [4]], [[]], [[5, 6], [], [7, 8, 9, 10]], [[11] * 40]]


def arrays(group: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([one for document in group for one in document], DTYPE), np.array(list(map(len, group)))


def kept(journal: TokenJournal) -> list[list[list[int]]]:
    found = []
    for ids, lengths in journal.kept():
        ends = np.cumsum(lengths)
        found.append([ids[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)])
    return found


def begun(folder: Path, groups: int, origin: str = "a") -> None:
    with TokenJournal(folder, {"of": origin}, DTYPE) as journal:
        assert kept(journal) == []
        for group in GROUPS[:groups]:
            journal.add(*arrays(group))


def complete(folder: Path, origin: str = "a") -> int:
    """Write what is missing; returns how many groups were kept."""
    with TokenJournal(folder, {"of": origin}, DTYPE) as journal:
        found = kept(journal)
        assert found == GROUPS[: len(found)]
        for group in GROUPS[len(found) :]:
            journal.add(*arrays(group))
        digests = journal.finish()
    assert set(digests) == {TOKENS, PLACES}
    return len(found)


def check(folder: Path) -> None:
    flat = open_flat(folder.parent, DTYPE)
    documents = [document for group in GROUPS for document in group]
    assert [flat.document(number).tolist() for number in range(flat.documents)] == documents


@pytest.mark.parametrize("groups", range(len(GROUPS) + 1))
def test_it_goes_on_behind_what_is_there(tmp_path: Path, groups: int) -> None:
    begun(tmp_path / "journal", groups)
    assert complete(tmp_path / "journal") == groups
    check(tmp_path / "journal")
    assert complete(tmp_path / "journal") == len(GROUPS)  # killed before the folder was renamed
    check(tmp_path / "journal")


@given(name=st.sampled_from([TOKENS, PLACES, JOURNAL]), place=st.floats(0, 1), bit=st.integers(0, 7), cut=st.booleans())
def test_no_damage_is_taken_for_tokens(tmp_path_factory, name, place, bit, cut) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "journal"
    begun(folder, 3)
    content = bytearray((folder / name).read_bytes())
    at = min(int(place * len(content)), len(content) - 1)
    if cut:
        del content[at:]
    else:
        content[at] ^= 1 << bit
    (folder / name).write_bytes(content)
    complete(folder)
    check(folder)


def test_half_written_groups_are_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    begun(folder, 2)
    for name, more in ((TOKENS, b"\1" * 7), (PLACES, b"\2" * 9), (JOURNAL, b"[6, 10, ")):
        with (folder / name).open("ab") as file:
            file.write(more)
    assert complete(folder) == 2
    check(folder)


def test_tokens_of_anything_else_are_not_gone_on_with(tmp_path: Path) -> None:
    begun(tmp_path / "journal", 3, "b")
    assert complete(tmp_path / "journal", "a") == 0
    check(tmp_path / "journal")


@pytest.mark.parametrize("line", ["[1]", "{}", "[1e400, 2]", "[[], 1]", "null", "[-1, -1]", "[" * 10000])
def test_a_line_that_makes_no_sense_ends_what_is_kept(tmp_path: Path, line: str) -> None:
    begun(tmp_path / "journal", 1)
    with (tmp_path / "journal" / JOURNAL).open("a") as file:
        file.write(line + "\n")
    assert complete(tmp_path / "journal") == 1
    check(tmp_path / "journal")


def written(folder: Path, documents: list[list[int]], vocab_size: int = 100) -> Path:
    with FlatWriter(folder, token_type(vocab_size)) as writer:
        for document in documents:
            writer.add(np.asarray(document, np.uint32), [len(document)])
    return folder


@pytest.mark.parametrize(("vocab_size", "bytes_each"), [(65_536, 2), (65_537, 4)])
def test_documents_come_back(tmp_path: Path, vocab_size: int, bytes_each: int) -> None:
    documents = [[1, vocab_size - 1], [], [7, 8, 9]]
    found = open_flat(written(tmp_path, documents, vocab_size), token_type(vocab_size))
    assert [found.document(number).tolist() for number in range(found.documents)] == documents
    assert (tmp_path / TOKENS).stat().st_size == 5 * bytes_each


def test_no_document_at_all(tmp_path: Path) -> None:
    assert open_flat(written(tmp_path, []), token_type(9)).documents == 0


@pytest.mark.parametrize("name", [TOKENS, PLACES])
@pytest.mark.parametrize("cut", [1, 8])
def test_files_cut_short_are_refused(tmp_path: Path, name: str, cut: int) -> None:
    written(tmp_path, [[1, 2, 3, 4], [5]])
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match=name):
        open_flat(tmp_path, token_type(100))


def test_end_of_text_follows_each_document_that_has_a_token() -> None:
    encoded = Encoded(np.array([1, 2, 3], np.uint32), np.array([2, 0, 1]))
    ended = with_end_of_text(encoded, 9)
    assert (ended.ids.tolist(), ended.lengths.tolist()) == ([1, 2, 9, 3, 9], [3, 0, 2])
    assert with_end_of_text(encoded, None) is encoded
