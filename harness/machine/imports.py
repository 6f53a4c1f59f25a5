"""Whether the packages that a run needs can be imported: one whose library is missing has its metadata all the same."""

from __future__ import annotations

import sys
from functools import partial

from harness.machine.limits import Look, output_of

LIMIT_S = 90.0  # as torch's: a cold import from a network file system takes a minute
KILL_S = 5.0  # for ending what did not answer
# Package -> module, what others import first. transformers checks the versions of what it needs and imports the rest as
# it is used. torch and nvidia-ml-py have looks of their own.
MODULES = {
    "numpy": "numpy",
    "PyYAML": "yaml",
    "pydantic": "pydantic",
    "rich": "rich.console",
    "sentencepiece": "sentencepiece",
    "tokenizers": "tokenizers",
    "pyarrow": "pyarrow.parquet",
    "matplotlib": "matplotlib",
    "transformers": "transformers",
}


def read_imports() -> dict[str, str]:
    """Package -> why it cannot be imported, of those that cannot, in the order of ``MODULES``.

    Each in a process of its own, all at once: a library that crashes or hangs is told from the others.
    """
    tries = {package: Look(partial(_try, module), LIMIT_S + KILL_S) for package, module in MODULES.items()}
    found = {package: _outcome(tried) for package, tried in tries.items()}
    return {package: problem for package, problem in found.items() if problem is not None}


def _try(module: str) -> str | None:
    status, _, errors = output_of([sys.executable, "-c", f"import {module}"], LIMIT_S)
    if status == 0:
        return None
    lines = errors.strip().splitlines()
    return lines[-1].strip() if lines else f"Python ended with status {status}"


def _outcome(tried: Look[str | None]) -> str | None:
    try:
        return tried.result()
    except OSError as error:  # a timeout is one
        return str(error)
