"""Defines the ``data`` section: corpus, tokenizer, data path and loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, PrivateAttr, WithJsonSchema, model_validator

from trainer.config_base import Config, How, Milliseconds
from trainer.json_types import Json, JsonObject
from trainer.user_code import named_function


class TrainTokenizer(Config):
    """A tokenizer trained once on the corpus. It is cached by the content of corpus and settings."""

    kind: Literal["bpe", "unigram", "wordpiece", "sentencepiece"] = "bpe"
    """Model type. sentencepiece trains and encodes with that library, the others with `tokenizers`."""
    vocab_size: int = Field(4096, ge=300, le=1_000_000)


class TokenizerConfig(Config):
    """The tokenizer, by exactly one of: train (made from the corpus); pretrained (a directory or name for
    AutoTokenizer, or a tokenizer.json); sentencepiece (a model file).
    """

    train: TrainTokenizer | None = None
    pretrained: str | None = None
    sentencepiece: str | None = None
    engine: Literal["tokenizers", "sentencepiece", "tiktoken", "gigatoken", "fastokens", "auto"] | None = None
    """Library that encodes; null: the tokenizer's own. Another one is used only if it gives the same ids on the corpus
    (see prove). auto: the fastest installed one that does. Each needs the extra of its name."""
    prove: Literal["sample", "corpus"] | None = None
    """Text on which another engine must give the same ids: up to 4 MB of the corpus (sample, null), or all of it."""
    special_tokens_in_text: Literal["as-special", "as-text", "refuse"] | None = None
    """Encoding of text that looks like a special token. as-special: as that token. as-text: as ordinary text. refuse:
    the study does not start. null: as the tokenizer's own library does (`tokenizers`: as-special, sentencepiece:
    as-text)."""

    @model_validator(mode="after")
    def _exactly_one(self) -> TokenizerConfig:
        if sum(value is not None for value in (self.train, self.pretrained, self.sentencepiece)) != 1:
            raise ValueError("give exactly one of train, pretrained, sentencepiece")
        return self


class CorpusConfig(Config):
    """The corpus, by exactly one of: builtin; parquet (file or glob) with its text column; path (any format, any
    place).
    """

    builtin: Literal["python-docs"] | None = None
    parquet: str | None = None
    path: str | None = None
    """A file, a folder, a glob, or a URL of one (s3://, gs://, file://, or what fsspec knows): Parquet, JSONL, text,
    Arrow files and streams, or what Hugging Face's save_to_disk writes. JSONL and text may be gzip or Zstandard. A
    remote file is identified by its size and ETag, and its documents are hashed at the first read. Also a local folder
    of harness data pretokenize --out: its tokens are used, with the tokenizer in it."""
    format: Literal["auto", "parquet", "jsonl", "text", "arrow"] = "auto"
    """Format of the files in path. auto: detected from the name, else from the first bytes."""
    column: str = "text"
    """Column with the documents: strings. With path also lists of token ids, made by data.tokenizer (ids with
    attention_mask 0 are dropped), or lists of messages {role, content}, which chat_template renders. Text files have
    no columns."""
    split: Literal["file", "line", "blank-line"] = "file"
    """Unit that is one document of a text file: the file, a line, or the text between blank lines."""
    chat_template: str | None = None
    """For a column of messages: a Jinja file, or the folder of a tokenizer that has one; rendered in a sandbox."""
    documents: int | None = Field(None, ge=1)
    """Use only the first N documents."""

    @model_validator(mode="after")
    def _exactly_one(self) -> CorpusConfig:
        if sum(value is not None for value in (self.builtin, self.parquet, self.path)) != 1:
            raise ValueError("give exactly one of builtin, parquet, path")
        options = {"format": self.format != "auto", "split": self.split != "file", "chat_template": self.chat_template}
        if self.path is None and (wrong := [name for name, value in options.items() if value]):
            raise ValueError(f"{wrong[0]} needs path, not {'builtin' if self.builtin else 'parquet'}")
        return self


class DataInject(Config):
    """Artificial costs, added to the stages of every batch (milliseconds per batch), to test the harness."""

    read_ms: Milliseconds = 0
    tokenize_ms: Milliseconds = 0
    pack_ms: Milliseconds = 0
    transfer_ms: Milliseconds = 0
    how: How = "busy"
    """busy: spend CPU time of the thread; sleep: wait without using a core."""
    jitter: float = Field(0, ge=0, lt=1)
    """Random factor of each cost: seeded, uniform in [1 - jitter, 1 + jitter]."""
    rank: int | None = Field(None, ge=0, le=1023)
    """Rank with these costs (an injected straggler); null: all ranks."""


_WORKERS: JsonObject = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 256}, {"const": "auto"}], "default": 0}


class DataConfig(Config):
    """Data pipeline (source, tokenization, packing) and its loader."""

    path: Literal["text-padded", "text-stream", "tokens-padded", "tokens-stream", "tokens-mmap"] = "text-padded"
    """text-*: tokenize on the fly. tokens-*: pretokenized files. *-padded: one document per row. *-stream:
    packed rows. tokens-mmap: the same packed rows, read from memory-mapped flat tokens."""
    access: Literal["scalar", "zero-copy"] = "scalar"
    """scalar: per-row Arrow scalars and Python lists (slow); zero-copy: Arrow buffers as arrays. tokens-mmap uses only
    arrays."""
    corpus: CorpusConfig = CorpusConfig(builtin="python-docs")
    tokenizer: TokenizerConfig = TokenizerConfig(train=TrainTokenizer())
    sequence_length: int = Field(256, ge=2, le=1_048_576)
    """Tokens per row, at least 2."""
    batch_size: int = Field(8, ge=1, le=65_536)
    """Rows of a micro-batch, per rank."""
    shuffle: bool | Literal["documents", "windows"] = True
    """true: documents in a seeded order per epoch, stored in memory (8 bytes per document). documents: the same, with
    the order computed instead of stored. windows (tokens-mmap): shuffle row-sized pieces of the flat tokens, as in
    nanoGPT, which mixes long documents best. With held-out documents, pieces that contain a part of one are skipped (8
    bytes of memory per remaining piece)."""
    documents: Literal["joined", "separated"] = "joined"
    """Attention in packed rows. joined: to all earlier tokens of the row. separated: only to those of its own document,
    and positions restart with each document; needs tokens-mmap, or *-stream with zero-copy."""
    global_order: bool = False
    """Make the batches independent of the number of workers and ranks: batches of one process, distributed round-robin.
    Needs tokens-mmap, or tokens-stream with zero-copy, because it uses the documents' lengths."""
    workers: Annotated[int, WithJsonSchema(_WORKERS)] = Field(0, ge=0, le=256)
    """Processes that make batches; 0: the training process makes them. auto: chosen by a short trial before the study,
    from the cost to make and transfer a batch and the time of a step."""
    prefetch: int = Field(2, ge=1, le=1024)
    """Batches in flight per worker (DataLoader's prefetch_factor); no effect with workers 0."""
    transport: Literal["dataloader", "ring"] = "dataloader"
    """Transfer of batches from workers. dataloader: torch's way, new shared memory for each tensor. ring: preallocated
    shared memory, at a fraction of the cost."""
    pin_memory: bool = False
    tokenize: Literal["batched", "per-sample", "threads", "processes", "pool"] = "batched"
    """How a text-* path tokenizes. batched: one call for all documents of a read. per-sample: one call per document.
    threads: split over ``tokenize_threads`` threads (per loader worker). processes: split over ``tokenize_processes``
    new processes. pool: the same, with processes that are kept."""
    tokenize_threads: int = Field(2, ge=1, le=256)
    """Threads of ``tokenize: threads``."""
    tokenize_processes: int = Field(2, ge=1, le=256)
    """Processes of ``tokenize: processes`` and ``pool``."""
    timeout_s: float = Field(300, gt=0, le=86_400)
    """Seconds to wait for a batch of the workers before the run fails, without time in which it is suspended. Without
    workers only `limits.silence_s` of the scenario applies."""
    start_method: Literal["fork", "forkserver", "spawn"] = "fork"
    """How loader workers start. fork is safe, because they start before this process tokenizes."""
    replay: bool = False
    """Repeat the first batch forever: no data cost (set by the ideal-data control). If batches of your own source
    differ in length, repeat its first 32 (fewer if they reach 256 MB or take 10 s)."""
    extra_reads: int = Field(0, ge=0, le=64)
    """Extra reads of every batch's rows, whose results are dropped (set by a dose control). A source of your own makes
    the whole batch again."""
    extra_tokenizations: int = Field(0, ge=0, le=64)
    """Extra tokenizations of every batch, whose results are dropped (set by a dose control)."""
    inject: DataInject | None = None
    source: Annotated[str, AfterValidator(named_function)] | None = None
    """Your MODULE:FUNCTION. It returns a Dataset, an IterableDataset, a DataLoader (its workers, prefetch and pinning
    are ignored) or a pair (dataset, collate function). It may have parameters seed, batch_size and sequence_length. The
    keys path, access, corpus and tokenizer are ignored. A batch has input_ids, and may have labels and attention_mask
    (passed to the model if padding precedes text)."""
    arguments: dict[str, Json] = Field({})
    """More arguments of the source's function, by name."""

    _chooses_workers: bool = PrivateAttr(False)

    @model_validator(mode="wrap")
    @classmethod
    def _workers_to_be_chosen(cls, given: Any, handler: ModelWrapValidatorHandler[DataConfig]) -> DataConfig:
        """Replace ``workers: auto`` by 0 until they are chosen, so that it is always a number."""
        if not (isinstance(given, Mapping) and given.get("workers") == "auto"):
            return handler(given)
        config = handler({**given, "workers": 0})
        config._chooses_workers = True
        return config

    @property
    def chooses_workers(self) -> bool:
        """True if the user wrote ``workers: auto``. A short trial before the study then chooses the number."""
        return self._chooses_workers

    @property
    def is_flat(self) -> bool:
        """True if packed rows are cut from flat tokens: all documents end to end in one array, with known lengths."""
        return self.path == "tokens-mmap" or (self.path == "tokens-stream" and self.access == "zero-copy")

    @model_validator(mode="after")
    def _orders_need_lengths(self) -> DataConfig:
        if self.source is not None:
            return self
        if self.shuffle == "windows" and self.path != "tokens-mmap":
            raise ValueError(
                f"shuffle: windows are pieces of flat tokens, which path {self.path} does not have; allowed with it: "
                "true, documents, false; or path tokens-mmap"
            )
        if self.global_order and not self.is_flat:
            raise ValueError(
                f"global_order: with path {self.path} and access {self.access} a worker does not know the lengths of "
                "the documents of other workers; allowed: path tokens-mmap, or tokens-stream with access zero-copy"
            )
        if self.documents == "separated" and not (
            self.is_flat or (self.path == "text-stream" and self.access == "zero-copy")
        ):
            raise ValueError(
                f"documents: separated needs packed rows of arrays, not path {self.path} with access "
                f"{self.access}; allowed: path tokens-mmap, or text-stream, tokens-stream with access zero-copy"
            )
        return self

    @model_validator(mode="after")
    def _workers_start_no_processes(self) -> DataConfig:
        if self.workers and self.tokenize in ("processes", "pool"):
            raise ValueError(
                f"tokenize: {self.tokenize} starts processes, but loader workers cannot; allowed with workers "
                f"{self.workers}: batched, per-sample, threads; or workers 0"
            )
        return self
