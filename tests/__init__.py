"""The tests, and what they share.

For their plugins pytest would rewrite the asserts of all files of this project and of hypothesis: 6 s of CPU in each
process that does so on a fresh clone, while what it compiles serves no other process.
"""

import sys

for _finder in sys.meta_path:
    if marked := getattr(_finder, "_must_rewrite", None):
        marked.difference_update({"harness", "hypothesis"})
        _finder._marked_for_rewrite_cache.clear()  # type: ignore[attr-defined]
