"""The table of formats says what the files of each really are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.data.formats.export import Vocabulary, costs
from trainer.data.formats.flat import FlatTokens

LENGTHS = [5, 0, 40, 3]


@pytest.mark.parametrize(("size", "bytes_each"), [(300, 2), (70_000, 4)])
def test_sizes_and_tokens(tmp_path: Path, size: int, bytes_each: int) -> None:
    flat = FlatTokens(np.arange(48, dtype="<u2" if bytes_each == 2 else "<u4"), np.cumsum([0, *LENGTHS]))
    found = {one.format: one for one in costs(flat, Vocabulary(size, 7), 16, 0, tmp_path, repeats=2)}
    assert found["flat"].size_bytes == 48 * bytes_each + 5 * 8
    assert found["padded"].tokens == 5 + 16 + 3
    assert found["token-list"].tokens == found["flat"].tokens == 48
    for name, header in (("llmc", 1024), ("nanogpt", 0)):
        if bytes_each == 2:
            assert (found[name].tokens, found[name].size_bytes) == (48, 48 * 2 + header)
        else:
            assert "its ids are uint16" in found[name].reason
    assert all(one.write_s > 0 and one.read_s > 0 for one in found.values() if not one.reason)
    assert list(tmp_path.iterdir()) == []
