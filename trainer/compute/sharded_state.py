"""Saves and loads the shares of an FSDP2 model and its optimizer, one share per rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.checkpoint_folder import of_the_disk

SHARDED = "sharded"  # name of this part in a checkpoint


class ShardedPart:
    """Checkpoint part with this rank's share of an FSDP2 model and its optimizer."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> Any:
        """Return this rank's share of weights and moments. Every rank must call it."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict: Any) -> None:
        """Load this rank's share of weights and moments. ``state_dict``: the folder of a checkpoint."""
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        state = self.state_dict()
        load(state, storage_reader=FileSystemReader(state_dict))
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def save_shares(state: Any, folder: Path, group: Any) -> None:
    """Write this rank's share of ``state`` into ``folder``. Every rank of ``group`` must call it.

    An error of one rank is raised in all, as OSError if it came from the system.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Writer(FileSystemWriter):
        def write_data(self, *what: Any) -> Any:
            try:
                return super().write_data(*what)
            except Exception as error:  # The system's error is not sent to the other ranks with it.
                if (failed := of_the_disk(error)) is None:
                    raise
                raise failed from error

    try:
        save(state, storage_writer=Writer(folder), process_group=group)
    except CheckpointException as error:  # CheckpointException is not an Exception, so it would not be reported.
        raise error.failures[min(error.failures)][0] from error
