"""Fingerprint the program's own loaded modules: a different one in another run means that the code was edited."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator

from _harness_agent import boundaries, record, watching

_ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3))
_OURS = tuple(os.path.join(_ROOT, package) + os.sep for package in ("harness", "trainer"))
_MOST_FILES = 2000  # maximum number of files, in order of module names


def patch() -> None:
    """Install a hook that notes the :func:`fingerprint` at the first step, when the training code is loaded."""
    boundaries.on_some_steps.append(_on_step)


def _on_step(number: int) -> None:
    if number == 0:
        record.note("code", fingerprint())


def fingerprint() -> str:
    """Return a digest (16 hexadecimal digits) of the names and contents of the program's own loaded Python modules."""
    digest = hashlib.sha256()
    for name, path in sorted(_own_files())[:_MOST_FILES]:
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:
            continue  # deleted meanwhile, or within an archive
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _own_files() -> Iterator[tuple[str, str]]:
    library = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        real = os.path.realpath(path)
        if real.startswith((library, *_OURS)) or watching.is_installed(real):
            continue
        yield name, real
