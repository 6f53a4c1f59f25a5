"""Writes a checkpoint's folder so that it is whole or not there, and reads none that is damaged.

    step-00000120/
        model.safetensors   the weights, and config.json where transformers knows the model: AutoModel reads both
        tokenizer.json      and what else AutoTokenizer reads, of a training whose tokenizer is known
        state.pt            everything else, by torch.save; it is loaded with weights_only
        checkpoint.json     step, configuration and the SHA-256 of each file; written last, with a digest of its own

A folder is written under a temporary name, synchronized to the disk and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainer.data.cache import DIGESTS
from trainer.errors import InputError, one_line
from trainer.files import naming, read_json
from trainer.json_types import JsonObject, integer, section
from trainer.leftovers import remove, temporary_path

CHECKPOINT_SCHEMA = 1
ABOUT, STATE, WEIGHTS, CONFIG = "checkpoint.json", "state.pt", "model.safetensors", "config.json"
MODEL = "model"  # the part that is written as weights
_NAME = re.compile(r"step-(?P<steps>[0-9]{8,})")
State = Any  # by part: a mapping of what torch's state_dict gives


class Store(Protocol):
    """How the parts of a checkpoint become files. Sharded state (torch.distributed.checkpoint) would be another one."""

    def write(self, folder: Path, states: State) -> JsonObject:
        """Write the states of all parts, by name, into ``folder``; returns what :meth:`read` must know, as JSON."""

    def read(self, folder: Path, known: JsonObject) -> State:
        """The states that :meth:`write` wrote."""


class WholeState:
    """Each part whole, in one process: weights as safetensors, the rest by torch.save."""

    def __init__(self, model: Any = None, tokenizer: Path | None = None) -> None:
        """Keep the arguments. ``model``: a transformers model, whose config is written beside its weights, or another
        one. ``tokenizer``: folder whose files are copied beside the weights."""
        self._tokenizer = tokenizer
        self._config = getattr(model, "config", None)
        self._kind = type(model).__name__

    def write(self, folder: Path, states: State) -> JsonObject:
        import torch

        shared: dict[str, str] = {}
        rest = {name: state for name, state in states.items() if name != MODEL}
        if MODEL in states:
            from safetensors.torch import save_file

            tensors, shared, others = _weights(states[MODEL])
            rest[MODEL] = others
            save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
            if self._config is not None and hasattr(self._config, "to_json_string"):
                content = {**json.loads(self._config.to_json_string()), "architectures": [self._kind]}
                (folder / CONFIG).write_text(json.dumps(content, indent=1) + "\n")
        if self._tokenizer is not None:
            for path in self._tokenizer.iterdir() if self._tokenizer.is_dir() else ():
                if path.is_file() and path.name != DIGESTS:
                    shutil.copyfile(path, folder / path.name)
        with open(folder / STATE, "wb") as file:  # given a path, torch hides what the system said of the disk
            torch.save(rest, file)
        return {"shared": shared}

    def read(self, folder: Path, known: JsonObject) -> State:
        import torch

        states: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        if (folder / WEIGHTS).exists():
            from safetensors.torch import load_file

            weights = load_file(folder / WEIGHTS)
            for name, kept in section(known, "shared").items():
                weights[name] = weights[str(kept)]
            states[MODEL] = {**weights, **states.get(MODEL, {})}
        return states


def _weights(state: State) -> tuple[Any, dict[str, str], Any]:
    """Tensors by name, each once; of others with the same memory which name has it; and what is no tensor."""
    import torch

    tensors: dict[str, Any] = {}
    shared: dict[str, str] = {}
    others: dict[str, Any] = {}
    seen: dict[tuple[object, ...], str] = {}
    for name, one in state.items():
        if not isinstance(one, torch.Tensor):
            others[name] = one
            continue
        place = (one.data_ptr(), one.dtype, tuple(one.shape), one.stride()) if one.numel() else (name,)
        if (kept := seen.setdefault(place, name)) != name:
            shared[name] = kept
        else:
            tensors[name] = one.contiguous()
    return tensors, shared, others


@dataclass(frozen=True)
class Checkpoint:
    """One that is whole: every file is there, as it was written."""

    path: Path
    about: JsonObject

    @property
    def steps(self) -> int:
        """How many steps of the training it holds: the number of the next one."""
        return integer(self.about, "steps")

    def states(self, store: Store) -> State:
        """The states of its parts. Raises InputError where they cannot be read."""
        try:
            return store.read(self.path, section(self.about, "store"))
        except Exception as error:  # torch, safetensors and pickle raise anything of a file of another make
            raise InputError(f"{self.path}: cannot be read ({one_line(error):.200})") from error


def path_of(folder: Path, steps: int) -> Path:
    """Where the checkpoint after ``steps`` steps lies."""
    return folder / f"step-{steps:08d}"


def write(folder: Path, steps: int, states: State, about: JsonObject, store: Store, ready: Callable[[], None]) -> Path:
    """Write the checkpoint after ``steps`` steps. ``ready``: called before it is there."""
    path = path_of(folder, steps)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        with naming(path, temporary):
            remove(temporary)
            temporary.mkdir()
            try:
                known = store.write(temporary, states)
            except Exception as error:
                if (failed := of_the_disk(error)) is None:
                    raise
                raise failed from error
            files = {one.name: _sha256(one) for one in sorted(temporary.iterdir())}
            content = {"schema": CHECKPOINT_SCHEMA, "steps": steps, **about, "store": known, "files": files}
            (temporary / ABOUT).write_text(json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n")
            for one in (*temporary.iterdir(), temporary):
                _synchronize(one)
            ready()
            remove_whole(path)  # one of the same step that was damaged
            temporary.replace(path)
            _synchronize(folder)
    finally:
        remove(temporary)
    return path


def of_the_disk(error: BaseException) -> OSError | None:
    """What the system said, of which torch and safetensors make errors of their own; None where it was something else.

    torch raises another error while it ends the file; safetensors writes ``(os error 28)``.
    """
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is not None:
        return OSError(int(found[1]), os.strerror(int(found[1])))
    one: BaseException | None = error
    while one is not None:
        if isinstance(one, OSError):
            return OSError(one.errno, one.strerror)
        one = one.__context__
    return None


def read(path: Path) -> Checkpoint:
    """The checkpoint in ``path``; InputError, one line, where any of its files is missing or damaged."""
    try:
        content = read_json(path / ABOUT)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no whole checkpoint ({ABOUT}: {one_line(error):.120})") from error
    if not isinstance(content, dict) or content.pop("sha256", None) != _digest(content):
        raise InputError(f"{path}: damaged: {ABOUT} is not as it was written")
    if content.get("schema") != CHECKPOINT_SCHEMA:
        raise InputError(f"{path}: schema {content.get('schema')!r}; this version reads schema {CHECKPOINT_SCHEMA}")
    for name, known in section(content, "files").items():
        try:
            found = _sha256(path / name)
        except OSError as error:
            raise InputError(f"{path}: damaged: {name} cannot be read ({error.strerror})") from error
        if found != known:
            raise InputError(f"{path}: damaged: {name} is not as it was written")
    steps = content.get("steps")
    if not isinstance(steps, int) or path.name != path_of(path.parent, steps).name:
        raise InputError(f"{path}: it is the checkpoint of step {steps!r} under another name")
    return Checkpoint(path, content)


def written(folder: Path) -> list[Path]:
    """The folders of checkpoints, whole or not, newest first."""
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def newest(folder: Path) -> Checkpoint | None:
    """The newest one that is whole; None where there never was one.

    Of each one that is not it says so in a line; who goes on from an older one removes it (:func:`remove_newer`).
    Raises InputError where all are damaged: a training that begins again would not be the same.
    """
    paths = written(folder)
    for place, path in enumerate(paths):
        try:
            return read(path)
        except InputError as error:
            instead = "; the one before is used" if paths[place + 1 :] else ""
            print(f"warning: {error}{instead}", file=sys.stderr)
    if paths:
        raise InputError(
            f"{folder}: none of {len(paths)} checkpoints can be used; a training begins again where they are removed"
        )
    return None


def remove_newer(found: Checkpoint) -> None:
    """Remove what is newer than the newest whole one, and so damaged: it would count as one that is kept."""
    for path in written(found.path.parent):
        if path == found.path:
            return
        remove_whole(path)


def retain(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep``."""
    for path in written(folder)[keep:]:
        remove_whole(path)


def remove_whole(path: Path) -> None:
    """Remove a checkpoint; one that is being removed is never taken for a damaged one."""
    gone = temporary_path(path.with_name(f"{path.name}.gone"))  # another name than that of one being written
    try:
        path.replace(gone)
    except FileNotFoundError:
        return
    remove(gone)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: JsonObject) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _synchronize(path: Path) -> None:
    """Wait until what is in ``path`` is on the disk: else a rename may outlive what it renames."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
