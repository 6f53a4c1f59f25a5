"""How many examples a property test tries: all of them in `make test-all`, else a share of them."""

from __future__ import annotations

import os

from hypothesis import settings

QUICK = "HARNESS_TEST_QUICK"  # set by `python -m tests quick`: a tenth
EVERY = "HARNESS_TEST_EVERY"  # set by `python -m tests nightly`, alone or with other parts: all
USUAL = 100
QUICK_SHARE, SHARE = 10, 5  # one in so many
FEWEST = 3


def examples(count: int = USUAL, *, derandomize: bool = False) -> settings:
    """The settings of a property test with ``count`` examples, as a decorator; no example has a time limit."""
    share = 1 if os.environ.get(EVERY) else QUICK_SHARE if os.environ.get(QUICK) else SHARE
    return settings(max_examples=max(FEWEST, count // share), deadline=None, derandomize=derandomize)
