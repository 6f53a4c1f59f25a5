"""Writes a checkpoint's folder atomically, and refuses damaged ones.

    step-00000120/
        model.safetensors   the weights, and config.json for a model of transformers: AutoModel reads both
        tokenizer.json      and other files of AutoTokenizer, if the training's tokenizer is known
        state.pt            everything else, by torch.save; loaded with weights_only
        checkpoint.json     step, configuration and the SHA-256 of each file; written last, with its own digest

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
from trainer.files import naming, read_json, remove, temporary_path
from trainer.json_types import JsonObject, integer, section

CHECKPOINT_SCHEMA = 1
ABOUT, STATE, WEIGHTS, CONFIG = "checkpoint.json", "state.pt", "model.safetensors", "config.json"
MODEL = "model"  # part that is written as weights
_NAME = re.compile(r"step-(?P<steps>[0-9]{8,})")
State = Any  # key: part; value: output of torch's state_dict


class Store(Protocol):
    """Interface that turns the states of all checkpoint parts into files, and files into states."""

    def write(self, folder: Path, states: State) -> JsonObject:
        """Write the states of all parts, by name, into ``folder``. Return the JSON that :meth:`read` needs."""

    def read(self, folder: Path, known: JsonObject) -> State:
        """Return the states that :meth:`write` wrote, by part name. ``known``: the JSON that it returned."""


class WholeState:
    """Store that writes each part whole, in one process: weights as safetensors, everything else by torch.save."""

    def __init__(self, model: Any = None, tokenizer: Path | None = None) -> None:
        """Set up the store. ``model`` (None: no config.json) and ``tokenizer`` (folder; None: no files) go along."""
        self._tokenizer = tokenizer
        self._config = getattr(model, "config", None)
        self._kind = type(model).__name__

    def write(self, folder: Path, states: State) -> JsonObject:
        import torch

        shared: dict[str, str] = {}
        other_states = {name: state for name, state in states.items() if name != MODEL}
        if MODEL in states:
            from safetensors.torch import save_file

            tensors, shared, values = _weights(states[MODEL])
            other_states[MODEL] = values
            save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
            if self._config is not None and hasattr(self._config, "to_json_string"):
                content = {**json.loads(self._config.to_json_string()), "architectures": [self._kind]}
                (folder / CONFIG).write_text(json.dumps(content, indent=1) + "\n")
        if self._tokenizer is not None:
            for path in self._tokenizer.iterdir() if self._tokenizer.is_dir() else ():
                if path.is_file() and path.name != DIGESTS:
                    shutil.copyfile(path, folder / path.name)
        with open(folder / STATE, "wb") as file:  # Given a path, torch would hide the system's error about the disk.
            torch.save(other_states, file)
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
    """Split a model's state into (tensors, stored name of each alias of a tied weight, other values), by name."""
    import torch

    tensors: dict[str, Any] = {}
    shared: dict[str, str] = {}
    values: dict[str, Any] = {}
    name_of_place: dict[tuple[object, ...], str] = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            values[name] = value
            continue
        place = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride()) if value.numel() else (name,)
        if (kept := name_of_place.setdefault(place, name)) != name:
            shared[name] = kept
        else:
            tensors[name] = value.contiguous()
    return tensors, shared, values


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with all files intact, made by :func:`read`. ``about``: the content of its checkpoint.json."""

    path: Path
    about: JsonObject

    @property
    def steps(self) -> int:
        """Steps that the training had done before this checkpoint, which is also the number of the next step."""
        return integer(self.about, "steps")

    def states(self, store: Store) -> State:
        """Return the state of each part by name, read by ``store``. Raises InputError if they cannot be read."""
        try:
            return store.read(self.path, section(self.about, "store"))
        except Exception as error:  # torch, safetensors and pickle may raise anything for a file of another make.
            raise InputError(f"{self.path}: cannot be read ({one_line(error):.200})") from error


def path_of(folder: Path, steps: int) -> Path:
    """Return the path of the checkpoint after ``steps`` steps."""
    return folder / f"step-{steps:08d}"


def write(folder: Path, steps: int, states: State, about: JsonObject, store: Store, ready: Callable[[], None]) -> Path:
    """Write the checkpoint after ``steps`` steps; return its path. ``ready``: called before it gets its final name."""
    path = path_of(folder, steps)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        with naming(path, temporary):
            remove(temporary)
            temporary.mkdir()
            try:
                stored = store.write(temporary, states)
            except Exception as error:
                if (failed := of_the_disk(error)) is None:
                    raise
                raise failed from error
            files = {file.name: _sha256(file) for file in sorted(temporary.iterdir())}
            content = {"schema": CHECKPOINT_SCHEMA, "steps": steps, **about, "store": stored, "files": files}
            (temporary / ABOUT).write_text(json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n")
            for entry in (*temporary.iterdir(), temporary):
                _synchronize(entry)
            ready()
            remove_whole(path)  # a damaged checkpoint of the same step
            temporary.replace(path)
            _synchronize(folder)
    finally:
        remove(temporary)
    return path


def of_the_disk(error: BaseException) -> OSError | None:
    """Return the system's error (such as a full disk) behind an error of torch or safetensors; None without one."""
    match = re.search(r"\(os error (\d+)\)", str(error))
    if match is not None:
        return OSError(int(match[1]), os.strerror(int(match[1])))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return OSError(cause.errno, cause.strerror)
        cause = cause.__context__
    return None


def read(path: Path) -> Checkpoint:
    """Return the checkpoint in ``path``. Raises InputError, one line, if any of its files is missing or damaged."""
    try:
        content = read_json(path / ABOUT)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no whole checkpoint ({ABOUT}: {one_line(error):.120})") from error
    if not isinstance(content, dict) or content.pop("sha256", None) != _digest(content):
        raise InputError(f"{path}: damaged: {ABOUT} differs from what was written")
    if content.get("schema") != CHECKPOINT_SCHEMA:
        raise InputError(f"{path}: schema {content.get('schema')!r}; this version reads schema {CHECKPOINT_SCHEMA}")
    for name, expected in section(content, "files").items():
        try:
            actual = _sha256(path / name)
        except OSError as error:
            raise InputError(f"{path}: damaged: {name} cannot be read ({error.strerror})") from error
        if actual != expected:
            raise InputError(f"{path}: damaged: {name} differs from what was written")
    steps = content.get("steps")
    if not isinstance(steps, int) or path.name != path_of(path.parent, steps).name:
        raise InputError(f"{path}: it is the checkpoint of step {steps!r} under another name")
    return Checkpoint(path, content)


def written(folder: Path) -> list[Path]:
    """Return the folders of all checkpoints in ``folder``, intact or not, newest first."""
    try:
        folders = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint; None if there never was one. Raises InputError if all are damaged."""
    paths = written(folder)
    for place, path in enumerate(paths):
        try:
            return read(path)
        except InputError as error:
            consequence = "; the one before is used" if paths[place + 1 :] else ""
            print(f"warning: {error}{consequence}", file=sys.stderr)
    if paths:
        raise InputError(f"{folder}: none of {len(paths)} checkpoints can be used; remove them to start again")
    return None


def remove_newer(found: Checkpoint) -> None:
    """Remove the checkpoints newer than ``found``, the newest intact one, because :func:`retain` would count them."""
    for path in written(found.path.parent):
        if path == found.path:
            return
        remove_whole(path)


def retain(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints."""
    for path in written(folder)[keep:]:
        remove_whole(path)


def remove_whole(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so it never counts as damaged while it is being removed."""
    # A checkpoint being written has another temporary name.
    removed = temporary_path(path.with_name(f"{path.name}.gone"))
    try:
        path.replace(removed)
    except FileNotFoundError:
        return
    remove(removed)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: JsonObject) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _synchronize(path: Path) -> None:
    """Wait until ``path`` is on the disk. Otherwise a rename may survive a crash without its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
