"""A corpus: its files are found, checked, and its documents streamed, whatever their format and place are."""

from trainer.data.corpus.base import CORPUS_ROW_GROUP, Corpus
from trainer.data.corpus.prepare import check_there, check_unchanged, matching_files, prepare_corpus
from trainer.data.corpus.reading import check_vocabulary, iter_contents, iter_encoded, iter_texts
from trainer.data.corpus.rows import by_row

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
