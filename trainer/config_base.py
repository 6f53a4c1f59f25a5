"""Defines what all sections of the configuration share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer.json_types import Json

# Keys that came later, by what every run did before: a study, a baseline or a state of the code without one meant that.
BEFORE: Mapping[str, Json] = {"compute.sync": "norm"}


class Config(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Milliseconds = Annotated[float, Field(ge=0, le=60_000)]


How = Literal["busy", "sleep"]
