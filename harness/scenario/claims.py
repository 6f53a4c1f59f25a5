"""Define the claims that a report can judge: ranges that include a measured figure or not.

If a common claim names a single figure, its text in :data:`CLAIMS` states the range around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ClaimName = Literal[
    "batching", "processes", "pool", "sync share", "tokenization share", "cpu use", "everything together"
]


# Figures that a claim can name: the figure of one arm, or its ratio to that of another arm.
Figure = Literal[
    "tokenizing speed", "chunk ms", "step ms", "tokens/s", "training speed", "sync share", "tokenization share",
    "device use", "cpu use", "stored bytes per byte of text",
]  # fmt: skip
SHARES: tuple[Figure, ...] = ("sync share", "tokenization share", "device use")


@dataclass(frozen=True)
class ClaimKind:
    """A claim: the figure ``of`` an arm, or its ratio to the baseline's, is from ``low`` to ``high``."""

    text: str  # common wording
    of: Figure
    low: float
    high: float
    ratio: bool = True  # ratio to a baseline


CLAIMS: dict[ClaimName, ClaimKind] = {
    "batching": ClaimKind("batching makes tokenization 20 to 30 % faster", "tokenizing speed", 1.2, 1.3),
    "processes": ClaimKind("processes make tokenization 4 to 8 times as fast", "tokenizing speed", 4, 8),
    "pool": ClaimKind("a pool of processes makes tokenization 2 to 4 times as fast", "tokenizing speed", 2, 4),
    "sync share": ClaimKind("sync takes 50 % of a step (here: 45 to 55 %)", "sync share", 0.45, 0.55, ratio=False),
    "tokenization share": ClaimKind(
        "tokenization takes 30 to 40 % of a step", "tokenization share", 0.3, 0.4, ratio=False
    ),
    "cpu use": ClaimKind("CPU use falls from 100 to 15 % (here: to 10 to 20 % of what it was)", "cpu use", 0.1, 0.2),
    "everything together": ClaimKind("all fixes together train 100 to 300 times as fast", "training speed", 100, 300),
}
