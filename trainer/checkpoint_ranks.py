"""Saves the state of all ranks in one checkpoint, complete or not at all.

    state.pt, model.safetensors    ddp: as of one process, because every rank holds the same; fsdp: the schedule alone
    rank-0.pt, rank-1.pt, ...      data position and random states of each rank
    .metadata, __0_0.distcp, ...   fsdp: weights and moments, by torch.distributed.checkpoint: each rank its share

Every rank calls :meth:`RanksSaver.save` after the same step. Rank 0 makes the folder and sends its name to the others.
When all have written, it adds the digests and renames the folder. With ``asynchronous`` each rank copies its state
within the step, and a thread of each rank does the rest. These threads exchange data over gloo, in a separate group: in
the training's group they would collide with the gradients.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import telemetry
from trainer.checkpoint import Saver
from trainer.checkpoint_folder import Store, WholeState, of_the_disk
from trainer.compute.base import Stateful
from trainer.compute.parallel import SHARDED, ShardedPart, save_shares
from trainer.data.position import Epochs
from trainer.json_types import JsonObject
from trainer.ranks import Rank, failing, gloo_group, of_first

if TYPE_CHECKING:
    from trainer.config import CheckpointConfig

OWN = ("data", "random")  # parts that differ from rank to rank


class RanksState(Store):
    """Store of a training with several ranks: writes the states of all ranks into one folder. Each rank has one."""

    def __init__(self, rank: Rank, model: Any = None, tokenizer: Path | None = None) -> None:
        self._rank, self._whole = rank, WholeState(model, tokenizer)
        self._group: Any = None

    def meet(self) -> None:
        """Make the group over which the ranks write together. Every rank must call it before any of them writes."""
        self._group = gloo_group(self._rank)

    def write(self, folder: Path, states: Any) -> JsonObject:
        """Write the files in rank 0, while the others run :meth:`join_in`. Return the JSON that :meth:`read` needs."""
        import torch.distributed as dist

        dist.broadcast_object_list([str(folder)], src=0, group=self._group)
        common = {name: state for name, state in states.items() if name not in (*OWN, SHARDED)}
        stored: JsonObject = {}
        with self._agreeing():
            stored = self._whole.write(folder, common)
            self._write_own(folder, states)
        self._write_share(folder, states)
        return {**stored, "ranks": self._rank.of, SHARDED: SHARDED in states}

    def join_in(self, states: Any) -> None:
        """Write this rank's files into the folder that rank 0 names in :meth:`write`."""
        import torch.distributed as dist

        folder_names: list[Any] = [None]
        dist.broadcast_object_list(folder_names, src=0, group=self._group)
        with self._agreeing():
            self._write_own(Path(folder_names[0]), states)
        self._write_share(Path(folder_names[0]), states)

    def read(self, folder: Path, known: JsonObject) -> Any:
        import torch

        states = self._whole.read(folder, known)
        rank_states = torch.load(folder / f"rank-{self._rank.number}.pt", map_location="cpu", weights_only=True)
        return {**states, **rank_states, **({SHARDED: str(folder)} if known.get(SHARDED) else {})}

    def _write_own(self, folder: Path, states: Any) -> None:
        import torch

        with open(folder / f"rank-{self._rank.number}.pt", "wb") as file:
            torch.save({name: states[name] for name in OWN if name in states}, file)

    def _write_share(self, folder: Path, states: Any) -> None:
        if SHARDED in states:  # Raises the error of one rank in all ranks, so that all have written when it returns.
            save_shares(states[SHARDED], folder, self._group)

    @contextmanager
    def _agreeing(self) -> Iterator[None]:
        """Context around writing: an error of one rank is raised in all ranks at its end."""
        failed: Exception | None = None
        try:
            yield
        except Exception as error:
            failed = of_the_disk(error) or error
        numbers = failing(failed is not None, self._group)
        if failed is not None:
            raise failed
        if numbers:
            raise OSError(errno.EIO, f"rank {numbers[0]} could not write its part of the checkpoint")


class RanksSaver(Saver):
    """Saver of a rank of several. Rank 0's clock decides for all (phase ``checkpoint``), because clocks differ."""

    def __init__(
        self,
        config: CheckpointConfig,
        folder: Path,
        parts: Mapping[str, Stateful],
        about: Callable[[], JsonObject],
        store: RanksState,
        ready: Callable[[], None] = lambda: None,
        epochs: Epochs = lambda: None,
        *,
        rank: Rank,
    ) -> None:
        """Set up the saver. Every rank must call it; only rank 0 makes, renames and removes folders."""
        if not rank.is_first:  # Every rank holds the same values of the other parts.
            parts, about = {name: part for name, part in parts.items() if name in (*OWN, SHARDED)}, dict
        self._together = store
        super().__init__(config, folder, parts, about, store, ready, epochs, owns_folder=rank.is_first)
        store.meet()
        self._clock = gloo_group(rank) if config.every_steps is None else None

    def is_due(self, steps: int) -> bool:
        """Return :meth:`Saver.is_due` by the clock of rank 0. Every rank must call it."""
        if self._clock is None:
            return super().is_due(steps)
        with telemetry.span("checkpoint"):
            return bool(of_first(super().is_due(steps), self._clock))

    def _state_of(self, part: Stateful, copies: bool) -> Any:
        # torch.distributed.checkpoint copies tensors from the device by itself, one at a time.
        return part.state_dict() if isinstance(part, ShardedPart) and not copies else super()._state_of(part, copies)

    def _write(self, steps: int, states: Any, about: JsonObject) -> None:
        if self._owns_folder:
            super()._write(steps, states, about)
        else:
            self._together.join_in(states)


def make_store(rank: Rank, model: Any = None, tokenizer: Path | None = None) -> WholeState | RanksState:
    """Return the store of checkpoints: WholeState if ``rank`` is the only one, else RanksState."""
    return WholeState(model, tokenizer) if rank.of == 1 else RanksState(rank, model, tokenizer)


def make_saver(
    config: CheckpointConfig,
    folder: Path,
    parts: Mapping[str, Stateful],
    about: Callable[[], JsonObject],
    rank: Rank,
    ready: Callable[[], None] = lambda: None,
    tokenizer: Path | None = None,
    epochs: Epochs = lambda: None,
) -> Saver:
    """Return the saver of ``rank``. Arguments: see :class:`Saver` and :class:`WholeState`."""
    store = make_store(rank, parts.get("model"), tokenizer)
    if isinstance(store, WholeState):
        return Saver(config, folder, parts, about, store, ready, epochs)
    return RanksSaver(config, folder, parts, about, store, ready, epochs, rank=rank)
