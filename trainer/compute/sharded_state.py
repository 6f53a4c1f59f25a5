"""Gives and takes the state of a model of FSDP2 and its optimizer, of which each rank has a share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.checkpoint_folder import of_the_disk

SHARDED = "sharded"  # the part of a checkpoint that it is


class ShardedPart:
    """A model of FSDP2 and its optimizer."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> Any:
        """This rank's share. Every rank must call it."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict: Any) -> None:
        """``state_dict``: the folder of a checkpoint, from which each rank reads its share."""
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        found = self.state_dict()
        load(found, storage_reader=FileSystemReader(state_dict))
        set_state_dict(
            self._model, self._optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"]
        )


def save_shares(state: Any, folder: Path, group: Any) -> None:
    """Write this rank's share of ``state`` into ``folder``. Every rank of ``group`` must call it.

    What went wrong in one rank is raised in all: OSError where the system said it.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Writer(FileSystemWriter):
        def write_data(self, *what: Any) -> Any:
            try:
                return super().write_data(*what)
            except Exception as error:  # what the system said is not sent to the other ranks with it
                if (failed := of_the_disk(error)) is None:
                    raise
                raise failed from error

    try:
        save(state, storage_writer=Writer(folder), process_group=group)
    except CheckpointException as error:  # no Exception, so nobody would say it
        raise error.failures[min(error.failures)][0] from error
