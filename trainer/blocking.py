"""Where in the source a call blocks."""

from __future__ import annotations

import sys
from pathlib import Path


def call_site(what: str, *inside: str) -> str:
    """``trainer/loop.py:49: what``: the innermost caller whose file is not this one nor one of ``inside``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, *inside):
        frame = frame.f_back
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}: {what}"


def short_path(path: str) -> str:
    """The last two parts of ``path``: enough to find a file, and no path of a machine."""
    return "/".join(Path(path).parts[-2:])
