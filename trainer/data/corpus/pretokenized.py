"""Reads folders of `harness data pretokenize --out` as a corpus of token ids, as in the founding study.

The folder has one format, or a folder for each of several formats. Whole documents (flat, token-list) are preferred to
padded rows. A data path that needs one of the other formats uses that folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.corpus import places
from trainer.data.formats.exchange import document_chunks
from trainer.data.manifest import MANIFEST, Pretokenized, read_manifest
from trainer.errors import InputError
from trainer.files import expanded

# The column of each format. Formats that store whole documents come first.
COLUMNS = {"flat": "tokens", "token-list": "tokens", "padded": "input_ids"}


def find(path: str) -> list[Pretokenized]:
    """Return the pretokenized folders at ``path``, those with whole documents first. Empty without one, and for a URL.

    Raises InputError if they were made from different corpora or with different tokenizers.
    """
    if places.is_remote(path):
        return []
    folder = expanded(places.local(path)).absolute()
    is_single = (folder / MANIFEST).is_file()
    folders = [folder] if is_single else [folder / name for name in COLUMNS]
    parts = [part for candidate in folders if (part := _read(candidate)) is not None]
    for part in parts[1:]:
        for key in ("corpus_fingerprint", "tokenizer_fingerprint", "eos_id", "documents"):
            first, second = getattr(parts[0].manifest, key), getattr(part.manifest, key)
            if first != second:
                raise InputError(
                    f"{places.KEY}: {path} holds tokens of several origins: {key} is {first!r} in {parts[0].folder} "
                    f"and {second!r} in {part.folder}; give one of them"
                )
    return parts


def read_flat(name: str) -> Iterator[Any]:
    """Yield the documents of flat tokens as Arrow lists. ``name``: the file with the tokens."""
    import pyarrow as pa

    folder = Path(name).parent
    for ids, lengths in document_chunks(Pretokenized(str(folder), read_manifest(folder)).flat()):
        yield pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]), pa.array(ids))


def _read(folder: Path) -> Pretokenized | None:
    try:
        manifest = read_manifest(folder)
    except InputError:  # There is no manifest, or another program wrote it.
        return None
    return Pretokenized(str(folder), manifest) if manifest.format in COLUMNS else None
