"""Reads manifest.json, which describes a folder of `harness data pretokenize` (flat, token-list or padded)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from trainer.data import cache
from trainer.data.formats.flat import TOKENS, FlatTokens, open_flat
from trainer.errors import InputError
from trainer.files import read_json

Format = Literal["padded", "token-list", "flat"]
MANIFEST_SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class ManifestOrigin:
    """What a pretokenized folder was made from. It must match what is asked for, or the folder is not used."""

    schema: int
    format: Format
    sequence_length: int | None  # tokens per padded row; None for token-list and flat, which store whole documents
    corpus_fingerprint: str
    tokenizer_fingerprint: str
    engine: str  # library and version that tokenized
    pad_id: int
    eos_id: int | None
    documents: int


@dataclass(frozen=True, kw_only=True)
class Manifest(ManifestOrigin):
    """Origin and content of a pretokenized folder."""

    corpus: str
    tokenizer: str
    empty: int  # documents without a token
    tokens: int  # tokens of the documents before truncation, including end-of-document ids, without padding
    rows_tokens: int  # stored tokens: after truncation, without padding
    data_bytes: int
    data_fingerprint: str
    writer: str
    token_type: str | None = None  # uint16 or uint32 for flat tokens

    @property
    def cut(self) -> int:
        """Number of tokens that truncation removed from padded rows."""
        return self.tokens - self.rows_tokens

    @property
    def padding(self) -> int:
        """Number of padding tokens that fill the rows; 0 for formats of whole documents."""
        return 0 if self.sequence_length is None else self.documents * self.sequence_length - self.rows_tokens


@dataclass(frozen=True)
class Pretokenized:
    """A checked pretokenized folder and its manifest."""

    folder: str
    manifest: Manifest

    @property
    def data(self) -> Path:
        """Return the path of the file with the tokens."""
        return Path(self.folder) / data_file(self.manifest.format)

    def flat(self) -> FlatTokens:
        """Return the tokens of the format *flat*, mapped into memory."""
        return open_flat(Path(self.folder), np.dtype(self.manifest.token_type).newbyteorder("<"))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of ``folder``. Raises InputError if it is missing, or of another program or version."""
    path = folder / MANIFEST
    try:
        content = read_json(path)
        if content.get("schema") != MANIFEST_SCHEMA:
            raise InputError(f"{path}: schema {content.get('schema')!r}, this version reads {MANIFEST_SCHEMA}")
        return TypeAdapter(Manifest).validate_python(content)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{folder}: not a pretokenized folder (no readable manifest.json)") from error
    except (ValidationError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a pretokenization manifest") from error


def check_data(folder: Path, manifest: Manifest) -> None:
    """Raise InputError if the files of ``folder`` are missing or not those that ``manifest`` describes."""
    data = folder / data_file(manifest.format)
    size = data.stat().st_size if data.is_file() else -1
    if size != manifest.data_bytes or cache.file_fingerprint(data) != manifest.data_fingerprint:
        changed = f"was changed after it was written ({size} bytes, {manifest.data_bytes} then)"
        problem = "is missing" if size < 0 else changed
        raise InputError(f"{data}: {problem}; delete the folder, and it will be made again")
    if (damage := cache.damage(folder, may_hold_more=True)) is not None:
        raise InputError(f"{folder}: {damage}; delete the folder, and it will be made again")


def data_file(format: str) -> str:
    """Return the name of the file that holds the tokens of a format."""
    return TOKENS if format == "flat" else "data.parquet"
