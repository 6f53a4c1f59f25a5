"""Try to import every package that a run needs. Package metadata does not show a missing shared library."""

from __future__ import annotations

import sys
from functools import partial

from harness.machine.limits import Look, output_of

IMPORT_LIMIT_S = 90.0  # seconds, as for torch; a cold import from a network file system takes a minute
KILL_S = 5.0  # seconds to end a process that did not answer
# Module by package, dependencies first. transformers checks the versions of its dependencies and imports the rest on
# use. torch and nvidia-ml-py have their own readings.
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
    """Return {package: import error} of the packages of ``MODULES`` that cannot be imported, in that order.

    Each import runs in its own process, all at once, so that a crash or a hang affects no other.
    """
    tries = {package: Look(partial(_try, module), IMPORT_LIMIT_S + KILL_S) for package, module in MODULES.items()}
    outcomes = {package: _outcome(tried) for package, tried in tries.items()}
    return {package: problem for package, problem in outcomes.items() if problem is not None}


def _try(module: str) -> str | None:
    status, _, errors = output_of([sys.executable, "-c", f"import {module}"], IMPORT_LIMIT_S)
    if status == 0:
        return None
    lines = errors.strip().splitlines()
    return lines[-1].strip() if lines else f"Python ended with status {status}"


def _outcome(tried: Look[str | None]) -> str | None:
    try:
        return tried.result()
    except OSError as error:  # A timeout is an OSError.
        return str(error)
