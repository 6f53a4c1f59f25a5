"""Tries to import every package that a run needs. Metadata alone do not show that a library is missing."""

from __future__ import annotations

import sys
from functools import partial

from harness.machine.limits import Look, output_of

IMPORT_LIMIT_S = 90.0  # as for torch: a cold import from a network file system takes a minute
KILL_S = 5.0  # for ending a process that did not answer
# Package -> module, dependencies first. transformers checks the versions of what it needs and imports the rest on use.
# torch and nvidia-ml-py have readings of their own.
MODULES = {
    "numpy": "numpy",
    "PyYAML": "yaml",
    "pydantic": "pydantic",
    "markdown-it-py": "markdown_it",
    "rich": "rich.console",
    "sentencepiece": "sentencepiece",
    "tokenizers": "tokenizers",
    "pyarrow": "pyarrow.parquet",
    "matplotlib": "matplotlib",
    "transformers": "transformers",
    "fsspec": "fsspec",
}


def read_imports() -> dict[str, str]:
    """Return package -> why it cannot be imported, in the order of ``MODULES``.

    Each import runs in its own process, all at once: a library that crashes or hangs does not affect the others.
    """
    tries = {package: Look(partial(_try, module), IMPORT_LIMIT_S + KILL_S) for package, module in MODULES.items()}
    found = {package: _outcome(tried) for package, tried in tries.items()}
    return {package: problem for package, problem in found.items() if problem is not None}


def _try(module: str) -> str | None:
    status, _, errors = output_of([sys.executable, "-c", f"import {module}"], IMPORT_LIMIT_S)
    if status == 0:
        return None
    lines = errors.strip().splitlines()
    return lines[-1].strip() if lines else f"Python ended with status {status}"


def _outcome(tried: Look[str | None]) -> str | None:
    try:
        return tried.result()
    except OSError as error:  # a timeout is one
        return str(error)
