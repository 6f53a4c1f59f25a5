"""Builds everything that a data configuration needs, or finds it in the cache, before any trainer process starts.

Documents are held out for evaluation by a content hash below a bound, in any file or order. Equal documents are in the
same part, so a copy of a held-out document is not trained on. Row i of a pretokenized file is document i of the corpus,
so all data paths leave out the same documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.config import DataConfig, EvaluationConfig, Objective
from trainer.data import cache
from trainer.data.corpus import Corpus, by_row, check_vocabulary, iter_contents, prepare_corpus
from trainer.data.manifest import Format, check_data, read_manifest
from trainer.data.masking import Masking, masking_of
from trainer.data.pretokenize import no_separator, origin_of, pretokenize, truncation_warning
from trainer.data.tokenizers import TokenizerInfo, prepare_tokenizer
from trainer.errors import InputError
from trainer.files import read_json
from trainer.user_code import fingerprint

DEFAULT_FRACTION = 0.05
BUCKETS = 1_000_000  # resolution of the fraction
_TRAINING, _HELD_OUT, _COUNTS = "training.npy", "held_out.npy", "split.json"


@dataclass(frozen=True)
class DocumentSplit:
    """Division of a corpus into training and held-out documents, kept in the cache. It is picklable."""

    folder: str
    training: int  # documents, including empty ones
    held_out: int
    training_empty: int

    def training_rows(self) -> NDArray[np.int64]:
        """Return the rows of the training documents in the corpus, ascending."""
        return _load(self.folder, _TRAINING)

    def held_out_rows(self) -> NDArray[np.int64]:
        """Return the held-out rows by content hash: the first n are the same, however the corpus is ordered."""
        return _load(self.folder, _HELD_OUT)


def content_hash(content: str | bytes) -> int:
    """Return 64 bits of a document's BLAKE2b, personalized so that no other use of the hash draws the same split."""
    encoded = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    digest = hashlib.blake2b(encoded, digest_size=8, person=b"held-out")
    return int.from_bytes(digest.digest(), "big")


def held_buckets(config: EvaluationConfig, documents: int) -> int:
    """Return how many of :data:`BUCKETS` are held out. Raises InputError if ``config`` asks for all documents."""
    fraction = DEFAULT_FRACTION if config.fraction is None else config.fraction
    if config.documents is not None:
        if config.documents >= documents:
            raise InputError(
                f"evaluation.documents: {config.documents} of the corpus' {documents}; give fewer, because training "
                "needs the others"
            )
        fraction = config.documents / documents
    return max(1, round(fraction * BUCKETS))


def prepare_split(config: EvaluationConfig, corpus: Corpus) -> DocumentSplit:
    """Divide ``corpus`` into training and held-out documents, cached. Raises InputError if one part has no text."""
    buckets = held_buckets(config, corpus.documents)

    def build(folder: Path) -> None:
        _write(corpus, buckets, folder)

    folder = cache.folder("split", ["blake2b", corpus.fingerprint, buckets], build)
    counts = read_json(folder / _COUNTS)
    split = DocumentSplit(str(folder), counts["training"], counts["held_out"], counts["training_empty"])
    share = f"a share of {buckets / BUCKETS:g} of {corpus.name}'s {corpus.documents} documents"
    if split.held_out == counts["held_out_empty"]:
        raise InputError(f"evaluation: {share} holds out none with text; give a larger fraction or another corpus")
    if split.training == split.training_empty:
        raise InputError(f"evaluation: {share} leaves none with text to train on; give a smaller fraction")
    return split


def _write(corpus: Corpus, buckets: int, folder: Path) -> None:
    training: list[int] = []
    held: list[tuple[int, int]] = []
    empty = held_empty = row = 0
    for contents in iter_contents(corpus):
        for content in contents:
            content_id = content_hash(content)
            if content_id % BUCKETS < buckets:
                held.append((content_id, row))
                held_empty += not content
            else:
                training.append(row)
                empty += not content
            row += 1
    np.save(folder / _TRAINING, np.array(training, dtype=np.int64))
    np.save(folder / _HELD_OUT, np.array([row for _, row in sorted(held)], dtype=np.int64))
    counts = {"training": len(training), "held_out": len(held), "training_empty": empty, "held_out_empty": held_empty}
    (folder / _COUNTS).write_text(json.dumps(counts) + "\n")


def _load(folder: str, name: str) -> NDArray[np.int64]:
    rows: NDArray[np.int64] = np.load(Path(folder) / name, allow_pickle=False)
    return rows


@dataclass(frozen=True)
class Prepared:
    """Input that :func:`prepare` has made ready: corpus, tokenizer and files. It is picklable."""

    corpus: Corpus
    tokenizer: TokenizerInfo
    pretokenized: str | None  # folder with data.parquet and manifest.json; None for text-* paths
    objective: Objective = "causal"
    masking: Masking | None = None  # missing without masking
    split: DocumentSplit | None = None  # missing if all documents are for training
    held_out: Prepared | None = None  # evaluation.corpus, if given; all its documents are held out

    @property
    def vocab_size(self) -> int:
        """Size of the smallest embedding table that holds every token id, including the mask's."""
        return max(self.tokenizer.vocab_size, 0 if self.masking is None else self.masking.mask_id + 1)

    def with_objective(self, objective: Objective) -> Prepared:
        """Return the same input for a model with ``objective``, with the ids for masking if needed."""
        masking = None
        if objective != "causal" and self.tokenizer.kind != "source":
            masking = masking_of(self.tokenizer)
        held_out = None if self.held_out is None else replace(self.held_out, objective=objective, masking=masking)
        return replace(self, objective=objective, masking=masking, held_out=held_out)


def prepare(
    config: DataConfig,
    places: Sequence[str] | None = None,
    files: Sequence[str] = (),
    evaluation: EvaluationConfig | None = None,
) -> Prepared:
    """Build everything that ``config`` needs, or find it in the cache, and return its description.

    Imports no torch, except for a hub tokenizer's first use. ``places``: folders to search first for the user's
    function ``config.source``; None: the working directory and those of ``CODE_PATH``. ``files``: further files that
    the user's code imports. ``evaluation``: the documents to hold out. Raises InputError, one line, for every input
    that cannot be used.
    """
    if config.source is not None:
        return _of_source(config.source, places, files)
    corpus = prepare_corpus(config.corpus)
    if format_of(config) is None and corpus.content == "tokens":
        by_row(corpus, f"data.path: {config.path}")  # Raises InputError, with the paths that read token ids.
    tokenizer = prepare_tokenizer(config.tokenizer, corpus)
    prepared = _of_corpus(config, corpus, tokenizer)
    if evaluation is None:
        return prepared
    if evaluation.corpus is None:
        return replace(prepared, split=prepare_split(evaluation, corpus))
    try:
        held_out_corpus = prepare_corpus(evaluation.corpus)
        check_vocabulary(held_out_corpus, tokenizer.vocab_size)
        return replace(prepared, held_out=_of_corpus(config, held_out_corpus, tokenizer))
    except InputError as error:
        raise InputError(str(error).replace("data.corpus", "evaluation.corpus")) from error


def _of_corpus(config: DataConfig, corpus: Corpus, tokenizer: TokenizerInfo) -> Prepared:
    """Prepare the documents of ``corpus`` for the data path: as text by row, or pretokenized in the path's format."""
    if (
        corpus.pretokenized
        and read_manifest(Path(corpus.pretokenized[0])).tokenizer_fingerprint != tokenizer.fingerprint
    ):
        raise InputError(
            f"data.corpus: another tokenizer than data.tokenizer made the tokens in {corpus.pretokenized[0]}"
        )
    format = format_of(config)
    if format is None:
        return Prepared(by_row(corpus, f"data.path: {config.path}"), tokenizer, None)
    folder = _ready(corpus, tokenizer, format, config.sequence_length)
    if folder is None:
        folder = pretokenize(corpus, tokenizer, format, config.sequence_length).folder
    return Prepared(corpus, tokenizer, folder)


def _ready(corpus: Corpus, tokenizer: TokenizerInfo, format: Format, sequence_length: int) -> str | None:
    """Return the first folder in ``corpus.pretokenized`` that has the data path's format; None if none has it."""
    origin = asdict(origin_of(corpus, tokenizer, format, sequence_length))
    del origin["corpus_fingerprint"], origin["engine"]  # The corpus is this folder, whatever engine made it.
    for folder in corpus.pretokenized:
        manifest = read_manifest(Path(folder))
        if origin.items() <= asdict(manifest).items():
            check_data(Path(folder), manifest)
            return folder
    return None


def _of_source(name: str, places: Sequence[str] | None, files: Sequence[str]) -> Prepared:
    """Describe the source ``name``, by its code alone. ``places`` to search first, ``files`` that it imports."""
    code = fingerprint("data.source", name, places, files)
    tokenizer = TokenizerInfo("source", "", 0, None, None, None, code, "")
    return Prepared(Corpus(name, (), "", 0, 0, code), tokenizer, None)


def format_of(config: DataConfig) -> Format | None:
    """Return the pretokenized format that the data path reads; None for a path that reads text."""
    formats: dict[str, Format] = {"tokens-padded": "padded", "tokens-stream": "token-list", "tokens-mmap": "flat"}
    return formats.get(config.path)


def warnings_of(config: DataConfig, prepared: Prepared) -> list[str]:
    """Return warnings, a line each: documents joined without a separator, cut, or both held out and trained on."""
    if config.source is not None:
        return []
    warnings = []
    if prepared.held_out is not None and prepared.held_out.corpus.fingerprint == prepared.corpus.fingerprint:
        warnings.append(
            "warning: evaluation.corpus contains the training documents, so its loss is not a validation loss"
        )
    if not config.path.endswith("-padded"):
        warning = no_separator(prepared.tokenizer)
    elif prepared.pretokenized is not None:
        warning = truncation_warning(read_manifest(Path(prepared.pretokenized)))
    else:  # The documents are not tokenized yet, so their lengths are unknown.
        warning = None
    return warnings if warning is None else [*warnings, warning]


def check_workers(config: DataConfig, prepared: Prepared, ranks: int = 1) -> None:
    """Raise InputError if there are more shards (one per worker of each rank) than documents."""
    if config.source is not None:
        return
    corpus, split = prepared.corpus, prepared.split
    documents = corpus.documents - corpus.empty if split is None else split.training - split.training_empty
    if ranks > 1 and ranks * max(config.workers, 1) > documents:
        processes = f"{ranks} ranks of {config.workers} workers" if config.workers else f"{ranks} ranks"
        raise InputError(
            f"launch.torchrun.nproc: {processes} but only {documents} document{'s' if documents != 1 else ''} in the "
            f"corpus {corpus.name}; allowed: at most {documents} " + ("in all" if config.workers else "ranks")
        )
    if config.workers > documents:
        held_out = "" if split is None else f" beside the {split.held_out} held out"
        raise InputError(
            f"data.workers: {config.workers} workers but only {documents} document{'s' if documents != 1 else ''} "
            f"in the corpus {corpus.name}{held_out}; at most {documents}"
        )
