"""Keeps a training's tokenizer beside its checkpoints, so that they can be used where its corpus and cache are not."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer.data import cache
from trainer.data.tokenizers import TokenizerInfo, info_of, sentencepiece_info
from trainer.errors import InputError
from trainer.leftovers import remove

FOLDER = "tokenizer"
_JSON, _FACTS, _MODEL = "tokenizer.json", "facts.json", "tokenizer.model"


def keep(info: TokenizerInfo, training: Path) -> None:
    """Copy the tokenizer into the folder of ``training``, unless it lies there.

    One that transformers itself has to load (a folder of many files), and that of a user's source, are not kept.
    """
    source, target = Path(info.location), training / FOLDER
    if not source.is_file() or _is_kept(info, training):
        return

    def build(to: Path) -> None:
        if info.kind == "sentencepiece":
            shutil.copyfile(source, to / _MODEL)
            return
        for name in (_JSON, _FACTS):
            shutil.copyfile(source.parent / name, to / name)

    remove(target)  # of a training that began here before this one
    cache.create_folder(target, build)


def kept(training: Path) -> TokenizerInfo | None:
    """The tokenizer in the folder of a training; None where none lies there. Raises InputError where it is damaged."""
    folder = training / FOLDER
    if (folder / _MODEL).is_file():
        return sentencepiece_info(str((folder / _MODEL).absolute()))
    return info_of("pretrained", folder.absolute()) if (folder / _FACTS).is_file() else None


def _is_kept(info: TokenizerInfo, training: Path) -> bool:
    try:
        found = kept(training)
    except InputError:
        return False
    return found is not None and found.fingerprint == info.fingerprint
