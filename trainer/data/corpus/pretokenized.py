"""Takes what `harness data pretokenize --out` wrote for a corpus of token ids, as the founding study does.

The folder given is one format's, or the one that has several: then whole documents (flat, token-list) come before
padded rows, and a data path that needs another format of them finds it there, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.corpus import places
from trainer.data.formats.exchange import document_chunks
from trainer.data.manifest import MANIFEST, Manifest, Pretokenized, read_manifest
from trainer.errors import InputError
from trainer.files import expanded

# The column of each format. Formats that store whole documents come first.
COLUMNS = {"flat": "tokens", "token-list": "tokens", "padded": "input_ids"}


def find(path: str) -> list[Pretokenized]:
    """Return the pretokenized folders at ``path``, those with whole documents first. The list may be empty.

    Raises InputError if they were made from different corpora or with different tokenizers.
    """
    if places.is_remote(path):
        return []
    folder = expanded(places.local(path)).absolute()
    here = (folder / MANIFEST).is_file()
    made = [found for one in ([folder] if here else (folder / name for name in COLUMNS)) for found in _read(one)]
    for one in made[1:]:
        for key in ("corpus_fingerprint", "tokenizer_fingerprint", "eos_id", "documents"):
            first, other = getattr(made[0].manifest, key), getattr(one.manifest, key)
            if first != other:
                raise InputError(
                    f"{places.KEY}: {path} holds tokens of several origins: {key} is {first!r} in {made[0].folder} and "
                    f"{other!r} in {one.folder}; give one of them"
                )
    return made


def read_flat(name: str) -> Iterator[Any]:
    """Yield the documents of flat tokens as Arrow lists. ``name``: the file with the tokens."""
    import pyarrow as pa

    folder = Path(name).parent
    for ids, lengths in document_chunks(Pretokenized(str(folder), read_manifest(folder)).flat()):
        yield pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]), pa.array(ids))


def _read(folder: Path) -> list[Pretokenized]:
    if not (folder / MANIFEST).is_file():
        return []
    try:
        manifest: Manifest = read_manifest(folder)
    except InputError:  # Another program wrote this manifest.
        return []
    return [Pretokenized(str(folder), manifest)] if manifest.format in COLUMNS else []
