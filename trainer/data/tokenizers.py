"""Prepares and loads tokenizers behind one protocol. Only an end-of-document id is added to a text's tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainer.config import TokenizerConfig, TrainTokenizer
from trainer.data import cache, pretrained, train_tokenizer
from trainer.data.corpus import Corpus, check_vocabulary
from trainer.data.engines.base import Engine
from trainer.data.engines.choose import AS_TEXT, check_no_special_tokens, check_template, choose
from trainer.data.engines.libraries import OTHERS, Fast, SentencePiece, Slow, TextCodec, load_auto
from trainer.data.engines.proof import Proof
from trainer.data.manifest import read_manifest
from trainer.errors import InputError
from trainer.files import expanded

# key: library that a tokenizer was made for; value: engines that may replace it
_OTHERS_OF = {"tokenizers": tuple(OTHERS), "sentencepiece": ("gigatoken",), "transformers": ()}
FOLDER = "tokenizer"  # folder name within a training or tokens folder, see trainer.data.kept_tokenizer
_POLICY = "data.tokenizer.special_tokens_in_text"
_FIXED_POLICY = {"sentencepiece": "as-text", "transformers": "as-special"}  # libraries without a choice


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer that is ready to be loaded in any process. It is picklable."""

    kind: str  # bpe, unigram, wordpiece, pretrained, sentencepiece
    location: str  # a tokenizer.json, a sentencepiece model file, or a folder for AutoTokenizer
    vocab_size: int  # largest id + 1
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    fingerprint: str  # hash of the tokenizer's content
    engine: str  # library and version that encodes; another version may split text differently
    proof: Proof | None = None  # proof that ``engine`` gives the ids of the tokenizer's own library

    @property
    def library(self) -> str:
        """Name of the library that encodes."""
        return self.engine.partition(" ")[0]


def prepare_tokenizer(config: TokenizerConfig, corpus: Corpus) -> TokenizerInfo:
    """Return the tokenizer, trained or imported if not cached, and its engine. Raises InputError."""
    keep_single_threaded()
    if corpus.pretokenized:
        info = _of_pretokenized(config, corpus, Path(corpus.pretokenized[0]))
    else:
        info = _named(config, corpus)
    check_vocabulary(corpus, info.vocab_size)
    return _with_engine(info, config, corpus)


def _of_pretokenized(config: TokenizerConfig, corpus: Corpus, folder: Path) -> TokenizerInfo:
    """Return the tokenizer of ``folder``'s tokens. Raises InputError if it has none, or ``config`` another."""
    manifest = read_manifest(folder)
    if config.train is None:
        info = _named(config, corpus)
    elif (folder / FOLDER / train_tokenizer.FACTS).is_file():
        info = info_of(manifest.tokenizer, folder / FOLDER)
    else:
        raise InputError(
            f"data.tokenizer: {folder} holds tokens without the tokenizer that made them; give it "
            "(data.tokenizer.pretrained or sentencepiece)"
        )
    requested = config.train or TrainTokenizer()
    differs = requested != TrainTokenizer() and (
        requested.kind != manifest.tokenizer or requested.vocab_size < info.vocab_size
    )
    if differs or info.fingerprint != manifest.tokenizer_fingerprint:
        raise InputError(
            f"data.tokenizer: it did not make the tokens in {folder} ({manifest.tokenizer}, {info.vocab_size:,} "
            "ids); leave it out, or give that one"
        )
    return info


def _named(config: TokenizerConfig, corpus: Corpus) -> TokenizerInfo:
    """Return the tokenizer that the section's keys name. ``corpus``: training data if the tokenizer is trained."""
    if config.train is not None and config.train.kind == "sentencepiece":
        return sentencepiece_info(train_tokenizer.trained_sentencepiece(corpus, config.train.vocab_size))
    if config.train is not None:
        kind, vocab_size = config.train.kind, config.train.vocab_size
        key = [train_tokenizer.TOKENIZER_RECIPE, corpus.fingerprint, kind, vocab_size]

        def build(to: Path) -> None:
            train_tokenizer.train(kind, vocab_size, corpus, to)

        return info_of(kind, cache.folder("tokenizer", key, build, train_tokenizer.read_facts))
    if config.pretrained is not None:
        return info_of("pretrained", pretrained.import_tokenizer(config.pretrained))
    assert config.sentencepiece is not None
    return sentencepiece_info(config.sentencepiece)


def load_tokenizer(info: TokenizerInfo) -> Engine:
    """Load the tokenizer into this process. Raises InputError if its file was deleted or changed."""
    keep_single_threaded()
    location = Path(info.location)
    if not location.exists():
        raise InputError(f"{info.location}: the tokenizer was deleted after it was prepared")
    if location.is_file() and cache.file_fingerprint(location) != info.fingerprint:
        raise InputError(f"{info.location}: the tokenizer was changed after it was prepared")
    loaded: Engine = _engine(info, info.library, special_as_text=info.engine.endswith(AS_TEXT))
    return loaded


def load_codec(info: TokenizerInfo) -> TextCodec:
    """Return the tokenizer's native library as a codec: it also turns ids into text."""
    keep_single_threaded()
    library = engine(info.kind, info.location).partition(" ")[0]
    codec: TextCodec = _engine(info, library, special_as_text=False)
    return codec


def _engine(info: TokenizerInfo, library: str, *, special_as_text: bool) -> Any:
    if library in OTHERS:
        return OTHERS[library](info.location, special_as_text=special_as_text)
    if info.kind == "sentencepiece":
        return SentencePiece(sentencepiece_model(info.location))
    if info.location.endswith(".json"):
        return Fast(info.location, special_as_text=special_as_text)
    return Slow(load_auto(info.location))


def _with_engine(info: TokenizerInfo, config: TokenizerConfig, corpus: Corpus) -> TokenizerInfo:
    """Return ``info`` with the engine asked for or chosen. Raises InputError for special tokens in the text."""
    policy, own_library = config.special_tokens_in_text, info.library
    fixed = _FIXED_POLICY.get(own_library, policy)
    if policy not in (None, "refuse", fixed):
        raise InputError(f"{_POLICY}: {own_library} cannot encode them {policy}; allowed: null, {fixed}, refuse")
    as_text = policy == "as-text" and own_library == "tokenizers"
    if policy == "refuse":
        tokens = _engine(info, own_library, special_as_text=False).special_tokens()
        policies = [_FIXED_POLICY[own_library]] if own_library in _FIXED_POLICY else ["as-special", "as-text"]
        check_no_special_tokens(corpus, tokens, info.fingerprint, policies)
    if policy is None and own_library == "sentencepiece" and corpus.template is not None:
        tokens = _engine(info, own_library, special_as_text=False).special_tokens()
        check_template(corpus, tokens, info.fingerprint)
    # sentencepiece never finds special tokens in text, so an engine that replaces it must not either.
    build = partial(_engine, info, special_as_text=as_text or own_library == "sentencepiece")
    library, proof = choose(config, corpus, own_library, _OTHERS_OF[own_library], build, [info.fingerprint, as_text])
    return replace(info, engine=f"{library} {version(library)}{AS_TEXT if as_text else ''}", proof=proof)


def document_tokens(encoded: Sequence[list[int]], eos_id: int | None) -> list[list[int]]:
    """Return the encoded documents, each with ``eos_id`` (if any) at its end. An empty document stays empty."""
    if eos_id is None:
        return list(encoded)
    return [[*tokens, eos_id] if tokens else tokens for tokens in encoded]


def keep_single_threaded() -> None:
    """Switch off the tokenizers' Rust threads in this process: a fork after they have run would deadlock."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def engine(kind: str, location: str) -> str:
    """Return name and version of the tokenizer's own library, such as ``tokenizers 0.21.0``, without import."""
    fast = location.endswith(".json")
    library = "sentencepiece" if kind == "sentencepiece" else "tokenizers" if fast else "transformers"
    return f"{library} {version(library)}"


def info_of(kind: str, folder: Path) -> TokenizerInfo:
    """Return the description of the tokenizer in ``folder``, by its facts.json. Raises InputError if it is damaged."""
    facts = train_tokenizer.read_facts(folder)
    location = str(folder / (facts.location or "tokenizer.json"))
    kind = "sentencepiece" if location.endswith(".model") else kind
    return TokenizerInfo(
        kind=kind,
        location=location,
        vocab_size=facts.vocab_size,
        eos_id=facts.eos_id,
        bos_id=facts.bos_id,
        pad_id=facts.pad_id,
        fingerprint=facts.fingerprint,
        engine=engine(kind, location),
    )


def sentencepiece_file(location: str) -> Path:
    """Return the absolute path of the model file ``location``. Raises InputError if there is no file."""
    path = expanded(location).absolute()
    if not path.is_file():
        raise InputError(f"data.tokenizer.sentencepiece: no file {location}")
    return path


def sentencepiece_info(location: str) -> TokenizerInfo:
    """Return the description of a SentencePiece model file. Raises InputError if it is not one."""
    path = sentencepiece_file(location)

    def facts() -> list[int]:
        model = sentencepiece_model(str(path))
        return [model.get_piece_size(), model.eos_id(), model.bos_id(), model.pad_id()]

    fingerprint = cache.file_fingerprint(path)
    size, *specials = cache.remember("sentencepiece", fingerprint, facts)
    eos_id, bos_id, pad_id = (None if special < 0 else special for special in specials)
    return TokenizerInfo(
        kind="sentencepiece",
        location=str(path),
        vocab_size=size,
        eos_id=eos_id,
        bos_id=bos_id,
        pad_id=pad_id,
        fingerprint=fingerprint,
        engine=engine("sentencepiece", str(path)),
    )


def sentencepiece_model(location: str) -> Any:
    """Load a SentencePiece model file. Raises InputError if it is not one."""
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_file=location)
    except (RuntimeError, OSError) as error:
        raise InputError(f"data.tokenizer.sentencepiece: {location} is not a sentencepiece model") from error


@dataclass(frozen=True)
class SpecialIds:
    """Ids of a tokenizer that represent no text. ``unknown``: id of unknown text; None if the tokenizer uses bytes."""

    ids: frozenset[int]
    unknown: int | None


def special_ids(info: TokenizerInfo) -> SpecialIds:
    """Return the tokenizer's special ids, without ids beyond its vocabulary."""
    ids, unknown = _listed_special_ids(info)
    special = frozenset(token for token in ids if token < info.vocab_size)
    return SpecialIds(special, unknown if unknown is not None and 0 <= unknown < info.vocab_size else None)


def _listed_special_ids(info: TokenizerInfo) -> tuple[Iterable[int], int | None]:
    """Return the special ids and the id of unknown text, as the tokenizer's library lists them."""
    if info.kind == "sentencepiece":
        model = sentencepiece_model(info.location)
        pieces = range(model.get_piece_size())
        return [piece for piece in pieces if model.is_control(piece) or model.is_unknown(piece)], int(model.unk_id())
    if not info.location.endswith(".json"):
        tokenizer = load_auto(info.location)
        return tokenizer.all_special_ids, tokenizer.unk_token_id
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(info.location)
    ids = [token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special]
    content = json.loads(Path(info.location).read_text(encoding="utf-8"))["model"]
    unknown = content.get("unk_id")  # Unigram models have the id, other models the token.
    if unknown is None and isinstance(content.get("unk_token"), str):
        unknown = backend.token_to_id(content["unk_token"])
    return ids, unknown
