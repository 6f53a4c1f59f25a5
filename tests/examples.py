"""How many examples a property test tries: all of them in `make test`, a tenth in `make quick`."""

from __future__ import annotations

import os

from hypothesis import settings

QUICK = "HARNESS_TEST_QUICK"  # set by `python -m tests quick`
USUAL = 100


def examples(count: int = USUAL, *, derandomize: bool = False) -> settings:
    """The settings of a property test with ``count`` examples, as a decorator; no example has a time limit."""
    tried = max(3, count // 10) if os.environ.get(QUICK) else count
    return settings(max_examples=tried, deadline=None, derandomize=derandomize)
