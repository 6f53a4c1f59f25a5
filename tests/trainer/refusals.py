"""What a call refuses, as its one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainer.errors import InputError


def refusal(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Return the message of the InputError that ``call`` raises, which must be one line."""
    with pytest.raises(InputError) as error:
        call(*given, **named)
    assert "\n" not in str(error.value)
    return str(error.value)
