"""harness upload: copies the folder of a training or a study to a URL. Skips files that were copied while it ran."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands import exit_codes
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.launch.uploads import Uploaded, Uploader

UPLOADS_SHOWN = 5  # names of files that cannot be copied


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="the folder of a training (harness train), a study or a sweep, or any other; links are followed",
    )
    parser.add_argument("url", metavar="URL", help="s3://BUCKET/FOLDER, gs://, file://, or another scheme of fsspec")
    parser.add_argument("--verify", action="store_true", help="also read every file back and compare its bytes")


def upload(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Copy the files that the destination lacks. Return 1 if some could not be copied, else 0."""
    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise InputError(f"upload: {folder}: no such folder")
    if not any(folder.iterdir()):
        raise InputError(f"upload: {folder}: empty; give the folder of a training, a study or a sweep")
    from harness.launch.uploads import Destination, Uploader

    uploader = Uploader(Destination(folder, arguments.url, verify=arguments.verify))
    uploader.begin()
    complete = finish_upload(folder, uploader, verify=arguments.verify)
    return 0 if complete else exit_codes.OF_STUDY["failed"]


def uploader_of(folder: Path, url: str) -> Uploader:
    """Return an uploader from ``folder`` to ``url``; InputError if no installed package can write there."""
    from harness.launch.uploads import Uploader, checked_destination

    return Uploader(checked_destination(folder, url))


def finish_upload(folder: Path, uploader: Uploader, *, json: bool = False, verify: bool = False) -> bool:
    """Copy the remaining files, and print the URL or a command for the missing ones. Return True if all were copied.

    ``json``: True to print to stderr, as stdout is for JSON. ``verify``: True to read files back and compare.
    """
    print("copying the remaining files", file=sys.stderr)
    result = uploader.end()
    if result.left_out:
        names = ", ".join(result.left_out[:UPLOADS_SHOWN]) + (", ..." if len(result.left_out) > UPLOADS_SHOWN else "")
        print(f"harness: {len(result.left_out):,} of {folder} cannot be uploaded: {names}", file=sys.stderr)
    if result.unlisted:
        print(
            f"warning: {result.url} cannot be listed ({result.unlisted}): not compared with {folder}", file=sys.stderr
        )
    if result.missing:
        print(f"harness: {_missing_line(folder, result)}", file=sys.stderr)
    else:
        read_back = ", read back and compared" if verify and not result.unlisted else ""
        line = f"uploaded: {result.url} ({result.files:,} file{'s' * (result.files != 1)}{read_back})"
        if json:
            print(line, file=sys.stderr)
        else:
            say(line)
    return not result.missing and not result.left_out and not (verify and result.unlisted)


def _missing_line(folder: Path, found: Uploaded) -> str:
    files = f"{len(found.missing):,} file{'s' * (len(found.missing) > 1)}"
    command = shlex.join(["harness", "upload", str(folder), found.url])
    return f"{files} not uploaded ({found.reason}); all files are in {folder}; upload the rest with: {command}"
