"""Says which names may become a folder or a file: one part of a path, which leads nowhere else and can be printed."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from trainer.errors import InputError, visible

MAX_NAME_BYTES = 255  # of one part of a path, on every common file system


def folder_name(name: str) -> str:
    """``name`` itself; ValueError where it is no name of one folder within another."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"not usable as a folder's name: {_short(name)}")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"longer than the {MAX_NAME_BYTES} bytes that a folder's name may have: {_short(name)}")
    return name


def check_folder_name(name: str, what: str) -> str:
    """``name`` itself, the name of ``what``; InputError where :func:`folder_name` refuses it."""
    try:
        return folder_name(name)
    except ValueError as error:
        raise InputError(f"{what}: {error}") from error


def _short(name: str) -> str:
    text = visible(repr(name))
    return text if len(text) <= 60 else f"{text[:57]}..."


FolderName = Annotated[str, AfterValidator(folder_name)]
