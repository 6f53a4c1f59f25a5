"""Job f: what pretokenizing buys at 8 billion parameters, padded and packed."""

from __future__ import annotations

from tests.gpu.jobs.founding_1b import founding
from tests.gpu.lease.place import Place


def run(place: Place) -> None:
    founding(place, "founding-8b")
