"""Gives and takes the state of a model of FSDP2 and its optimizer, of which each rank has a share."""

from __future__ import annotations

from typing import Any

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
