"""Defines what all sections of the configuration share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Config(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Milliseconds = Annotated[float, Field(ge=0, le=60_000)]


How = Literal["busy", "sleep"]
