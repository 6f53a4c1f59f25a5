"""Defines the base of all sections of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer.json_types import Json

# Keys of later versions, with the value of every run before. A study, baseline or state of the code without such a key
# means that value.
BEFORE: Mapping[str, Json] = {"compute.sync": "norm"}


class Config(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Milliseconds = Annotated[float, Field(ge=0, le=60_000)]


How = Literal["busy", "sleep"]
