"""Loads a model that was trained by this trainer, by transformers' users, or by llm.c.

The files at a place tell its kind:

    a training's folder       checkpoints/ of harness train: the newest intact checkpoint
    a checkpoint's folder     checkpoint.json, config.json, model.safetensors
    a folder of transformers  config.json, *.safetensors
    a model file of llm.c     model_*.bin

The place may be a URL (s3://BUCKET/FOLDER), from which it is copied first. The copy exists as long as this process
runs.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from trainer import checkpoint_folder, llmc_model
from trainer.checkpoint_folder import ABOUT
from trainer.config import ModelConfig
from trainer.data.corpus.places import filesystem_of, is_remote, local
from trainer.data.kept_tokenizer import kept
from trainer.data.pretrained import import_tokenizer
from trainer.data.tokenizers import FOLDER as KEPT
from trainer.data.tokenizers import TokenizerInfo, info_of, sentencepiece_info
from trainer.errors import InputError, one_line
from trainer.files import expanded
from trainer.model_files import (
    CONFIG,
    WEIGHTS,
    ModelFiles,
    build_from_files,
    objective_of,
    positions_of,
    pretrained_files,
)

if TYPE_CHECKING:
    import torch


CHECKPOINTS = "checkpoints"  # folder in a training's folder
# Entries of a run's folder that a plot does not read.
NO_TABLES = (CHECKPOINTS, KEPT, "plots", "trials", "timeline.json.gz")
Needed = Callable[[Any, PurePosixPath], tuple[PurePosixPath, dict[str, int]]]
"""Function that returns the folder to copy from, and the files to copy with their sizes in bytes."""


def tables_of_run(filesystem: Any, root: PurePosixPath) -> tuple[PurePosixPath, dict[str, int]]:
    """Select the files of a run that a plot reads: their common folder, and sizes in bytes by path in it."""
    base, sizes = _whole_folder(filesystem, root)
    return base, {name: size for name, size in sizes.items() if name.split("/")[0] not in NO_TABLES}


def model_of_run(filesystem: Any, root: PurePosixPath) -> tuple[PurePosixPath, dict[str, int]]:
    """Return the folder and files (sizes by path) at ``root``: of a training, the newest checkpoint and tokenizer."""
    base, sizes = _whole_folder(filesystem, root)
    if base != root:
        return base, sizes
    # a single checkpoint; its tokenizer is in the training's folder
    if ABOUT in sizes and root.parent.name == CHECKPOINTS:
        training = root.parent.parent
        files = {f"{CHECKPOINTS}/{root.name}/{name}": size for name, size in sizes.items()}
        return training, files | {f"{KEPT}/{name}": size for name, size in _below(filesystem, training / KEPT).items()}
    # A checkpoint is complete once its last file exists.
    complete = {
        name.split("/")[1] for name in sizes if name.startswith(f"{CHECKPOINTS}/") and name.endswith(f"/{ABOUT}")
    }
    if complete:
        newest = max(complete, key=lambda name: (len(name), name))
        prefixes = f"{CHECKPOINTS}/{newest}/", f"{KEPT}/"
        sizes = {name: size for name, size in sizes.items() if name.startswith(prefixes)}
    return root, sizes


def fetched(url: str, key: str, needed: Needed = model_of_run) -> Path:
    """Return a local copy of files at ``url`` for this process. Raises InputError, naming ``key``, if that fails."""
    filesystem, root = filesystem_of(url.rstrip("/"), key)
    try:
        base, names = needed(filesystem, PurePosixPath(root))
        if not names:
            raise InputError(f"{key}: {url}: there is no such file or folder")
        total_mb = sum(names.values()) / 1e6
        print(f"fetching {url}: {len(names):,} file{'s' * (len(names) > 1)}, {total_mb:,.1f} MB", file=sys.stderr)
        place = _temporary_folder() / base.name
        for name in names:
            _copy(filesystem, str(base / name), place / name)
    except InputError:
        raise
    except Exception as error:  # Each filesystem has its own errors.
        raise InputError(f"{key}: {url}: cannot be fetched ({one_line(error):.300})") from error
    return place / PurePosixPath(root).relative_to(base)


@contextmanager
def brought_here(place: str, key: str, needed: Needed = model_of_run) -> Iterator[Path]:
    """Yield the local path of ``place``; a URL's ``needed`` files are copied once, and errors name the URL."""
    path = _located_once(place, key, needed)
    try:
        yield path
    except InputError as error:
        raise InputError(str(error).replace(str(path), place)) from error


def located(place: str, key: str, needed: Needed = model_of_run) -> Path:
    """Return the local path of ``place``; :func:`fetched` copies a URL's ``needed`` files. ``key``: for errors."""
    return fetched(place, key, needed) if is_remote(place) else expanded(local(place))


_located_once = cache(located)


def _whole_folder(filesystem: Any, root: PurePosixPath) -> tuple[PurePosixPath, dict[str, int]]:
    """Return (folder, sizes in bytes by name) of a file, or of all files below a folder."""
    import pyarrow.fs as fs

    info = filesystem.get_file_info(str(root))
    if info.type == fs.FileType.File:
        return root.parent, {root.name: info.size or 0}
    return root, _below(filesystem, root)


def _below(filesystem: Any, folder: PurePosixPath) -> dict[str, int]:
    import pyarrow.fs as fs

    infos = filesystem.get_file_info(fs.FileSelector(str(folder), recursive=True, allow_not_found=True))
    return {
        PurePosixPath(info.path).relative_to(folder).as_posix(): info.size or 0
        for info in infos
        if info.type == fs.FileType.File
    }


def _copy(filesystem: Any, source: str, target: Path) -> None:
    import pyarrow.fs as fs

    target.parent.mkdir(parents=True, exist_ok=True)
    fs.copy_files(source, str(target), filesystem, fs.LocalFileSystem(), use_threads=False)


def _temporary_folder() -> Path:
    place = tempfile.mkdtemp(prefix="harness-model-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)


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
        return positions_of(self._settings)

    @property
    def _settings(self) -> Any:
        return self.model.config


def load_trained(place: str, key: str) -> TrainedModel:
    """Load the causal model and its tokenizer, if any. Raises InputError, naming ``key``, without a model."""
    path, name = located(place, key), f"{key} {place}"
    if path.is_file():
        return TrainedModel(name, llmc_model.build(path).eval(), None)
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
            f"{folder}: its weights are in shares of ranks (launch.parallel fsdp), which only its own training can read"
        )
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder}: the model of a model.factory, which transformers cannot load")
    assert training is not None
    return TrainedModel(name, _build(folder, key), _tokenizer_of(folder) or kept(training), checkpoint.steps)


def _newest(folder: Path) -> checkpoint_folder.Checkpoint:
    checkpoint = checkpoint_folder.newest(folder)
    if checkpoint is None:
        raise InputError(f"{folder}: no checkpoint in it")
    return checkpoint


def _build(folder: Path, key: str) -> torch.nn.Module:
    from transformers.utils import logging

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
