"""Chooses the engine that encodes: the tokenizer's own, the requested, or the fastest, proved to give the same ids."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.config import TokenizerConfig
from trainer.data import cache
from trainer.data.corpus import Corpus, iter_texts
from trainer.data.engines import proof_texts
from trainer.data.engines.base import Engine
from trainer.data.engines.byte_level import CannotExpressError
from trainer.data.engines.proof import Proof, prove
from trainer.errors import InputError, literal, one_line
from trainer.json_types import JsonObject

KEY = "data.tokenizer.engine"
CHOICE_VERSION = 1  # Raise it with any change of how engines are built or compared.
AS_TEXT = ", special tokens as text"  # suffix of an engine's name if it encodes special tokens as text

Build = Callable[[str], Any]  # library's name -> its engine


def choose(
    config: TokenizerConfig, corpus: Corpus, own: str, others: Iterable[str], build: Build, key: object
) -> tuple[str, Proof | None]:
    """Return the name of the library that encodes, and the proof (None if none was compared). Raises InputError."""
    requested: str | None = config.engine
    others = tuple(others)
    if requested is None or requested == own:
        return own, None
    if requested != "auto" and requested not in others:
        allowed = ", ".join((own, *others, "auto"))
        raise InputError(f"{KEY}: {requested} cannot read this tokenizer; its own is {own}; allowed: {allowed}")
    candidates: list[str] = [name for name in others if installed(name)] if requested == "auto" else [requested]
    if requested != "auto" and not installed(requested):
        raise InputError(f"{KEY}: {requested} is not installed (pip install 'llm-training-harness[{requested}]')")
    if not candidates:
        return own, None
    whole_corpus = config.prove == "corpus"
    versions = [f"{name} {version(name)}" for name in (own, *candidates)]
    compared = [CHOICE_VERSION, proof_texts.HARD_SET_VERSION, proof_texts.SAMPLE_VERSION, versions, key]
    remembered = [*compared, corpus.fingerprint, whole_corpus, _processor()]

    def compute() -> JsonObject:
        return asdict(_proof(own, candidates, build, corpus, whole=whole_corpus))

    proof = Proof(**cache.remember("engines", remembered, compute))
    if requested != "auto" and requested in proof.refused:
        raise InputError(f"{KEY}: {requested} cannot take the place of {own}: {proof.refused[requested]}")
    fastest = max(proof.mb_per_cpu_s, key=lambda name: proof.mb_per_cpu_s[name], default=own)
    proof = replace(proof, reference=versions[0], whole_corpus=whole_corpus)
    return (fastest if requested == "auto" else requested), proof


def installed(library: str) -> bool:
    """Return True if the library is installed, without importing it."""
    try:
        version(library)
    except PackageNotFoundError:
        return False
    return True


def check_no_special_tokens(corpus: Corpus, tokens: list[str], fingerprint: str, policies: Sequence[str]) -> None:
    """Raise InputError, allowing ``policies``, if a document has one of ``tokens`` (of ``fingerprint``) as text."""
    if (match := _holding(corpus, tokens, fingerprint)) is not None:
        count, document, token = match
        raise InputError(
            f"data.tokenizer.special_tokens_in_text: refuse: {count} document{'s' * (count != 1)} of {corpus.name} hold"
            f"{'s' * (count == 1)} a special token as text, the first is document {document}: {literal(token)}; "
            f"allowed with them: {', '.join(policies)}"
        )


def check_template(corpus: Corpus, tokens: list[str], fingerprint: str) -> None:
    """Raise InputError if the chat template writes a token of ``tokens``, which the tokenizer takes for text."""
    template = corpus.template
    if template is None:
        return
    used = {value for name, value in template.tokens if name in template.source}
    written = [token for token in tokens if token in used or token in template.source]
    if written and (match := _holding(corpus, written, fingerprint)) is not None:
        raise InputError(
            f"data.corpus.chat_template: {template.name} writes {literal(match[2])}, of which sentencepiece makes ids "
            "of its characters; give the tokenizer's folder or its tokenizer.json (data.tokenizer.pretrained), or "
            "data.tokenizer.special_tokens_in_text: as-text"
        )


def _holding(corpus: Corpus, tokens: list[str], fingerprint: str) -> tuple[int, int, str] | None:
    """Return (documents with a token, the first one's index, its token), cached; None without any."""

    def search() -> list[Any]:
        count, first, document = 0, None, 0
        for texts in iter_texts(corpus):
            for text in texts:
                if (token := next((candidate for candidate in tokens if candidate in text), None)) is not None:
                    count += 1
                    first = first or [document, token]
                document += 1
        return [count, first]

    count, first = cache.remember("special-tokens", [tokens, corpus.fingerprint, fingerprint], search)
    return (count, *first) if count else None


def _proof(own: str, candidates: list[str], build: Build, corpus: Corpus, *, whole: bool) -> Proof:
    engines: dict[str, Engine] = {}
    refused = {}
    for name in candidates:
        try:
            engines[name] = build(name)
        except CannotExpressError as error:
            refused[name] = str(error)
        except InputError as error:
            refused[name] = one_line(error).removeprefix(f"{KEY}: ")
        except ImportError as error:
            refused[name] = f"it cannot be imported ({one_line(error)})"
    if not engines:
        return Proof(refused=refused)
    pieces = proof_texts.whole(corpus) if whole else proof_texts.sample(corpus)
    proof = prove(own, build(own), engines, pieces)
    return replace(proof, refused={**refused, **proof.refused})


def _processor() -> list[Any]:
    """Return [architecture, model names, usable cores]: speeds and chosen instructions depend on them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = sorted({line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))})
    return [platform.machine(), models, len(os.sched_getaffinity(0))]
