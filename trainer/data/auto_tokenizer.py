"""Loads tokenizers through transformers' AutoTokenizer. A folder's own code is never run.

transformers would ask on a terminal for permission to run it; this module raises InputError instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import shorten
from typing import Any

from trainer.errors import InputError, one_line

_KEY = "data.tokenizer.pretrained"


def load_auto(location: str, name: str | None = None) -> Any:
    """Load an AutoTokenizer from ``location``, called ``name`` in messages.

    Raises InputError if it cannot be loaded, or only by running code that comes with it.
    """
    if code := carried_code(Path(location), of_tokenizer=True):
        raise _never_run(name or location, code)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # transformers and the hub raise a dozen kinds; the user needs one line.
        code = carried_code(Path(location))
        if code or "trust_remote_code" in str(error):  # The harness has no option to follow that advice.
            raise _never_run(name or location, code) from error
        reason = shorten(str(error), 200, placeholder=" ...") or type(error).__name__
        raise InputError(f"{_KEY}: cannot load {name or location}: {reason}") from error


def carried_code(folder: Path, of_tokenizer: bool = False) -> list[str]:
    """Return a folder's own code (``auto_map``) as "file: class"; ``of_tokenizer``: only the tokenizer's."""
    code = []
    for file in ("tokenizer_config.json", "config.json"):
        try:
            content = json.loads((folder / file).read_bytes())
        except (OSError, ValueError, RecursionError):  # transformers reports the error in the file.
            continue
        names = content.get("auto_map") if isinstance(content, dict) else None
        if of_tokenizer and file == "config.json":
            names = names.get("AutoTokenizer") if isinstance(names, dict) else None
        classes = names.values() if isinstance(names, dict) else [names]
        flat = [name for entry in classes for name in (entry if isinstance(entry, list) else [entry])]
        code += [f"{file}: {one_line(name)}" for name in flat if name]
    return code


def _never_run(name: str, code: list[str]) -> InputError:
    listed = f" ({', '.join(code)})" if code else ""
    return InputError(
        f"{_KEY}: {name} carries code of its own{listed}, and code of a tokenizer's folder is never run; "
        "give a folder with a tokenizer.json and without auto_map"
    )
