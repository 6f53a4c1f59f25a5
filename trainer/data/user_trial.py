"""``python -m trainer.data.user_trial``: makes the first batch of a user's source, in a process of its own.

It reads a data configuration from standard input, as JSON, and prints ``{"largest_id", "smallest_id",
"trained_tokens", "threads"}`` (tokenizers that were called in threads of the source) or ``{"error"}``. What the user's
code prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys

from trainer.config import DataConfig
from trainer.errors import InputError
from trainer.inject import Injector


def main() -> int:
    """Try the source once."""
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        from trainer.data import encoders
        from trainer.data.user_source import UserPipeline

        config = DataConfig.model_validate_json(sys.stdin.read())
        batch = UserPipeline(config, 0, 0, 1, Injector(None, 0)).next_batch()
        ids = batch.input_ids
        found: dict[str, object] = {
            "largest_id": int(ids.max()), "smallest_id": int(ids.min()), "trained_tokens": batch.trained_tokens,
            "threads": sorted(encoders.in_threads),
        }  # fmt: skip
    except InputError as error:
        found = {"error": str(error)}
    with os.fdopen(out, "w") as answer:
        json.dump(found, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that the user's code has left must not keep it


if __name__ == "__main__":
    main()
