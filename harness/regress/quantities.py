"""Reads shares and times as people write them on a command line and in tests: ``3%``, ``10m``."""

from __future__ import annotations

import re

from trainer.errors import InputError

_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}


def read_share(text: str, what: str) -> float:
    """``3%`` as 0.03. InputError, naming ``what``, for anything else and for what lies outside 0.1 % to 100 %."""
    found = _SHARE.fullmatch(str(text).strip())
    if found is None or not 0.1 <= float(found[1]) <= 100:
        raise InputError(f"{what} {text!r}: allowed: a share such as 3%, from 0.1% to 100%")
    return float(found[1]) / 100


def read_limit(text: str, what: str) -> float | None:
    """A share, or None for ``off``."""
    return None if text == "off" else read_share(text, what)


def read_seconds(text: str, what: str) -> float:
    """``90s``, ``10m``, ``1.5h`` or plain seconds, as seconds. InputError, naming ``what``, for anything else."""
    found = _TIME.fullmatch(str(text).strip())
    if found is None or not float(found[1]) > 0:
        raise InputError(f"{what} {text!r}: allowed: a time such as 90s, 10m or 1h")
    return float(found[1]) * _SECONDS[found[2]]
