"""Saves checkpoints during training, and restores them.

A checkpoint is made of *parts*: objects with ``state_dict`` and ``load_state_dict``, by name. With ``asynchronous`` a
thread writes a copy of the state. The step waits for that copy, or else for all of the writing (phase ``checkpoint``).
"""

from __future__ import annotations

import io
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import checkpoint_folder
from trainer.checkpoint_folder import Checkpoint, Store
from trainer.compute.base import Stateful
from trainer.config_base import BEFORE, Config
from trainer.data.position import EpochInterval, Epochs
from trainer.errors import InputError, one_line
from trainer.files import remove, remove_leftovers
from trainer.json_types import Json, JsonObject, section

if TYPE_CHECKING:
    from trainer.config import CheckpointConfig, TrainerConfig
    from trainer.data.position import DataPosition

# Keys that may differ between a training and its resumption, because no step depends on them.
FREE = {
    "steps", "warmup_steps", "log_every", "checkpoint", "evaluation.every_steps", "evaluation.every_epochs",
    "evaluation.batches", "evaluation.multiple_choice",
    "data.prefetch", "data.pin_memory", "data.timeout_s", "data.start_method", "data.transport", "launch.timeout_s",
    "resume.llmc", "sample",
}  # fmt: skip


class RandomStates:
    """Checkpoint part with the random states of this process: torch's (also CUDA's), numpy's and Python's."""

    def state_dict(self) -> Any:
        import numpy as np
        import torch

        kind, keys, *rest = np.random.get_state(legacy=True)
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {
            "torch": torch.random.get_rng_state(),
            "cuda": devices,
            "numpy": [kind, np.asarray(keys).tolist(), *rest],
            "python": random.getstate(),
        }

    def load_state_dict(self, state_dict: Any) -> None:
        import numpy as np
        import torch

        torch.random.set_rng_state(state_dict["torch"])
        if state_dict["cuda"]:
            torch.cuda.set_rng_state_all(state_dict["cuda"])
        kind, keys, *rest = state_dict["numpy"]
        np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), *rest))
        random.setstate(state_dict["python"])


class DataPart:
    """Checkpoint part with the position in the data. Loading does nothing: it is read before batches are built."""

    def __init__(self, position: DataPosition) -> None:
        self._position = position
        self._tried = False

    def state_dict(self) -> Any:
        """Return the position. Raises InputError if a user's dataset put values into it that cannot be read again."""
        state = self._position.state_dict()
        if not self._tried:
            _try_to_read(state)
            self._tried = True
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        pass


def _try_to_read(state: Any) -> None:
    import torch

    written = io.BytesIO()
    try:
        torch.save(state, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except Exception as error:  # pickle and torch may raise anything for a user's own class.
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), str(error))
        raise InputError(
            "data.source: the state_dict of its dataset cannot be read back from a checkpoint; allowed: "
            f"numbers, strings, lists, dicts and tensors ({one_line(reason):.120})"
        ) from error


def parts_of(own: Mapping[str, Stateful], position: DataPosition) -> dict[str, Stateful]:
    """Return all parts of a checkpoint by name: those of the compute (``own``), data position and random states."""
    return {**own, "data": DataPart(position), "random": RandomStates()}


def load(parts: Mapping[str, Stateful], states: Any, checkpoint: Checkpoint) -> None:
    """Restore ``states`` into ``parts``, by name. Raises InputError, naming ``checkpoint``, if they do not fit."""
    if missing := sorted(parts.keys() ^ states.keys()):
        raise InputError(f"{checkpoint.path}: {missing[0]}: not a part of both the training and its checkpoint")
    for name, part in parts.items():
        try:
            part.load_state_dict(states[name])
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise InputError(f"{checkpoint.path}: {name}: does not fit ({one_line(error):.200})") from error


class Saver:
    """Saves a checkpoint whenever one is due, and removes all but the newest ``keep``. Each rank has one."""

    def __init__(
        self,
        config: CheckpointConfig,
        folder: Path,
        parts: Mapping[str, Stateful],
        about: Callable[[], JsonObject],
        store: Store,
        ready: Callable[[], None] = lambda: None,
        epochs: Epochs = lambda: None,
        *,
        owns_folder: bool = True,
    ) -> None:
        """Prepare the folder: remove what interrupted writes left.

        ``about``: returns further content of checkpoint.json. ``ready``: called when the files are written, by the
        thread that writes. ``epochs``: returns the finished ones. ``owns_folder``: False in a rank that makes no
        folders.
        """
        every_epochs = config.every_epochs
        self._interval = (
            None if every_epochs is None else EpochInterval(every_epochs, epochs, "checkpoint.every_epochs")
        )
        self._config, self._folder, self._parts = config, folder, parts
        self._about, self._store, self._ready = about, store, ready
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._saved_s = time.monotonic()
        self.last: int | None = None  # steps of the last checkpoint that was started
        self.writing_s: float | None = None  # seconds that writing the last one took, without copying the state
        # True if training ends after that many steps. The caller then saves a last checkpoint when all else is done.
        self.ends: Callable[[int], bool] = lambda _steps: False
        self.saved: Callable[[], None] = lambda: None  # called when a checkpoint is complete, also from a thread
        self._owns_folder = owns_folder
        if owns_folder:
            remove_leftovers(folder)

    def is_due(self, steps: int) -> bool:
        """Return True if a checkpoint is due. False after the last step: the caller saves that one at the end."""
        if self.ends(steps):
            return False
        if self._config.every_steps is not None:
            return steps % self._config.every_steps == 0
        if self._interval is not None:
            return self._interval.ends()
        return time.monotonic() - self._saved_s >= 60 * self._config.interval_minutes

    def save(self, steps: int) -> None:
        """Save the state after ``steps`` steps. Raises OSError if this checkpoint or the one before failed."""
        self.wait()  # Writes one at a time, so the ledger shows the wait for a slower disk here.
        copies = self._config.asynchronous
        states = {name: self._state_of(part, copies) for name, part in self._parts.items()}
        description, self.last = self._about(), steps
        if copies:
            self._thread = threading.Thread(
                target=self._write_noting, args=(steps, states, description), name="checkpoint"
            )
            self._thread.start()
        else:
            self._write(steps, states, description)
        self._saved_s = time.monotonic()

    def wait(self) -> None:
        """Wait until the checkpoint that a thread is writing is complete. Raises the error of that thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def discard(self) -> None:
        """Remove every checkpoint, also one that is still being written."""
        with suppress(Exception):
            self.wait()
        if self._owns_folder:
            remove(self._folder)

    def _state_of(self, part: Stateful, copies: bool) -> Any:
        """Return the state of ``part`` in host memory; with ``copies`` a copy that the next steps do not change."""
        return in_host_memory(part.state_dict(), copies)

    def _write_noting(self, steps: int, states: Any, about: JsonObject) -> None:
        try:
            self._write(steps, states, about)
        except BaseException as error:
            self._failed = error

    def _write(self, steps: int, states: Any, about: JsonObject) -> None:
        begun_s = time.monotonic()
        checkpoint_folder.write(self._folder, steps, states, about, self._store, self._ready)
        checkpoint_folder.retain(self._folder, self._config.keep)
        self.writing_s = time.monotonic() - begun_s
        self.saved()


def in_host_memory(state: Any, copies: bool) -> Any:
    """Return ``state`` with tensors in the host's memory. ``copies``: True to copy all, tied weights once."""
    import torch

    by_place: dict[tuple[object, ...], torch.Tensor] = {}

    def moved(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            # The memory of a rank's share (DTensor) is the memory of its local tensor.
            local = getattr(one, "to_local", None)
            tensor: torch.Tensor = one if local is None else local()
            place = (one.device, tensor.data_ptr(), one.dtype, tuple(one.shape), one.stride())
            if place not in by_place or not tensor.numel():
                copy = one.detach()
                by_place[place] = copy.to("cpu") if copy.device.type != "cpu" else copy.clone() if copies else copy
            return by_place[place]
        if isinstance(one, Mapping):
            return {key: moved(value) for key, value in one.items()}
        if isinstance(one, list | tuple):
            return type(one)(map(moved, one)) if type(one) in (list, tuple) else tuple(map(moved, one))
        return one

    return moved(state)


def identity(config: TrainerConfig) -> dict[str, Json]:
    """Return the value of each dotted configuration key that a resumed training must share: all but :data:`FREE`."""
    values: dict[str, Json] = {}

    def walk(section: JsonObject, prefix: str) -> None:
        for name, value in section.items():
            key = f"{prefix}{name}"
            if key in FREE:
                continue
            if isinstance(value, Mapping) and value:
                walk(value, f"{key}.")
            else:
                values[key] = value

    walk(config.model_dump(mode="json"), "")
    if config.evaluation is not None:  # A section of defaults has the same keys as no section.
        values["evaluation"] = "given"
    return values


def _defaults(section: Config, prefix: str = "") -> dict[str, Json]:
    """Return the default of each dotted key of ``section`` that has one."""
    values: dict[str, Json] = {}
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{name}", getattr(section, name)
        if isinstance(value, Config):
            values |= _defaults(value, f"{key}.")
        elif not field.is_required():
            values[key] = field.get_default(call_default_factory=True)
    return values


def _in_absent_section(key: str, values: Mapping[str, Json]) -> bool:
    """Return True if a section around the dotted ``key`` is null in ``values``."""
    sections = (key[:place] for place, character in enumerate(key) if character == ".")
    return any(name in values and values[name] is None for name in sections)


def check_identity(checkpoint: Checkpoint, config: TrainerConfig, fingerprints: Mapping[str, Json]) -> None:
    """Raise InputError, naming the first different key, if another training (data and code included) made it."""
    current = {**identity(config), **fingerprints}
    recorded = {**section(checkpoint.about, "config"), **section(checkpoint.about, "fingerprints")}
    # An older version of this code did not record its later keys. Every training then behaved as their defaults say, or
    # as BEFORE says.
    for key, value in {**_defaults(config), **BEFORE}.items():
        if key in current and not _in_absent_section(key, recorded):
            recorded.setdefault(key, value)
    keys = [key for key in sorted(current.keys() | recorded.keys()) if current.get(key) != recorded.get(key)]
    if keys:
        key = keys[0]
        more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
        raise InputError(
            f"{key}: {current.get(key)!r}, but {checkpoint.path} was made with {recorded.get(key)!r}{more}; "
            "allowed: the same training, or another --out"
        )
