"""Defines the ``data`` section: corpus, tokenizer, data path and loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from trainer.config_base import Config, How, Milliseconds
from trainer.json_types import Json, JsonObject
from trainer.user_code import named_function


class TrainTokenizer(Config):
    """A tokenizer that is trained once on the corpus, and cached by the content of corpus and settings."""

    kind: Literal["bpe", "unigram", "wordpiece", "sentencepiece"] = "bpe"
    """sentencepiece: a unigram model of that library, which encodes with it, too; the others are of `tokenizers`."""
    vocab_size: int = Field(4096, ge=300, le=1_000_000)


class TokenizerConfig(Config):
    """Exactly one of: train; pretrained (a directory or name for AutoTokenizer, or a tokenizer.json); sentencepiece (a
    model file)."""

    train: TrainTokenizer | None = None
    pretrained: str | None = None
    sentencepiece: str | None = None
    engine: Literal["tokenizers", "sentencepiece", "tiktoken", "gigatoken", "fastokens", "auto"] | None = None
    """The library that encodes; null: the one that the tokenizer was made for. Another must prove on the corpus, before
    it is used, that its ids are the same. auto: the fastest of those installed that does. Each is an extra."""
    prove: Literal["sample", "corpus"] | None = None
    """What another engine must prove itself on: up to 4 MB of the corpus (null: the same), or all of it."""
    special_tokens_in_text: Literal["as-special", "as-text", "refuse"] | None = None
    """What a document's text that reads like a special token becomes: that token's id, ids of its characters, or the
    end of the study before it begins. null: what the tokenizer's own library does (`tokenizers`: as-special,
    sentencepiece: as-text)."""

    @model_validator(mode="after")
    def _exactly_one(self) -> TokenizerConfig:
        if sum(value is not None for value in (self.train, self.pretrained, self.sentencepiece)) != 1:
            raise ValueError("give exactly one of train, pretrained, sentencepiece")
        return self


class CorpusConfig(Config):
    """Exactly one of: builtin; parquet (a file or glob) with its text column; path, for any format and place."""

    builtin: Literal["python-docs"] | None = None
    parquet: str | None = None
    path: str | None = None
    """A file, a folder, a glob, or a URL of one (s3://, gs://, file://, or what fsspec knows): Parquet, JSONL, text,
    Arrow files and streams, or what Hugging Face's save_to_disk writes. JSONL and text may be gzip or Zstandard. A
    remote file is known by its size and ETag, and its documents are hashed when they are first read. Also a folder of
    harness data pretokenize --out, here: its tokens are read as they are, with the tokenizer that lies in it."""
    format: Literal["auto", "parquet", "jsonl", "text", "arrow"] = "auto"
    """Of path. auto: by the name and, where it does not say it, by the first bytes."""
    column: str = "text"
    """Column with strings. With path it may also have lists of token ids, which no tokenizer processes; data.tokenizer
    is then the one that made them. Ids whose attention_mask is 0 are left out, if the files have that column. With path
    it may also have lists of messages {role, content}, which chat_template renders. Text files have no columns."""
    split: Literal["file", "line", "blank-line"] = "file"
    """What a document of a text file is: the file, a line, or what stands between blank lines."""
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
            raise ValueError(f"{wrong[0]} goes with path, not with {'builtin' if self.builtin else 'parquet'}")
        return self


class DataInject(Config):
    """Known costs added to the stages of every batch (milliseconds per batch), to test the harness itself."""

    read_ms: Milliseconds = 0
    tokenize_ms: Milliseconds = 0
    pack_ms: Milliseconds = 0
    transfer_ms: Milliseconds = 0
    how: How = "busy"
    """busy spends that much CPU time of the thread; sleep waits without using a core."""
    jitter: float = Field(0, ge=0, lt=1)
    """Each cost is multiplied by a seeded uniform draw from [1 - jitter, 1 + jitter]."""
    rank: int | None = Field(None, ge=0, le=1023)
    """Only this rank spends them (an injected straggler); None: every rank does."""


_WORKERS: JsonObject = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 256}, {"const": "auto"}], "default": 0}


class DataConfig(Config):
    """The input side: a data pipeline (source, tokenization, packing) and the loader around it."""

    path: Literal["text-padded", "text-stream", "tokens-padded", "tokens-stream", "tokens-mmap"] = "text-padded"
    """text-*: tokenize on the fly. tokens-*: pretokenized files. *-padded: one document a row. *-stream: packed.
    tokens-mmap: packed rows, the same ones, out of flat tokens that are mapped into memory."""
    access: Literal["scalar", "zero-copy"] = "scalar"
    """scalar: per-row Arrow scalars and Python lists, as the founding study did; zero-copy: Arrow buffers as arrays.
    tokens-mmap has arrays only."""
    corpus: CorpusConfig = CorpusConfig(builtin="python-docs")
    tokenizer: TokenizerConfig = TokenizerConfig(train=TrainTokenizer())
    sequence_length: int = Field(256, ge=2, le=1_048_576)
    """At least 2: a sequence of one token has nothing to predict."""
    batch_size: int = Field(8, ge=1, le=65_536)
    """Rows of a micro-batch, of each rank where there are several."""
    shuffle: bool | Literal["documents", "windows"] = True
    """true: the documents in a seeded order of each epoch, held in memory (8 bytes a document). documents: in another
    such order, of which any place is computed when it is asked for. windows: with tokens-mmap, pieces of a row's length
    at fixed places of the flat tokens, in an order like that, as in nanoGPT; where documents are held out for
    evaluation, without the pieces that any of them reaches into (8 bytes of memory for each of the others). Rows of
    long documents mix best so."""
    documents: Literal["joined", "separated"] = "joined"
    """Documents packed into one row. joined: each token attends to all before it in the row; separated: only to those
    of its own document, and positions begin anew with each. With tokens-mmap, or *-stream and zero-copy."""
    global_order: bool = False
    """The batches are those of one process without workers, dealt out to all workers and ranks in turn, however many
    there are. With tokens-mmap, or tokens-stream and zero-copy: it takes the documents' lengths."""
    workers: Annotated[int, WithJsonSchema(_WORKERS)] = Field(0, ge=0, le=256)
    """Processes that make batches; 0: the training process makes them. auto: as many as a short trial before the study
    says, by what a batch costs to make and to hand over, and how long a step takes."""
    prefetch: int = Field(2, ge=1, le=1024)
    """Batches in flight per worker (DataLoader's prefetch_factor); no effect with workers 0."""
    transport: Literal["dataloader", "ring"] = "dataloader"
    """How workers hand batches over. dataloader: torch's way, new shared memory for each tensor. ring: through memory
    that both sides have from the start, a fraction of the cost."""
    pin_memory: bool = False
    tokenize: Literal["batched", "per-sample", "threads", "processes", "pool"] = "batched"
    """How a text-* path tokenizes. batched: one call for all documents that are read at once; per-sample: a call each.
    threads: their share in each of ``tokenize_threads`` threads, of each loader worker where there are any. processes:
    in each of ``tokenize_processes`` processes started for it; pool: in as many that stay."""
    tokenize_threads: int = Field(2, ge=1, le=256)
    """Threads of ``tokenize: threads``."""
    tokenize_processes: int = Field(2, ge=1, le=256)
    """Processes of ``tokenize: processes`` and ``pool``."""
    timeout_s: float = Field(300, gt=0, le=86_400)
    """Waiting for one batch of the workers ends the run after this many seconds; time that a run stands suspended does
    not count. Without workers, `limits.silence_s` of the scenario alone holds."""
    start_method: Literal["fork", "forkserver", "spawn"] = "fork"
    """How loader workers start. The workers start before this process tokenizes anything, so fork is safe."""
    replay: bool = False
    """Repeat the path's first batch forever: no data cost (the ideal-data control sets it). Of a source of your own
    whose batches differ in length: its first 32 (fewer of 256 MB, or where they take 10 s) by turns."""
    extra_reads: int = Field(0, ge=0, le=64)
    """Read every batch's rows this many more times and drop the result (a dose control sets it). A source of your own
    makes the whole batch so many more times."""
    extra_tokenizations: int = Field(0, ge=0, le=64)
    """Tokenize every batch this many more times and drop the result (a dose control sets it)."""
    inject: DataInject | None = None
    source: Annotated[str, AfterValidator(named_function)] | None = None
    """MODULE:FUNCTION of your own, which gives a Dataset, an IterableDataset, a DataLoader or a pair (dataset, collate
    function), of which a DataLoader's workers, prefetch and pinning are not taken. It is called with those of seed,
    batch_size and sequence_length that it has a parameter for; path, access, corpus and tokenizer are not used. A batch
    has input_ids, and may have labels and attention_mask, which the model is given where padding precedes text."""
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
        """True if ``workers`` is chosen before anything runs."""
        return self._chooses_workers

    @property
    def is_flat(self) -> bool:
        """True if packed rows are made from flat tokens, for which all documents' lengths are known."""
        return self.path == "tokens-mmap" or (self.path == "tokens-stream" and self.access == "zero-copy")

    @model_validator(mode="after")
    def _orders_need_lengths(self) -> DataConfig:
        if self.source is not None:
            return self
        if self.shuffle == "windows" and self.path != "tokens-mmap":
            raise ValueError(
                f"shuffle: windows are pieces of flat tokens, which path {self.path} has none of; allowed with it: "
                "true, documents, false; or path tokens-mmap"
            )
        if self.global_order and not self.is_flat:
            raise ValueError(
                f"global_order: with path {self.path} and access {self.access} a worker does not know how long the "
                "documents are that others read; allowed: path tokens-mmap, or tokens-stream with access zero-copy"
            )
        if self.documents == "separated" and not (self.is_flat or self._packs_arrays):
            raise ValueError(
                f"documents: separated is for packed rows of arrays, not for path {self.path} with access "
                f"{self.access}; allowed: path tokens-mmap, or text-stream, tokens-stream with access zero-copy"
            )
        return self

    @property
    def _packs_arrays(self) -> bool:
        return self.path == "text-stream" and self.access == "zero-copy"

    @model_validator(mode="after")
    def _workers_start_no_processes(self) -> DataConfig:
        if self.workers and self.tokenize in ("processes", "pool"):
            raise ValueError(
                f"tokenize: {self.tokenize} starts processes, which loader workers cannot; allowed with workers "
                f"{self.workers}: batched, per-sample, threads; or workers 0"
            )
        return self
