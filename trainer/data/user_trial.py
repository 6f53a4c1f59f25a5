"""Runs ``python -m trainer.data.user_trial``: makes the first batch of a user's source, in a separate process.

It reads a data configuration from standard input, as JSON, and prints ``{"largest_id", "smallest_id", "trained_tokens",
"threads", "files"}`` or ``{"error"}``. ``threads``: the tokenizers called in threads of the source; ``files``: the
imported files in the working directory. The user's code prints to standard error.

``python -m trainer.data.user_trial KEY MODULE:FUNCTION`` only imports that, and prints ``{"files"}`` or ``{"error"}``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from trainer.config import DataConfig
from trainer.errors import InputError
from trainer.inject import Injector
from trainer.user_code import find, own_files


def main(key: str | None = None, name: str = "") -> int:
    """Print the first batch's facts for the configuration of stdin, or import ``name`` alone; errors are JSON."""
    folder = Path.cwd()  # The user's code may change it.
    out = os.dup(1)
    os.dup2(2, 1)
    result: dict[str, object] = {}
    try:
        if key is None:
            result = _try_source()
        else:
            find(key, name)
        result["files"] = own_files(folder)
    except InputError as error:
        result = {"error": str(error)}
    with os.fdopen(out, "w") as answer:
        json.dump(result, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Threads of the user's code must not keep the process alive.


def _try_source() -> dict[str, object]:
    from trainer.data import encoders
    from trainer.data.user_source import UserPipeline

    config = DataConfig.model_validate_json(sys.stdin.read())
    batch = UserPipeline(config, 0, 0, 1, Injector(None, 0)).next_batch()
    ids = batch.input_ids
    return {
        "largest_id": int(ids.max()),
        "smallest_id": int(ids.min()),
        "trained_tokens": batch.trained_tokens,
        "threads": sorted(encoders.in_threads),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
