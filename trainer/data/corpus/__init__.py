"""Finds and checks a corpus' files and streams their documents, whatever the files' format and place."""

from trainer.data.corpus.base import CORPUS_ROW_GROUP, Corpus
from trainer.data.corpus.prepare import check_there, matching_files, prepare_corpus
from trainer.data.corpus.reading import (
    by_row,
    check_unchanged,
    check_vocabulary,
    iter_contents,
    iter_encoded,
    iter_texts,
)

__all__ = [
    "CORPUS_ROW_GROUP",
    "Corpus",
    "by_row",
    "check_there",
    "check_unchanged",
    "check_vocabulary",
    "iter_contents",
    "iter_encoded",
    "iter_texts",
    "matching_files",
    "prepare_corpus",
]
