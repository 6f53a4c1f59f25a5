"""Checks by a trial that a model separates the documents of a packed row (``data.documents: separated``).

transformers builds a block-diagonal causal mask from position_ids that start again within a row, if it gets no
attention mask and no cache (``masking_utils.find_packed_sequence_indices``). Models do not declare if they do so, and a
model that does not would train on without an error.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from trainer.config import TrainerConfig
from trainer.errors import InputError

if TYPE_CHECKING:
    import torch

_FIRST, _SECOND = 3, 4  # tokens of the two trial documents
_TOLERANCE = 1e-4  # share of the largest logit that other documents may change


def check_separation(config: TrainerConfig, model: torch.nn.Module) -> None:
    """Raise InputError if, in a trial of ``model``, the second document of a row depends on the first."""
    name = config.model.factory or getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if (reason := _why_not(model)) is not None:
        raise InputError(f"data.documents: separated, but {name} {reason}; allowed with it: joined")


def _why_not(model: torch.nn.Module) -> str | None:
    import torch

    try:
        parameters = inspect.signature(model.forward).parameters
    except ValueError:
        parameters = {}  # type: ignore[assignment]
    if "position_ids" not in parameters:
        return "takes no position_ids"
    device = next(model.parameters()).device
    second = [1, 2, 3, 4]
    ids = torch.tensor([[5, 6, 7, *second], [8, 9, 5, *second]], device=device)
    places = torch.tensor([[*range(_FIRST), *range(_SECOND)]], device=device).expand(2, -1)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(input_ids=ids, position_ids=places)
    except Exception as error:  # The user's own code may raise anything.
        return f"cannot be given position_ids that begin anew ({type(error).__name__})"
    finally:
        model.train(training)
    logits = getattr(output, "logits", None)
    if logits is None:
        return "gives no logits, so nobody can tell whether it keeps documents apart"
    first_row, second_row = logits[:, _FIRST:].float()
    if float((first_row - second_row).abs().max()) > _TOLERANCE * float(first_row.abs().max()):
        return "lets a document attend to those before it, whatever its position_ids are"
    return None
