"""Checks that a timeline file is whole. Viewers show the beginning of a damaged file without a warning."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from harness.show.timeline.build import CHROME_NAME
from harness.show.timeline.chrome import BEFORE_FACTS, BEGINNING

_AT_ONCE = 1 << 20  # bytes


def damage(path: Path) -> str | None:
    """Return what is wrong with the timeline at ``path``, None where it is whole. Reads it in pieces.

    gzip's checksum finds every later change. For Chrome's format the beginning and the end are checked too.
    """
    head, last, tail = b"", b"", b""
    try:
        with gzip.open(path) as file:
            while some := file.read(_AT_ONCE):
                head = head or some
                last, tail = tail, some
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return str(error)
    if not head:
        return "it is empty"
    if path.name != CHROME_NAME:
        return None
    _, found, facts = (last + tail).rpartition(BEFORE_FACTS)
    try:
        if found and head.startswith(BEGINNING):
            json.loads(facts.rstrip().removesuffix(b"}"))
            return None
    except ValueError:
        pass
    return "it is not a whole timeline"
