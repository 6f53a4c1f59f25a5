"""Loads a model that was trained by this trainer, by transformers' users, or by llm.c.

The files at a place tell its kind:

    a training's folder       checkpoints/ of harness train: the newest intact checkpoint
    a checkpoint's folder     checkpoint.json, config.json, model.safetensors
    a folder of transformers  config.json, *.safetensors
    a model file of llm.c     model_*.bin

The place may be a URL (s3://BUCKET/FOLDER), from which it is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import checkpoint_folder
from trainer.config import ModelConfig
from trainer.data.pretrained import import_tokenizer
from trainer.data.tokenizers import TokenizerInfo, info_of, sentencepiece_info
from trainer.errors import InputError
from trainer.model_files import CONFIG, WEIGHTS, ModelFiles, objective_of, pretrained_files
from trainer.remote_model import CHECKPOINTS, located

if TYPE_CHECKING:
    import torch

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json")  # files that show a tokenizer in a folder
_SENTENCEPIECE = "tokenizer.model"


@dataclass(frozen=True)
class TrainedModel:
    """A causal language model in single precision, and its tokenizer, if there is one beside it."""

    name: str  # name in errors
    model: torch.nn.Module
    tokenizer: TokenizerInfo | None
    steps: int | None = None  # steps of a checkpoint

    @property
    def vocab_size(self) -> int:
        """Number of ids to which the model gives a probability."""
        return int(self._settings.vocab_size)

    @property
    def positions(self) -> int:
        """Longest sequence that the model can read, in tokens."""
        from trainer.transformers_models import positions_of

        return positions_of(self._settings)

    @property
    def _settings(self) -> Any:
        return self.model.config


def load_trained(place: str, key: str) -> TrainedModel:
    """Load the model at ``place`` with the tokenizer beside it. ``key``: option by which the user gave it, for errors.

    Raises InputError if there is no causal model.
    """
    path, name = located(place, key), f"{key} {place}"
    if path.is_file():
        from trainer.llmc_model import build

        return TrainedModel(name, build(path).eval(), None)
    if not path.exists():
        raise InputError(f"{name}: there is no such file or folder")
    training = path if (path / CHECKPOINTS).is_dir() else None
    checkpoint = _newest(path / CHECKPOINTS) if training is not None else None
    if checkpoint is None and (path / checkpoint_folder.ABOUT).exists():
        checkpoint = checkpoint_folder.read(path)
        training = checkpoint.path.resolve().parent.parent  # also for a link to a checkpoint
    if checkpoint is None:
        if not (path / CONFIG).is_file() or not any(path.glob(WEIGHTS)):
            raise InputError(
                f"{name}: no checkpoint: a training's folder has {CHECKPOINTS}/, a checkpoint's "
                f"{checkpoint_folder.ABOUT}, one of transformers {CONFIG} and {WEIGHTS}; a model of llm.c is a file"
            )
        return TrainedModel(name, _build(path, key), _tokenizer_of(path))
    folder = checkpoint.path
    if not (folder / checkpoint_folder.WEIGHTS).is_file():
        raise InputError(
            f"{folder}: its weights are in shares of ranks (launch.parallel fsdp), which only its own training reads"
        )
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder}: the model of a model.factory, which transformers does not know")
    from trainer.data.kept_tokenizer import kept

    assert training is not None
    return TrainedModel(name, _build(folder, key), _tokenizer_of(folder) or kept(training), checkpoint.steps)


def _newest(folder: Path) -> checkpoint_folder.Checkpoint:
    checkpoint = checkpoint_folder.newest(folder)
    if checkpoint is None:
        raise InputError(f"{folder}: no checkpoint in it")
    return checkpoint


def _build(folder: Path, key: str) -> torch.nn.Module:
    from transformers.utils import logging

    from trainer.transformers_models import build_from_files

    files: ModelFiles = pretrained_files(str(folder), key)
    config = ModelConfig(pretrained=str(folder))
    if objective_of(config) != "causal":
        raise InputError(f"{files.title}: a masked model ({files.model_type}), which predicts no next token")
    logging.disable_progress_bar()
    return build_from_files(files, config).eval()


def _tokenizer_of(folder: Path) -> TokenizerInfo | None:
    """Return the tokenizer whose files lie in ``folder`` beside a model; None if there are none."""
    if present := [name for name in _TOKENIZERS if (folder / name).is_file()]:
        place = folder / present[0] if present == ["tokenizer.json"] else folder
        return info_of("pretrained", import_tokenizer(str(place.absolute())))
    return sentencepiece_info(str(folder / _SENTENCEPIECE)) if (folder / _SENTENCEPIECE).is_file() else None
